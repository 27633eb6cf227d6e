-- The statements that only SQLite runs.

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
