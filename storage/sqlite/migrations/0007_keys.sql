-- keys    one row per key of a person: the public half of a WebAuthn credential. Inserted, then only updated, never deleted:
--         signatures of the audit are verified with it.
-- nonces  one row per challenge that waits to be signed. Inserted, deleted when it is used or has expired.

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
