-- Version 5: whose run it is, and on which machine its process works; NULL in runs from before. See docs/results.md.
ALTER TABLE run ADD COLUMN made_by TEXT;
ALTER TABLE run ADD COLUMN works_on TEXT;
