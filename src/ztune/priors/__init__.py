"""What was best for loads like this one: an answer without a recording, from results that are there."""
