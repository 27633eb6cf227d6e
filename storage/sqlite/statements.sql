-- The statements that only SQLite runs.

-- name: create_execution
-- A new execution; fails on the unique index when the thread has an unfinished one.
INSERT INTO executions (execution_id, thread_id, principal, status, version, created_at, updated_at, owner, fence,
                        leased_until, plan_digest, step_count, steps_done)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 1, $9, $10, $11, $12);

-- name: thread_end
-- The newest execution of a thread.
SELECT execution_id, version FROM executions WHERE thread_id = $1 ORDER BY number DESC LIMIT 1;

-- name: unfinished_plan
-- The oldest unfinished execution of a plan, and a key that started it. `+` keeps SQLite from the index of principals,
-- in which it would look at every execution of this one.
SELECT x.execution_id, x.thread_id, (SELECT s.key FROM starts AS s WHERE s.execution = x.number LIMIT 1)
FROM executions AS x WHERE x.plan_digest = $1 AND +x.principal = $2 ORDER BY x.number LIMIT 1;

-- name: add_start
-- The key that started an execution, checked before in the same transaction.
INSERT INTO starts (principal, key, execution, request) VALUES ($1, $2, $3, $4);

-- name: end_execution
-- An execution is finished: its thread may have another one, and its plan be started again without a warning. With NULL it
-- goes on after it was finished, if it was.
UPDATE executions SET ended_at = $1, plan_digest = CASE WHEN $1 IS NULL THEN plan_digest END
WHERE number = $2 AND ended_at IS NOT $1;

-- name: unfinished_of_thread
-- The unfinished execution of a thread.
SELECT execution_id FROM executions WHERE thread_id = $1 AND ended_at IS NULL;

-- name: find_row
-- The row of an execution, and who owns it.
SELECT number, owner, fence, leased_until FROM executions WHERE execution_id = $1;

-- name: extend_running
-- The owner's next version of an execution that goes on running. It sets nothing that an index has, because SQLite writes
-- an index anew wherever one of its columns is set, changed or not.
UPDATE executions SET version = $1, updated_at = $2, step_count = coalesce($3, step_count),
    steps_done = coalesce($4, steps_done), leased_until = $5
WHERE number = $6 AND execution_id = $7 AND version = $8 AND owner = $9 AND fence = $10 AND status = 'running';

-- name: extend_execution
-- The next version, with who owns it from now on. Updates nothing unless owner, fence and version are still those.
UPDATE executions SET version = $1, updated_at = $2, step_count = coalesce($3, step_count),
    steps_done = coalesce($4, steps_done), leased_until = $5, status = $6, owner = $7, fence = $8
WHERE number = $9 AND execution_id = $10 AND version = $11 AND owner IS $12 AND fence = $13;

-- name: add_events
-- One transaction's events.
INSERT INTO events (execution, first, at, body, checksum) VALUES ($1, $2, $3, $4, $5);

-- name: write_synopsis
-- What a list shows of an execution, from its creation on, and again when its plan changes.
INSERT INTO synopses (execution, title, is_goal, host, saved_plan, tools, fault, search) VALUES ($1, $2, $3, $4, $5, $6, '', $7)
ON CONFLICT (execution) DO UPDATE
SET title = excluded.title, is_goal = excluded.is_goal, host = excluded.host, saved_plan = excluded.saved_plan,
    tools = excluded.tools, search = excluded.search;

-- name: write_fault
-- Why an execution was finished without success; nothing when it goes on.
UPDATE synopses SET fault = $1 WHERE execution = $2 AND fault <> $1;

-- name: add_artifact
-- Content beside the log; the same content of an execution is stored once.
INSERT INTO artifacts (execution, artifact_id, media_type, data) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;

-- name: read_guarded
-- The columns that a guard compares.
SELECT status, digest, expires_at FROM suspensions WHERE suspension_id = $1;

-- name: open_suspension
-- A new suspension.
INSERT INTO suspensions (suspension_id, execution, addressee, risk_rank, status, digest, created_at, expires_at, alarm_at)
VALUES ($1, $2, $3, $4, 'pending', $5, $6, $7, $8);

-- name: revise_suspension
-- A suspension was revised before it was answered.
UPDATE suspensions SET digest = $1, risk_rank = $2, expires_at = $3, alarm_at = $4 WHERE suspension_id = $5 AND status = 'pending';

-- name: remind_suspension
-- An alarm fired: when the next one is due.
UPDATE suspensions SET alarm_at = $1 WHERE suspension_id = $2 AND status = 'pending';

