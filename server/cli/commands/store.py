"""The commands `prune` and `backup`, which maintain the database."""

from argparse import Namespace
from pathlib import Path

import anyio
import msgspec

from planwarden.agent.common.errors import InvalidArguments, StoreError
from planwarden.agent.common.paths import expand_home
from planwarden.server.cli.arguments import read_settings
from planwarden.server.cli.exit_codes import DONE
from planwarden.server.cli.output import write_result
from planwarden.server.settings.configuration import Settings
from planwarden.storage.sqlite.store import SqliteStore

DAY_S = 86_400.0


class PruneResult(msgspec.Struct, frozen=True):
    executions: int
    days: int


def handle_prune(arguments: Namespace) -> int:
    pruned = prune(read_settings(arguments), arguments.days)
    word = "execution" if pruned.executions == 1 else "executions"
    text = f"{pruned.executions} finished {word} older than {pruned.days} days deleted"
    write_result(arguments, {"pruned": pruned.executions, "days": pruned.days}, lambda terminal: terminal.say(text))
    return DONE


def handle_backup(arguments: Namespace) -> int:
    target: Path = expand_home(arguments.file).absolute()
    size_bytes = backup(read_settings(arguments), target)
    write_result(
        arguments,
        {"file": str(target), "sizeBytes": size_bytes},
        lambda terminal: terminal.say(f"{target}: {size_bytes} bytes"),
    )
    return DONE


def prune(settings: Settings, days: int | None) -> PruneResult:
    """Deletes finished executions that have not changed for `days`, by default for `[retention] days`."""
    kept_days = settings.retention_days if days is None else days
    if kept_days < 0:
        raise InvalidArguments(f"--days is {kept_days}; it must be 0 or more")

    async def work() -> int:
        store = await _open_store(settings)
        try:
            return await store.prune(store.clock.now() - kept_days * DAY_S)
        finally:
            await store.close()

    return PruneResult(executions=anyio.run(work) if settings.database.exists() else 0, days=kept_days)


def backup(settings: Settings, target: Path) -> int:
    """Writes a consistent copy of the database, which others may use meanwhile. Returns its size in bytes.

    Raises:
        StoreError: there is no database, or the target exists or cannot be written.
    """
    if not settings.database.exists():
        raise StoreError(f"there is no database in {str(settings.home)!r} yet; nothing to back up")

    async def work() -> None:
        store = await _open_store(settings)
        try:
            await store.backup(target)
        finally:
            await store.close()

    anyio.run(work)
    return target.stat().st_size


async def _open_store(settings: Settings) -> SqliteStore:
    return await anyio.to_thread.run_sync(SqliteStore.open, settings.database)
