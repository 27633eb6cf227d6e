"""The commands `guard hook`, `guard install`, `guard status` and `guard uninstall`.

The commands that change a host's files show the change, ask, and write it.
"""

import difflib
import logging
import os
import stat
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import anyio
import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, StoreError, UsageError
from planwarden.agent.common.paths import expand_home
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.hosts import build_hook_program
from planwarden.server.cli.output import DONE, FAILED, build_terminal, confirm, print_json, write_result
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.guard.calls import (
    MAX_EVENT_BYTES,
    CommandAnswer,
    GuardedCall,
    Verdict,
    build_command_answer,
    deny,
    read_event,
)
from planwarden.server.guard.install.hook_files import HookFile, find_hook_files
from planwarden.server.guard.install.proof import HookStatus, check_hosts
from planwarden.server.guard.judging import Judge
from planwarden.server.guard.protected_paths import OwnThings
from planwarden.server.guard.quick import set_deadline
from planwarden.server.inbox.inbox_port import InboxPlace
from planwarden.server.settings.additions import read_text, replace_text
from planwarden.server.settings.configuration import Settings, find_home, load_settings
from planwarden.server.views.encoding import to_json
from planwarden.storage.opening import open_store
from planwarden.tools.guarded.hosts import GUARDED_HOSTS, HostName

AFTERWARDS: dict[HostName, str] = {
    "claude-code": "Start Claude Code again. planwarden must be one of its MCP servers, or every call is blocked.",
    "codex": "Start Codex, open `/hooks` and trust the hook with `t`: until then Codex skips it without a word.",
    "gemini": "Start Gemini CLI again.",
    "opencode": "Start opencode again.",
    "cursor": "Start Cursor again. It was never run with planwarden: see that a call is really blocked.",
}

logger = logging.getLogger(__name__)


class FileChange(msgspec.Struct, frozen=True):
    """What a file becomes."""

    file: HookFile
    before: str
    after: str


def add_guard(parser: CommandParser) -> None:
    commands = parser.add_commands("install|status|uninstall|hook")
    for name, handler, text in (
        (
            "install",
            install,
            "Show what the host's file gets so that it asks planwarden before each call, ask, and write it.",
        ),
        (
            "uninstall",
            uninstall,
            "Show which lines of planwarden the host's file loses, ask, and write it.",
        ),
    ):
        changing = commands.add(name, handler, text, needs_home=False)
        hosts = tuple(GUARDED_HOSTS)
        changing.add_argument("host", choices=hosts, metavar="HOST", help=f"the host: {', '.join(hosts)}")
        changing.add_argument(
            "--project", action="store_true", help="in the project of the working directory; default: for this user"
        )
        changing.add_argument("--yes", action="store_true", help="do not ask before writing; needed without a terminal")
    text = "Run each hook as its host would, also broken ones, and say what the host does."
    status = commands.add("status", show_status, text, needs_home=False)
    text = "of the project of the working directory; default: of this user"
    status.add_argument("--project", action="store_true", help=text)
    text = "Answer a host's hook: the event on standard input."
    hook = commands.add("hook", handle_hook, text, has_json=False, needs_home=False)
    hook.add_argument("host", metavar="HOST", help="the host that asks")


def handle_hook(arguments: Namespace) -> int:
    set_deadline()
    answer = answer_hook(arguments, sys.stdin.buffer)
    if answer.error:
        print(answer.error, file=sys.stderr, flush=True)
    if answer.out:
        print(answer.out, flush=True)
    return answer.code


def install(arguments: Namespace) -> int:
    program = build_program(arguments)

    def add(file: HookFile, text: str) -> str:
        return file.add(text, program)

    return _change(arguments, add, "installed", AFTERWARDS[arguments.host])


def uninstall(arguments: Namespace) -> int:
    return _change(arguments, lambda file, text: file.remove(text), "removed", "")


def show_status(arguments: Namespace) -> int:
    statuses = check_hosts(os.environ, _find_project(arguments), build_program(arguments))
    document: dict[str, JsonValue] = {"hosts": [to_json(status) for status in statuses]}
    write_result(arguments, document, lambda terminal: draw_status(terminal, statuses))
    return DONE if all(status.is_proven or status.state == "not installed" for status in statuses) else FAILED


def build_program(arguments: Namespace) -> tuple[str, ...]:
    return build_hook_program(find_home(arguments.home, os.environ))


