"""Alarms of a question to a person: when somebody is reminded of it, and when it is escalated to others.

The schedule is the operator's; its moments are fixed when the question is asked and stored with it, so that every process
and every later policy means the same ones. An alarm fires once, as an event, and only while the question is open and its
time to answer is not over. When several were missed, because no process was there, one fires for all of them: the
escalation if it is among them, else the newest.
"""

from dataclasses import dataclass

from planwarden.agent.core import events as ev
from planwarden.agent.core.state import SuspensionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What the operator wants for the questions about one tool."""

    remind_after_s: tuple[float, ...] = ()
    """Seconds after the question was asked."""
    escalate_after_s: float | None = None
    escalate_to: tuple[str, ...] = ()
    """Who is told then; it gives nobody a right to decide."""


NO_ALARMS = Schedule()


def build_alarms(schedule: Schedule, asked_at: float, expires_at: float | None) -> tuple[ev.Alarm, ...]:
    """The moments, earliest first, without those at which the time to answer would be over."""
    found = [ev.Alarm(kind="remind", at=asked_at + after_s) for after_s in schedule.remind_after_s]
    if schedule.escalate_after_s is not None:
        found.append(ev.Alarm(kind="escalate", at=asked_at + schedule.escalate_after_s, to=schedule.escalate_to))
    in_time = (alarm for alarm in found if expires_at is None or alarm.at < expires_at)
    return tuple(sorted(in_time, key=lambda alarm: alarm.at))


def find_next_alarm_at(asked: SuspensionState) -> float | None:
    """When the next alarm is due, in Unix seconds; None when there is none any more."""
    left = asked.question.alarms[asked.alarmed :]
    return left[0].at if left and asked.is_open else None


def find_due_alarm(asked: SuspensionState, now: float) -> ev.SuspensionReminded | None:
    """The one event for every alarm that is due and has not fired; None when there is none, or the question is over."""
    question = asked.question
    if not asked.is_open or (question.expires_at is not None and question.expires_at <= now):
        return None
    number = sum(alarm.at <= now for alarm in question.alarms)
    missed = question.alarms[asked.alarmed : number]
    if not missed:
        return None
    fired = next((alarm for alarm in missed if alarm.kind == "escalate"), missed[-1])
    return ev.SuspensionReminded(suspension_id=question.suspension_id, number=number, kind=fired.kind, to=fired.to)
