"""A notice as a request: a signed webhook, or a push message of an ntfy server.

Webhooks follow Standard Webhooks 1.0.0 (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md):
the id stays the same for every attempt, the timestamp is that of the attempt, and both are signed with the body. Push
messages are published as JSON (https://docs.ntfy.sh/publish/#publish-as-json), so that no text can become a header.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from pydantic import JsonValue

from planwarden.agent.core.notifications import Notice
from planwarden.server.notifications.channels import Channel
from planwarden.server.notifications.outbox import instant
from planwarden.server.views.facts import escape_text

MAX_TITLE_CHARS = 120
MAX_MESSAGE_CHARS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A POST request. The address and the headers may hold secrets."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes


def outgoing(channel: Channel, notice: Notice, now: float, inbox: str | None) -> Outgoing:
    """What to send now; `inbox` is the address of the inbox page, if one is known."""
    link = f"{inbox}/suspensions/{notice.suspension_id}" if inbox and notice.kind != "test" else inbox
    if channel.kind == "webhook":
        return _webhook(channel, notice, now, link)
    return _push(channel, notice, link)


def _webhook(channel: Channel, notice: Notice, now: float, link: str | None) -> Outgoing:
    name = "planwarden.test" if notice.kind == "test" else f"suspension.{notice.kind}"
    document: JsonValue = {
        "type": name,
        "timestamp": instant(notice.created_at),
        "data": {**notice.facts, "inboxUrl": link},
    }
    body = _json(document)
    timestamp = str(int(now))
    headers = {
        "webhook-id": notice.notice_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": signature(channel.key, notice.notice_id, timestamp, body),
    }
    return Outgoing(url=channel.url, headers=headers, body=body)


def signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """`v1,` and the HMAC-SHA256 of `ID.TIMESTAMP.BODY` in base64."""
    signed = hmac.digest(key, b".".join((message_id.encode(), timestamp.encode(), body)), hashlib.sha256)
    return f"v1,{base64.b64encode(signed).decode()}"


def _push(channel: Channel, notice: Notice, link: str | None) -> Outgoing:
    parts = urlsplit(channel.url)
    document: dict[str, JsonValue] = {
        "topic": parts.path.removeprefix("/"),
        "title": _cut(_title(notice), MAX_TITLE_CHARS),
        "message": _cut(_message(notice), MAX_MESSAGE_CHARS),
        "priority": _priority(notice),
        "tags": [_TAGS.get(notice.kind, "white_check_mark" if notice.facts.get("approved") else "x")],
    }
    if link is not None:
        document["click"] = link
    headers = {} if channel.token is None else {"authorization": f"Bearer {channel.token}"}
    return Outgoing(url=urlunsplit((parts.scheme, parts.netloc, "/", "", "")), headers=headers, body=_json(document))


_TAGS = {
    "asked": "question",
    "reminded": "bell",
    "escalated": "rotating_light",
    "timed_out": "hourglass",
    "test": "test_tube",
}
"""https://docs.ntfy.sh/emojis/"""


def _title(notice: Notice) -> str:
    tool = escape_text(str(notice.facts.get("toolName") or notice.facts.get("kind") or "planwarden"))
    match notice.kind:
        case "asked":
            return f"Decision needed: {tool}"
        case "reminded":
            return f"Still waiting: {tool}"
        case "escalated":
            people = notice.facts.get("escalatedTo")
            names = [escape_text(str(name)) for name in people] if isinstance(people, list) else []
            return f"Escalated{' to ' + ', '.join(names) if names else ''}: {tool}"
        case "decided":
            return f"{'Approved' if notice.facts.get('approved') else 'Rejected'}: {tool}"
        case "timed_out":
            return f"Nobody answered in time: {tool}"
        case "test":
            return "planwarden can reach you"


def _message(notice: Notice) -> str:
    if notice.kind == "test":
        return "This is a test notice. Nothing waits for you."
    facts = notice.facts
    parts = [f"risk {facts.get('risk')}", f"needs {facts.get('needs')}"]
    if notice.kind in ("asked", "reminded", "escalated"):
        if facts.get("expiresAt") is not None:
            parts.append(f"until {facts.get('expiresAt')}, then {facts.get('onTimeout')}")
        parts.append("decide in the inbox or at the terminal")
    elif notice.kind == "timed_out":
        parts.append("approved by the time-out" if facts.get("approved") else "rejected by the time-out")
    return escape_text(f"{'; '.join(parts)}. Question {notice.suspension_id}")


def _priority(notice: Notice) -> int:
    """https://docs.ntfy.sh/publish/#message-priority"""
    if notice.kind == "escalated":
        return 5
    is_grave = notice.facts.get("risk") in ("dangerous", "critical")
    return {"asked": 4 if is_grave else 3, "reminded": 4, "test": 3}.get(notice.kind, 2)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _json(document: JsonValue) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
