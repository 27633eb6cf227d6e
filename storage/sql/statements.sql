-- The statements that both databases run; DIALECT in sqlite/database.py and postgres/connection.py has the differences.

-- name: find_start
-- The execution that a principal started with a key.
SELECT x.execution_id, x.thread_id, s.request FROM starts AS s JOIN executions AS x ON x.number = s.execution
WHERE s.principal = $1 AND s.key = $2;

-- name: times
-- Now, and the seconds that leases run by.
SELECT clock($1), clock($2);

-- name: lock_executions
-- The columns that appends compare, of the executions in a JSON list. Others that write to these wait for the commit.
SELECT execution_id, number, status, version, owner, fence, leased_until FROM executions
WHERE execution_id IN (SELECT json_array_elements_text($1::json)) ORDER BY execution_id FOR UPDATE;

-- name: find_append
-- Whether an append that begins with the event $2 is stored.
SELECT 1 FROM executions AS x JOIN events AS e ON e.execution = x.number
WHERE x.execution_id = $1 AND e.first = $2 AND e.token = $3;

-- name: create_execution
-- A new execution; fails on a unique index when it exists, or its thread has an unfinished one.
INSERT INTO executions (number, execution_id, thread_id, principal, plan_digest, status, ended_at, version, created_at,
                        updated_at, step_count, steps_done, owner, fence, leased_until)
OVERRIDING SYSTEM VALUE VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $10, $11, $12, $13, $14);

-- name: extend_execution
-- The next version, with who owns it from now on.
UPDATE executions SET version = $2, updated_at = $3, step_count = coalesce($4, step_count),
    steps_done = coalesce($5, steps_done), owner = $6, fence = $7, leased_until = $8
WHERE number = $1;

-- name: change_execution
-- The same with another status and $10, the time at which the execution was finished, which ends the use of its plan.
-- SQLite writes an index anew wherever one of its columns is set, changed or not.
UPDATE executions SET version = $2, updated_at = $3, step_count = coalesce($4, step_count),
    steps_done = coalesce($5, steps_done), owner = $6, fence = $7, leased_until = $8,
    status = $9, ended_at = $10, plan_digest = CASE WHEN $10::float8 IS NULL THEN plan_digest END
WHERE number = $1;

-- name: add_events
-- One transaction's events. The token tells whether an append whose commit got no answer is stored.
INSERT INTO events (execution, first, at, body, checksum, token) VALUES ($1, $2, $3, $4, $5, $6);

-- name: thread_end
-- The newest execution of a thread.
SELECT execution_id, version FROM executions WHERE thread_id = $1 ORDER BY number DESC LIMIT 1;

-- name: unfinished_plan
-- The oldest unfinished execution of a plan, and a key that started it. `|| ''` and `+ 0` keep the planners from walking
-- all executions of the principal.
SELECT x.execution_id, x.thread_id, (SELECT s.key FROM starts AS s WHERE s.execution = x.number LIMIT 1)
FROM executions AS x WHERE x.plan_digest = $1 AND x.principal || '' = $2 ORDER BY x.number + 0 LIMIT 1;

-- name: add_start
-- The key that started an execution.
INSERT INTO starts (principal, key, execution, request) VALUES ($1, $2, $3, $4);

-- name: next_in_thread
-- The number of the next execution, and the unfinished one of the thread.
SELECT next_number(), (SELECT execution_id FROM executions WHERE thread_id = $1 AND ended_at IS NULL);

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

-- name: find_grant
-- A grant, which nobody uses or revokes until the commit.
SELECT grant_id, tool_name, definition_digest, arguments, free, step, uses, used, used_on, used_before, expires_at,
       owner, created_by, assurance, channel, created_at, revoked_at FROM grants
WHERE grant_id = $1 FOR UPDATE;

-- name: use_grant
-- One use on the day $2. All expressions see the row as it was.
UPDATE grants SET used = used + 1, used_before = CASE WHEN used_on < $2 THEN used ELSE used_before END,
                  used_on = greatest(used_on, $2)