-- name: answer_suspension
-- The answer. Updates nothing if the suspension has one already.
UPDATE suspensions SET status = $1, closed_at = $2 WHERE suspension_id = $3 AND status = 'pending';

-- name: withdraw_suspensions
-- The pending suspensions of an execution that ended.
UPDATE suspensions SET status = 'withdrawn', closed_at = $1 WHERE execution = $2 AND status = 'pending';

-- name: unowned
-- Running executions that nobody owns, except those in the JSON list.
SELECT number, execution_id, leased_until FROM executions INDEXED BY unfinished_executions
WHERE ended_at IS NULL AND status = 'running' AND owner IS NULL AND execution_id NOT IN (SELECT value FROM json_each($1))
ORDER BY number LIMIT $2;

-- name: owners
-- The owners of leases, valid or not.
SELECT DISTINCT owner FROM executions INDEXED BY unfinished_executions
WHERE ended_at IS NULL AND status = 'running' AND owner IS NOT NULL;

-- name: add_audit
-- One row of the audit. The caller chooses the number, because the hash covers it.
INSERT INTO audit (sequence, at, kind, execution_id, suspension_id, facts, hash) VALUES ($1, $2, $3, $4, $5, $6, $7);

-- name: audit_rows_of
-- A page of what the audit says of one execution, oldest first. Without `+`, SQLite puts the id in for the column in the
-- other condition, and then uses no index.
SELECT sequence, at, kind, execution_id, suspension_id, facts, hash FROM audit
WHERE substr(execution_id, 1, 8) = substr($1, 1, 8) AND execution_id IS NOT NULL AND +execution_id = $1 AND sequence > $2
ORDER BY sequence LIMIT $3;

-- name: audit_end
-- The highest number that a row ever had.
SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'audit';

-- name: uses_left
-- How often a grant can still be used, ?3 being the day; no row when it is over or revoked.
SELECT uses - used + CASE WHEN step IS NULL THEN 0 WHEN used_on < $3 THEN used ELSE used_before END
FROM grants WHERE grant_id = $1 AND expires_at > $2 AND revoked_at IS NULL;

-- name: use_grant
-- One use on the day ?2, checked before in the same transaction. All expressions see the row as it was.
UPDATE grants SET used = used + 1, used_before = CASE WHEN used_on < $2 THEN used ELSE used_before END,
                  used_on = max(used_on, $2)
WHERE grant_id = $1;

-- name: find_once_key
-- The business key, if it is held at that time.
SELECT key, tool_name, fields, holder, principal, taken_at, ends_at FROM once_keys WHERE key = $1 AND ends_at > $2;

-- name: free_once_keys
-- What a call gives back.
DELETE FROM once_keys WHERE holder = $1;

-- name: spent_shares
-- What others took of a budget, and how many, at the time ?2; ?3 lists holders that do not count.
SELECT total(amount), count(*) FROM budget_shares
WHERE budget = $1 AND ends_at > $2 AND holder NOT IN (SELECT value FROM json_each($3));

-- name: shares_room_at
-- When a budget has as much room as it lacks: ?4 in sum, ?5 in number; NULL if never.
SELECT min(ends_at) FROM (
    SELECT ends_at, sum(amount) OVER ended AS amount, count(*) OVER ended AS count FROM budget_shares
    WHERE budget = $1 AND ends_at > $2 AND holder NOT IN (SELECT value FROM json_each($3))
    WINDOW ended AS (ORDER BY ends_at, number)
) WHERE amount >= $4 AND count >= $5;

-- name: take_share
-- A call's share of a budget; the same call again has it once.
INSERT INTO budget_shares (budget, holder, amount, ends_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (holder, budget) DO UPDATE SET amount = excluded.amount, ends_at = max(ends_at, excluded.ends_at);

-- name: free_shares
-- What a call gives back.
DELETE FROM budget_shares WHERE holder = $1;

-- name: add_notification
-- A message to one channel, due at once.
INSERT INTO notifications (notification_id, channel, kind, execution_id, suspension_id, facts, created_at, attempts, next_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, 0, $7);

-- name: data_version
-- Changes whenever another connection has changed the file.
PRAGMA data_version;

-- name: quick_check
-- "ok", or the first fault that SQLite finds.
PRAGMA quick_check(1);

-- name: user_version
-- The version of the schema.
PRAGMA user_version;

-- name: size
-- The version of the schema, and the size of the database in bytes.
SELECT user_version, page_count * page_size FROM pragma_user_version, pragma_page_count, pragma_page_size;
