-- What only PostgreSQL has, after the tables of storage/sql/migrations:
--
-- audit_unsealed    Rows of the audit as their transactions wrote them. Any process moves them into `audit`, in order and
--                   chained by hash. Chained in their own transactions, they would make all commits wait in a queue.
-- audit_state       One row: the highest number that a row of the audit ever had.
-- owners            The processes that said they live, by the key of the advisory lock that each holds.
--
-- Pages leave space for rows that are updated often (fillfactor), and no index has what each update sets, so that an
-- update touches no index.

ALTER TABLE executions SET (fillfactor = 70);
CREATE INDEX executions_of_thread ON executions (thread_id, number);
CREATE UNIQUE INDEX unfinished_of_thread ON executions (thread_id) WHERE ended_at IS NULL;
CREATE INDEX running_executions ON executions (number) WHERE status = 'running';
CREATE INDEX unfinished_executions ON executions (number) WHERE ended_at IS NULL;
CREATE INDEX finished_executions ON executions (ended_at, number) WHERE ended_at IS NOT NULL;
CREATE INDEX executions_of_principal ON executions (principal, number);

CREATE TABLE events (
    execution  bigint NOT NULL,
    first      bigint NOT NULL,
    at         double precision NOT NULL,
    body       text NOT NULL,
    checksum   bigint NOT NULL,
    token      bigint NOT NULL,
    PRIMARY KEY (execution, first)
);

CREATE TABLE artifacts (
    execution    bigint NOT NULL,
    artifact_id  text NOT NULL,
    media_type   text NOT NULL,
    data         bytea NOT NULL,
    PRIMARY KEY (execution, artifact_id)
);

CREATE TABLE audit (
    sequence       bigint PRIMARY KEY,
    at             double precision NOT NULL,
    kind           text NOT NULL,
    execution_id   text,
    suspension_id  text,
    facts          text NOT NULL,
    hash           bytea NOT NULL
);

CREATE INDEX audit_of_executions ON audit (execution_id, sequence) WHERE execution_id IS NOT NULL;
CREATE INDEX audit_of_policies ON audit (sequence) WHERE kind = 'policy';
CREATE INDEX audit_of_tasks ON audit (execution_id, sequence)
    WHERE kind = 'form_closed' OR kind = 'link_answered' OR kind = 'task_ended';

CREATE TABLE audit_unsealed (
    number         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             double precision NOT NULL,
    kind           text NOT NULL,
    execution_id   text,
    suspension_id  text,
    facts          text NOT NULL,
    policy         text NOT NULL
);

CREATE TABLE audit_state (last_sequence bigint NOT NULL);
INSERT INTO audit_state VALUES (0);

-- The process that may own executions, while it holds the advisory lock `lock_key` on its control connection to the server
-- that started at `server_start`.
CREATE TABLE owners (
    owner         text PRIMARY KEY,
    lock_key      bigint NOT NULL,
    announced_at  double precision NOT NULL,
    server_start  timestamptz NOT NULL,
    facts         text
);