def draw_status(terminal: Terminal, statuses: Sequence[HookStatus]) -> None:
    for status in statuses:
        label = GUARDED_HOSTS[status.host].label
        if status.state == "not installed":
            terminal.say(TerminalLine(((f"{label}: not guarded", "dim"), (f"  {status.path}", "dim")), "waits"))
            continue
        mark = "done" if status.is_proven else "failed"
        terminal.say(TerminalLine(((f"{label}: {status.state}", "bold"), (f"  {status.path}", "dim")), mark))
        if status.problem:
            terminal.say(TerminalLine(((status.problem, "bad"),), indent=1))
        for trial in status.trials:
            text = "blocks the call" if trial.blocks else "lets the call run"
            style = "plain" if trial.is_right else "bad"
            terminal.say(
                TerminalLine(((f"{trial.what}: {text}", style), (f"  {one_line(trial.output, 120)}", "dim")), indent=1)
            )
        if status.unknown:
            terminal.say(TerminalLine(((f"not known here: {status.unknown}", "dim"),), indent=1))


def _change(arguments: Namespace, change: Callable[[HookFile, str], str], outcome: str, afterwards: str) -> int:
    terminal = build_terminal(arguments)
    changes = list_changes(arguments, change)
    for file_change in changes:
        _draw_change(terminal, file_change)
    if not changes:
        terminal.say(f"There is nothing to change: planwarden's part is {outcome} already.")
    elif not confirm(terminal, "Write this?", says_yes=arguments.yes):
        terminal.say("Nothing was written.")
        return FAILED
    for file_change in changes:
        _write(file_change)
    if changes:
        terminal.say(TerminalLine(((f"{outcome}. {afterwards}".strip(), "good"),), "done"))
    if arguments.json:
        print_json({"host": arguments.host, "files": [str(file_change.file.path) for file_change in changes]})
    return DONE


def list_changes(arguments: Namespace, change: Callable[[HookFile, str], str]) -> list[FileChange]:
    """Return the files that would be changed. Raises `UsageError` for one that must not or cannot be."""
    changes: list[FileChange] = []
    project = _find_project(arguments)
    for file in find_hook_files(arguments.host, os.environ, project):
        _check_place(file.path, is_project=project is not None)
        try:
            before = read_text(file.path)
            after = change(file, before)
        except (InvalidArguments, UnicodeDecodeError) as error:
            reason = error.message if isinstance(error, InvalidArguments) else "it is not UTF-8"
            raise UsageError(f"{str(file.path)!r} was left as it is, because {reason}") from None
        if after != before:
            changes.append(FileChange(file, before, after))
    return changes


def _find_project(arguments: Namespace) -> Path | None:
    return Path.cwd() if arguments.project else None


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
    path = change.file.path
    terminal.say(TerminalLine(((f"{path}{'' if change.before else ' (new)' if change.after else ''}:", "bold"),)))
    if not change.after:
        terminal.say(TerminalLine((("the file is deleted", "dim"),), indent=1))
        return
    lines = difflib.unified_diff(change.before.splitlines(), change.after.splitlines(), lineterm="", n=2)
    for line in list(lines)[2:]:
        style = "good" if line.startswith("+") else "bad" if line.startswith("-") else "dim"
        terminal.say(TerminalLine(((one_line(line, 2_000), style),), indent=1))


def _write(change: FileChange) -> None:
    path = expand_home(change.file.path)
    try:
        if not change.after:
            path.unlink()
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, change.before, change.after)
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def answer_hook(arguments: Namespace, stream: BinaryIO) -> CommandAnswer:
    """Return the answer to the event on the stream; never raises."""
    host = str(arguments.host)
    try:
        call = read_event(host, stream.read(MAX_EVENT_BYTES + 1))
        verdict = _decide(load_settings(home=arguments.home, store=arguments.store, has_servers=False), call)
    except PlanwardenError as error:
        verdict = deny(f"Refused, because it could not be judged: {error.message}")
    # Whatever goes wrong blocks the call.
    except Exception as error:
        logger.exception("the hook failed")
        verdict = deny(f"Refused, because the guard failed: {type(error).__name__}")
    return build_command_answer(host, verdict)


def _decide(settings: Settings, call: GuardedCall) -> Verdict:
    verdict = Judge(settings.policy, OwnThings(settings.home, settings.environment)).judge(call)
    if verdict is None:
        return anyio.run(_ask, settings, call)
    if verdict.facts is not None:
        anyio.run(_record, settings, verdict)
    return verdict


async def _ask(settings: Settings, call: GuardedCall) -> Verdict:
    # Most calls are judged without an engine.
    from planwarden.server.guard.opening import open_guard

    record = InboxPlace(settings).read()
    async with open_guard(settings, None if record is None else record.url) as guard:
        return await guard.decide(call, LOCAL)


async def _record(settings: Settings, verdict: Verdict) -> None:
    assert verdict.facts is not None
    async with open_store(settings.store) as store:
        await store.audit((AuditEntry(kind="guarded", facts=verdict.facts),))
