-- tokens   one row per bearer token of planwarden's own: the hash of the secret, whose it is and what for. Rows are
--          never deleted, so that revoking the last token does not look like never having had one.

CREATE TABLE tokens (
    number      INTEGER PRIMARY KEY,
    token_id    TEXT NOT NULL UNIQUE,
    secret_hash TEXT NOT NULL UNIQUE,
    principal   TEXT NOT NULL,
    role        TEXT NOT NULL CHECK (role IN ('caller', 'approver')),
    created_at  REAL NOT NULL,
    expires_at  REAL,
    revoked_at  REAL
) STRICT;

CREATE INDEX tokens_of_principal ON tokens (principal);
