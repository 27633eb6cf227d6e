"""Alarms of a suspension: when planwarden reminds a person of it, and when it escalates to others.

The operator sets the schedule. Its times are computed when the question is asked and stored with it, so that every
process sees the same ones, whatever the policy says later. An alarm fires once, as an event, while the suspension is
open and not expired. If no process ran for a while and several alarms are due, one event covers them all: the
escalation if it is among them, else the newest.
"""

import msgspec

from planwarden.agent.core import events as ev
from planwarden.agent.core.question import Alarm
from planwarden.agent.core.state import SuspensionState


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's alarms for the questions about one tool."""

    remind_after_s: tuple[float, ...] = ()
    """Seconds after the question was asked."""
    escalate_after_s: float | None = None
    escalate_to: tuple[str, ...] = ()
    """Who is notified then. This gives nobody the right to decide."""


NO_ALARMS = Schedule()


def build_alarms(schedule: Schedule, asked_at: float, expires_at: float | None) -> tuple[Alarm, ...]:
    """Returns the alarms before `expires_at`, earliest first. All times are Unix seconds."""
    found = [Alarm(kind="remind", at=asked_at + after_s) for after_s in schedule.remind_after_s]
    if schedule.escalate_after_s is not None:
        found.append(Alarm(kind="escalate", at=asked_at + schedule.escalate_after_s, to=schedule.escalate_to))
    in_time = (alarm for alarm in found if expires_at is None or alarm.at < expires_at)
    return tuple(sorted(in_time, key=lambda alarm: alarm.at))


def find_next_alarm_at(suspension: SuspensionState) -> float | None:
    """Returns when the next alarm is due, in Unix seconds, or None when no alarm remains."""
    remaining = suspension.question.alarms[suspension.alarmed :]
    return remaining[0].at if remaining and suspension.is_open else None


def find_due_alarm(suspension: SuspensionState, now: float) -> ev.SuspensionReminded | None:
    """Returns one event for all alarms that are due; None when there is none or the suspension is over."""
    question = suspension.question
    if not suspension.is_open or (question.expires_at is not None and question.expires_at <= now):
        return None
    number = sum(alarm.at <= now for alarm in question.alarms)
    due = question.alarms[suspension.alarmed : number]
    if not due:
        return None
    fired = next((alarm for alarm in due if alarm.kind == "escalate"), due[-1])
    return ev.SuspensionReminded(suspension_id=question.suspension_id, number=number, kind=fired.kind, to=fired.to)
