"""The commands `guard`, about what a host does itself, and `promises` and `receipt`, about what it owes.

The commands that change a host's files show the change, ask, and write it.
"""

import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, UsageError
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.server.cli.arguments import read_settings
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.home import use_store
from planwarden.server.cli.hosts import build_change, build_hook_program, make_changes
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal, confirm, write_result
from planwarden.server.guard.calls import (
    MAX_EVENT_BYTES,
    CommandAnswer,
    GuardedCall,
    Verdict,
    build_command_answer,
    deny,
    read_event,
)
from planwarden.server.guard.done import DoneKeeper, build_failure, judge_with_paths, read_transcript
from planwarden.server.guard.install.hook_files import HookFile, find_hook_files
from planwarden.server.guard.install.proof import HookStatus, check_hosts
from planwarden.server.guard.judging import Judge
from planwarden.server.guard.protected_paths import OwnThings
from planwarden.server.guard.quick import DONE_EVENTS, read_event_name, set_deadline
from planwarden.server.guard.receipts import build_receipt, describe_verdict, has_changed
from planwarden.server.inbox.inbox_port import InboxPlace
from planwarden.server.settings.configuration import FILE, Settings, find_home, load_settings
from planwarden.server.settings.promises import PROMISES_FILE, read_folder_file, read_promises
from planwarden.server.views.encoding import to_json
from planwarden.storage.host_sessions import HostSession, TrustedFolder
from planwarden.storage.opening import CompleteStore
from planwarden.storage.sql.records import RecordStore
from planwarden.tools.guarded.hosts import GUARDED_HOSTS, HostName
from planwarden.tools.guarded.promises import Promise, describe_pattern

AFTERWARDS: dict[HostName, str] = {
    "claude-code": "Start Claude Code again. planwarden must be one of its MCP servers, or every call is blocked.",
    "codex": "Start Codex, open `/hooks` and trust the hook with `t`: until then Codex skips it without a word.",
    "gemini": "Start Gemini CLI again.",
    "opencode": "Start opencode again.",
    "cursor": "Start Cursor again. It was never run with planwarden: see that a call is really blocked.",
}

logger = logging.getLogger(__name__)
MAX_TRANSCRIPT_BYTES = 32 * 1024 * 1024


def add_guard(parser: CommandParser) -> None:
    hosts = tuple(GUARDED_HOSTS)
    text = "Show what the host's file gets so that it asks planwarden before each call, ask, and write it."
    changes = [parser.add_command("install", install, text, needs_home=False)]
    text = "Show which lines of planwarden the host's file loses, ask, and write it."
    changes.append(parser.add_command("uninstall", uninstall, text, needs_home=False))
    for command in changes:
        command.add_argument("host", choices=hosts, metavar="HOST", help=f"the host: {', '.join(hosts)}")
        text = "in the project of the working directory; default: for this user"
        command.add_argument("--project", action="store_true", help=text)
        command.add_argument("--yes", action="store_true", help="do not ask before writing; needed without a terminal")
    text = "Run each hook as its host would, also broken ones, and say what the host does."
    status = parser.add_command("status", show_status, text, needs_home=False)
    text = "of the project of the working directory; default: of this user"
    status.add_argument("--project", action="store_true", help=text)
    text = "Show the promises of the working directory, ask at the terminal, and count them from then on."
    parser.add_command("trust-folder", trust_folder, text, has_json=False, needs_home=False)
    text = "Answer a host's hook: the event on standard input."
    hook = parser.add_command("hook", handle_hook, text, has_json=False, needs_home=False)
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
    program = _build_program(arguments)
    return _change(arguments, lambda file, text: file.add(text, program), "installed", AFTERWARDS[arguments.host])


def uninstall(arguments: Namespace) -> int:
    return _change(arguments, lambda file, text: file.remove(text), "removed", "")


def show_status(arguments: Namespace) -> int:
    statuses = check_hosts(os.environ, Path.cwd() if arguments.project else None, _build_program(arguments))
    document: dict[str, JsonValue] = {"hosts": [to_json(status) for status in statuses]}
    write_result(arguments, document, lambda terminal: draw_status(terminal, statuses))
    return DONE if all(status.is_proven or status.state == "not installed" for status in statuses) else FAILED


