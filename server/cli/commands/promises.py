"""The commands `promises`, `promises check`, `receipt` and `guard trust-folder`: what a host owes before it stops."""

import re
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.runtime.real_paths import judge_with_paths
from planwarden.server.cli.arguments import CommandParser, read_path, read_settings
from planwarden.server.cli.home import use_store
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.terminal.lines import one_line
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal, write_result
from planwarden.server.guard.done import read_transcript
from planwarden.server.guard.receipts import build_receipt, describe_verdict, has_changed
from planwarden.server.settings.configuration import SETTINGS_FILE
from planwarden.server.settings.promises import PROMISES_FILE, read_folder_file, read_promises
from planwarden.server.views.encoding import to_json
from planwarden.storage.hosts import HostSession, TrustedFolder
from planwarden.storage.opening import CompleteStore
from planwarden.storage.sql.records import RecordStore
from planwarden.tools.guarded.promises import Promise, describe_pattern, judge_promises

MAX_TRANSCRIPT_BYTES = 32 * 1024 * 1024


def add_promises(parser: CommandParser) -> None:
    parser.handle(handle_list)
    text = "Judge a recorded session: JSON lines, each an event of a host's hook."
    check = parser.add_command("check", handle_check, text)
    check.declare("transcript TRANSCRIPT", "the file", type=read_path)
    check.declare("--host HOST", "the host of lines without a host; default %(default)s", default="claude-code")


def add_receipt(parser: CommandParser) -> None:
    parser.handle(handle_receipt)
    text = "the host's id of the session, or the beginning of the id; default: the newest session"
    parser.declare("session SESSION", text, nargs="?", default="")
    parser.declare("--markdown", "as Markdown, for a pull request")


def handle_list(arguments: Namespace) -> int:
    settings, folder = read_settings(arguments, has_servers=False), Path.cwd()
    rows = [(promise, SETTINGS_FILE, "trusted") for promise in settings.promises]
    trusted_folders = use_store(settings, lambda store: RecordStore(store, TrustedFolder).all())
    for trusted in trusted_folders:
        state = "trusted" + ("; its file has changed since, and the old text counts" if has_changed(trusted) else "")
        rows += [(promise, trusted.folder, state) for promise in read_promises(trusted.text, trusted.folder)]
    if (folder / PROMISES_FILE).exists() and not any(each.folder == str(folder) for each in trusted_folders):
        text = read_folder_file(str(folder))
        rows += [(promise, str(folder), "not trusted") for promise in read_promises(text, str(folder))]
    document: dict[str, JsonValue] = {
        "promises": [{"name": p.name, "mode": p.mode, "source": source, "state": state} for p, source, state in rows]
    }
    lines = [f"{_say(promise)}  [{source}: {state}]" for promise, source, state in rows]
    return _write(arguments, document, lines or [f"no promises; [[promises]] in {SETTINGS_FILE} adds them"])


def _say(promise: Promise) -> str:
    called = f"after {', '.join(promise.when.tools)}, `{describe_pattern(promise.requires)}` must have succeeded"
    return f"{promise.name} ({promise.mode}): {called}"


def _write(arguments: Namespace, document: dict[str, JsonValue], lines: Sequence[str]) -> int:
    return write_result(arguments, document, Terminal.say, *[one_line(line, 900) for line in lines])


def handle_check(arguments: Namespace) -> int:
    try:
        with arguments.transcript.open("rb") as file:
            text = file.read(MAX_TRANSCRIPT_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "it is not UTF-8 text"
        raise InvalidArguments(f"cannot read {str(arguments.transcript)!r}: {reason}") from None
    calls = read_transcript(text, arguments.host)
    root = calls[0].folder if calls else str(Path.cwd())
    promises = read_settings(arguments, has_servers=False).promises
    verdict = anyio.run(judge_with_paths, partial(judge_promises, promises, calls, root))
    lines = describe_verdict(verdict, HostSession(session="", host=arguments.host, folder=root, expires_at=0.0))
    _write(arguments, {"verdict": to_json(verdict)}, lines or ["nothing was owed"])
    return FAILED if verdict.owed else DONE


def handle_receipt(arguments: Namespace) -> int:
    settings = read_settings(arguments, has_servers=False)
    receipt = use_store(settings, lambda store: build_receipt(store, settings, arguments.session))
    lines = [receipt.title, *receipt.lines]
    if arguments.markdown:
        title, *rest = (re.sub(r"[\\`*_\[\]<>#|~&]", r"\\\g<0>", line) for line in lines)
        lines = [f"### {title}", "", *(f"* {line}" for line in rest)]
    return _write(arguments, {"session": to_json(receipt.session), "verdict": to_json(receipt.verdict)}, lines)


def trust_folder_promises(arguments: Namespace) -> int:
    """Show the promises of the working directory, and store their text if the person at the terminal agrees."""
    terminal = build_terminal(arguments)
    terminal.check_can_ask("only a person at a terminal can trust a folder")
    folder = str(Path.cwd())
    text = read_folder_file(folder)
    for promise in read_promises(text, PROMISES_FILE):
        terminal.say(one_line(_say(promise), 900))
    if not terminal.confirm(f"Hold hosts in {folder} to these promises?"):
        return FAILED

    entry = AuditEntry(kind="guarded", facts={"tool": "trust-folder", "answer": "trusted", "folder": folder})

    async def trust(store: CompleteStore) -> None:
        records = RecordStore(store, TrustedFolder)
        record = TrustedFolder(folder=folder, text=text, trusted_at=records.clock.now())
        await records.write(lambda transaction: transaction.put(record), entry)

    use_store(read_settings(arguments, has_servers=False), trust)
    return DONE
