"""The commands `prune`, `backup` and `move`, which maintain the database, and `audit`, which reads its record."""

import json
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, StoreError
from planwarden.agent.common.paths import expand_home
from planwarden.server.api.audit import AuditPage, AuditReader, AuditVerdict, build_audit_line
from planwarden.server.cli.arguments import read_settings
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.home import use_store
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal, confirm, write_result
from planwarden.server.settings.configuration import STORE_VARIABLE, Settings
from planwarden.server.signatures.signature import EXTRA
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text, shorten_id
from planwarden.server.views.instants import format_instant
from planwarden.storage.location import SQLITE, read_location
from planwarden.storage.moving.move import MoveReport, move
from planwarden.storage.moving.tables import TABLES
from planwarden.storage.opening import CompleteStore

DAY_S = 86_400.0
Result = TypeVar("Result")


def add_prune(parser: CommandParser) -> None:
    parser.handle(handle_prune)
    text = "delete those that have not changed for N days; default: [retention] days"
    parser.add_argument("--days", type=int, metavar="N", help=text)
    parser.add_argument("--yes", action="store_true", help="do not ask before deleting; needed without a terminal")


def add_backup(parser: CommandParser) -> None:
    parser.handle(handle_backup)
    parser.add_argument("file", type=Path, metavar="FILE", help="a new file; an existing file is not overwritten")


def add_move(parser: CommandParser) -> None:
    parser.handle(handle_move)
    text = "an empty PostgreSQL or a new file, named as for --store; run it again if it was broken off"
    parser.add_argument("--to", required=True, metavar="URL", help=text)


def handle_prune(arguments: Namespace) -> int:
    settings, terminal = read_settings(arguments), build_terminal(arguments)
    days: int = settings.tables.retention.days if arguments.days is None else arguments.days
    if days < 0:
        raise InvalidArguments(f"--days is {days}; it must be 0 or more")

    async def count(store: CompleteStore) -> tuple[float, int, float | None]:
        before = store.clock.now() - days * DAY_S
        return before, *await store.count_prunable(before)

    before, executions, oldest_at = use_store(settings, count) if settings.store.is_made else (0.0, 0, None)
    word, pruned = "day" if days == 1 else "days", 0
    if executions:
        which = "execution that has" if executions == 1 else "executions that have"
        date = "" if oldest_at is None else f"; the oldest is from {datetime.fromtimestamp(oldest_at, UTC):%Y-%m-%d}"
        terminal.say(
            f"This deletes {executions} finished {which} not changed for {days} {word}, with log, "
            f"results and questions{date}. The audit keeps its rows."
        )
        if not confirm(terminal, "Delete them?", says_yes=arguments.yes):
            terminal.say("Nothing was deleted.")
            return FAILED
        pruned = use_store(settings, lambda store: store.prune(before))
    text = f"{pruned} finished {'execution' if pruned == 1 else 'executions'} older than {days} {word} deleted"
    write_result(arguments, {"pruned": pruned, "days": days}, lambda terminal: terminal.say(text))
    return DONE


def handle_backup(arguments: Namespace) -> int:
    target: Path = expand_home(arguments.file).absolute()
    settings = read_settings(arguments)
    if not settings.store.is_made:
        raise StoreError(f"there is no database in {str(settings.home)!r} yet; nothing to back up")
    use_store(settings, lambda store: store.backup(target))
    size_bytes = target.stat().st_size
    text = f"{target}: {size_bytes} bytes"
    write_result(arguments, {"file": str(target), "sizeBytes": size_bytes}, lambda terminal: terminal.say(text))
    return DONE


def handle_move(arguments: Namespace) -> int:
    source, target = read_settings(arguments).store, read_location(arguments.to)
    build_terminal(arguments).say(f"Moving {source} to {target}.")
    report = move(source, target)
    document: dict[str, JsonValue] = {
        "from": report.source,
        "to": report.target,
        "rows": dict[str, JsonValue](report.rows),
        "auditHead": report.audit_head,
    }
    write_result(arguments, document, lambda terminal: draw_move(terminal, report, has_password=target.has_password))
    return DONE


def draw_move(terminal: Terminal, report: MoveReport, *, has_password: bool) -> None:
    counts = ", ".join(f"{TABLES[name]}: {count}" for name, count in report.rows.items() if count)
    terminal.say(f"Moved from {report.source} to {report.target}, read back; the old store refuses to be used.")
    terminal.say(counts or "It was empty.")
    terminal.say(f"head of the audit: {report.audit_head}")
    if not all(place.startswith(SQLITE) for place in (report.source, report.target)):
        terminal.say("Logins to servers and the passphrase of the inbox are not moved; set them again.")
    added = " (add the password)" if has_password else ""
    terminal.say(f"Set {STORE_VARIABLE}={report.target}{added}, or [store] url, before you start anything.")


