"""The notifications that an execution's events cause: one for each channel that subscribes to the kind of event.

A notification holds ids and names. It holds no arguments, no text of the agent, and nothing with which its reader could
decide: people decide in the inbox or the terminal.
"""

import hashlib
from collections.abc import Sequence

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import Notification, find_notifiable
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState
from planwarden.server.notifications.settings import NotificationChannel
from planwarden.server.views.instants import format_instant, to_utc

MAX_NAME_CHARS = 200
"""The limit for ids and names that come from plans and callers."""


class Outbox:
    """Implements the engine's `NotificationSource` port."""

    def __init__(self, channels: Sequence[NotificationChannel]) -> None:
        self._channels = channels

    def notifications(self, recorded: Sequence[ev.Recorded], execution: ExecutionState) -> tuple[Notification, ...]:
        results: list[Notification] = []
        for entry, kind, suspension in find_notifiable(recorded, execution):
            wanting = [channel for channel in self._channels if kind in channel.events]
            facts = build_facts(entry.event, execution, suspension) if wanting else {}
            results.extend(
                Notification(
                    notification_id=_derive_id(execution.execution_id, entry.sequence, channel.name),
                    channel=channel.name,
                    kind=kind,
                    execution_id=execution.execution_id,
                    suspension_id=suspension.question.suspension_id,
                    facts=facts,
                    created_at=entry.at,
                )
                for channel in wanting
            )
        return tuple(results)


def build_outbox(channels: Sequence[NotificationChannel]) -> Outbox | None:
    """Return the outbox for the channels; None where there are none, so that executions do no extra work."""
    return Outbox(channels) if channels else None


def _derive_id(execution_id: str, sequence: int, channel: str) -> str:
    """Return the one id of the event for a channel, whichever process writes it and however often it is sent."""
    return f"ntc_{hashlib.sha256(f'{execution_id} {sequence} {channel}'.encode()).hexdigest()[:32]}"


def _find_speaker(question: ev.Question) -> str:
    """Return who asks: planwarden about a call, the agent or a tool in its own words, or the server or agent behind a
    call."""
    if question.asker:
        return question.asker[:MAX_NAME_CHARS]
    return "planwarden" if question.traits.is_about_calls or question.kind == "reconcile" else "agent"


def build_facts(event: ev.Event | None, execution: ExecutionState, suspension: SuspensionState) -> dict[str, JsonValue]:
    """Return what may be said about the event of a question, or about the question itself."""
    question = suspension.question
    facts: dict[str, JsonValue] = {
        "threadId": execution.thread_id[:MAX_NAME_CHARS],
        "executionId": execution.execution_id,
        "suspensionId": question.suspension_id,
        "stepId": None if question.step_id is None else question.step_id[:MAX_NAME_CHARS],
        "kind": question.public_kind,
        "toolName": None if question.tool_name is None else question.tool_name[:MAX_NAME_CHARS],
        "speaker": _find_speaker(question),
        "findings": len(question.found) + len(question.edits),
        "risk": question.risk,
        "needs": question.needs,
        "quorum": question.quorum,
        "revision": question.revision,
        "expiresAt": None if question.expires_at is None else format_instant(to_utc(question.expires_at)),
        "onTimeout": question.on_timeout,
    }
    match event:
        case ev.SuspensionReminded():
            facts |= {"reminder": event.number, "escalatedTo": list[JsonValue](event.to)}
        case ev.SuspensionDecided(decision=decision):
            facts |= {"approved": decision.approved}
        case ev.SuspensionTimedOut():
            facts |= {"approved": event.outcome == "approve"}
        case _:
            pass
    return facts
