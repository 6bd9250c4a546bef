-- Version 1. Every column is explained in docs/results.md.
CREATE TABLE run (
    seq          INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    kind         TEXT NOT NULL CHECK (kind IN ('screen', 'tune')),
    name         TEXT NOT NULL,
    created      TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('running', 'done', 'interrupted', 'failed')),
    pid          INTEGER,
    pid_started  REAL,
    study        TEXT NOT NULL,
    trace_path   TEXT NOT NULL,
    trace_sha    TEXT NOT NULL,
    environment  TEXT NOT NULL,
    versions     TEXT NOT NULL,
    seed         INTEGER NOT NULL,
    objective    TEXT NOT NULL,
    command      TEXT NOT NULL,
    options      TEXT NOT NULL,
    warnings     TEXT NOT NULL
) STRICT;

CREATE TABLE trial (
    id               INTEGER PRIMARY KEY,
    run_id           TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    number           INTEGER NOT NULL,
    round            INTEGER NOT NULL,
    layout_name      TEXT NOT NULL,
    layout_hash      TEXT NOT NULL,
    layout           TEXT NOT NULL,
    target           TEXT NOT NULL,
    status           TEXT NOT NULL CHECK (status IN ('pending', 'running', 'ok', 'failed')),
    error            TEXT,
    spec             TEXT,
    result           TEXT,
    engine_version   TEXT,
    openzfs_version  TEXT,
    started          TEXT,
    wall_s           REAL,
    is_baseline      INTEGER NOT NULL CHECK (is_baseline IN (0, 1)),
    UNIQUE (run_id, number),
    UNIQUE (run_id, layout_hash, target)
) STRICT;

CREATE INDEX trial_run ON trial (run_id);
