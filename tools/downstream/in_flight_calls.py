"""Calls in flight to a downstream server: the last check before a call is sent, and the server's questions during it.

A call that waited for its turn may no longer be ours to send. The task that sends a request sets `send_check`; the
transport calls that check immediately before it writes the request.

Before revision 2026-07-28, a server that asks during a call waits for the answer, so the call must stay open. Each call
runs in its own task, and the caller waits until the call ends or the server asks. After a question the caller stops
waiting, but the call goes on until the answer. If the connection or process ends first, only the log knows the call.

A server may ask with a form or with an address to open
(https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation). A form keeps only the keywords that the
specification allows, so no pattern in a form is run, and no reference in it is followed. planwarden offers servers
neither sampling nor roots, so a server that asks for them is at fault.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import anyio
import msgspec
from pydantic import JsonValue

from planwarden.agent.common.canonical import is_larger
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.schema import Schema
from planwarden.agent.core.tool import Suspend
from planwarden.tools.downstream.listing import one_line
from planwarden.tools.downstream.sdk import mcp

logger = logging.getLogger(__name__)

SendCheck = Callable[[], Coroutine[object, object, None]]
"""A function that raises `LeaseLost` when the request must not be sent."""
Answer = dict[str, JsonValue]
"""An `mcp.types.ElicitResult` as JSON."""

NOT_SENT = -32096
"""Our code for a request that did not reach the server, or that the server refused unread."""
LOST = -32095
"""Our code for a request that was sent and not answered."""
TOO_LARGE = -32097
"""Our code for an answer that was too large to be read."""
MAX_HELD = 16
"""The most calls of one server that may wait for an answer; the questions of further calls are cancelled."""
CANCEL_S = 2.0
CANCEL: Answer = {"action": "cancel"}
MAX_FIELDS = 32
MAX_CHOICES = 256
MAX_FORM_BYTES = 32 * 1024
MAX_MESSAGE_CHARS = 1_000
MAX_URL_CHARS = 1_500
MAX_LABEL_CHARS = 200
_ALLOWED: dict[str, tuple[str, ...]] = {
    "string": ("default", "enum", "enumNames", "oneOf", "format", "minLength", "maxLength"),
    "number": ("default", "minimum", "maximum"),
    "integer": ("default", "minimum", "maximum"),
    "boolean": ("default",),
    "array": ("default", "items", "minItems", "maxItems"),
}
_FORMATS = ("email", "uri", "date", "date-time")

send_check: ContextVar[SendCheck | None] = ContextVar("send_check", default=None)


class BadElicitation(ValueError):
    """The server's question cannot be put to a person; the message says why."""


class ServerElicitation(msgspec.Struct, frozen=True):
    """One question of a server."""

    message: str
    """One line of limited length, with invisible characters escaped."""
    form: dict[str, JsonValue] | None = None
    """The JSON Schema of the answer; None when the person has nothing to fill in."""
    url: str | None = None
    """The address to open, in URL mode."""

    def suspend(self, server: str, payload: JsonValue) -> Suspend:
        """Return the question as a suspension that names the server as its asker."""
        asker = f"server {one_line(server, 64)!r}"
        if self.url is None:
            return Suspend(message=self.message, form=self.form, resume_payload=payload, asker=asker)
        facts = (f"It asks you to open {self.url}", "Approve to tell it that you opened this address.")
        return Suspend(message=self.message, resume_payload=payload, asker=asker, found=facts)

    def answer(self, decision: JsonValue) -> Answer:
        """Return the `ElicitResult` for the engine's decision: an approval accepts, and anything else declines."""
        if not isinstance(decision, dict) or decision.get("approved") is not True:
            return {"action": "decline"}
        if self.url is not None:
            return {"action": "accept"}
        return {"action": "accept", "content": decision.get("content") or {}}


