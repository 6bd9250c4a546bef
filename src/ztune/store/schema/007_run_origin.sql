-- Version 7: which store a run was made in, also where it was copied since. See docs/results.md.
ALTER TABLE run ADD COLUMN origin TEXT;
UPDATE run SET origin = (SELECT id FROM origin);
