"""What a store keeps of grants, business keys and budgets, and how the uses of a grant are counted.

A store counts a use in the transaction that records the intent to make the call. If a grant is for one step of a
saved plan, its uses are counted per calendar day in UTC; otherwise, over the grant's whole life.

A business key or a share of a budget is held under a call's idempotency key, so a retry that reuses the call keeps what
the call holds. Keys and shares expire, and setting the clock back does not make them expire earlier.
"""

import msgspec

from planwarden.agent.common.errors import DuplicateEffect
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.execution import events as ev

DAY_S = 86_400
MAX_SHARES = 10_000
"""The most calls that a budget lets pass within its window, even if their shares are small."""
MAX_SWEPT_ROWS = 16
"""The most long-expired rows of each kind that one transaction deletes: more than a transaction usually adds."""
SWEEP_AFTER_S = 7 * 86_400.0
"""Seconds for which an expired row is kept: if the clock was fast, the row counts again once the clock is set back."""
ROUNDING = 1.000_000_001
"""The factor by which the sum of shares may exceed their budget's limit: sums of decimal fractions are not exact."""


class GrantedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step, in one version of a saved plan, whose calls a grant lets through."""

    plan_name: str
    plan_digest: str
    """Digest of the plan's file, as a run records it."""
    step_id: str


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A standing approval, as stored; see `planwarden.agent.approval.grants`."""

    grant_id: str
    tool_name: str
    definition_digest: str
    arguments: dict[str, JsonValue]
    """Values that the call's arguments must have."""
    free: tuple[str, ...] = ()
    """Names of arguments that may be absent or have any value. Arguments in neither field must be absent."""
    step: GrantedStep | None = None
    """The step from which calls must come; None for calls of any plan."""
    uses: int
    """The most uses: on each day if the grant is for a step of a saved plan, else in all."""
    used: int = 0
    """Uses so far, on all days together."""
    used_on: int = 0
    """The day of the last use, see `day_of`."""
    used_before: int = 0
    """Uses on all days before `used_on`."""
    expires_at: float
    owner: str | None
    """The principal whose executions may use the grant; None if all executions may."""
    created_by: str
    assurance: ev.Assurance
    channel: str
    created_at: float
    revoked_at: float | None = None


def day_of(at: float) -> int:
    """Return the number of the calendar day in UTC; 0 is 1970-01-01."""
    return int(at // DAY_S)


def count_uses_left(grant: Grant, now: float) -> int:
    """Return how many more calls the grant lets through: today if its uses are counted by days, else in all.

    Setting the clock back gives no uses back: the uses of the day `used_on` count until that day is past.
    """
    if grant.step is None:
        return max(0, grant.uses - grant.used)
    if grant.used_on < day_of(now):
        return grant.uses
    return max(0, grant.uses - (grant.used - grant.used_before))


def is_open(grant: Grant, now: float) -> bool:
    """Return False when the grant has ended, so that no call will ever use it again."""
    is_spent = grant.step is None and grant.used >= grant.uses
    return grant.revoked_at is None and now < grant.expires_at and not is_spent


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
