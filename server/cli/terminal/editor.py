"""Editing a JSON value: in the person's own editor when they have one, else typed on one line."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic import JsonValue

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.facts import escape_text


def edit_json(terminal: Terminal, value: JsonValue) -> JsonValue | None:
    """The value after editing; None when it was left alone or is not JSON, which is said on the terminal."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    text = _in_editor(editor, value) if editor else _on_one_line(terminal, value)
    if not text:
        return None
    try:
        return read_json(text)
    except PlanwardenError as error:
        terminal.say(TerminalLine(((f"That is {error.message}.", "warn"),)))
        return None


def _in_editor(editor: str, value: JsonValue) -> str | None:
    # 0700 from the start; another user must neither read nor replace what is about to be approved.
    with tempfile.TemporaryDirectory(prefix="planwarden-") as folder:
        path = Path(folder) / "arguments.json"
        path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        command = [*shlex.split(editor, posix=sys.platform != "win32"), str(path)]
        try:
            finished = subprocess.run(command, check=False)
            return path.read_text(encoding="utf-8") if finished.returncode == 0 else None
        except (OSError, UnicodeDecodeError):
            return None


def _on_one_line(terminal: Terminal, value: JsonValue) -> str | None:
    terminal.say(TerminalLine((("now: ", "dim"), escape_text(json.dumps(value, ensure_ascii=False)))))
    return terminal.ask("as one line of JSON (Enter: unchanged): ")
