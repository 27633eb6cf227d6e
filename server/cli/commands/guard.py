"""The commands `guard hook`, `guard install`, `guard status` and `guard uninstall`.

`guard install` and `guard uninstall` show the changes to a host's files, ask, and write them.
"""

import logging
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import anyio

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.server.cli.arguments import CommandParser, read_settings
from planwarden.server.cli.commands.promises import trust_folder_promises
from planwarden.server.cli.home import use_store
from planwarden.server.cli.hosts import build_change, build_hook_program, make_changes
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.terminal.lines import one_line
from planwarden.server.cli.terminal.terminal import Terminal, write_result
from planwarden.server.guard.calls import (
    MAX_EVENT_BYTES,
    CommandAnswer,
    GuardedCall,
    Verdict,
    build_command_answer,
    deny,
    read_event,
)
from planwarden.server.guard.done import DoneKeeper, build_failure
from planwarden.server.guard.hook_client import DONE_EVENTS, read_event_name, set_deadline
from planwarden.server.guard.hook_files import HookFile, find_hook_files
from planwarden.server.guard.hook_proof import HookStatus, check_hosts
from planwarden.server.guard.judging import build_judge
from planwarden.server.inbox.inbox_port import InboxPort
from planwarden.server.settings.configuration import SETTINGS_FILE, Settings, find_home
from planwarden.server.views.encoding import to_json
from planwarden.tools.guarded.hosts import GUARDED_HOSTS, HostName

CLOSED_LINE = r"""^[ \t]*stop[ \t]*=[ \t]*["']closed["']"""
AFTERWARDS: dict[HostName, str] = {
    "claude-code": "Start Claude Code again. planwarden must be one of its MCP servers, or every call is blocked.",
    "codex": "Start Codex, open `/hooks` and trust the hook with `t`: until then Codex skips it without a word.",
    "gemini": "Start Gemini CLI again.",
    "opencode": "Start opencode again.",
    "cursor": "Start Cursor again. It has never been run with planwarden: check that a call is really blocked.",
}

logger = logging.getLogger(__name__)


def add_guard(parser: CommandParser) -> None:
    hosts = tuple(GUARDED_HOSTS)
    text = "Show the lines that make the host ask planwarden before each call, ask, and write them to its file."
    changes = [parser.add_command("install", install, text, needs_home=False)]
    text = "Show planwarden's lines in the host's file, ask, and remove them."
    changes.append(parser.add_command("uninstall", uninstall, text, needs_home=False))
    for command in changes:
        command.declare("host HOST", f"the host: {', '.join(hosts)}", choices=hosts)
        command.declare("--project", "in the project of the working directory; default: for this user")
        command.declare("--yes", "do not ask before writing; needed without a terminal")
    text = "Run each hook as its host would, with planwarden and with broken programs, and say what the host does."
    status = parser.add_command("status", show_status, text, needs_home=False)
    status.declare("--project", "of the project of the working directory; default: of this user")
    text = "Show the promises of the working directory, ask at the terminal, and hold hosts to them from then on."
    parser.add_command("trust-folder", trust_folder_promises, text, has_json=False, needs_home=False)
    text = "Read the event of a host's hook from standard input, and print the answer."
    hook = parser.add_command("hook", handle_hook, text, has_json=False, needs_home=False)
    hook.declare("host HOST", "the host that asks")


def handle_hook(arguments: Namespace) -> int:
    set_deadline()
    answer = answer_hook(arguments, sys.stdin.buffer)
    if answer.error:
        print(answer.error, file=sys.stderr, flush=True)
    if answer.out:
        print(answer.out, flush=True)
    return answer.code


def install(arguments: Namespace) -> int:
    program = _build_program(arguments)
    return _change(arguments, lambda file, text: file.add(text, program), "installed", AFTERWARDS[arguments.host])


def uninstall(arguments: Namespace) -> int:
    return _change(arguments, lambda file, text: file.remove(text), "removed", "")


def show_status(arguments: Namespace) -> int:
    statuses = check_hosts(os.environ, Path.cwd() if arguments.project else None, _build_program(arguments))
    write_result(arguments, {"hosts": [to_json(status) for status in statuses]}, draw_status, statuses)
    return DONE if all(status.is_proven or status.state == "not installed" for status in statuses) else FAILED


