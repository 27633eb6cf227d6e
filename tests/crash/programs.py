"""Programs of the worker that are killed; each gets the folder of a store."""

import sys
from pathlib import Path

import anyio

from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.store import SqliteStore
from tests.harness.process import say
from tests.storage.suite import Scribe


async def hold(folder: Path) -> None:
    """Own a running execution until somebody kills the process or closes its standard input."""
    store = SqliteStore.open(folder / "planwarden.db", clock=ManualClock())
    await Scribe.on(store, "held", owner="the-dead-one").start()
    say("held")
    await anyio.to_thread.run_sync(sys.stdin.read)
    await store.close()
