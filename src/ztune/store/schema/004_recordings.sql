-- Version 4: layouts may have recordings of their own; NULL: the run's. See docs/results.md.
ALTER TABLE trial ADD COLUMN trace_path TEXT;
ALTER TABLE trial ADD COLUMN trace_sha TEXT;
