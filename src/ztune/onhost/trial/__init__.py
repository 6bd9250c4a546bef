"""What runs beside the pool: jobs, probes and a trial's life. Standard library only; shipped as one file."""