@dataclass(eq=False)
class InFlightCall:
    """One call, from sending it to its end."""

    execution_id: str
    label: str = ""
    """The tool's name in the catalogue; empty if the catalogue does not have the tool."""
    answer_at_once: Callable[[ServerElicitation], Answer | None] = lambda elicitation: None
    """A function that answers a question without a person, or returns None so that a person is asked."""
    elicitation: ServerElicitation | None = None
    """The open question."""
    result: Any = None
    error: Exception | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _changed: anyio.Event = field(default_factory=anyio.Event)
    _ended: anyio.Event = field(default_factory=anyio.Event)
    _answer: Answer | None = None
    _answered: anyio.Event = field(default_factory=anyio.Event)
    _ask_lock: anyio.Lock = field(default_factory=anyio.Lock)

    async def run(self, send: Callable[[], Awaitable[Any]]) -> None:
        try:
            with self.scope:
                self.result = await send()
        # The caller that waits for the call raises this error.
        except Exception as error:
            logger.debug("a call ended with an error", exc_info=True)
            self.error = error
        finally:
            for event in (self._ended, self._answered, self._changed):
                event.set()

    async def next_elicitation(self) -> ServerElicitation | None:
        """Return the next question, or None when the call is over. Cancelling this wait cancels the call."""
        try:
            await self._changed.wait()
        except BaseException:
            self.scope.cancel()
            # Give the SDK time to tell the server.
            with anyio.move_on_after(CANCEL_S, shield=True):
                await self._ended.wait()
            raise
        self._changed = anyio.Event()
        return None if self._ended.is_set() else self.elicitation

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def reply(self, answer: Answer) -> None:
        """Answer the open question."""
        self._answer, self.elicitation = answer, None
        self._answered.set()

    async def ask(self, elicitation: ServerElicitation) -> Answer:
        """Return the answer to a question of the server. A second question waits for the first."""
        async with self._ask_lock:
            ready = self.answer_at_once(elicitation)
            if ready is not None or self._ended.is_set():
                return ready or CANCEL
            self.elicitation, self._answer, self._answered = elicitation, None, anyio.Event()
            self._changed.set()
            await self._answered.wait()
            return self._answer or CANCEL


class InFlightCalls:
    """The calls of one connection to one server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._open: list[InFlightCall] = []
        self._held: dict[str, InFlightCall] = {}
        """Calls that wait for an answer, by the id that is stored with their question."""

    async def run(self, call: InFlightCall, send: Callable[[], Awaitable[Any]]) -> None:
        self._open.append(call)
        try:
            await call.run(send)
        finally:
            self._open.remove(call)

    def hold(self, name: str, call: InFlightCall) -> bool:
        """Hold a call that waits for an answer. Return False when `MAX_HELD` calls already wait."""
        if len(self._held) >= MAX_HELD:
            # Calls of an earlier connection ended with that connection, and their questions may never be answered.
            waiting = {name: each for name, each in self._held.items() if not each.has_ended or each.result is not None}
            self._held = waiting
        if len(self._held) >= MAX_HELD:
            return False
        self._held[name] = call
        return True

    def take(self, name: str) -> InFlightCall | None:
        """Return the held call of that id, if this process still has it, and stop holding it."""
        return self._held.pop(name, None)

    def cancel_held(self, execution_id: str) -> None:
        """Cancel those calls of an execution that wait for an answer."""
        for name in [name for name, call in self._held.items() if call.execution_id == execution_id]:
            self._held.pop(name).scope.cancel()

    async def handle_elicitation(
        self, context: object, params: "mcp.types.ElicitRequestParams"
    ) -> "mcp.types.ElicitResult | mcp.types.ErrorData":
        """Return the reply to a question that the server asks in the middle of a call."""
        try:
            # Nothing on the wire says which call a question belongs to. A wrong guess would show it to another user.
            if len({call.execution_id for call in self._open}) != 1:
                raise BadElicitation("the question belongs to no single call in progress")
            elicitation = read_elicitation(params)
        except BadElicitation as error:
            logger.warning("server %r asked a question that is refused: %s", self._server, error)
            return mcp.types.ErrorData(code=mcp.types.INVALID_REQUEST, message=str(error))
        return mcp.types.ElicitResult.model_validate(await self._open[-1].ask(elicitation))


def read_elicitation(params: "mcp.types.ElicitRequestParams") -> ServerElicitation:
    """Return the server's question. Raises `BadElicitation` if it cannot be shown whole, or cannot be answered."""
    message = _read_text("message", params.message, MAX_MESSAGE_CHARS) or "(it gives no reason)"
    if params.mode == "url":
        return ServerElicitation(message, url=_check_url(params.url))
    return ServerElicitation(message, form=read_form(params.requested_schema))


