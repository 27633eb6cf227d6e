-- suspensions.alarm_at   when the next reminder or escalation of an open question is due.

ALTER TABLE suspensions ADD COLUMN alarm_at REAL;

DROP INDEX suspension_deadlines;
CREATE INDEX suspension_wakes ON suspensions (min(coalesce(alarm_at, expires_at), coalesce(expires_at, alarm_at)))
    WHERE status = 'pending' AND min(coalesce(alarm_at, expires_at), coalesce(expires_at, alarm_at)) IS NOT NULL;

-- notifications   one row per message that is still to be delivered to one channel. Inserted in the transaction of what it tells;
--           a claim to deliver it adds one to `attempts` and moves `next_at` behind the claim's end; deleted when it was
--           delivered or given up.

CREATE TABLE notifications (
    number         INTEGER PRIMARY KEY,
    notification_id      TEXT NOT NULL UNIQUE,
    channel        TEXT NOT NULL,
    kind           TEXT NOT NULL,
    execution_id   TEXT NOT NULL,
    suspension_id  TEXT NOT NULL,
    facts          TEXT NOT NULL,
    created_at     REAL NOT NULL,
    attempts       INTEGER NOT NULL,
    next_at        REAL NOT NULL
) STRICT;

CREATE INDEX notifications_of_channel ON notifications (channel, next_at);
