-- artifacts  content that events stand for or mention and that is too large for the log: written in the transaction of the
--            event, never changed, deleted with its execution. `artifact_id` is a digest of `media_type` and `data`.

CREATE TABLE artifacts (
    number       INTEGER PRIMARY KEY,
    execution    INTEGER NOT NULL,
    artifact_id  TEXT NOT NULL,
    media_type   TEXT NOT NULL,
    data         BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX artifacts_of_execution ON artifacts (execution, artifact_id);
