"""What calls hold in a store, over all executions: their business keys, and their shares of budgets.

A call is named by its idempotency key, so one that goes on in a retry of its execution keeps what it holds. Keys and
shares expire, and no earlier when the clock is set back.
"""

import msgspec

from planwarden.agent.common.errors import DuplicateEffect
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState

MAX_SHARES = 10_000
"""Calls that a budget counts within its window; it has no room for more, whatever they take."""
SWEPT = 16
"""Long expired rows of each kind that a transaction deletes when it adds some: more than it usually adds."""
SWEEP_AFTER_S = 7 * 86_400.0
"""Seconds for which an expired row is kept: it counts again if the clock was ahead and is set back."""
ROUNDING = 1.000_000_001
"""The shares of a budget may add up to its limit times this: sums of decimal fractions are not exact."""


class HeldKey(msgspec.Struct, frozen=True, kw_only=True):
    """A business key, and the call that has it."""

    key: str
    """As in `OnceKey`."""
    tool_name: str
    """Empty when it is not the key of a call."""
    values: dict[str, JsonValue]
    """As in `OnceKey`."""
    holder: str
    """`EXECUTION:CALL`, or what else took it."""
    principal: str
    """Who owns that execution."""
    taken_at: float
    """Unix seconds."""
    ends_at: float
    """From then on another call may have it."""

    @classmethod
    def take(cls, once: ev.OnceKey, holder: str, at: float, tool_name: str = "", principal: str = "") -> "HeldKey":
        """Return the key as the holder has it from `at` on."""
        who = {"tool_name": tool_name, "holder": holder, "principal": principal}
        return copy_fields(cls, once, **who, taken_at=at, ends_at=at + once.keep_s)


class KeyHeld(DuplicateEffect):
    """The store refused a call because another one holds its business key."""

    def __init__(self, held: HeldKey) -> None:
        super().__init__(f"call {held.holder!r} has the same business key")
        self.held = held


def name_holder(execution: ExecutionState, call: Call) -> str:
    """Return the name under which the call holds what it takes."""
    return call.origin or f"{execution.execution_id}:{call.call_id}"