def _build_program(arguments: Namespace) -> tuple[str, ...]:
    return build_hook_program(find_home(arguments.home, os.environ))


def draw_status(terminal: Terminal, statuses: Sequence[HookStatus]) -> None:
    for status in statuses:
        label = GUARDED_HOSTS[status.host].label
        if status.state == "not installed":
            terminal.say(TerminalLine((f"{label}: not guarded", "dim"), (f"  {status.path}", "dim"), mark="waits"))
            continue
        mark = "done" if status.is_proven else "failed"
        terminal.say(TerminalLine((f"{label}: {status.state}", "bold"), (f"  {status.path}", "dim"), mark=mark))
        if status.problem:
            terminal.say(TerminalLine((status.problem, "bad"), indent=1))
        for trial in status.trials:
            text = "blocks the call" if trial.blocks else "lets the call run"
            style = "plain" if trial.is_right else "bad"
            terminal.say(
                TerminalLine((f"{trial.what}: {text}", style), (f"  {one_line(trial.output, 120)}", "dim"), indent=1)
            )
        if status.unknown:
            terminal.say(TerminalLine((f"not known here: {status.unknown}", "dim"), indent=1))


def _change(arguments: Namespace, change: Callable[[HookFile, str], str], outcome: str, afterwards: str) -> int:
    project = Path.cwd() if arguments.project else None
    changes = [
        build_change(file.path, partial(change, file), is_project=project is not None)
        for file in find_hook_files(arguments.host, os.environ, project)
    ]
    nothing = f"There is nothing to change: planwarden's part is {outcome} already."
    return make_changes(arguments, changes, nothing, f"{outcome}. {afterwards}".strip())


def answer_hook(arguments: Namespace, stream: BinaryIO) -> CommandAnswer:
    """Return the answer to the event on the stream; never raises."""
    host = str(arguments.host)
    text = stream.read(MAX_EVENT_BYTES + 1)
    if read_event_name(text) in DONE_EVENTS:
        return answer_done(arguments, host, text)
    try:
        call = read_event(host, text)
        verdict = _decide(load_settings(home=arguments.home, store=arguments.store, has_servers=False), call)
    except PlanwardenError as error:
        verdict = deny(f"Refused, because it could not be judged: {error.message}")
    # Whatever goes wrong blocks the call.
    except Exception as error:
        logger.exception("the hook failed")
        verdict = deny(f"Refused, because the guard failed: {type(error).__name__}")
    return build_command_answer(host, verdict)


def answer_done(arguments: Namespace, host: str, text: bytes) -> CommandAnswer:
    """Return the answer to an event about what the host did; never raises."""
    is_closed = False
    try:
        settings = load_settings(home=arguments.home, store=arguments.store, has_servers=False)
        is_closed = settings.tables.guard.stop == "closed"
        return use_store(
            settings, lambda store: DoneKeeper(store, settings, partial(_ask, settings)).answer(host, text)
        )
    except PlanwardenError as error:
        return build_failure(host, text, is_closed, error.message)
    # Whatever goes wrong must not catch the session.
    except Exception as error:
        logger.exception("the hook failed")
        return build_failure(host, text, is_closed, type(error).__name__)


def _decide(settings: Settings, call: GuardedCall) -> Verdict:
    verdict = Judge(settings.policy, OwnThings(settings.home, settings.environment)).judge(call)
    if verdict is None:
        return anyio.run(_ask, settings, call)
    if verdict.facts is not None:
        entry = AuditEntry(kind="guarded", facts=verdict.facts)
        use_store(settings, lambda store: store.audit((entry,)))
    return verdict


async def _ask(settings: Settings, call: GuardedCall) -> Verdict:
    # Most calls are judged without an engine.
    from planwarden.server.guard.opening import open_guard

    record = InboxPlace(settings).read()
    async with open_guard(settings, None if record is None else record.url) as guard:
        return await guard.decide(call, LOCAL)


def add_promises(parser: CommandParser) -> None:
    parser.handle(list_promises)
    text = "Judge a recorded session: JSON lines, each an event of a host's hook."
    check = parser.add_command("check", check_transcript, text)
    check.add_argument("transcript", metavar="TRANSCRIPT", type=Path, help="the file")
    check.add_argument("--host", default="claude-code", help="host of lines without one; default %(default)s")


