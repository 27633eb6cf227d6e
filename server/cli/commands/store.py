"""The commands `prune` and `backup`, which maintain the database."""

from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path

import anyio
import msgspec

from planwarden.agent.common.errors import InvalidArguments, StoreError
from planwarden.agent.common.paths import expand_home
from planwarden.server.cli.arguments import read_settings
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE, FAILED, build_terminal, confirm, write_result
from planwarden.server.settings.configuration import Settings
from planwarden.storage.opening import open_store

DAY_S = 86_400.0


class Prunable(msgspec.Struct, frozen=True):
    """What `prune` would delete."""

    executions: int
    oldest_at: float | None
    """When the oldest of them last changed."""
    before: float
    """They have not changed since then."""
    days: int


def add_prune(parser: CommandParser) -> None:
    parser.handle(handle_prune)
    parser.add_argument(
        "--days",
        type=int,
        metavar="N",
        help="delete those that have not changed for N days; default: [retention] days",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before deleting; needed without a terminal")


def add_backup(parser: CommandParser) -> None:
    parser.handle(handle_backup)
    parser.add_argument("file", type=Path, metavar="FILE", help="a new file; an existing file is not overwritten")


def handle_prune(arguments: Namespace) -> int:
    settings, terminal = read_settings(arguments), build_terminal(arguments)
    batch = find_prunable(settings, arguments.days)
    pruned = 0
    if batch.executions:
        terminal.say(describe_prunable(batch))
        if not confirm(terminal, "Delete them?", says_yes=arguments.yes):
            terminal.say("Nothing was deleted.")
            return FAILED
        pruned = prune(settings, batch)
    word = "execution" if pruned == 1 else "executions"
    text = f"{pruned} finished {word} older than {batch.days} {_days(batch.days)} deleted"
    write_result(arguments, {"pruned": pruned, "days": batch.days}, lambda terminal: terminal.say(text))
    return DONE


def _days(number: int) -> str:
    return "day" if number == 1 else "days"


def handle_backup(arguments: Namespace) -> int:
    target: Path = expand_home(arguments.file).absolute()
    size_bytes = backup(read_settings(arguments), target)
    write_result(
        arguments,
        {"file": str(target), "sizeBytes": size_bytes},
        lambda terminal: terminal.say(f"{target}: {size_bytes} bytes"),
    )
    return DONE


def find_prunable(settings: Settings, days: int | None) -> Prunable:
    """Return the finished executions that have not changed for `days`, by default for `[retention] days`."""
    kept_days = settings.tables.retention.days if days is None else days
    if kept_days < 0:
        raise InvalidArguments(f"--days is {kept_days}; it must be 0 or more")

    async def work() -> Prunable:
        async with open_store(settings.store) as store:
            before = store.clock.now() - kept_days * DAY_S
            return Prunable(*await store.count_prunable(before), before, kept_days)

    return anyio.run(work) if settings.store.is_made else Prunable(0, None, 0.0, kept_days)


def describe_prunable(batch: Prunable) -> str:
    """Return one sentence."""
    word = "execution that has" if batch.executions == 1 else "executions that have"
    oldest = (
        ""
        if batch.oldest_at is None
        else f"; the oldest is from {datetime.fromtimestamp(batch.oldest_at, UTC):%Y-%m-%d}"
    )
    return (
        f"This deletes {batch.executions} finished {word} not changed for {batch.days} {_days(batch.days)}, with log, "
        f"results and questions{oldest}. The audit keeps its rows."
    )


def prune(settings: Settings, batch: Prunable) -> int:
    """Delete what was found, and return how many executions it deleted."""

    async def work() -> int:
        async with open_store(settings.store) as store:
            return await store.prune(batch.before)

    return anyio.run(work)


def backup(settings: Settings, target: Path) -> int:
    """Write a consistent copy of the database, which others may go on using. Returns its size in bytes.

    Raises:
        StoreError: there is no database, or the target exists or cannot be written.
    """
    if not settings.store.is_made:
        raise StoreError(f"there is no database in {str(settings.home)!r} yet; nothing to back up")

    async def work() -> None:
        async with open_store(settings.store) as store:
            await store.backup(target)

    anyio.run(work)
    return target.stat().st_size
