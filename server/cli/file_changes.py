"""Changes of files that belong to a host: shown, agreed to, and written only if nobody changed the file in between."""

import difflib
import os
import stat
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from planwarden.agent.common.errors import InvalidArguments, StoreError, UsageError
from planwarden.agent.common.paths import expand_home
from planwarden.server.cli.output import DONE, FAILED, print_json
from planwarden.server.cli.results import build_terminal, confirm
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.settings.additions import read_text, replace_text


class FileChange(msgspec.Struct, frozen=True):
    """What a file becomes."""

    path: Path
    before: str
    after: str
    """Empty where the file is deleted."""


def build_change(path: Path, change: Callable[[str], str], *, is_project: bool) -> FileChange:
    """Return what the file would become. Raises `UsageError` if it must not or cannot be changed."""
    _check_place(path, is_project=is_project)
    try:
        before = read_text(path)
        return FileChange(path, before, change(before))
    except (InvalidArguments, UnicodeDecodeError, OSError) as error:
        reason = str(error.strerror) if isinstance(error, OSError) else "it is not UTF-8"
        reason = error.message if isinstance(error, InvalidArguments) else reason
        raise UsageError(f"{str(path)!r} was left as it is, because {reason}") from None


def make_changes(arguments: Namespace, listed: Sequence[FileChange], nothing: str, outcome: str) -> int:
    """Show the changes, ask, and write them; `nothing` is said if no file changes, `outcome` at the end."""
    terminal = build_terminal(arguments)
    changes = [change for change in listed if change.after != change.before]
    for change in changes:
        _draw_change(terminal, change)
    if not changes:
        terminal.say(nothing)
    elif not confirm(terminal, "Write this?", says_yes=arguments.yes):
        terminal.say("Nothing was written.")
        return FAILED
    for change in changes:
        _write(change)
    if changes:
        terminal.say(TerminalLine((outcome, "good"), mark="done"))
    if arguments.json:
        print_json({"host": arguments.host, "files": [str(change.path) for change in changes]})
    return DONE


def _check_place(path: Path, *, is_project: bool) -> None:
    """Raise `UsageError` for a file that belongs to somebody else, or that a project's link leads elsewhere."""
    if is_project and any(part.is_symlink() for part in (path, path.parent)):
        raise UsageError(f"{str(path)!r} is a link; a project's link could lead anywhere, so nothing was written")
    if not hasattr(os, "getuid"):
        return
    real = path.resolve()
    for place in (real, real.parent):
        try:
            status = place.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"{str(place)!r} cannot be looked at: {error.strerror}") from None
        if status.st_uid != os.getuid():
            raise UsageError(f"{str(place)!r} belongs to another user; nothing was written")
        if place == real and not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{str(place)!r} is not a file; nothing was written")


def _draw_change(terminal: Terminal, change: FileChange) -> None:
    path = change.path
    terminal.say(TerminalLine((f"{path}{'' if change.before else ' (new)' if change.after else ''}:", "bold")))
    if not change.after:
        terminal.say(TerminalLine(("the file is deleted", "dim"), indent=1))
        return
    lines = difflib.unified_diff(change.before.splitlines(), change.after.splitlines(), lineterm="", n=2)
    for line in list(lines)[2:]:
        style = "good" if line.startswith("+") else "bad" if line.startswith("-") else "dim"
        terminal.say(TerminalLine((one_line(line, 2_000), style), indent=1))


def _write(change: FileChange) -> None:
    path = expand_home(change.path)
    try:
        if not change.after:
            path.unlink()
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, change.before, change.after)
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
