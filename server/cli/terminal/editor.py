"""Editing a JSON value: in the editor that VISUAL or EDITOR names, otherwise on one line."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.common.struct import JsonValue
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.facts import escape_text


def edit_json(terminal: Terminal, value: JsonValue) -> JsonValue | None:
    """Returns the edited value; None when nothing was typed, or when it is not JSON, which the terminal then says."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    text = _edit_in_editor(editor, value) if editor else _edit_on_one_line(terminal, value)
    if not text:
        return None
    try:
        return read_json(text)
    except PlanwardenError as error:
        terminal.say(TerminalLine(((f"That is {error.message}.", "warn"),)))
        return None


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


def _edit_on_one_line(terminal: Terminal, value: JsonValue) -> str | None:
    terminal.say(TerminalLine((("now: ", "dim"), escape_text(json.dumps(value, ensure_ascii=False)))))
    return terminal.ask("as one line of JSON (Enter: unchanged): ")
