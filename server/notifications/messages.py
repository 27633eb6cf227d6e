"""The notifications that an execution's events cause, and the request for each: a signed webhook, or an ntfy message.

A notification holds ids and names. It holds no arguments, no text of the agent, and nothing with which its reader could
decide: people decide in the inbox or the terminal.

Webhooks follow https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md (1.0.0): the
id stays the same for every attempt, the timestamp is the attempt's own, and both are signed with the body. Push
messages are published as JSON (https://docs.ntfy.sh/publish/#publish-as-json), so that no text can become a header.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

import msgspec

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import Notification, NotificationKind, find_notifiable
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState
from planwarden.server.notifications.settings import NotificationChannel
from planwarden.server.views.escaping import shorten_text
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.server.views.status_words import WORDS

MAX_NAME_CHARS = 200
"""The most characters of an id or a name that comes from a plan or a caller."""
MAX_TITLE_CHARS = 120
MAX_MESSAGE_CHARS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRequest:
    """A POST request. Its URL and headers may hold secrets."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes


class DeliveryReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one attempt."""

    is_delivered: bool
    description: str
    """The end of a sentence that begins with the receiver: `answered 204`, `did not answer within 15 s`."""
    is_final: bool = False
    """True when another attempt cannot succeed."""
    retry_after_s: float | None = None
    """The wait that the receiver asked for, at most six hours."""
    answer: tuple[int, bytes] | None = None
    """The response's status and the beginning of its body; None if the caller did not ask, or no response came."""


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
    """Return the outbox for the channels; None if there are none, so that executions do no extra work."""
    return Outbox(channels) if channels else None


def _derive_id(execution_id: str, sequence: int, channel: str) -> str:
    """Return the id of an event's notification on a channel: the same in every process and for every attempt."""
    return f"ntc_{hashlib.sha256(f'{execution_id} {sequence} {channel}'.encode()).hexdigest()[:32]}"


def _find_speaker(question: ev.Question) -> str:
    """Return who asks: the `asker` of the question, else planwarden for a question about calls, else the agent."""
    if question.asker:
        return question.asker[:MAX_NAME_CHARS]
    return "planwarden" if question.traits.is_about_calls or question.kind == "reconcile" else "agent"


def build_facts(event: ev.Event | None, execution: ExecutionState, suspension: SuspensionState) -> dict[str, JsonValue]:
    """Return what a notification may say about a question, and about the event that caused the notification, if any."""
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


def build_request(
    channel: NotificationChannel, notification: Notification, now: float, inbox: str | None
) -> OutgoingRequest:
    """Return the request to send now; `inbox` is the address of the inbox, if it is open."""
    link = f"{inbox}/suspensions/{notification.suspension_id}" if inbox and notification.kind != "test" else inbox
    if channel.kind == "webhook":
        return _build_webhook(channel, notification, now, link)
    return _build_push(channel, notification, link)


def describe_question(execution: ExecutionState, suspension: SuspensionState) -> tuple[str, str]:
    """Return the title and the text of a notification which says that this question was asked."""
    facts = build_facts(None, execution, suspension)
    return _write_title("asked", facts), _write_message("asked", facts, suspension.question.suspension_id)


def _build_webhook(
    channel: NotificationChannel, notification: Notification, now: float, link: str | None
) -> OutgoingRequest:
    name = "planwarden.test" if notification.kind == "test" else f"suspension.{notification.kind}"
    document: JsonValue = {
        "type": name,
        "timestamp": format_instant(to_utc(notification.created_at)),
        "data": {**notification.facts, "inboxUrl": link},
    }
    body = _encode_json(document)
    timestamp = str(int(now))
    headers = {
        "webhook-id": notification.notification_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": sign_message(channel.key, notification.notification_id, timestamp, body),
    }
    return OutgoingRequest(url=channel.url, headers=headers, body=body)


def sign_message(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """Return `v1,` and the HMAC-SHA256 of `ID.TIMESTAMP.BODY` in base64."""
    signed = hmac.digest(key, b".".join((message_id.encode(), timestamp.encode(), body)), hashlib.sha256)
    return f"v1,{base64.b64encode(signed).decode()}"


def _build_push(channel: NotificationChannel, notification: Notification, link: str | None) -> OutgoingRequest:
    parts = urlsplit(channel.url)
    document: dict[str, JsonValue] = {
        "topic": parts.path.removeprefix("/"),
        "title": _write_title(notification.kind, notification.facts),
        "message": _write_message(notification.kind, notification.facts, notification.suspension_id),
        "priority": _choose_priority(notification),
        "tags": [_TAGS.get(notification.kind, "white_check_mark" if notification.facts.get("approved") else "x")],
    }
    if link is not None:
        document["click"] = link
    headers = {} if channel.token is None else {"authorization": f"Bearer {channel.token}"}
    return OutgoingRequest(
        url=urlunsplit((parts.scheme, parts.netloc, "/", "", "")), headers=headers, body=_encode_json(document)
    )


_TAGS = {
    "asked": "question",
    "reminded": "bell",
    "escalated": "rotating_light",
    "timed_out": "hourglass",
    "test": "test_tube",
}
"""https://docs.ntfy.sh/emojis/"""


def _write_title(kind: NotificationKind, facts: Mapping[str, JsonValue]) -> str:
    tool, people = facts.get("toolName") or facts.get("kind") or "planwarden", facts.get("escalatedTo")
    names = ", ".join(map(str, people)) if isinstance(people, list) else ""
    starts: dict[NotificationKind, str] = {
        "asked": "Decision needed",
        "reminded": "Still waiting",
        "escalated": f"Escalated to {names}" if names else "Escalated",
        "decided": WORDS["question"]["approved" if facts.get("approved") else "rejected"].word.capitalize(),
        "timed_out": WORDS["question"]["timed_out"].word.capitalize(),
    }
    return shorten_text("planwarden can reach you" if kind == "test" else f"{starts[kind]}: {tool}", MAX_TITLE_CHARS)


def _write_message(kind: NotificationKind, facts: Mapping[str, JsonValue], suspension_id: str) -> str:
    if kind == "test":
        return "This is a test notification. No question waits for you."
    parts = [f"risk {facts.get('risk')}", f"needs {facts.get('needs')}"]
    if kind in ("asked", "reminded", "escalated"):
        speaker = facts.get("speaker")
        parts.insert(0, f"{'the agent' if speaker == 'agent' else speaker} asks")
        if facts.get("findings"):
            parts.append("planwarden found something about it: read that first")
        if facts.get("expiresAt") is not None:
            parts.append(f"until {facts.get('expiresAt')}, then {facts.get('onTimeout')}")
        parts.append("decide in the inbox or at the terminal")
    elif kind == "timed_out":
        parts.append("approved by the time-out" if facts.get("approved") else "rejected by the time-out")
    return shorten_text(f"{'; '.join(parts)}. Question {suspension_id}", MAX_MESSAGE_CHARS)


def _choose_priority(notification: Notification) -> int:
    """Return a priority of ntfy (https://docs.ntfy.sh/publish/#message-priority)."""
    if notification.kind == "escalated":
        return 5
    is_grave = notification.facts.get("risk") in ("dangerous", "critical")
    return {"asked": 4 if is_grave else 3, "reminded": 4, "test": 3}.get(notification.kind, 2)


def _encode_json(document: JsonValue) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
