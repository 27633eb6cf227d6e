-- The tables, what a row is, and what may happen to it. From the first release on, a change of the schema is a new file.
--
-- executions        One row per execution: which process owns it now, and what is needed to find it. Inserted, then only
--                   updated. `planwarden prune` deletes rows of finished executions; nothing else does. `ended_at` is
--                   `updated_at` when it is finished, else NULL. Indexes know by it what is finished, because SQLite
--                   writes an index anew whenever a column of it is set, as `status` often is.
-- synopses          One row per execution: what a list shows of it and finds it by, derived from the log. Inserted with the
--                   execution, updated when its plan changes and when it ends without success, deleted with it. `search`
--                   is folded text, `tools` has a line for each tool.
-- starts            One row per idempotency key of a principal: the execution that its first request started, and a digest of
--                   that request. Inserted in the transaction that starts the execution, deleted with it.
-- events            The log, one row per transaction, append-only: a JSON list of events starting at sequence `first`.
--                   `checksum` covers the execution's id and the other columns: SQLite does not detect flipped bits.
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
-- tokens            One row per bearer token of planwarden's own: the hash of the secret, its principal and role. Never
--                   deleted, so that revoking the last token does not look like never having had one.
-- codes             One row per one-time code of the inbox, by its hash. A link and the code typed instead of it share a
--                   `pairing`. Inserted, then only updated; deleted some time after it expired.
-- sessions          One row per browser that was let in, by the hash of its cookie. Inserted, updated and deleted as codes.
-- pairing_refusals  When a code was wrong, for the lockout; a few rows at most.
-- inboxes           Where the inboxes of this home listen now; valid while the liveness file of `owner` is locked.
-- keys              One row per person's key: the public half of a WebAuthn credential. Inserted, then only updated, never
--                   deleted: signatures in the audit are verified with it.
-- nonces            One row per challenge that waits to be signed. Inserted; deleted when it is used or has expired.
-- schedules         One row per schedule of a saved plan. Inserted, then updated on the condition that `version` is the one
--                   that was read, deleted by `planwarden schedule remove`. `due_at` is when a process has to look at it.

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
    leased_until  REAL NOT NULL,
    plan_digest   TEXT,
    step_count    INTEGER NOT NULL,
    steps_done    INTEGER NOT NULL,
    ended_at      REAL
) STRICT;

-- One index for two purposes: it finds a thread's executions, and a thread cannot have two unfinished ones. Unfinished ones
-- share the value 0 in it; finished ones have values of their own.
CREATE UNIQUE INDEX executions_of_thread ON executions (thread_id, CASE WHEN ended_at IS NULL THEN 0 ELSE number END);

-- Unfinished executions of given plans: the digest is set to NULL when the execution is finished. It is not a condition on
-- the status, so that the other updates of a row leave the index alone.
CREATE INDEX unfinished_plans ON executions (plan_digest) WHERE plan_digest IS NOT NULL;

