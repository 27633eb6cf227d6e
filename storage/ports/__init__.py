"""What a store keeps beside executions, one protocol a module: tokens, sessions, notifications, keys, schedules, ...

Their rows are in the same database, so that an audit row is written in the transaction of what it reports.
"""
