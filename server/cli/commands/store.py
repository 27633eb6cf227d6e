"""The commands `prune`, `backup` and `move`, which maintain the database."""

from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, StoreError
from planwarden.agent.common.paths import expand_home
from planwarden.server.cli.arguments import CommandParser, read_path, read_settings
from planwarden.server.cli.home import use_store
from planwarden.server.cli.output import FAILED
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal, write_result
from planwarden.server.settings.configuration import STORE_VARIABLE
from planwarden.storage.location import SQLITE, StoreLocation, read_location
from planwarden.storage.moving.move import MoveReport, move
from planwarden.storage.moving.tables import TABLES
from planwarden.storage.opening import CompleteStore

DAY_S = 86_400.0


def add_prune(parser: CommandParser) -> None:
    parser.handle(handle_prune)
    parser.declare("--days N", "delete those that have not changed for N days; default: [retention] days", type=int)
    parser.declare("--yes", "do not ask before deleting; needed without a terminal")


def add_backup(parser: CommandParser) -> None:
    parser.handle(handle_backup)
    parser.declare("file FILE", "a new file; an existing file is not overwritten", type=read_path)


def add_move(parser: CommandParser) -> None:
    parser.handle(handle_move)
    text = "an empty PostgreSQL or a new file, named as for --store; run it again if it was interrupted"
    parser.declare("--to URL", text, required=True)


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
        if not terminal.confirm("Delete them?", "Nothing was deleted.", says_yes=arguments.yes):
            return FAILED
        pruned = use_store(settings, lambda store: store.prune(before))
    text = f"{pruned} finished {'execution' if pruned == 1 else 'executions'} older than {days} {word} deleted"
    return write_result(arguments, {"pruned": pruned, "days": days}, Terminal.say, text)


def handle_backup(arguments: Namespace) -> int:
    target: Path = expand_home(arguments.file).absolute()
    settings = read_settings(arguments)
    if not settings.store.is_made:
        raise StoreError(f"there is no database in {str(settings.home)!r} yet; nothing to back up")
    use_store(settings, lambda store: store.backup(target))
    size_bytes = target.stat().st_size
    text = f"{target}: {size_bytes} bytes"
    return write_result(arguments, {"file": str(target), "sizeBytes": size_bytes}, Terminal.say, text)


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
    return write_result(arguments, document, draw_move, report, target)


def draw_move(terminal: Terminal, report: MoveReport, target: StoreLocation) -> None:
    counts = ", ".join(f"{TABLES[name]}: {count}" for name, count in report.rows.items() if count)
    terminal.say(f"Moved from {report.source} to {report.target} and verified. The old store can no longer be used.")
    terminal.say(counts or "It was empty.")
    terminal.say(f"head of the audit: {report.audit_head}")
    if not all(url.startswith(SQLITE) for url in (report.source, report.target)):
        terminal.say("Logins to servers and the passphrase of the inbox are not moved; set them again.")
    added = " (add the password)" if target.has_password else ""
    terminal.say(f"Set {STORE_VARIABLE}={report.target}{added}, or [store] url, before you start anything.")
