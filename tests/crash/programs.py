"""Programs of the worker that are killed; each gets the folder of a store."""

import os
import signal
import sys
from pathlib import Path

import anyio

from planwarden.agent.ports.store import Append
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.tools.registry import Registry
from tests.harness.ledger import Ledger
from tests.harness.process import say
from tests.harness.team import engine_on, start, step
from tests.storage.suite import Scribe
from tests.support.fakes import RefusingStore, recording_tool


async def hold(folder: Path) -> None:
    """Own a running execution until somebody kills the process or closes its standard input."""
    store = SqliteStore.open(folder / "planwarden.db", clock=ManualClock())
    await Scribe.on(store, "held", owner="the-dead-one").start()
    say("held")
    await anyio.to_thread.run_sync(sys.stdin.read)
    await store.close()


async def large_effect(folder: Path) -> None:
    """Run a tool with an effect and a large result; die after the effect, before its result can be committed."""
    ledger = Ledger(folder / "effects")

    def die(append: Append) -> bool:
        if append.artifacts:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    store = RefusingStore(SqliteStore.open(folder / "planwarden.db"), die)
    tools = Registry([recording_tool(ledger, "dump", filler_bytes=300_000)])
    async with engine_on(store, tools) as engine:
        await engine.wait(await start(engine, step("a", "dump")), 60)
