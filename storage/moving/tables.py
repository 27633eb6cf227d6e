"""What a store consists of: every table that moves, and what does not move.

Both databases have these tables. The columns that both have move.
"""

from planwarden.storage.sql.records import LOCAL_KINDS

Value = int | float | str | bytes | None
Row = tuple[Value, ...]

TABLES = {
    "executions": "executions",
    "synopses": "synopses",
    "starts": "start keys",
    "events": "transactions of logs",
    "artifacts": "large results",
    "suspensions": "questions",
    "audit": "rows of the audit",
    "grants": "grants",
    "once_keys": "business keys",
    "budget_shares": "shares of budgets",
    "notifications": "notifications",
    "records": "tokens and other records",
}
"""The tables, and what their rows are called, in the plural. `owners` does not move: no process runs during a move."""
PARTS = {"records": f"(SELECT * FROM records WHERE kind NOT IN {LOCAL_KINDS} ORDER BY number) AS records"}
"""What moves of a table that does not move whole: no running inboxes, and no secrets, which with SQLite are in files of
the home. Open forms are asked again, people log in to servers and set the passphrase again."""
MERGED = ("audit_unsealed", "audit_state")
"""Tables of PostgreSQL whose rows go into `audit`, and its end."""
OWNED = ("executions.owner", "executions.leased_until", "records.number")
"""Nobody owns what arrives, and the fence says that its earlier owner does not own it any more. Records are numbered
anew, in their order, because the target may have some of its own."""
FIXED: dict[str, Value] = {"executions.leased_until": 0.0}
"""What columns of the target get that have no default, if nothing moves into them."""
