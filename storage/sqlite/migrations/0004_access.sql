-- codes             one row per one-time code of the inbox, by its hash; a link and what is typed instead of it share a `pairing`.
--                   Inserted, then only updated; deleted some time after it expired.
-- sessions          one row per browser that was let in, by the hash of its cookie. Inserted, then only updated; deleted as above.
-- pairing_refusals  when a code was wrong, for the lockout; a few rows at most.
-- inboxes           where the inboxes of this home listen now; `owner` has a sign of life for as long as that is true.

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
