-- Version 2: trials on real ZFS. Every column is explained in docs/results.md.
-- SQLite can't change a CHECK or a NOT NULL, so both tables are made anew. Runs with foreign keys off.
CREATE TABLE run_2 (
    seq          INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    kind         TEXT NOT NULL CHECK (kind IN ('screen', 'tune', 'run')),
    name         TEXT NOT NULL,
    created      TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('running', 'done', 'interrupted', 'failed')),
    pid          INTEGER,
    pid_started  REAL,
    study        TEXT NOT NULL,
    trace_path   TEXT,
    trace_sha    TEXT,
    environment  TEXT NOT NULL,
    versions     TEXT NOT NULL,
    seed         INTEGER NOT NULL,
    objective    TEXT NOT NULL,
    command      TEXT NOT NULL,
    options      TEXT NOT NULL,
    warnings     TEXT NOT NULL,
    target       TEXT NOT NULL DEFAULT '{}',
    job          TEXT NOT NULL DEFAULT '{}',
    source_run   TEXT,
    outcome      TEXT NOT NULL DEFAULT '{}'
) STRICT;

INSERT INTO run_2 (seq, id, kind, name, created, status, pid, pid_started, study, trace_path, trace_sha,
                   environment, versions, seed, objective, command, options, warnings)
SELECT seq, id, kind, name, created, status, pid, pid_started, study, trace_path, trace_sha,
       environment, versions, seed, objective, command, options, warnings
FROM run;

CREATE TABLE trial_2 (
    id               INTEGER PRIMARY KEY,
    run_id           TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    number           INTEGER NOT NULL,
    round            INTEGER NOT NULL,
    block            INTEGER NOT NULL DEFAULT 0,
    twin             INTEGER NOT NULL DEFAULT 0,
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
    attempts         TEXT NOT NULL DEFAULT '[]',
    series           TEXT NOT NULL DEFAULT '[]',
    UNIQUE (run_id, number),
    UNIQUE (run_id, layout_hash, target, block, twin)
) STRICT;

INSERT INTO trial_2 (id, run_id, number, round, layout_name, layout_hash, layout, target, status, error, spec,
                     result, engine_version, openzfs_version, started, wall_s, is_baseline)
SELECT id, run_id, number, round, layout_name, layout_hash, layout, target, status, error, spec,
       result, engine_version, openzfs_version, started, wall_s, is_baseline
FROM trial;

DROP TABLE trial;
DROP TABLE run;
ALTER TABLE run_2 RENAME TO run;
ALTER TABLE trial_2 RENAME TO trial;
CREATE INDEX trial_run ON trial (run_id);
