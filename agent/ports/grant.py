"""A standing grant as stores keep it, and how its uses are counted.

Stores count a use in the transaction of the intent that the grant lets through. The uses of a grant for a step of a
saved plan are counted by calendar days in UTC, those of every other grant over its whole life.
"""

import msgspec

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev

DAY_S = 86_400


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
    """Names of arguments that may be absent or have any value. Arguments that are named nowhere must be absent."""
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
