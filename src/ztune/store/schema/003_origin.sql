-- Version 3: which store its results come from, wherever they are carried. See docs/results-format.md.
CREATE TABLE origin (
    id  TEXT NOT NULL
) STRICT;

INSERT INTO origin (id) VALUES (lower(hex(randomblob(8))));
