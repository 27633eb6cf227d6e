"""Filling in a form: one prompt for each field where the JSON Schema is flat, otherwise JSON.

Every answer is checked against the schema of its field at once, and the content against the form. The engine checks
again when the answer is sent.
"""

import json
from collections.abc import Mapping

import msgspec

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.struct import JsonValue
from planwarden.server.cli.terminal.editor import edit_json
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.facts import escape_text

_SIMPLE = ("string", "integer", "number", "boolean")
_TRUE, _FALSE = ("y", "yes", "true", "1"), ("n", "no", "false", "0")


class TerminalField(msgspec.Struct, frozen=True):
    """One property of a flat form."""

    name: str
    kind: str
    schema: dict[str, JsonValue]
    is_required: bool

    @property
    def choices(self) -> list[str]:
        listed = self.schema.get("enum")
        return [choice for choice in listed if isinstance(choice, str)] if isinstance(listed, list) else []

    @property
    def default(self) -> JsonValue:
        return self.schema.get("default")


def fill_in(terminal: Terminal, form: dict[str, JsonValue]) -> JsonValue | None:
    """Returns content that fits the form; None when the person stopped."""
    fields = read_flat_fields(form)
    labels = [escape_text(str(form[key])) for key in ("title", "description") if key in form]
    if fields is not None and labels:
        terminal.say(TerminalLine((("The form says of itself: ", "dim"), " - ".join(labels))))
    while True:
        content = _ask_fields(terminal, fields) if fields is not None else _ask_as_json(terminal, form)
        if content is None:
            return None
        faults = Schema(form, checks_dates=True).find_faults(content)
        if not faults:
            return content
        _report_fault(terminal, "; ".join(faults[:3]))


def read_flat_fields(form: Mapping[str, JsonValue]) -> list[TerminalField] | None:
    """Returns the fields in their order; None when a field is not a text, a number, a boolean or a choice of texts."""
    properties, required = form.get("properties"), form.get("required")
    if not isinstance(properties, dict) or not properties:
        return None
    required_names = required if isinstance(required, list) else []
    fields: list[TerminalField] = []
    for name, schema in properties.items():
        kind = schema.get("type") if isinstance(schema, dict) else None
        if not isinstance(schema, dict) or not isinstance(kind, str) or kind not in _SIMPLE or "$ref" in schema:
            return None
        fields.append(TerminalField(name, kind, schema, name in required_names))
    return fields


def ask_for_json(terminal: Terminal, prompt: str) -> tuple[bool, JsonValue]:
    """Returns whether something usable was typed, and its value: None for an empty line; text needs no quotes."""
    typed = terminal.ask(prompt)
    if not typed:
        return typed is not None, None
    try:
        return True, read_json(typed)
    except PlanwardenError as error:
        if typed[0] not in '{["' and typed not in ("NaN", "Infinity"):
            return True, typed
        _report_fault(terminal, error.message)
        return False, None


def _ask_fields(terminal: Terminal, fields: list[TerminalField]) -> dict[str, JsonValue] | None:
    content: dict[str, JsonValue] = {}
    for field in fields:
        is_answered, value = _ask_field(terminal, field)
        if not is_answered:
            return None
        if value is not None:
            content[field.name] = value
    return content


def _ask_field(terminal: Terminal, field: TerminalField) -> tuple[bool, JsonValue]:
    """Returns whether the person continued, and the value; None omits the field."""
    prompt = _prompt(field)
    while True:
        typed = terminal.ask(prompt)
        if typed is None:
            return False, None
        if not typed:
            if field.default is not None or not field.is_required:
                return True, field.default
            _report_fault(terminal, "this field is needed")
            continue
        value = _parse(field, typed)
        faults = (
            ("choose one of them",) if value is None else Schema(field.schema, checks_dates=True).find_faults(value)
        )
        if not faults:
            return True, value
        _report_fault(terminal, faults[0])


def _prompt(field: TerminalField) -> str:
    labels = (escape_text(str(field.schema[key])) for key in ("title", "description") if key in field.schema)
    about = "".join(f" - {label}" for label in labels if label)
    shape = "y/n" if field.kind == "boolean" else " | ".join(map(escape_text, field.choices)) or field.kind
    need = "" if field.is_required or field.default is not None else ", optional"
    given = "" if field.default is None else f" [{escape_text(json.dumps(field.default, ensure_ascii=False))}]"
    return f"  {escape_text(field.name)}{about} ({shape}{need}){given}: "


def _parse(field: TerminalField, typed: str) -> JsonValue:
    """Returns the typed text as the field's type, or unchanged when it does not parse; None for neither yes nor no."""
    if field.kind == "boolean":
        return True if typed.lower() in _TRUE else False if typed.lower() in _FALSE else None
    if field.kind == "string":
        return typed
    try:
        return int(typed) if field.kind == "integer" else float(typed) if "." in typed or "e" in typed else int(typed)
    except ValueError:
        return typed


def _ask_as_json(terminal: Terminal, form: dict[str, JsonValue]) -> JsonValue | None:
    terminal.say(TerminalLine((("The form: ", "dim"), escape_text(json.dumps(form, ensure_ascii=False)))))
    return edit_json(terminal, {})


def _report_fault(terminal: Terminal, text: str) -> None:
    terminal.say(TerminalLine(((f"  {one_line(text, 300)}", "warn"),)))
