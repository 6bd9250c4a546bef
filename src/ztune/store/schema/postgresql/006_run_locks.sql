-- Version 6: a lock says that a run is worked on, and no longer when its process began. See docs/results.md.
ALTER TABLE run DROP COLUMN pid_started;
