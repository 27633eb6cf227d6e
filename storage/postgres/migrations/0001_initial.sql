-- The tables, as in SQLite (storage/sqlite/migrations says what a row is), with what PostgreSQL needs otherwise:
--
-- events.token      Names the append that wrote the row. Whoever lost the answer to a commit sends the same append again
--                   and learns from the token that it is stored.
-- audit_unsealed    Rows of the audit as their transactions wrote them. Any process moves them into `audit`, in order and
--                   chained by hash. In the transaction, the chain would make all commits of all processes wait in a row.
-- audit_state       One row: the highest number that a row of the audit ever had.
-- owners            The processes that said they live, by the key of the advisory lock that each holds.
--
-- Rows that are updated often leave room in their pages (fillfactor), and no index has what each update sets, so that an
-- update touches no index.

CREATE TABLE executions (
    number        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    execution_id  text NOT NULL UNIQUE,
    thread_id     text NOT NULL,
    principal     text NOT NULL,
    status        text NOT NULL,
    version       bigint NOT NULL,
    created_at    double precision NOT NULL,
    updated_at    double precision NOT NULL,
    owner         text,
    fence         bigint NOT NULL,
    leased_until  double precision NOT NULL,
    plan_digest   text,
    step_count    bigint NOT NULL,
    steps_done    bigint NOT NULL,
    ended_at      double precision
) WITH (fillfactor = 70);

CREATE INDEX executions_of_thread ON executions (thread_id, number);
CREATE UNIQUE INDEX unfinished_of_thread ON executions (thread_id)
    WHERE ended_at IS NULL;
CREATE INDEX unfinished_plans ON executions (plan_digest) WHERE plan_digest IS NOT NULL;
CREATE INDEX running_executions ON executions (number) WHERE status = 'running';
CREATE INDEX unfinished_executions ON executions (number) WHERE ended_at IS NULL;
CREATE INDEX finished_executions ON executions (ended_at, number) WHERE ended_at IS NOT NULL;
CREATE INDEX executions_of_principal ON executions (principal, number);

CREATE TABLE synopses (
    execution   bigint PRIMARY KEY,
    title       text NOT NULL,
    is_goal     boolean NOT NULL,
    host        text NOT NULL,
    saved_plan  text NOT NULL,
    tools       text NOT NULL,
    fault       text NOT NULL,
    search      text NOT NULL
);

CREATE TABLE starts (
    principal  text NOT NULL,
    key        text NOT NULL,
    execution  bigint NOT NULL,
    request    text NOT NULL,
    PRIMARY KEY (principal, key)
);

CREATE INDEX starts_of_execution ON starts (execution);

CREATE TABLE events (
    execution  bigint NOT NULL,
    first      bigint NOT NULL,
    at         double precision NOT NULL,
    body       text NOT NULL,
    checksum   bigint NOT NULL,
    token      text NOT NULL,
    PRIMARY KEY (execution, first)
);

CREATE TABLE artifacts (
    execution    bigint NOT NULL,
    artifact_id  text NOT NULL,
    media_type   text NOT NULL,
    data         bytea NOT NULL,
    PRIMARY KEY (execution, artifact_id)
);

CREATE TABLE suspensions (
    number         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    suspension_id  text NOT NULL UNIQUE,
    execution      bigint NOT NULL,
    addressee      text NOT NULL,
    risk_rank      bigint NOT NULL,
    status         text NOT NULL,
    digest         text NOT NULL,
    created_at     double precision NOT NULL,
    expires_at     double precision,
    alarm_at       double precision,
    closed_at      double precision
);

CREATE INDEX waiting_suspensions ON suspensions (risk_rank, number) WHERE status = 'pending' AND addressee = 'human';
CREATE INDEX closed_suspensions ON suspensions (closed_at, number) WHERE status <> 'pending' AND addressee = 'human';
CREATE INDEX pending_suspensions ON suspensions (number) WHERE status = 'pending';
CREATE INDEX suspensions_of_execution ON suspensions (execution);
CREATE INDEX suspension_wakes ON suspensions (least(alarm_at, expires_at))
    WHERE status = 'pending' AND least(alarm_at, expires_at) IS NOT NULL;

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
    WHERE kind IN ('form_closed', 'link_answered', 'task_ended');

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

CREATE TABLE grants (
    number             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    grant_id           text NOT NULL UNIQUE,
    tool_name          text NOT NULL,
    definition_digest  text NOT NULL,
    arguments          text NOT NULL,
    free               text NOT NULL,
    step               text,
    uses               bigint NOT NULL,
    used               bigint NOT NULL,
    used_on            bigint NOT NULL,
    used_before        bigint NOT NULL,
    expires_at         double precision NOT NULL,
    owner              text,
    created_by         text NOT NULL,
    assurance          text NOT NULL,
    channel            text NOT NULL,
    created_at         double precision NOT NULL,
    revoked_at         double precision
);

