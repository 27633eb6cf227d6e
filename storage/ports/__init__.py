"""What a store has beside executions where several classes implement it: notifications, processes and secrets.

Their rows are in the same database, so that an audit row is written in the transaction of what it reports.
"""
