-- audit    one row per question to a person, answer, use of a grant and change of who may answer; each row's hash covers
--          the hash of the row before it. AUTOINCREMENT keeps the highest number ever given, so rows missing at the end
--          are noticed. Append-only; `planwarden prune` leaves it alone.
-- grants   one row per standing approval. Inserted; then only `used` grows and `revoked_at` is set.

CREATE TABLE audit (
    sequence       INTEGER PRIMARY KEY AUTOINCREMENT,
    at             REAL NOT NULL,
    kind           TEXT NOT NULL,
    execution_id   TEXT,
    suspension_id  TEXT,
    facts          TEXT NOT NULL,
    hash           BLOB NOT NULL
) STRICT;

CREATE INDEX audit_of_policies ON audit (sequence) WHERE kind = 'policy';

CREATE TABLE grants (
    number             INTEGER PRIMARY KEY,
    grant_id           TEXT NOT NULL UNIQUE,
    tool_name          TEXT NOT NULL,
    definition_digest  TEXT NOT NULL,
    arguments          TEXT NOT NULL,
    uses               INTEGER NOT NULL,
    used               INTEGER NOT NULL,
    expires_at         REAL NOT NULL,
    owner              TEXT,
    created_by         TEXT NOT NULL,
    assurance          TEXT NOT NULL,
    channel            TEXT NOT NULL,
    created_at         REAL NOT NULL,
    revoked_at         REAL
) STRICT;