CREATE TABLE once_keys (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key        text NOT NULL UNIQUE,
    tool_name  text NOT NULL,
    fields     text NOT NULL,
    holder     text NOT NULL,
    principal  text NOT NULL,
    taken_at   double precision NOT NULL,
    ends_at    double precision NOT NULL
);

CREATE INDEX once_keys_of_holder ON once_keys (holder);
CREATE INDEX once_keys_of_tool ON once_keys (tool_name, number);
CREATE INDEX ended_once_keys ON once_keys (ends_at);

CREATE TABLE budget_shares (
    number   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    budget   text NOT NULL,
    holder   text NOT NULL,
    amount   double precision NOT NULL,
    ends_at  double precision NOT NULL,
    UNIQUE (holder, budget)
);

-- Has all that adding up a budget reads.
CREATE INDEX shares_of_budget ON budget_shares (budget, ends_at, holder, amount);
CREATE INDEX ended_shares ON budget_shares (ends_at);

CREATE TABLE notifications (
    number           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    notification_id  text NOT NULL UNIQUE,
    channel          text NOT NULL,
    kind             text NOT NULL,
    execution_id     text NOT NULL,
    suspension_id    text NOT NULL,
    facts            text NOT NULL,
    created_at       double precision NOT NULL,
    attempts         bigint NOT NULL,
    next_at          double precision NOT NULL
);

CREATE INDEX notifications_of_channel ON notifications (channel, next_at);

CREATE TABLE tokens (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token_id     text NOT NULL UNIQUE,
    secret_hash  text NOT NULL UNIQUE,
    principal    text NOT NULL,
    role         text NOT NULL CHECK (role IN ('caller', 'approver')),
    created_at   double precision NOT NULL,
    expires_at   double precision,
    revoked_at   double precision
);

CREATE INDEX tokens_of_principal ON tokens (principal);

CREATE TABLE codes (
    hash        text PRIMARY KEY,
    pairing     text NOT NULL,
    principal   text NOT NULL,
    is_typed    boolean NOT NULL,
    created_at  double precision NOT NULL,
    expires_at  double precision NOT NULL,
    attempts    bigint NOT NULL DEFAULT 0,
    used_at     double precision
);

CREATE INDEX codes_of_pairing ON codes (pairing);

CREATE TABLE sessions (
    hash        text PRIMARY KEY,
    principal   text NOT NULL,
    created_at  double precision NOT NULL,
    expires_at  double precision NOT NULL,
    ended_at    double precision
);

CREATE TABLE pairing_refusals (
    number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      double precision NOT NULL
);

CREATE TABLE inboxes (
    owner       text PRIMARY KEY,
    url         text NOT NULL,
    started_at  double precision NOT NULL
);

CREATE TABLE keys (
    number         bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    key_id         text PRIMARY KEY,
    credential_id  bytea NOT NULL,
    public_key     bytea NOT NULL,
    principal      text NOT NULL,
    rp_id          text NOT NULL,
    label          text NOT NULL,
    sign_count     bigint NOT NULL,
    created_at     double precision NOT NULL,
    used_at        double precision,
    revoked_at     double precision
);

CREATE INDEX keys_of_principal ON keys (principal);

CREATE TABLE nonces (
    number         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    nonce          text NOT NULL UNIQUE,
    purpose        text NOT NULL,
    session        text NOT NULL,
    suspension_id  text NOT NULL,
    digest         text NOT NULL,
    content        text NOT NULL,
    expires_at     double precision NOT NULL
);

CREATE INDEX nonces_of_session ON nonces (session);

CREATE TABLE schedules (
    number          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id     text NOT NULL UNIQUE,
    plan            text NOT NULL,
    cron            text NOT NULL,
    timezone        text NOT NULL,
    inputs          text NOT NULL,
    overlap         text NOT NULL,
    missed          text NOT NULL,
    owner           text NOT NULL,
    created_by      text NOT NULL,
    created_at      double precision NOT NULL,
    paused_at       double precision,
    next_at         bigint NOT NULL,
    starting_at     bigint,
    queued          text NOT NULL,
    last_execution  text,
    recent          text NOT NULL,
    due_at          double precision,
    version         bigint NOT NULL
);

CREATE INDEX due_schedules ON schedules (due_at) WHERE due_at IS NOT NULL;

-- The process that may own executions, while it holds the advisory lock `lock_key` on its control connection to the server
-- that started at `server_start`.
CREATE TABLE owners (
    owner         text PRIMARY KEY,
    lock_key      bigint NOT NULL,
    announced_at  double precision NOT NULL,
    server_start  timestamptz NOT NULL,
    facts         text
);

-- What the processes keep secret from whoever reads the database: sealed with PLANWARDEN_SECRET_KEY, bound to the name.
CREATE TABLE secrets (
    name    text PRIMARY KEY,
    sealed  bytea NOT NULL
);

-- A lock on the name of a secret ends by itself, because its holder may die.
CREATE TABLE secret_locks (
    name          text PRIMARY KEY,
    holder        text NOT NULL,
    locked_until  timestamptz NOT NULL
);
