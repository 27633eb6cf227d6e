"""Filling in a form: one prompt for each field where the JSON Schema is flat, otherwise JSON.

Every answer is checked against the schema of its field at once, and the content against the form. The engine checks
again when the answer is sent.
"""

import json
from collections.abc import Sequence

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.struct import JsonValue
from planwarden.server.cli.terminal.editor import edit_json
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.fields import Field, read_flat_fields


def fill_in(terminal: Terminal, form: dict[str, JsonValue]) -> JsonValue | None:
    """Return content that fits the form; None when the person stopped."""
    fields = read_flat_fields(form)
    labels = [escape_text(str(form[key])) for key in ("title", "description") if key in form]
    if fields and labels:
        terminal.say(TerminalLine(("The form says of itself: ", "dim"), " - ".join(labels)))
    while True:
        content = _ask_fields(terminal, fields) if fields else _ask_as_json(terminal, form)
        if content is None:
            return None
        faults = Schema(form, checks_dates=True).find_faults(content)
        if not faults:
            return content
        _report(terminal, "; ".join(faults[:3]))


def ask_for_json(terminal: Terminal, prompt: str) -> tuple[bool, JsonValue]:
    """Return whether something usable was typed, and its value: None for an empty line; text needs no quotes."""
    typed = terminal.ask(prompt)
    if not typed:
        return typed is not None, None
    try:
        return True, read_json(typed)
    except PlanwardenError as error:
        if typed[0] not in '{["' and typed not in ("NaN", "Infinity"):
            return True, typed
        _report(terminal, error.message)
        return False, None


def _ask_fields(terminal: Terminal, fields: Sequence[Field]) -> dict[str, JsonValue] | None:
    content: dict[str, JsonValue] = {}
    for field in fields:
        is_answered, value = _ask_field(terminal, field)
        if not is_answered:
            return None
        if value is not None:
            content[field.name] = value
    return content


def _ask_field(terminal: Terminal, field: Field) -> tuple[bool, JsonValue]:
    """Return whether the person continued, and the value; None omits the field."""
    prompt, default = _prompt(field), field.schema.get("default")
    while True:
        typed = terminal.ask(prompt)
        if typed is None:
            return False, None
        if not typed:
            if default is not None or not field.is_required:
                return True, default
            _report(terminal, "this field is needed")
            continue
        try:
            value = field.read(typed)
        except PlanwardenError as error:
            _report(terminal, error.message)
            continue
        faults = Schema(field.schema, checks_dates=True).find_faults(value)
        if not faults:
            return True, value
        _report(terminal, faults[0])


def _prompt(field: Field) -> str:
    labels = (escape_text(str(field.schema[key])) for key in ("title", "description") if key in field.schema)
    about = "".join(f" - {label}" for label in labels if label)
    default = field.schema.get("default")
    choices = "y/n" if field.kind == "boolean" else " | ".join(map(field.write, field.choices))
    need = "" if field.is_required or default is not None else ", optional"
    default_text = "" if default is None else f" [{escape_text(json.dumps(default, ensure_ascii=False))}]"
    return f"  {field.label}{about} ({choices or field.schema['type']}{need}){default_text}: "


def _ask_as_json(terminal: Terminal, form: dict[str, JsonValue]) -> JsonValue | None:
    terminal.say(TerminalLine(("The form: ", "dim"), escape_text(json.dumps(form, ensure_ascii=False))))
    return edit_json(terminal, {})


def _report(terminal: Terminal, fault: str) -> None:
    terminal.warn(f"  {one_line(fault, 300)}")