def _build_program(arguments: Namespace) -> tuple[str, ...]:
    return build_hook_program(find_home(arguments.home, os.environ))


def draw_status(terminal: Terminal, statuses: Sequence[HookStatus]) -> None:
    for status in statuses:
        label = GUARDED_HOSTS[status.host].label
        if status.state == "not installed":
            terminal.line((f"{label}: not guarded", "dim"), (f"  {status.path}", "dim"), mark="waits")
            continue
        mark = "done" if status.is_proven else "failed"
        terminal.line((f"{label}: {status.state}", "bold"), (f"  {status.path}", "dim"), mark=mark)
        if status.problem:
            terminal.line((status.problem, "bad"), indent=1)
        for trial in status.trials:
            text = "blocks the call" if trial.blocks else "lets the call run"
            style = "plain" if trial.is_right else "bad"
            terminal.line((f"{trial.what}: {text}", style), (f"  {one_line(trial.output, 120)}", "dim"), indent=1)
        if status.unknown:
            terminal.line((f"not known here: {status.unknown}", "dim"), indent=1)


def _change(arguments: Namespace, change: Callable[[HookFile, str], str], outcome: str, afterwards: str) -> int:
    project = Path.cwd() if arguments.project else None
    changes = [
        build_change(file.path, partial(change, file), is_project=project is not None)
        for file in find_hook_files(arguments.host, os.environ, project)
    ]
    nothing = f"There is nothing to change: planwarden's part is {outcome} already."
    return make_changes(arguments, changes, nothing, f"{outcome}. {afterwards}".strip())


def answer_hook(arguments: Namespace, stream: BinaryIO) -> CommandAnswer:
    """Return the answer to the event on the stream. Never raise."""
    host = str(arguments.host)
    text = stream.read(MAX_EVENT_BYTES + 1)
    if read_event_name(text) in DONE_EVENTS:
        return answer_done(arguments, host, text)
    try:
        call = read_event(host, text)
        verdict = _decide(read_settings(arguments, has_servers=False), call)
    except PlanwardenError as error:
        verdict = deny(f"Refused, because this call could not be judged: {error.message}")
    # Any other error blocks the call too.
    except Exception as error:
        logger.exception("the hook failed")
        verdict = deny(f"Refused, because the guard failed: {type(error).__name__}")
    return build_command_answer(host, verdict)


def answer_done(arguments: Namespace, host: str, text: bytes) -> CommandAnswer:
    """Return the answer to an event about what the host did. Never raise."""
    is_closed = False
    try:
        is_closed = _says_closed(find_home(arguments.home, os.environ) / SETTINGS_FILE)
        settings = read_settings(arguments, has_servers=False)
        is_closed = settings.tables.guard.stop == "closed"
        return use_store(
            settings, lambda store: DoneKeeper(store, settings, partial(_ask, settings)).answer(host, text)
        )
    except PlanwardenError as error:
        return build_failure(host, text, is_closed, error.message)
    # After any error, the session must be able to end: even with `is_closed`, a stop is not refused twice in a row.
    except Exception as error:
        logger.exception("the hook failed")
        return build_failure(host, text, is_closed, type(error).__name__)


def _says_closed(file: Path) -> bool:
    """Return whether the file, faulty or not, has the line `stop = "closed"`. The hook's shell looks for it too."""
    with suppress(OSError):
        return re.search(CLOSED_LINE, file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE) is not None
    return False


def _decide(settings: Settings, call: GuardedCall) -> Verdict:
    verdict = build_judge(settings).judge(call)
    if verdict is None:
        return anyio.run(_ask, settings, call)
    if verdict.facts is not None:
        entry = AuditEntry(kind="guarded", facts=verdict.facts)
        use_store(settings, lambda store: store.audit((entry,)))
    return verdict


async def _ask(settings: Settings, call: GuardedCall) -> Verdict:
    # Imported here, because most calls are decided without an engine.
    from planwarden.server.guard.guard import open_guard

    record = InboxPort(settings).read()
    async with open_guard(settings, None if record is None else record.url) as guard:
        return await guard.decide(call, LOCAL)
