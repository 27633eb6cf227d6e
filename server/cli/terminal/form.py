"""Filling in a form: one question per field where the JSON Schema is flat, JSON where it is not.

Every answer is checked against the schema of its field at once, and the whole against the whole form; the engine
checks again when the answer is sent.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.common.schema import Schema
from planwarden.server.cli.terminal.editor import edit_json
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.facts import escape_text

_SIMPLE = ("string", "integer", "number", "boolean")
_TRUE, _FALSE = ("y", "yes", "true", "1"), ("n", "no", "false", "0")


@dataclass(frozen=True, slots=True)
class TerminalField:
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
    """Content that fits the form; None when the person stopped."""
    fields = flat_fields(form)
    while True:
        content = _by_fields(terminal, fields) if fields is not None else _as_json(terminal, form)
        if content is None:
            return None
        faults = Schema(form).find_faults(content)
        if not faults:
            return content
        _complain(terminal, "; ".join(faults[:3]))


def flat_fields(form: Mapping[str, JsonValue]) -> list[TerminalField] | None:
    """The fields in their order; None when some field is neither text, number, yes or no, nor one of several texts."""
    properties, required = form.get("properties"), form.get("required")
    if not isinstance(properties, dict) or not properties:
        return None
    wanted = required if isinstance(required, list) else []
    fields: list[TerminalField] = []
    for name, schema in properties.items():
        kind = schema.get("type") if isinstance(schema, dict) else None
        if not isinstance(schema, dict) or not isinstance(kind, str) or kind not in _SIMPLE or "$ref" in schema:
            return None
        fields.append(TerminalField(name, kind, schema, name in wanted))
    return fields


def type_json(terminal: Terminal, prompt: str) -> tuple[bool, JsonValue]:
    """Whether something usable was typed, and its value; nothing typed is None. Text without quotes counts as text."""
    typed = terminal.ask(prompt)
    if not typed:
        return typed is not None, None
    try:
        return True, read_json(typed)
    except PlanwardenError as error:
        if typed[0] not in '{["' and typed not in ("NaN", "Infinity"):
            return True, typed
        _complain(terminal, error.message)
        return False, None


def _by_fields(terminal: Terminal, fields: list[TerminalField]) -> dict[str, JsonValue] | None:
    content: dict[str, JsonValue] = {}
    for field in fields:
        answered, value = _ask_field(terminal, field)
        if not answered:
            return None
        if value is not None:
            content[field.name] = value
    return content


def _ask_field(terminal: Terminal, field: TerminalField) -> tuple[bool, JsonValue]:
    """Whether the person went on, and the value; None leaves the field out."""
    prompt = _prompt(field)
    while True:
        typed = terminal.ask(prompt)
        if typed is None:
            return False, None
        if not typed:
            if field.default is not None or not field.is_required:
                return True, field.default
            _complain(terminal, "this field is needed")
            continue
        value = _parsed(field, typed)
        faults = ("choose one of them",) if value is None else Schema(field.schema).find_faults(value)
        if not faults:
            return True, value
        _complain(terminal, faults[0])


def _prompt(field: TerminalField) -> str:
    title = field.schema.get("title") or field.schema.get("description") or ""
    about = f" - {one_line(str(title), 120)}" if title else ""
    shape = "y/n" if field.kind == "boolean" else " | ".join(map(escape_text, field.choices)) or field.kind
    need = "" if field.is_required or field.default is not None else ", optional"
    given = "" if field.default is None else f" [{escape_text(json.dumps(field.default, ensure_ascii=False))}]"
    return f"  {escape_text(field.name)}{about} ({shape}{need}){given}: "


def _parsed(field: TerminalField, typed: str) -> JsonValue:
    """The typed text as the field's type, or as it is when it is none; None for neither yes nor no."""
    if field.kind == "boolean":
        return True if typed.lower() in _TRUE else False if typed.lower() in _FALSE else None
    if field.kind == "string":
        return typed
    try:
        return int(typed) if field.kind == "integer" else float(typed) if "." in typed or "e" in typed else int(typed)
    except ValueError:
        return typed


def _as_json(terminal: Terminal, form: dict[str, JsonValue]) -> JsonValue | None:
    terminal.say(TerminalLine((("The form: ", "dim"), escape_text(json.dumps(form, ensure_ascii=False)))))
    return edit_json(terminal, {})


def _complain(terminal: Terminal, text: str) -> None:
    terminal.say(TerminalLine(((f"  {one_line(text, 300)}", "warn"),)))
