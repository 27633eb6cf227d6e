"""Notifications, which tell people and outside programs about a question by push or webhook; and alarms.

The store saves a notification in the transaction of its event, so that none is lost and none reports what did not
happen. A notification has ids, names and facts such as the risk, but no arguments, no agent's text, no way to decide.

By the operator's schedule, an alarm reminds a person of an open question, or escalates the question. The times of the
alarms are stored with the question, so that all processes see the same ones even after a change of policy. An alarm
fires once, as an event, while the suspension is open and not expired. If no process ran for a while, one event covers
all due alarms: it reports the escalation, if any, else the newest alarm.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.question import Alarm
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState

NotificationKind = Literal["asked", "reminded", "escalated", "decided", "timed_out", "test"]
"""What happened. Only a command of the operator sends `test`."""
SUBSCRIBABLE: tuple[NotificationKind, ...] = ("asked", "reminded", "escalated", "decided", "timed_out")
"""Kinds that a channel may select."""


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One message for one channel."""

    notification_id: str
    """The same for every attempt to deliver the notification; only letters, digits and `_`."""
    channel: str
    """The name of the channel in the operator's file."""
    kind: NotificationKind
    execution_id: str
    suspension_id: str
    facts: dict[str, JsonValue]
    created_at: float
    """When the reported event happened, in Unix seconds."""
    attempts: int = 0
    """How often a sender has claimed the notification for delivery; the number tells one claim from the next."""


def find_notifiable(
    recorded: Sequence[ev.Recorded], execution: ExecutionState
) -> Iterator[tuple[ev.Recorded, NotificationKind, SuspensionState]]:
    """Yield each notifiable event of a question to a person, with the notification's kind and the suspension.

    `execution` is the state after the events.
    """
    kind: NotificationKind
    for entry in recorded:
        match entry.event:
            case ev.Suspended(question=question):
                kind, suspension_id = "asked", question.suspension_id
            case ev.SuspensionReminded(suspension_id=suspension_id, kind=alarm):
                kind = "reminded" if alarm == "remind" else "escalated"
            case ev.SuspensionDecided(suspension_id=suspension_id):
                kind = "decided"
            case ev.SuspensionTimedOut(suspension_id=suspension_id):
                kind = "timed_out"
            case _:
                continue
        suspension = execution.suspensions[suspension_id]
        if suspension.question.addressee == "human":
            yield entry, kind, suspension


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's alarms for the questions about one tool."""

    remind_after_s: tuple[float, ...] = ()
    """When to remind, in seconds after the question was asked."""
    escalate_after_s: float | None = None
    escalate_to: tuple[str, ...] = ()
    """The people whom an escalation notifies; it gives them no right to decide."""


NO_ALARMS = Schedule()


def build_alarms(schedule: Schedule, asked_at: float, expires_at: float | None) -> tuple[Alarm, ...]:
    """Return the alarms before `expires_at`, earliest first. All times are Unix seconds."""
    alarms = [Alarm(kind="remind", at=asked_at + after_s) for after_s in schedule.remind_after_s]
    if schedule.escalate_after_s is not None:
        alarms.append(Alarm(kind="escalate", at=asked_at + schedule.escalate_after_s, to=schedule.escalate_to))
    in_time = (alarm for alarm in alarms if expires_at is None or alarm.at < expires_at)
    return tuple(sorted(in_time, key=lambda alarm: alarm.at))


def find_next_alarm_at(suspension: SuspensionState) -> float | None:
    """Return when the next alarm is due, in Unix seconds; None when none remains or the suspension is closed."""
    remaining = suspension.question.alarms[suspension.alarmed :]
    return remaining[0].at if remaining and suspension.is_open else None


def find_due_alarm(suspension: SuspensionState, now: float) -> ev.SuspensionReminded | None:
    """Return one event for all alarms that are due; None if no alarm is, or the suspension is closed or expired."""
    question = suspension.question
    if not suspension.is_open or (question.expires_at is not None and question.expires_at <= now):
        return None
    number = sum(alarm.at <= now for alarm in question.alarms)
    due = question.alarms[suspension.alarmed : number]
    if not due:
        return None
    fired = next((alarm for alarm in due if alarm.kind == "escalate"), due[-1])
    return ev.SuspensionReminded(suspension_id=question.suspension_id, number=number, kind=fired.kind, to=fired.to)
