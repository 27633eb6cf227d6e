"""What a store consists of: every table that moves, and what does not move.

Both databases have these tables. The columns that both have move.
"""

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
    "tokens": "tokens",
    "codes": "codes",
    "sessions": "sessions",
    "pairing_refusals": "refused codes",
    "keys": "keys",
    "nonces": "challenges",
    "schedules": "schedules",
}
"""The tables, and what their rows are called, in the plural."""
LEFT = ("inboxes", "owners", "secrets", "secret_locks")
"""Tables about processes that run now, of which there are none while a store moves; and secrets, which with SQLite are
in files of the home: open forms are asked again, people log in to servers and set the passphrase again."""
MERGED = ("audit_unsealed", "audit_state")
"""Tables of PostgreSQL whose rows go into `audit`, and its end."""
OWNED = ("executions.owner", "executions.leased_until")
"""Nobody owns what arrives, and the fence says that its earlier owner does not own it any more."""
FIXED: dict[str, Value] = {"executions.leased_until": 0.0}
"""What columns of the target get that have no default, if nothing moves into them."""