def add_receipt(parser: CommandParser) -> None:
    parser.handle(show_receipt)
    text = "the session, or the beginning of its id; default: the newest"
    parser.add_argument("session", nargs="?", default="", metavar="SESSION", help=text)
    parser.add_argument("--markdown", action="store_true", help="as Markdown, for a pull request")


def list_promises(arguments: Namespace) -> int:
    settings, folder = read_settings(arguments, has_servers=False), Path.cwd()
    rows = [(promise, FILE, "trusted") for promise in settings.promises]
    trusted_folders = use_store(settings, lambda store: RecordStore(store, TrustedFolder).all())
    for trusted in trusted_folders:
        state = "trusted" + ("; the file has changed since, what was trusted counts" if has_changed(trusted) else "")
        rows += [(promise, trusted.folder, state) for promise in read_promises(trusted.text, trusted.folder)]
    if (folder / PROMISES_FILE).exists() and not any(each.folder == str(folder) for each in trusted_folders):
        text = read_folder_file(str(folder))
        rows += [(promise, str(folder), "not trusted") for promise in read_promises(text, str(folder))]
    document: dict[str, JsonValue] = {
        "promises": [{"name": p.name, "mode": p.mode, "source": source, "state": state} for p, source, state in rows]
    }
    lines = [f"{_say(promise)}  [{source}: {state}]" for promise, source, state in rows]
    _write(arguments, document, lines or [f"no promises; [[promises]] in {FILE} adds them"])
    return DONE


def _say(promise: Promise) -> str:
    called = f"after {', '.join(promise.when.tools)}, `{describe_pattern(promise.requires)}` must have succeeded"
    return f"{promise.name} ({promise.mode}): {called}"


def _write(arguments: Namespace, document: dict[str, JsonValue], lines: Sequence[str]) -> None:
    write_result(arguments, document, lambda terminal: terminal.say(*[one_line(line, 900) for line in lines]))


def check_transcript(arguments: Namespace) -> int:
    try:
        with arguments.transcript.open("rb") as file:
            text = file.read(MAX_TRANSCRIPT_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArguments(f"cannot read {str(arguments.transcript)!r}: {error}") from None
    calls = read_transcript(text, arguments.host)
    root = calls[0].folder if calls else str(Path.cwd())
    verdict = anyio.run(judge_with_paths, read_settings(arguments, has_servers=False).promises, calls, root)
    lines = describe_verdict(verdict, HostSession(session="", host=arguments.host, folder=root, expires_at=0.0))
    _write(arguments, {"verdict": to_json(verdict)}, lines or ["nothing was owed"])
    return FAILED if verdict.owed else DONE


def show_receipt(arguments: Namespace) -> int:
    settings = read_settings(arguments, has_servers=False)
    receipt = use_store(settings, lambda store: build_receipt(store, settings, arguments.session))
    lines = [receipt.title, *receipt.lines]
    if arguments.markdown:
        lines = [f"### {receipt.title}", "", *(f"* {line}" for line in receipt.lines)]
    _write(arguments, {"session": to_json(receipt.session), "verdict": to_json(receipt.verdict)}, lines)
    return DONE


def trust_folder(arguments: Namespace) -> int:
    """Show the promises of the working directory, ask at the terminal, and keep their text."""
    terminal = build_terminal(arguments)
    if not terminal.can_ask:
        raise UsageError("only a person at a terminal trusts a folder")
    folder = str(Path.cwd())
    text = read_folder_file(folder)
    for promise in read_promises(text, PROMISES_FILE):
        terminal.say(one_line(_say(promise), 900))
    if not confirm(terminal, f"Hold hosts in {folder} to these promises?", says_yes=False):
        return FAILED

    entry = AuditEntry(kind="guarded", facts={"tool": "trust-folder", "answer": "trusted", "folder": folder})

    async def trust(store: CompleteStore) -> None:
        records = RecordStore(store, TrustedFolder)
        record = TrustedFolder(folder=folder, text=text, trusted_at=records.clock.now())
        await records.write(lambda transaction: transaction.put(record), entry)

    use_store(read_settings(arguments, has_servers=False), trust)
    return DONE
