"""What the calls of all executions hold in a store: their business keys and their shares of budgets.

The holder is named by a call's idempotency key, so a call keeps what it holds when a retry takes over the call.
Keys and shares expire, and setting the clock back does not make them expire earlier.
"""

import msgspec

from planwarden.agent.common.errors import DuplicateEffect
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.execution import events as ev

MAX_SHARES = 10_000
"""The most calls that a budget lets pass within its window, even if their shares are small."""
SWEPT = 16
"""The most long-expired rows of each kind that one transaction deletes: more than a transaction usually adds."""
SWEEP_AFTER_S = 7 * 86_400.0
"""Seconds for which an expired row is kept, because it counts again if the clock was ahead and is set back."""
ROUNDING = 1.000_000_001
"""The factor by which the sum of shares may exceed their budget's limit: sums of decimal fractions are not exact."""


class HeldKey(msgspec.Struct, frozen=True, kw_only=True):
    """A business key, and the call or other holder that has it."""

    key: str
    """As in `OnceKey`."""
    tool_name: str
    """The tool of the call; empty when the holder is not a call."""
    values: dict[str, JsonValue]
    """As in `OnceKey`."""
    holder: str
    """`EXECUTION:CALL` for a call; else the name of whatever took the key."""
    principal: str
    """The owner of the call's execution; empty when the holder is not a call."""
    taken_at: float
    """Unix seconds."""
    ends_at: float
    """Unix seconds; from then on another call may have the key."""

    @classmethod
    def take(cls, once_key: ev.OnceKey, holder: str, at: float, tool_name: str = "", principal: str = "") -> "HeldKey":
        """Return the row that gives the holder the key from `at` on."""
        who = {"tool_name": tool_name, "holder": holder, "principal": principal}
        return copy_fields(cls, once_key, **who, taken_at=at, ends_at=at + once_key.keep_s)


class KeyHeld(DuplicateEffect):
    """The store refused a call because another holder has the business key."""

    def __init__(self, held_key: HeldKey) -> None:
        super().__init__(f"call {held_key.holder!r} has the same business key")
        self.held_key = held_key
