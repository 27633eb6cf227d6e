-- The tables, what a row is, and what may happen to it. From the first release on, a change of the schema is a new file.
--
-- executions        One row per execution: which process owns it now, and what is needed to find it. Inserted, then only
--                   updated. `planwarden prune` deletes rows of finished executions; nothing else does. `ended_at` is
--                   `updated_at` if it is finished, else NULL. Indexes use that instead of `status`, because SQLite writes
--                   an index anew whenever a column of it is set, as `status` often is.
-- synopses          One row per execution: what a list shows of it and finds it by, derived from the log. Inserted with the
--                   execution, updated when its plan changes and when it ends without success, deleted with it. `search`
--                   is folded text, `tools` has a line for each tool.
-- starts            One row per idempotency key of a principal: the execution that its first request started, and a digest of
--                   that request. Inserted in the transaction that starts the execution, deleted with it.
-- events            The log, one row per transaction, append-only: a JSON list of events starting at sequence `first`.
--                   `checksum` covers the execution's id and the columns before it: SQLite does not detect flipped bits.
--                   `token` names the append that wrote the row. After a commit without an answer, the same append is sent
--                   again, and the token says that it is stored.
-- artifacts         Content that events mention and that is too large for the log. Inserted in the transaction of the
--                   event, never changed, deleted with its execution. `artifact_id` is a digest of type and data.
-- suspensions       One row per suspension, derived from the log: who answers, until when. Inserted, then only updated.
--                   `alarm_at` is when the next reminder or escalation is due, `closed_at` when it was decided, timed out
--                   or was withdrawn.
-- audit             One row per question to a person, answer, use of a grant and change of who may answer. Each row's hash
--                   covers the hash of the row before it. AUTOINCREMENT keeps the highest number ever given, so missing
--                   rows at the end are detected. Append-only; `planwarden prune` keeps it.
-- grants            One row per standing approval. Inserted; then only `used` grows and `revoked_at` is set. With a
--                   `step` of a saved plan, `uses` are those of one day: `used_on` is the day of the last use, by number,
--                   and `used_before` what was used on all days before it.
-- once_keys         One row per business key that a call has, by digest, and per key that something else took once. Inserted
--                   or taken over in the transaction of the call's intent; deleted when the call says that nothing
--                   happened, by `planwarden once forget`, and some time after `ends_at`. `fields` has the key's values.
--                   `holder` names the call by its idempotency key, and outlives its execution.
-- budget_shares     One row per call and budget of a rule that let it pass: what it takes of that budget until `ends_at`.
--                   Inserted and deleted as keys.
-- notifications     One row per message that one channel has yet to deliver. Inserted in the transaction of the event that it
--                   reports. A claim adds one to `attempts` and moves `next_at` behind the claim's end; the row is
--                   deleted when the message was delivered or given up.
-- records           One row per token, session, key, schedule, secret, running gate and so on, by `kind`: each class of
--                   `Record` in storage/ is a kind. `body` is JSON with the class's other fields. Inserted, updated on the
--                   condition that `version` is the one that was read, and deleted, except tokens and keys: revoking the
--                   last token must not look like never having had one, and signatures in the audit are verified with
--                   keys. `expires_at` is when a row is deleted, or a schedule has to be looked at.

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
);

-- Unfinished executions of given plans: the digest is set to NULL when the execution is finished. It is not a condition on
-- the status, so that the other updates of a row leave the index alone.
CREATE INDEX unfinished_plans ON executions (plan_digest) WHERE plan_digest IS NOT NULL;

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

CREATE INDEX pending_suspensions ON suspensions (number) WHERE status = 'pending';
CREATE INDEX waiting_suspensions ON suspensions (risk_rank, number) WHERE status = 'pending' AND addressee = 'human';
CREATE INDEX closed_suspensions ON suspensions (closed_at, number) WHERE status <> 'pending' AND addressee = 'human';
CREATE INDEX suspensions_of_execution ON suspensions (execution);
CREATE INDEX suspension_wakes ON suspensions (least(alarm_at, expires_at))
    WHERE status = 'pending' AND least(alarm_at, expires_at) IS NOT NULL;

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

-- Has all columns that adding up a budget reads.
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

CREATE TABLE records (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        text NOT NULL,
    id          text NOT NULL,
    owner       text NOT NULL,
    expires_at  double precision,
    version     bigint NOT NULL,
    body        text NOT NULL,
    UNIQUE (kind, id)
);

CREATE INDEX records_of_owner ON records (kind, owner, number);
CREATE INDEX due_records ON records (kind, expires_at) WHERE expires_at IS NOT NULL;