WHERE grant_id = $1;

-- name: free_once_keys
-- What a call gives back.
DELETE FROM once_keys WHERE holder = $1;

-- name: spent_shares
-- The sum and the number of the shares that others have of a budget now; $3 lists holders that do not count.
SELECT coalesce(sum(amount), 0), count(*) FROM budget_shares
WHERE budget = $1 AND ends_at > clock($2) AND holder NOT IN (SELECT json_array_elements_text($3::json));

-- name: shares_room_at
-- When enough shares of a budget will have ended: $4 in sum, $5 in number; NULL if never.
SELECT min(e.ends_at) FROM (
    SELECT ends_at, sum(amount) OVER ended AS amount, count(*) OVER ended AS count FROM budget_shares
    WHERE budget = $1 AND ends_at > clock($2) AND holder NOT IN (SELECT json_array_elements_text($3::json))
    WINDOW ended AS (ORDER BY ends_at, number)
) AS e WHERE e.amount >= $4 AND e.count >= $5;

-- name: take_share
-- A call's share of a budget; a call that takes it again has it once.
INSERT INTO budget_shares (budget, holder, amount, ends_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (holder, budget) DO UPDATE
SET amount = excluded.amount, ends_at = greatest(budget_shares.ends_at, excluded.ends_at);

-- name: free_shares
-- What a call gives back.
DELETE FROM budget_shares WHERE holder = $1;

-- name: add_notification
-- A message to one channel, due at once.
INSERT INTO notifications (notification_id, channel, kind, execution_id, suspension_id, facts, created_at, attempts, next_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, 0, $7);

-- name: find_artifact
-- Content by its id, from any execution of the thread.
SELECT a.media_type, a.data FROM executions AS x JOIN artifacts AS a ON a.execution = x.number
WHERE x.thread_id = $1 AND a.artifact_id = $2 LIMIT 1;

-- name: header
-- One execution's row.
SELECT execution_id, thread_id, principal, status, version, created_at, updated_at, owner, fence, leased_until
FROM executions WHERE execution_id = $1;

-- name: headers
-- Several executions' rows.
SELECT execution_id, thread_id, principal, status, version, created_at, updated_at, owner, fence, leased_until
FROM executions WHERE execution_id IN (SELECT json_array_elements_text($1::json));

-- name: thread
-- A thread's executions, oldest first.
SELECT execution_id, thread_id, principal, status, version, created_at, updated_at, owner, fence, leased_until
FROM executions WHERE thread_id = $1 ORDER BY number;

-- name: executions
-- The newest executions.
SELECT execution_id, thread_id, principal, status, version, created_at, updated_at, owner, fence, leased_until
FROM executions ORDER BY number DESC LIMIT $1;

-- name: executions_of
-- The newest executions of a principal.
SELECT execution_id, thread_id, principal, status, version, created_at, updated_at, owner, fence, leased_until
FROM executions WHERE principal = $1 ORDER BY number DESC LIMIT $2;

-- name: list_executions
-- A page of executions, the newest activity first, below the position $1, $2. Unfinished ones are few enough to sort; the
-- others are in the order of an index. Without a word to look for, no text is read.
SELECT x.execution_id, x.thread_id, x.principal, x.status, x.version, x.created_at, p.active_at, x.step_count,
       x.steps_done, s.title, s.is_goal, s.host, s.saved_plan, s.fault,
       (SELECT q.suspension_id FROM suspensions AS q
        WHERE q.execution = x.number AND q.status = 'pending' AND q.addressee = 'human' ORDER BY q.number LIMIT 1),
       (SELECT min(q.addressee) FROM suspensions AS q WHERE q.execution = x.number AND q.status = 'pending'),
       x.number
FROM (
    SELECT * FROM (
        SELECT x.number, x.updated_at AS active_at
        FROM executions AS x INDEXED BY unfinished_executions CROSS JOIN synopses AS s ON s.execution = x.number
        WHERE x.ended_at IS NULL AND (x.updated_at, x.number) < ($1::float8, $2::bigint)
          AND ($3::text IS NULL OR x.status = $3) AND ($4::text IS NULL OR s.host = $4)
          AND ($5::text IS NULL OR s.saved_plan = $5) AND ($6::text IS NULL OR strpos(s.tools, $6) > 0)
          AND ($7::text IS NULL OR x.principal = $7)
          AND ($8::text = '' OR strpos(s.search, $8) > 0) AND ($9::text = '' OR strpos(s.search, $9) > 0)
          AND ($10::text = '' OR strpos(s.search, $10) > 0) AND ($11::text = '' OR strpos(s.search, $11) > 0)
          AND ($12::text = '' OR strpos(s.search, $12) > 0) AND ($14::text = '' OR strpos(s.tools, $14) > 0)
          AND ($13::boolean IS NULL OR (strpos(x.thread_id, 'gate-') = 1) = $13)
        ORDER BY x.updated_at DESC, x.number DESC LIMIT $15) AS unfinished
    UNION ALL
    SELECT * FROM (
        SELECT x.number, x.ended_at
        FROM executions AS x INDEXED BY finished_executions CROSS JOIN synopses AS s ON s.execution = x.number
        WHERE x.ended_at IS NOT NULL AND (x.ended_at, x.number) < ($1::float8, $2::bigint)
          AND ($3::text IS NULL OR $3 NOT IN ('planned', 'running', 'suspended'))
          AND ($3::text IS NULL OR x.status = $3) AND ($4::text IS NULL OR s.host = $4)
          AND ($5::text IS NULL OR s.saved_plan = $5) AND ($6::text IS NULL OR strpos(s.tools, $6) > 0)
          AND ($7::text IS NULL OR x.principal = $7)
          AND ($8::text = '' OR strpos(s.search, $8) > 0) AND ($9::text = '' OR strpos(s.search, $9) > 0)
          AND ($10::text = '' OR strpos(s.search, $10) > 0) AND ($11::text = '' OR strpos(s.search, $11) > 0)
          AND ($12::text = '' OR strpos(s.search, $12) > 0) AND ($14::text = '' OR strpos(s.tools, $14) > 0)
          AND ($13::boolean IS NULL OR (strpos(x.thread_id, 'gate-') = 1) = $13)
        ORDER BY x.ended_at DESC, x.number DESC LIMIT $15) AS finished
    ORDER BY 2 DESC, 1 DESC LIMIT $15
) AS p JOIN executions AS x ON x.number = p.number JOIN synopses AS s ON s.execution = p.number
ORDER BY p.active_at DESC, p.number DESC;

-- name: list_hosts
-- The hosts of the newest executions.
SELECT DISTINCT host FROM (SELECT host FROM synopses ORDER BY execution DESC LIMIT $1) AS newest
WHERE host <> '' ORDER BY host;

-- name: walk
-- Executions by id, a page after another.
SELECT execution_id, thread_id, principal, status, version, created_at, updated_at, owner, fence, leased_until
FROM executions WHERE execution_id COLLATE "C" > $1 ORDER BY execution_id COLLATE "C" LIMIT $2;

-- name: log
-- One execution's row with its whole log.
SELECT x.execution_id, x.thread_id, x.principal, x.status, x.version, x.created_at, x.updated_at, x.owner, x.fence,
       x.leased_until, e.first, e.at, e.body, e.checksum
FROM executions AS x LEFT JOIN events AS e ON e.execution = x.number WHERE x.execution_id = $1 ORDER BY e.first;

-- name: read_events
-- The log of an execution, starting with the transaction that contains the wanted sequence.
SELECT x.version, e.first, e.at, e.body, e.checksum FROM executions AS x LEFT JOIN events AS e ON e.execution = x.number
  AND e.first >= coalesce((SELECT max(f.first) FROM events AS f WHERE f.execution = x.number AND f.first <= $2), 0)
WHERE x.execution_id = $1
ORDER BY e.first;

-- name: find_suspension
-- One suspension.
SELECT s.suspension_id, x.execution_id, x.thread_id, x.principal, s.addressee, s.status, s.digest, s.created_at,
       s.expires_at, s.alarm_at
FROM suspensions AS s JOIN executions AS x ON x.number = s.execution WHERE s.suspension_id = $1;

-- name: find_ids
-- Ids of each kind that begin with $1, with their threads. All of them are less than $1 followed by the last code point of
-- Unicode.
SELECT * FROM (
    SELECT 'execution', execution_id, thread_id FROM executions
    WHERE execution_id COLLATE "C" >= $1 AND execution_id COLLATE "C" < $1 || chr(1114111)
    ORDER BY execution_id COLLATE "C" LIMIT $2) AS a
UNION ALL SELECT * FROM (
    SELECT 'suspension', s.suspension_id, x.thread_id FROM suspensions AS s JOIN executions AS x ON x.number = s.execution
    WHERE s.suspension_id COLLATE "C" >= $1 AND s.suspension_id COLLATE "C" < $1 || chr(1114111)
    ORDER BY s.suspension_id COLLATE "C" LIMIT $2) AS b
UNION ALL SELECT * FROM (
    SELECT 'thread', thread_id, thread_id FROM executions
    WHERE thread_id COLLATE "C" >= $1 AND thread_id COLLATE "C" < $1 || chr(1114111)
    GROUP BY thread_id ORDER BY thread_id COLLATE "C" LIMIT $2) AS c;

-- name: pending_suspensions
-- A page of pending suspensions that people and callers answer, oldest first.
SELECT s.suspension_id, x.execution_id, x.thread_id, x.principal, s.addressee, s.status, s.digest, s.created_at,
       s.expires_at, s.alarm_at
FROM suspensions AS s JOIN executions AS x ON x.number = s.execution
WHERE s.status = 'pending' AND s.addressee <> 'clock' AND s.number > $1
  AND ($2::text IS NULL OR x.principal = $2) AND ($3::text IS NULL OR x.thread_id = $3)
  AND ($4::text IS NULL OR s.addressee = $4)
ORDER BY s.number LIMIT $5;

-- name: count_suspensions
-- The number of pending suspensions that match.
SELECT count(*) FROM suspensions AS s JOIN executions AS x ON x.number = s.execution
WHERE s.status = 'pending' AND s.addressee <> 'clock'
  AND ($1::text IS NULL OR x.principal = $1) AND ($2::text IS NULL OR x.thread_id = $2)
  AND ($3::text IS NULL OR s.addressee = $3);

-- name: count_open
-- The number of pending suspensions of all principals, without reading their executions.
SELECT count(*) FROM suspensions WHERE status = 'pending' AND addressee <> 'clock' AND ($1::text IS NULL OR addressee = $1);

-- name: place_of_suspension
-- Where a page ended, in each order of pages. No row if the suspension does not belong to the principal.
SELECT s.number, s.risk_rank, s.closed_at FROM suspensions AS s JOIN executions AS x ON x.number = s.execution
WHERE s.suspension_id = $1 AND ($2::text IS NULL OR x.principal = $2);

-- name: due_suspensions
-- Pending suspensions that have an alarm due or a passed deadline: the earliest of each principal, then the second, ...
SELECT s.suspension_id, x.execution_id, x.thread_id, x.principal, s.addressee, s.status, s.digest, s.created_at,
       s.expires_at, s.alarm_at
FROM suspensions AS s JOIN executions AS x ON x.number = s.execution
WHERE s.status = 'pending' AND least(s.alarm_at, s.expires_at) IS NOT NULL AND least(s.alarm_at, s.expires_at) <= clock($1)
ORDER BY row_number() OVER (PARTITION BY x.principal ORDER BY least(s.alarm_at, s.expires_at)),
    least(s.alarm_at, s.expires_at) LIMIT $2;

-- name: find_claimable
-- A running execution whose lease nobody has, or ran out $3 seconds ago or earlier. Others wait for what is found; what is
-- not found is not locked, because giving a lock back waits for the disk.
SELECT number, owner, leased_until FROM executions
WHERE execution_id = $1 AND status = 'running' AND (owner IS NULL OR leased_until <= clock($2) - $3) FOR UPDATE;

-- name: claim
-- Take over what `find_claimable` found in the same transaction.
UPDATE executions SET owner = $1, fence = fence + 1, leased_until = clock($2) + $3 WHERE number = $4
RETURNING fence, leased_until;

-- name: orphans
-- Running executions without a lease that is still valid in $2 seconds, if they are newer than the execution $3.
SELECT execution_id FROM executions INDEXED BY unfinished_executions
WHERE ended_at IS NULL AND status = 'running' AND (owner IS NULL OR leased_until <= clock($1) + $2)
  AND number > coalesce((SELECT number FROM executions WHERE execution_id = $3), 0)
ORDER BY number LIMIT $4;

-- name: expire_owner
-- End the leases of a process that is known to be dead. `leased_until` stays, and says how long ago the process lived.
UPDATE executions INDEXED BY unfinished_executions SET owner = NULL
WHERE ended_at IS NULL AND status = 'running' AND owner = $1;

-- name: confirm
-- Extend one lease, if its holder still has it.
UPDATE executions SET leased_until = clock($1) + $2 WHERE execution_id = $3 AND owner = $4 AND fence = $5;

-- name: renew
-- Extend the leases of a living process on what runs there.
UPDATE executions INDEXED BY unfinished_executions SET leased_until = clock($1) + $2
WHERE ended_at IS NULL AND status = 'running' AND owner = $3
  AND execution_id IN (SELECT json_array_elements_text($4::json));

-- name: release
-- Give up one lease.
UPDATE executions SET owner = NULL, leased_until = 0 WHERE execution_id = $1 AND owner = $2 AND fence = $3;

-- name: prunable
-- Finished executions that have not changed since the given time.
SELECT number, execution_id FROM executions WHERE ended_at < $1 ORDER BY ended_at, number LIMIT 500 FOR UPDATE SKIP LOCKED;

-- name: count_prunable
-- How many executions `prunable` finds in all, and when the oldest of them last changed.
SELECT count(*), min(ended_at) FROM executions WHERE ended_at < $1;

-- name: prune_events
-- The logs of finished executions, by a JSON list of numbers.
DELETE FROM events WHERE execution IN (SELECT json_array_elements_text($1::json)::bigint);

-- name: prune_suspensions
-- The suspensions of finished executions.
DELETE FROM suspensions WHERE execution IN (SELECT json_array_elements_text($1::json)::bigint);

-- name: prune_artifacts
-- The artifacts of finished executions.
DELETE FROM artifacts WHERE execution IN (SELECT json_array_elements_text($1::json)::bigint);

-- name: prune_starts
-- The keys of finished executions.
DELETE FROM starts WHERE execution IN (SELECT json_array_elements_text($1::json)::bigint);

-- name: prune_synopses
-- What lists show of finished executions.
DELETE FROM synopses WHERE execution IN (SELECT json_array_elements_text($1::json)::bigint);

-- name: prune_executions
-- The rows of finished executions.
DELETE FROM executions WHERE number IN (SELECT json_array_elements_text($1::json)::bigint);

-- name: totals
-- For `planwarden doctor`.
SELECT (SELECT count(*) FROM executions), (SELECT count(*) FROM executions WHERE ended_at IS NULL AND status = 'running'),
       (SELECT count(*) FROM suspensions WHERE status = 'pending');

-- name: add_record
-- A new record; nothing is inserted where its kind has one with this id.
INSERT INTO records (kind, id, owner, expires_at, version, body) VALUES ($1, $2, $3, $4, 1, $5)
ON CONFLICT (kind, id) DO NOTHING;

-- name: put_record
-- A record in the place of the one with this id, or of none.
INSERT INTO records (kind, id, owner, expires_at, version, body) VALUES ($1, $2, $3, $4, 1, $5)
ON CONFLICT (kind, id) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at, body = excluded.body,
    version = records.version + 1;

-- name: change_record
-- The next version of a record; nothing is updated when it has changed since it was read.
UPDATE records SET owner = $3, expires_at = $4, body = $5, version = version + 1
WHERE kind = $1 AND id = $2 AND version = $6;

-- name: find_record
-- One record.
SELECT id, owner, version, body FROM records WHERE kind = $1 AND id = $2;

-- name: records
-- The records of a kind, oldest first.
SELECT id, owner, version, body FROM records WHERE kind = $1 ORDER BY number;

-- name: records_of
-- The records of a kind that one owner has, oldest first.
SELECT id, owner, version, body FROM records WHERE kind = $1 AND owner = $2 ORDER BY number;

-- name: due_records
-- The records of a kind that are due, earliest first.
SELECT id, owner, version, body FROM records WHERE kind = $1 AND expires_at <= $2 ORDER BY expires_at, number;

-- name: delete_record
-- One record.
DELETE FROM records WHERE kind = $1 AND id = $2;

-- name: delete_due_records
-- The records of a kind that are due.
DELETE FROM records WHERE kind = $1 AND expires_at <= $2;

-- name: waiting_suspensions
-- A page of pending suspensions to people, the most dangerous first; $1 and $2 are where the page before it ended.
SELECT s.suspension_id, x.execution_id, x.thread_id, x.principal, s.addressee, s.status, s.digest, s.created_at,
       s.expires_at, s.alarm_at
FROM suspensions AS s JOIN executions AS x ON x.number = s.execution
WHERE s.status = 'pending' AND s.addressee = 'human' AND (s.risk_rank, s.number) > ($1, $2)
ORDER BY s.risk_rank, s.number LIMIT $3;

-- name: decided_suspensions
-- A page of closed suspensions to people, the last decision first; $1 and $2 are where the page before it ended.
SELECT s.suspension_id, x.execution_id, x.thread_id, x.principal, s.addressee, s.status, s.digest, s.created_at,
       s.expires_at, s.alarm_at
FROM suspensions AS s JOIN executions AS x ON x.number = s.execution
WHERE s.status <> 'pending' AND s.addressee = 'human' AND ($1::float8 IS NULL OR (s.closed_at, s.number) < ($1, $2::bigint))
ORDER BY s.closed_at DESC, s.number DESC LIMIT $3;

-- name: last_audit
-- The end of the chain, and the policy under which the newest rows were written.
SELECT sequence, hash, (SELECT facts FROM audit WHERE kind = 'policy' ORDER BY sequence DESC LIMIT 1)
FROM audit ORDER BY sequence DESC LIMIT 1;

-- name: audit_rows
-- A page of the audit, oldest first.
SELECT sequence, at, kind, execution_id, suspension_id, facts, hash FROM audit
WHERE sequence > $1 ORDER BY sequence LIMIT $2;

-- name: task_rows
-- A page of what the audit says of one execution as a task, oldest first; the condition is that of the index audit_of_tasks.
SELECT sequence, at, kind, execution_id, suspension_id, facts, hash FROM audit
WHERE (kind = 'form_closed' OR kind = 'link_answered' OR kind = 'task_ended') AND execution_id = $1 AND sequence > $2
ORDER BY sequence LIMIT $3;

-- name: add_grant
-- A standing approval.
INSERT INTO grants (grant_id, tool_name, definition_digest, arguments, free, step, uses, used, used_on, used_before,
                    expires_at, owner, created_by, assurance, channel, created_at, revoked_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17);

-- name: revoke_grant
-- The end of a grant: nothing is updated when it was revoked before.
UPDATE grants SET revoked_at = $1 WHERE grant_id = $2 AND revoked_at IS NULL;

-- name: grants
-- Newest grants first; with $1 only those that can still be used at that time.
SELECT grant_id, tool_name, definition_digest, arguments, free, step, uses, used, used_on, used_before, expires_at,
       owner, created_by, assurance, channel, created_at, revoked_at FROM grants
WHERE $1::float8 IS NULL OR (revoked_at IS NULL AND (used < uses OR step IS NOT NULL) AND expires_at > $1)
ORDER BY number DESC LIMIT $2;

-- name: find_once_keys
-- The keys of a JSON list that are held at the time $2.
SELECT key, tool_name, fields, holder, principal, taken_at, ends_at FROM once_keys
WHERE key IN (SELECT json_array_elements_text($1::json)) AND ends_at > clock($2) ORDER BY number;

-- name: once_keys
-- The keys of calls that are held at the time $1, of one tool or all, newest first.
SELECT key, tool_name, fields, holder, principal, taken_at, ends_at FROM once_keys
WHERE ends_at > $1 AND tool_name <> '' AND ($2::text IS NULL OR tool_name = $2) ORDER BY number DESC LIMIT $3;

-- name: take_once_key
-- A key for its new holder; with $8, the time now, nothing is written when somebody holds it.
INSERT INTO once_keys (key, tool_name, fields, holder, principal, taken_at, ends_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (key) DO UPDATE SET tool_name = excluded.tool_name, fields = excluded.fields, holder = excluded.holder,
    principal = excluded.principal, taken_at = excluded.taken_at, ends_at = greatest(once_keys.ends_at, excluded.ends_at)
WHERE $8::float8 IS NULL OR once_keys.ends_at <= $8;

-- name: forget_once_key
-- A person wants a second call.
DELETE FROM once_keys WHERE key = $1;

-- name: sweep_once_keys
-- A few that ended before the given time.
DELETE FROM once_keys WHERE number IN (
    SELECT number FROM once_keys WHERE ends_at <= $1 ORDER BY ends_at LIMIT $2 FOR UPDATE SKIP LOCKED);

-- name: sweep_shares
-- A few that ended before the given time.
DELETE FROM budget_shares WHERE number IN (
    SELECT number FROM budget_shares WHERE ends_at <= $1 ORDER BY ends_at LIMIT $2 FOR UPDATE SKIP LOCKED);

-- name: notifications_span
-- How many there are at most, without counting them.
SELECT coalesce((SELECT max(number) FROM notifications) - (SELECT min(number) FROM notifications) + 1, 0);

-- name: drop_oldest_notifications
-- All but the newest.
DELETE FROM notifications WHERE number <= (SELECT number FROM notifications ORDER BY number DESC LIMIT 1 OFFSET $1)
RETURNING notification_id, channel, kind, execution_id, suspension_id, facts, created_at, attempts;

-- name: is_notification_due
-- Whether there is something to deliver to a channel.
SELECT 1 FROM notifications WHERE channel = $1 AND next_at <= $2 LIMIT 1;

-- name: claim_notifications
-- Due messages, which belong to the claimer until $1; nobody else finds them before then.
UPDATE notifications SET attempts = attempts + 1, next_at = $1
WHERE number IN (SELECT number FROM notifications WHERE channel = $2 AND next_at <= $3
                 ORDER BY next_at, number LIMIT $4 FOR UPDATE SKIP LOCKED)
RETURNING notification_id, channel, kind, execution_id, suspension_id, facts, created_at, attempts;

-- name: postpone_notification
-- Try again later; nothing is updated when somebody else has claimed it in the meantime.
UPDATE notifications SET next_at = $1 WHERE notification_id = $2 AND attempts = $3;

-- name: delete_notification
-- It was delivered, no matter which process did it.
DELETE FROM notifications WHERE notification_id = $1;

-- name: give_up_notification
-- It will not be delivered; nothing is deleted when somebody else has claimed it in the meantime.
DELETE FROM notifications WHERE notification_id = $1 AND attempts = $2;

-- name: old_notifications
-- Messages from before $1, to channels that are not in the JSON list $2, that nobody is delivering now.
DELETE FROM notifications WHERE created_at < $1 AND next_at <= $3
    AND channel NOT IN (SELECT json_array_elements_text($2::json))
RETURNING notification_id, channel, kind, execution_id, suspension_id, facts, created_at, attempts;

-- name: waiting_notifications
-- How many wait for each channel.
SELECT channel, count(*) FROM notifications GROUP BY channel ORDER BY channel COLLATE "C";
