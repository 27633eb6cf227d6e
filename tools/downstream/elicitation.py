"""Turns a downstream server's question into a question to a person, and the decision into an answer to the server.

A server may ask with a form or with an address to open
(https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation). A form keeps only the keywords that the
specification allows, so no pattern in a form is run, and no reference in it is followed. planwarden offers servers
neither sampling nor roots, so a server that asks for them is at fault.
"""

from urllib.parse import urlsplit

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.canonical import is_larger
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.schema import Schema
from planwarden.agent.core.tool import Suspend
from planwarden.tools.downstream.listing import one_line
from planwarden.tools.downstream.sdk import mcp

Answer = dict[str, JsonValue]
"""An `mcp.types.ElicitResult` as JSON."""

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
