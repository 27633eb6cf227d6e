-- What only SQLite has, after the tables of storage/sql/migrations. It writes an index anew whenever a column of it is set, as
-- `status` often is; so indexes tell what is finished by `ended_at`.

-- One index for two purposes: it finds a thread's executions, and a thread cannot have two unfinished ones. Unfinished ones
-- share the value 0 in it; finished ones have values of their own.
CREATE UNIQUE INDEX executions_of_thread ON executions (thread_id, CASE WHEN ended_at IS NULL THEN 0 ELSE number END);
-- Only running executions have an owner, and few run at once: all of them are looked through for those of one owner.
CREATE INDEX unfinished_executions ON executions (status) WHERE ended_at IS NULL;
-- For lists and for `prune`.
CREATE INDEX finished_executions ON executions (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX executions_of_principal ON executions (principal);

-- Rows are appended at the end whatever execution they belong to, so that a group commit touches few pages.
CREATE TABLE events (
    position   INTEGER PRIMARY KEY,
    execution  INTEGER NOT NULL,
    first      INTEGER NOT NULL,
    at         REAL NOT NULL,
    body       TEXT NOT NULL,
    checksum   INTEGER NOT NULL,
    token      INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX events_of_execution ON events (execution, first);

CREATE TABLE artifacts (
    number       INTEGER PRIMARY KEY,
    execution    INTEGER NOT NULL,
    artifact_id  TEXT NOT NULL,
    media_type   TEXT NOT NULL,
    data         BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX artifacts_of_execution ON artifacts (execution, artifact_id);

CREATE TABLE audit (
    sequence       INTEGER PRIMARY KEY AUTOINCREMENT,
    at             REAL NOT NULL,
    kind           TEXT NOT NULL,
    execution_id   TEXT,
    suspension_id  TEXT,
    facts          TEXT NOT NULL,
    hash           BLOB NOT NULL
) STRICT;

-- The beginning of an id finds the few rows among which the whole id chooses, in half of the bytes.
CREATE INDEX audit_of_executions ON audit (substr(execution_id, 1, 8)) WHERE execution_id IS NOT NULL;
CREATE INDEX audit_of_policies ON audit (sequence) WHERE kind = 'policy';
-- What clients were told of an execution as a task, or answered without deciding; few executions have such rows. With `IN`,
-- SQLite makes a table of the kinds for each row that is added, which takes as long as the row.
CREATE INDEX audit_of_tasks ON audit (execution_id)
    WHERE kind = 'form_closed' OR kind = 'link_answered' OR kind = 'task_ended';