def add_audit(parser: CommandParser) -> None:
    show = parser.add_command("show", handle_show, "Show the record, oldest first.")
    show.add_argument("--thread", metavar="THREAD", help="only the rows of this thread")
    show.add_argument("--limit", type=int, default=50, metavar="N", help="rows, at most 500; default %(default)s")
    show.add_argument("--cursor", help="continue after the page that printed this cursor")
    text = "Compare the record with itself and with everything stored."
    verification = parser.add_command("verify", handle_verify, text)
    verification.add_argument("--head", metavar="HEAD", help="the head that an earlier verify or export printed")
    writing = parser.add_command("export", handle_export, "Write the record as JSON lines.", has_json=False)
    writing.add_argument("file", type=Path, metavar="FILE", help="a new file, or - for standard output")


def handle_show(arguments: Namespace) -> int:
    page = _read(
        read_settings(arguments),
        lambda audit: audit.read_page(thread_id=arguments.thread, limit=arguments.limit, cursor=arguments.cursor),
    )
    write_result(arguments, to_json(page), lambda terminal: draw_rows(terminal, page))
    return DONE


def handle_verify(arguments: Namespace) -> int:
    verdict = _read(read_settings(arguments), lambda audit: audit.verify(arguments.head))
    document: dict[str, JsonValue] = {"isWhole": verdict.is_whole, **to_json(verdict)}
    write_result(arguments, document, lambda terminal: draw_verdict(terminal, verdict))
    return DONE if verdict.is_whole else FAILED


def handle_export(arguments: Namespace) -> int:
    settings, target = read_settings(arguments), expand_home(arguments.file).absolute()
    try:
        with nullcontext(sys.stdout) if str(arguments.file) == "-" else target.open("x", encoding="ascii") as file:

            async def export(audit: AuditReader) -> AuditVerdict:
                async for row in audit.read_rows():
                    file.write(json.dumps(to_json(build_audit_line(row)), ensure_ascii=True) + "\n")
                return await audit.verify()

            verdict = _read(settings, export)
    except FileExistsError:
        raise StoreError(f"{str(target)!r} exists already; choose another name") from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write {str(target)!r}: {error.strerror}") from error
    draw_verdict(Terminal(sys.stderr), verdict)
    return DONE if verdict.is_whole else FAILED


def _read(settings: Settings, read: Callable[[AuditReader], Awaitable[Result]]) -> Result:
    """Return what the function reads in the audit. Raise `StoreError` where there is no database."""
    if not settings.store.is_made:
        raise StoreError(f"there is no database in {str(settings.home)!r} yet, so nothing was audited")
    return use_store(settings, lambda store: read(AuditReader(store)))


def draw_rows(terminal: Terminal, page: AuditPage) -> None:
    if not page.rows:
        terminal.say("The audit is empty.")
    for row in page.rows:
        at = format_instant(row.at)
        kind = row.kind.replace("_", " ").ljust(18)
        facts = [] if row.suspension_id is None else [f"suspension={shorten_id(row.suspension_id)}"]
        facts += [f"{name}={_shorten(value)}" for name, value in row.facts.items()]
        terminal.say(
            TerminalLine((f"{row.sequence:>6}  {at}  ", "dim"), (kind, "bold"), "  ".join(map(escape_text, facts)))
        )
    if page.next_cursor is not None:
        terminal.say(TerminalLine((f"more: --cursor {page.next_cursor}", "dim")))


def draw_verdict(terminal: Terminal, verdict: AuditVerdict) -> None:
    for problem in verdict.problems:
        terminal.say(TerminalLine((escape_text(problem), "bad"), mark="failed"))
    if verdict.signatures:
        terminal.say(TerminalLine((f"{verdict.signatures} signature(s) verified", "good"), mark="done"))
    if verdict.unverified:
        terminal.say(TerminalLine((f"{verdict.unverified} signature(s) not verified: {EXTRA}", "warn"), mark="asks"))
    if verdict.is_whole:
        terminal.say(TerminalLine((f"{verdict.rows} rows, whole; head {verdict.head}", "good"), mark="done"))
    else:
        terminal.say(TerminalLine((f"{verdict.rows} rows, {len(verdict.problems)} problem(s)", "bad"), mark="failed"))


def _shorten(value: JsonValue) -> str:
    text = shorten_id(value) if isinstance(value, str) else json.dumps(value)
    is_digest = len(text) == 64 and text.isalnum()
    return text[:16] + "…" if is_digest else text[:80]
