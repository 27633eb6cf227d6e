"""What a store consists of: every table and column that moves, and what does not move.

Both databases have these tables. What is not the same in both is written down here, once: which columns only one has,
and what a column of the target holds that nothing moves into.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

Kind = Literal["integer", "real", "text", "blob", "flag"]
Value = int | float | str | bytes | None
Row = tuple[Value, ...]


class MovedTable(msgspec.Struct, frozen=True):
    """A table whose rows move."""

    name: str
    noun: str
    """What its rows are called, in the plural."""
    order: tuple[str, ...]
    """The columns in whose order rows are read, so that the target has them in the order in which they were made."""
    columns: Mapping[str, Kind]
    """Those that move; the first text among them names a row."""
    fixed: Mapping[str, Value] = {}
    """What other columns of the target get, which have no default."""

    def drop(self, names: Iterable[str]) -> "MovedTable":
        """The table without the columns `TABLE.COLUMN` that one of two databases lacks."""
        lacking = {name for name in self.columns if f"{self.name}.{name}" in names}
        kept = {name: kind for name, kind in self.columns.items() if name not in lacking}
        fixed = {**self.fixed, **dict.fromkeys(lacking, "")}
        return msgspec.structs.replace(self, columns=kept, fixed=fixed) if lacking else self


def _table(
    name: str, order: str, noun: str = "", fixed: Mapping[str, Value] | None = None, **columns: str
) -> MovedTable:
    named: dict[str, Kind] = {}
    kinds: tuple[Kind, ...] = ("integer", "real", "text", "blob", "flag")
    for kind in kinds:
        named |= dict.fromkeys(columns.pop(kind, "").split(), kind)
    assert not columns
    return MovedTable(name, noun or name, tuple(order.split()), named, fixed or {})


TABLES = (
    # Nobody owns what arrives, and the fence says that whoever owned it does so no more.
    _table(
        "executions",
        "number",
        fixed={"leased_until": 0.0},
        integer="number version fence step_count steps_done",
        text="execution_id thread_id principal status plan_digest",
        real="created_at updated_at ended_at",
    ),
    _table(
        "synopses",
        "execution",
        integer="execution",
        text="title host saved_plan tools fault search",
        flag="is_goal",
    ),
    _table("starts", "principal key", "start keys", integer="execution", text="principal key request"),
    _table(
        "events",
        "execution first",
        "transactions of logs",
        integer="execution first checksum",
        text="body token",
        real="at",
    ),
    _table(
        "artifacts",
        "execution artifact_id",
        "large results",
        integer="execution",
        text="artifact_id media_type",
        blob="data",
    ),
    _table(
        "suspensions",
        "number",
        "questions",
        integer="number execution risk_rank",
        text="suspension_id addressee status digest",
        real="created_at expires_at alarm_at closed_at",
    ),
    _table(
        "audit",
        "sequence",
        "rows of the audit",
        integer="sequence",
        text="kind execution_id suspension_id facts",
        real="at",
        blob="hash",
    ),
    _table(
        "grants",
        "number",
        integer="number uses used used_on used_before",
        text="grant_id tool_name definition_digest arguments free step owner created_by assurance channel",
        real="expires_at created_at revoked_at",
    ),
    _table(
        "once_keys",
        "number",
        "business keys",
        integer="number",
        text="key tool_name fields holder principal",
        real="taken_at ends_at",
    ),
    _table(
        "budget_shares",
        "number",
        "shares of budgets",
        integer="number",
        text="budget holder",
        real="amount ends_at",
    ),
    _table(
        "notifications",
        "number",
        integer="number attempts",
        text="notification_id channel kind execution_id suspension_id facts",
        real="created_at next_at",
    ),
    _table(
        "tokens",
        "number",
        integer="number",
        text="token_id secret_hash principal role",
        real="created_at expires_at revoked_at",
    ),
    _table(
        "codes",
        "hash",
        integer="attempts",
        text="hash pairing principal",
        real="created_at expires_at used_at",
        flag="is_typed",
    ),
    _table("sessions", "hash", text="hash principal", real="created_at expires_at ended_at"),
    _table("pairing_refusals", "number", "refused codes", integer="number", real="at"),
    _table(
        "keys",
        "number",
        integer="number sign_count",
        text="key_id principal rp_id label",
        real="created_at used_at revoked_at",
        blob="credential_id public_key",
    ),
    _table(
        "nonces",
        "number",
        "challenges",
        integer="number",
        text="nonce purpose session suspension_id digest content",
        real="expires_at",
    ),
    _table(
        "schedules",
        "number",
        integer="number next_at starting_at version",
        text="schedule_id plan cron timezone inputs overlap missed owner created_by queued last_execution recent",
        real="created_at paused_at due_at",
    ),
)
LEFT = ("inboxes", "owners", "secrets", "secret_locks")
"""Tables about processes that run now, of which there are none while a store moves; and secrets, which with SQLite are
in files of the home: open forms are asked again, people log in to servers and set the passphrase again."""
MERGED = ("audit_unsealed", "audit_state")
"""Tables of PostgreSQL whose rows go into `audit`, and its end."""
