"""Settings of reminders and escalations in `planwarden.toml`: in `[approvals]` and for single tools."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.execution.notifications import NO_ALARMS, Schedule
from planwarden.server.settings.faults import Table

MAX_REMINDERS = 20
MAX_AFTER_S = 30 * 24 * 3600.0

Delay = Annotated[float, Field(gt=0, le=MAX_AFTER_S)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class ReminderSettings(Table):
    """The keys as written; a tool takes a missing key from `[approvals]`."""

    remind_after_s: Annotated[list[Delay], Field(max_length=MAX_REMINDERS)] | None = None
    """Seconds after a question at which people are reminded of it."""
    escalate_after_s: Annotated[float, Field(ge=0, le=MAX_AFTER_S)] | None = None
    """Seconds after which the question is escalated; 0 for never, where `[approvals]` has an escalation."""
    escalate_to: Annotated[list[Name], Field(max_length=50)] | None = None
    """Who is notified of an escalation; it gives nobody a right to decide."""


REMINDERS = frozenset(ReminderSettings.model_fields)


def build_schedules(
    default: ReminderSettings, tools: Mapping[str, ReminderSettings]
) -> tuple[Schedule, dict[str, Schedule]]:
    """Return the default schedule, and the schedules of the tools that have their own.

    Raises:
        InvalidArguments: a key would have no effect.
    """
    general = _build_schedule("approvals", default, NO_ALARMS)
    return general, {
        name: _build_schedule(f'tools."{name}"', settings, general)
        for name, settings in tools.items()
        if any(getattr(settings, key) is not None for key in REMINDERS)
    }


def _build_schedule(where: str, settings: ReminderSettings, default: Schedule) -> Schedule:
    if settings.escalate_after_s is None:
        after_s = default.escalate_after_s
    else:
        after_s = settings.escalate_after_s or None
    if after_s is None and settings.escalate_to:
        raise InvalidArguments(f"planwarden.toml: {where}.escalate_to does nothing without escalate_after_s")
    return Schedule(
        remind_after_s=default.remind_after_s if settings.remind_after_s is None else tuple(settings.remind_after_s),
        escalate_after_s=after_s,
        escalate_to=default.escalate_to if settings.escalate_to is None else tuple(settings.escalate_to),
    )
