"""Asks a person for values: with a prompt for each field if the form's JSON Schema is flat, otherwise as JSON.

A person edits JSON in the editor that VISUAL or EDITOR names or, without one, at prompts of the terminal. Each
answer is checked at once against its field's schema, and then all answers against the form. The engine checks again.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from planwarden.agent.common.canonical import is_same_json, read_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.struct import JsonValue
from planwarden.server.cli.terminal.lines import one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.escaping import escape_text, format_value
from planwarden.server.views.fields import Field, read_flat_fields

MAX_FAULTS = 3

FaultFinder = Callable[[str, dict[str, JsonValue]], tuple[str, ...]]
"""A function that returns why arguments do not fit the named tool: nothing if they fit, or if the tool is not known."""


def fill_in(terminal: Terminal, form: dict[str, JsonValue]) -> JsonValue | None:
    """Return content that fits the form; None if the person stopped."""
    fields = read_flat_fields(form)
    labels = [escape_text(str(form[key])) for key in ("title", "description") if key in form]
    if fields and labels:
        terminal.line(("The form says of itself: ", "dim"), " - ".join(labels))
    while True:
        if fields:
            content = _ask_fields(terminal, fields)
        else:
            terminal.line(("The form: ", "dim"), escape_text(json.dumps(form, ensure_ascii=False)))
            content = edit_json(terminal, {})
        if content is None:
            return None
        faults = Schema(form, checks_dates=True).find_faults(content)
        if not faults:
            return content
        _report(terminal, "; ".join(faults[:MAX_FAULTS]))


def ask_for_json(terminal: Terminal, prompt: str) -> tuple[bool, JsonValue]:
    """Return whether the person typed a usable value, and the value. An empty line means None; text needs no quotes."""
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
    choices = "y/n" if field.kind == "boolean" else " | ".join(map(field.label_choice, field.choices))
    need = "" if field.is_required or default is not None else ", optional"
    default_text = "" if default is None else f" [{escape_text(json.dumps(default, ensure_ascii=False))}]"
    return f"  {field.label}{about} ({choices or field.schema['type']}{need}){default_text}: "


def _report(terminal: Terminal, fault: str) -> None:
    terminal.warn(f"  {one_line(fault, 300)}")


def edit_json(terminal: Terminal, value: JsonValue) -> JsonValue | None:
    """Return the edited value; None if nothing was typed, or if the editor's text is not JSON. A prompt asks again."""
    editor = _find_editor()
    if editor:
        text = _edit_in_editor(editor, value)
        return _read(terminal, text) if text else None
    terminal.line(("now: ", "dim"), escape_text(json.dumps(value, ensure_ascii=False)))
    while text := terminal.ask("as one line of JSON (Enter: unchanged): "):
        if reading := _read_field(terminal, None, text):
            return reading[0]
    return None


def edit_arguments(
    terminal: Terminal, subject: str, tool_name: str, arguments: dict[str, JsonValue], find_faults: FaultFinder
) -> dict[str, JsonValue] | None:
    """Return the edited arguments of the call `subject`; if they are unchanged or unusable, say why and return None."""
    edited = _ask_for_arguments(terminal, arguments)
    if edited is None or is_same_json(edited, arguments):
        terminal.say(f"{subject} is as it was.")
    elif not isinstance(edited, dict):
        terminal.warn(f"Arguments are a JSON object. {subject} is as it was.")
    elif faults := find_faults(tool_name, edited):
        terminal.warn(f"{subject} does not fit {tool_name}: {'; '.join(faults[:MAX_FAULTS])}. It is as it was.")
    else:
        terminal.line((f"{subject} would run with ", "warn"), format_value(edited, None))
        return edited
    return None


def _ask_for_arguments(terminal: Terminal, arguments: dict[str, JsonValue]) -> JsonValue | None:
    """Return the arguments as the person edited them; None if they typed nothing usable.

    Without an editor, ask for each argument; at the first, if it is not an object, also take all arguments as JSON.
    """
    if _find_editor() is not None or not arguments:
        return edit_json(terminal, arguments)
    edited = dict(arguments)
    may_be_all = not isinstance(next(iter(arguments.values())), dict)
    for name, value in arguments.items():
        hint = ", or all arguments as one line of JSON" if may_be_all else ""
        typed = terminal.ask(f"  {escape_text(name)} (Enter: {format_value(value)}{hint}): ")
        if typed is None:
            return None
        if may_be_all and typed.startswith("{"):
            return _read(terminal, typed)
        may_be_all = False
        if typed:
            reading = _read_field(terminal, value, typed)
            if reading is None:
                return None
            edited[name] = reading[0]
    return edited


def _read_field(terminal: Terminal, value: JsonValue, typed: str) -> tuple[JsonValue] | None:
    """Return the new value in a tuple: text if `value` is text (`""` means empty), else JSON; None if invalid."""
    if isinstance(value, str):
        return ("" if typed == '""' else typed,)
    try:
        return (read_json(typed),)
    except PlanwardenError as error:
        terminal.warn(f"That is {error.message}.")
        return None


def _read(terminal: Terminal, text: str) -> JsonValue | None:
    reading = _read_field(terminal, None, text)
    return None if reading is None else reading[0]


def _find_editor() -> str | None:
    return os.environ.get("VISUAL") or os.environ.get("EDITOR")


def _edit_in_editor(editor: str, value: JsonValue) -> str | None:
    # Created with mode 0700: another user must neither read nor replace what the person is about to approve.
    with tempfile.TemporaryDirectory(prefix="planwarden-") as folder:
        path = Path(folder) / "arguments.json"
        path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        command = [*shlex.split(editor, posix=sys.platform != "win32"), str(path)]
        try:
            finished = subprocess.run(command, check=False)
            return path.read_text(encoding="utf-8") if finished.returncode == 0 else None
        except (OSError, UnicodeDecodeError):
            return None
