"""What calls hold in a store, over all executions: their business keys, and their shares of budgets.

A call is named by its idempotency key, so one that goes on in a retry of its execution keeps what it holds. Both end
with time, and a clock that goes back ends nothing earlier.
"""

import msgspec

from planwarden.agent.common.errors import DuplicateEffect
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.state import Call, ExecutionState

MAX_SHARES = 10_000
"""Calls that a budget counts within its window; it has no room for more, whatever they take."""
SWEPT = 16
"""Rows of each kind that are long over and that are deleted with what takes a new one: more than it usually adds."""
SWEEP_AFTER_S = 7 * 86_400.0
"""How long a row is over before it is deleted, so that it counts again when the clock was ahead and is set back."""
ROUNDING = 1.000_000_001
"""A budget's limit times this is what its shares may come to: sums of decimal fractions are not exact."""


class HeldKey(msgspec.Struct, frozen=True, kw_only=True):
    """A business key, and the call that has it."""

    key: str
    """As in `OnceKey`."""
    tool_name: str
    """Empty when it is not the key of a call."""
    values: dict[str, JsonValue]
    """As in `OnceKey`."""
    holder: str
    """`EXECUTION:CALL`, or who took it otherwise."""
    principal: str
    """Who owns that execution."""
    taken_at: float
    """Unix seconds."""
    ends_at: float
    """From then on another call may have it."""

    def as_refusal(self) -> DuplicateEffect:
        """Return the error for another call that wants the key."""
        return DuplicateEffect(
            key=self.key, holder=self.holder, principal=self.principal, taken_at=self.taken_at, ends_at=self.ends_at
        )


def name_holder(execution: ExecutionState, call: Call) -> str:
    """Under which name the call holds what it takes."""
    return call.origin or f"{execution.execution_id}:{call.call_id}"