-- Only what runs has an owner, and few executions run at once: all of them are looked through for those of one owner.
CREATE INDEX unfinished_executions ON executions (status) WHERE ended_at IS NULL;
-- For lists and for `prune`.
CREATE INDEX finished_executions ON executions (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX executions_of_principal ON executions (principal);

-- Beside the execution's own row, which every append writes anew.
CREATE TABLE synopses (
    execution   INTEGER PRIMARY KEY,
    title       TEXT NOT NULL,
    is_goal     INTEGER NOT NULL,
    host        TEXT NOT NULL,
    saved_plan  TEXT NOT NULL,
    tools       TEXT NOT NULL,
    fault       TEXT NOT NULL,
    search      TEXT NOT NULL
) STRICT;

CREATE TABLE starts (
    principal  TEXT NOT NULL,
    key        TEXT NOT NULL,
    execution  INTEGER NOT NULL,
    request    TEXT NOT NULL,
    PRIMARY KEY (principal, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX starts_of_execution ON starts (execution);

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

CREATE TABLE artifacts (
    number       INTEGER PRIMARY KEY,
    execution    INTEGER NOT NULL,
    artifact_id  TEXT NOT NULL,
    media_type   TEXT NOT NULL,
    data         BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX artifacts_of_execution ON artifacts (execution, artifact_id);

CREATE TABLE suspensions (
    number         INTEGER PRIMARY KEY,
    suspension_id  TEXT NOT NULL UNIQUE,
    execution      INTEGER NOT NULL,
    addressee      TEXT NOT NULL,
    risk_rank      INTEGER NOT NULL,
    status         TEXT NOT NULL,
    digest         TEXT NOT NULL,
    created_at     REAL NOT NULL,
    expires_at     REAL,
    alarm_at       REAL,
    closed_at      REAL
) STRICT;

CREATE INDEX pending_suspensions ON suspensions (number) WHERE status = 'pending';
CREATE INDEX waiting_suspensions ON suspensions (risk_rank, number) WHERE status = 'pending' AND addressee = 'human';
CREATE INDEX closed_suspensions ON suspensions (closed_at, number) WHERE status <> 'pending' AND addressee = 'human';
CREATE INDEX suspensions_of_execution ON suspensions (execution);
CREATE INDEX suspension_wakes ON suspensions (min(coalesce(alarm_at, expires_at), coalesce(expires_at, alarm_at)))
    WHERE status = 'pending' AND min(coalesce(alarm_at, expires_at), coalesce(expires_at, alarm_at)) IS NOT NULL;

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

CREATE TABLE grants (
    number             INTEGER PRIMARY KEY,
    grant_id           TEXT NOT NULL UNIQUE,
    tool_name          TEXT NOT NULL,
    definition_digest  TEXT NOT NULL,
    arguments          TEXT NOT NULL,
    free               TEXT NOT NULL,
    step               TEXT,
    uses               INTEGER NOT NULL,
    used               INTEGER NOT NULL,
    used_on            INTEGER NOT NULL,
    used_before        INTEGER NOT NULL,
    expires_at         REAL NOT NULL,
    owner              TEXT,
    created_by         TEXT NOT NULL,
    assurance          TEXT NOT NULL,
    channel            TEXT NOT NULL,
    created_at         REAL NOT NULL,
    revoked_at         REAL
) STRICT;

CREATE TABLE once_keys (
    number     INTEGER PRIMARY KEY,
    key        TEXT NOT NULL UNIQUE,
    tool_name  TEXT NOT NULL,
    fields     TEXT NOT NULL,
    holder     TEXT NOT NULL,
    principal  TEXT NOT NULL,
    taken_at   REAL NOT NULL,
    ends_at    REAL NOT NULL
) STRICT;

CREATE INDEX once_keys_of_holder ON once_keys (holder);
CREATE INDEX once_keys_of_tool ON once_keys (tool_name, number);
CREATE INDEX ended_once_keys ON once_keys (ends_at);

CREATE TABLE budget_shares (
    number   INTEGER PRIMARY KEY,
    budget   TEXT NOT NULL,
    holder   TEXT NOT NULL,
    amount   REAL NOT NULL,
    ends_at  REAL NOT NULL,
    UNIQUE (holder, budget)
) STRICT;

-- Has all that adding up a budget reads.
CREATE INDEX shares_of_budget ON budget_shares (budget, ends_at, holder, amount);
CREATE INDEX ended_shares ON budget_shares (ends_at);

CREATE TABLE notifications (
    number           INTEGER PRIMARY KEY,
    notification_id  TEXT NOT NULL UNIQUE,
    channel          TEXT NOT NULL,
    kind             TEXT NOT NULL,
    execution_id     TEXT NOT NULL,
    suspension_id    TEXT NOT NULL,
    facts            TEXT NOT NULL,
    created_at       REAL NOT NULL,
    attempts         INTEGER NOT NULL,
    next_at          REAL NOT NULL
) STRICT;

CREATE INDEX notifications_of_channel ON notifications (channel, next_at);

CREATE TABLE tokens (
    number       INTEGER PRIMARY KEY,
    token_id     TEXT NOT NULL UNIQUE,
    secret_hash  TEXT NOT NULL UNIQUE,
    principal    TEXT NOT NULL,
    role         TEXT NOT NULL CHECK (role IN ('caller', 'approver')),
    created_at   REAL NOT NULL,
    expires_at   REAL,
    revoked_at   REAL
) STRICT;

CREATE INDEX tokens_of_principal ON tokens (principal);

CREATE TABLE codes (
    hash        TEXT PRIMARY KEY,
    pairing     TEXT NOT NULL,
    principal   TEXT NOT NULL,
    is_typed    INTEGER NOT NULL,
    created_at  REAL NOT NULL,
    expires_at  REAL NOT NULL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    used_at     REAL
) STRICT;

CREATE INDEX codes_of_pairing ON codes (pairing);

CREATE TABLE sessions (
    hash        TEXT PRIMARY KEY,
    principal   TEXT NOT NULL,
    created_at  REAL NOT NULL,
    expires_at  REAL NOT NULL,
    ended_at    REAL
) STRICT;

CREATE TABLE pairing_refusals (
    number  INTEGER PRIMARY KEY,
    at      REAL NOT NULL
) STRICT;

CREATE TABLE inboxes (
    owner       TEXT PRIMARY KEY,
    url         TEXT NOT NULL,
    started_at  REAL NOT NULL
) STRICT;

CREATE TABLE keys (
    key_id         TEXT PRIMARY KEY,
    credential_id  BLOB NOT NULL,
    public_key     BLOB NOT NULL,
    principal      TEXT NOT NULL,
    rp_id          TEXT NOT NULL,
    label          TEXT NOT NULL,
    sign_count     INTEGER NOT NULL,
    created_at     REAL NOT NULL,
    used_at        REAL,
    revoked_at     REAL
) STRICT;

CREATE INDEX keys_of_principal ON keys (principal);

CREATE TABLE nonces (
    number         INTEGER PRIMARY KEY,
    nonce          TEXT NOT NULL UNIQUE,
    purpose        TEXT NOT NULL,
    session        TEXT NOT NULL,
    suspension_id  TEXT NOT NULL,
    digest         TEXT NOT NULL,
    content        TEXT NOT NULL,
    expires_at     REAL NOT NULL
) STRICT;

CREATE INDEX nonces_of_session ON nonces (session);

CREATE TABLE schedules (
    number          INTEGER PRIMARY KEY,
    schedule_id     TEXT NOT NULL UNIQUE,
    plan            TEXT NOT NULL,
    cron            TEXT NOT NULL,
    timezone        TEXT NOT NULL,
    inputs          TEXT NOT NULL,
    overlap         TEXT NOT NULL,
    missed          TEXT NOT NULL,
    owner           TEXT NOT NULL,
    created_by      TEXT NOT NULL,
    created_at      REAL NOT NULL,
    paused_at       REAL,
    next_at         INTEGER NOT NULL,
    starting_at     INTEGER,
    queued          TEXT NOT NULL,
    last_execution  TEXT,
    recent          TEXT NOT NULL,
    due_at          REAL,
    version         INTEGER NOT NULL
) STRICT;

CREATE INDEX due_schedules ON schedules (due_at) WHERE due_at IS NOT NULL;