def _check_url(url: str) -> str:
    if len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or any(mark in url for mark in ' <>"\\`'):
        raise BadElicitation("it asks to open an address that cannot be shown whole")
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise BadElicitation("it asks to open what is not an address") from None
    if parts.scheme != "https" or not host or parts.username is not None or parts.password is not None:
        raise BadElicitation("it asks to open an address that is not plain https")
    return url


def read_form(schema: dict[str, JsonValue]) -> dict[str, JsonValue] | None:
    """Return the form with only the keywords that the specification allows; None if it has no fields."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if schema.get("type") != "object" or not isinstance(properties, dict) or not isinstance(required, list):
        raise BadElicitation("its form is not a flat object")
    try:
        if len(properties) > MAX_FIELDS or is_larger(schema, MAX_FORM_BYTES):
            raise BadElicitation(f"its form has more than {MAX_FIELDS} fields or {MAX_FORM_BYTES} bytes")
    except InvalidArguments:
        raise BadElicitation("its form holds numbers that JSON does not have") from None
    if any(not isinstance(name, str) or name not in properties for name in required):
        raise BadElicitation("its form requires a field that it does not have")
    if not properties:
        return None
    form: dict[str, JsonValue] = {
        "type": "object",
        "properties": {_check_name(name): _read_field(name, entry) for name, entry in properties.items()},
        "required": required,
        "additionalProperties": False,
    }
    try:
        Schema(form)
    except ValueError as error:
        raise BadElicitation(f"its form is not usable: {one_line(str(error), MAX_LABEL_CHARS)}") from None
    return form


def _check_name(name: str) -> str:
    if not 0 < len(name) <= 64 or one_line(name, 64) != name:
        raise BadElicitation("its form has a field with a name that cannot be shown")
    return name


def _read_field(name: str, entry: JsonValue) -> JsonValue:
    kind = entry.get("type") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(kind, str) or kind not in _ALLOWED:
        raise BadElicitation(f"its form has a field {name!r} that is neither a text, a number, yes or no, nor a choice")
    field: dict[str, JsonValue] = {key: entry[key] for key in _ALLOWED[kind] if key in entry}
    if field.get("format") not in _FORMATS:
        field.pop("format", None)
    if kind == "array":
        items = field.get("items")
        if not isinstance(items, dict) or not any(key in items for key in ("enum", "anyOf", "oneOf")):
            raise BadElicitation(f"its form has a list {name!r} that is not a choice")
        field["items"] = {"type": "string", "enum": _read_choices(name, items)}
    elif "enum" in field or "oneOf" in field:
        field["enum"] = _read_choices(name, field)
        field.pop("oneOf", None)
        field.pop("enumNames", None)
    for key in ("title", "description"):
        if isinstance(text := entry.get(key), str):
            field[key] = _read_text(f"{key} of {name!r}", text, MAX_LABEL_CHARS)
    return {"type": kind, **field}


def _read_text(what: str, text: str, limit: int) -> str:
    """Return the whole text on one line. Raises `BadElicitation` if the text or that line is longer than `limit`."""
    if len(text) > limit or len(line := one_line(text, limit * 12)) > limit:
        raise BadElicitation(f"its {what} has more than {limit} characters, so it cannot be shown whole")
    return line


def _read_choices(name: str, field: dict[str, JsonValue]) -> list[JsonValue]:
    """Return the choices. Raises `BadElicitation` unless they are 1 to `MAX_CHOICES` texts that can be shown."""
    entries = field.get("enum", field.get("oneOf", field.get("anyOf")))
    listed = entries if isinstance(entries, list) else []
    choices = [entry.get("const") if isinstance(entry, dict) else entry for entry in listed]
    are_shown = all(isinstance(choice, str) and one_line(choice, 200) == choice for choice in choices)
    if not are_shown or not 0 < len(choices) <= MAX_CHOICES:
        raise BadElicitation(f"its form has choices in {name!r} that cannot be shown")
    return choices
