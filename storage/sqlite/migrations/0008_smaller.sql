-- suspensions.digest   packed: base64 instead of hexadecimal digits, see storage/packing.py.
-- executions_of_thread is one index for two purposes: it finds a thread's executions, and keeps a thread from having two
--                      unfinished ones. Those share the value 0 in it; finished ones have values of their own.

UPDATE suspensions SET digest = packed(digest);

DROP INDEX executions_of_thread;
DROP INDEX one_unfinished_execution_per_thread;

CREATE UNIQUE INDEX executions_of_thread ON executions (
    thread_id,
    CASE WHEN status IN ('completed', 'rejected', 'failed', 'incomplete', 'cancelled') THEN number ELSE 0 END
);
