-- executions   one row per execution: who owns it now, and what is needed to find it. Inserted, then only updated.
-- events       the log, one row per transaction, append-only: a JSON array of events starting at sequence `first`;
--              `checksum` is over the execution's id and the other columns, because SQLite does not notice flipped bits.
-- suspensions  one row per question, derived from the log: who is to answer, until when. Inserted, then only updated.
-- Rows of finished executions are deleted by `planwarden prune` and by nothing else.

CREATE TABLE executions (
    number        INTEGER PRIMARY KEY,
    execution_id  TEXT NOT NULL UNIQUE,
    thread_id     TEXT NOT NULL,
    principal     TEXT NOT NULL,
    status        TEXT NOT NULL,
    version       INTEGER NOT NULL,
    created_at    REAL NOT NULL,
    updated_at    REAL NOT NULL,
    owner         TEXT,
    fence         INTEGER NOT NULL,
    leased_until  REAL NOT NULL
) STRICT;

CREATE INDEX executions_of_thread ON executions (thread_id);

CREATE UNIQUE INDEX one_unfinished_execution_per_thread ON executions (thread_id)
    WHERE status NOT IN ('completed', 'rejected', 'failed', 'incomplete', 'cancelled');

CREATE INDEX running_executions ON executions (leased_until) WHERE status = 'running';

-- Rows are appended at the end whatever execution they belong to, so that a group commit touches few pages.
CREATE TABLE events (
    position   INTEGER PRIMARY KEY,
    execution  INTEGER NOT NULL,
    first      INTEGER NOT NULL,
    at         REAL NOT NULL,
    body       TEXT NOT NULL,
    checksum   INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX events_of_execution ON events (execution, first);

CREATE TABLE suspensions (
    number         INTEGER PRIMARY KEY,
    suspension_id  TEXT NOT NULL UNIQUE,
    execution      INTEGER NOT NULL,
    addressee      TEXT NOT NULL,
    status         TEXT NOT NULL,
    digest         TEXT NOT NULL,
    created_at     REAL NOT NULL,
    expires_at     REAL
) STRICT;

CREATE INDEX pending_suspensions ON suspensions (number) WHERE status = 'pending';
CREATE INDEX suspension_deadlines ON suspensions (expires_at) WHERE status = 'pending' AND expires_at IS NOT NULL;
CREATE INDEX suspensions_of_execution ON suspensions (execution);
