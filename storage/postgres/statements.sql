-- The statements that only PostgreSQL runs.

-- name: claim_many
-- Take over running executions that nobody owns, except those in the list and those that another process is taking now.
-- Does not wait for the disk: everything done under the lease waits for its own commit, which comes later in the log. If
-- the database forgets the takeover, then it has forgotten all that followed, and the process that took over is refused.
WITH free AS (SELECT number, leased_until FROM executions
              WHERE status = 'running' AND owner IS NULL AND NOT execution_id = ANY ($4)
              ORDER BY number LIMIT $5 FOR UPDATE SKIP LOCKED)
UPDATE executions AS x SET owner = $1, fence = x.fence + 1,
    leased_until = coalesce($2::float8, extract(epoch FROM clock_timestamp())) + $3
FROM free CROSS JOIN (SELECT set_config('synchronous_commit', 'off', true)) AS unhurried
WHERE x.number = free.number RETURNING x.execution_id, x.fence, x.number, x.leased_until - nullif(free.leased_until, 0);

-- name: load
-- Size and schema, rows of the audit that are not sealed and the age of the oldest, leases, and those that ran out.
SELECT pg_database_size(current_database()), (SELECT max(version) FROM schema_versions), (SELECT count(*) FROM audit_unsealed),
       (SELECT coalesce(max(extract(epoch FROM clock_timestamp()) - at), 0)::float8 FROM audit_unsealed),
       count(owner), count(owner) FILTER (WHERE leased_until < extract(epoch FROM clock_timestamp()))
FROM executions WHERE status = 'running';

-- name: probe
-- A commit that changes nothing, to see how long one takes.
UPDATE audit_state SET last_sequence = last_sequence;

-- name: lock
-- One transaction at a time for a name.
SELECT pg_advisory_xact_lock(hashtextextended($1, 3));

-- name: add_unsealed
-- Rows of the audit that wait to be chained.
INSERT INTO audit_unsealed (at, kind, execution_id, suspension_id, facts, policy) VALUES ($1, $2, $3, $4, $5, $6);

-- name: lock_audit
-- One process seals at a time. The row is the end of the chain.
SELECT last_sequence FROM audit_state FOR UPDATE;

-- name: unsealed
-- The oldest rows that wait.
SELECT number, at, kind, execution_id, suspension_id, facts, policy FROM audit_unsealed ORDER BY number LIMIT $1;

-- name: is_unsealed
-- Whether any row waits.
SELECT 1 FROM audit_unsealed LIMIT 1;

-- name: forget_unsealed
-- Rows that were sealed.
DELETE FROM audit_unsealed WHERE number = ANY ($1);

-- name: add_audit
-- Rows of the audit. The caller chooses the numbers, because the hashes cover them.
INSERT INTO audit (sequence, at, kind, execution_id, suspension_id, facts, hash)
SELECT * FROM unnest($1::bigint[], $2::float8[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[]);

-- name: end_audit
-- The highest number that a row of the audit ever had.
UPDATE audit_state SET last_sequence = $1;

-- name: audit_rows_of
-- A page of what the audit says of one execution, oldest first.
SELECT sequence, at, kind, execution_id, suspension_id, facts, hash FROM audit
WHERE execution_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3;

-- name: audit_end
-- The highest number that a row ever had.
SELECT last_sequence FROM audit_state;

-- name: hint
-- Tell every process that listens. Does not wait for the disk: what is told of was committed before.
SELECT pg_notify($1, $2) FROM (SELECT set_config('synchronous_commit', 'off', true)) AS unhurried;

-- name: clock
-- The database's time.
SELECT extract(epoch FROM clock_timestamp())::float8;

-- name: announce
-- A process lives.
INSERT INTO owners (owner, lock_key, announced_at, server_start)
VALUES ($1, $2, extract(epoch FROM clock_timestamp()), pg_postmaster_start_time())
ON CONFLICT (owner) DO UPDATE SET announced_at = excluded.announced_at, server_start = excluded.server_start;

-- name: publish
-- What a process says about itself.
UPDATE owners SET facts = $2 WHERE owner = $1;

-- name: processes
-- What the processes whose lock is held said about themselves.
SELECT facts FROM owners WHERE facts IS NOT NULL AND NOT pg_try_advisory_xact_lock_shared(lock_key);

-- name: forget_dead
-- Processes that announced themselves long ago and hold no lock, unless the database started after that.
DELETE FROM owners
WHERE greatest(announced_at, extract(epoch FROM pg_postmaster_start_time())) < extract(epoch FROM clock_timestamp()) - $1
  AND owner NOT IN (SELECT owner FROM executions WHERE status = 'running' AND owner IS NOT NULL)
  AND pg_try_advisory_xact_lock_shared(lock_key);

-- name: retire
-- A process ends.
DELETE FROM owners WHERE owner = $1;

-- name: living
-- Of the given owners, or of all who have a lease: whether it was announced, whether its lock is free, and whether it had
-- that lock from another start of the server.
SELECT x.owner, o.owner IS NOT NULL, pg_try_advisory_xact_lock_shared(o.lock_key), o.server_start <> pg_postmaster_start_time()
FROM unnest(coalesce($1::text[], ARRAY(SELECT DISTINCT owner FROM executions WHERE status = 'running' AND owner IS NOT NULL))) AS x (owner)
LEFT JOIN owners AS o USING (owner);
