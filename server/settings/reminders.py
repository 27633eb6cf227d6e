"""Settings of reminders and escalations in `planwarden.toml`: in `[approvals]` and for single tools."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import fields

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.alarms import NO_ALARMS, Schedule

MAX_REMINDERS = 20
MAX_AFTER_S = 30 * 24 * 3600.0

Seconds = Annotated[float, Meta(gt=0, le=MAX_AFTER_S)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class ReminderSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys as written; a tool takes a missing key from `[approvals]`."""

    remind_after_s: Annotated[list[Seconds], Meta(max_length=MAX_REMINDERS)] | None = None
    """Seconds after a question at which people are reminded of it."""
    escalate_after_s: Annotated[float, Meta(ge=0, le=MAX_AFTER_S)] | None = None
    """Seconds after which the question is escalated; 0 for never, where `[approvals]` has an escalation."""
    escalate_to: Annotated[list[Name], Meta(max_length=50)] | None = None
    """Who is notified of an escalation; it gives nobody a right to decide."""


REMINDERS = {entry.name for entry in fields(ReminderSettings)}


def build_schedules(
    default: ReminderSettings, tools: Mapping[str, ReminderSettings]
) -> tuple[Schedule, dict[str, Schedule]]:
    """Returns the default schedule, and the schedules of the tools that have their own.

    Raises:
        InvalidArguments: a key would have no effect.
    """
    general = _build_schedule("approvals", default, NO_ALARMS)
    return general, {
        name: _build_schedule(f'tools."{name}"', found, general)
        for name, found in tools.items()
        if any(getattr(found, key) is not None for key in REMINDERS)
    }


def _build_schedule(where: str, given: ReminderSettings, default: Schedule) -> Schedule:
    if given.escalate_after_s is None:
        after_s = default.escalate_after_s
    else:
        after_s = given.escalate_after_s or None
    if after_s is None and given.escalate_to:
        raise InvalidArguments(f"planwarden.toml: {where}.escalate_to does nothing without escalate_after_s")
    return Schedule(
        remind_after_s=default.remind_after_s if given.remind_after_s is None else tuple(given.remind_after_s),
        escalate_after_s=after_s,
        escalate_to=default.escalate_to if given.escalate_to is None else tuple(given.escalate_to),
    )
