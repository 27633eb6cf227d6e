-- suspensions.alarm_at   when the next reminder or escalation of an open question is due.

ALTER TABLE suspensions ADD COLUMN alarm_at REAL;

DROP INDEX suspension_deadlines;
CREATE INDEX suspension_wakes ON suspensions (min(coalesce(alarm_at, expires_at), coalesce(expires_at, alarm_at)))
    WHERE status = 'pending' AND min(coalesce(alarm_at, expires_at), coalesce(expires_at, alarm_at)) IS NOT NULL;
