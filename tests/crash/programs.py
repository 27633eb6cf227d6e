"""Programs of the worker that are killed, or starved of disk space; each gets the folder of a store."""

import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import StoreError
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


async def fill_the_disk(folder: Path) -> None:
    """Write until there is no space, free some, go on; say what was acknowledged and what could be read when."""
    ballast = folder / "ballast"
    ballast.write_bytes(b"x" * 512 * 1024)
    store = SqliteStore.open(folder / "planwarden.db", clock=ManualClock())
    acknowledged: list[JsonValue] = []
    error = ""
    while not error:
        name = f"e{len(acknowledged)}"
        try:
            await Scribe.on(store, name, principal="x" * 2000).finish()
            acknowledged.append(name)
        except StoreError as full:
            error = full.message
    readable = [name for name in acknowledged if len(await store.read(str(name))) == 7]
    ballast.unlink()
    await Scribe.on(store, "after").finish()
    await store.close()
    again = SqliteStore.open(folder / "planwarden.db", clock=ManualClock())
    survived = [name for name in [*acknowledged, "after"] if len(await again.read(str(name))) == 7]
    health = await again.check()
    await again.close()
    say(
        {
            "error": error,
            "acknowledged": len(acknowledged),
            "readable": len(readable),
            "survived": len(survived),
            "integrity": health["integrity"],
        }
    )


async def open_only(folder: Path) -> None:
    """Open the store and say how that went."""
    try:
        store = SqliteStore.open(folder / "planwarden.db", clock=ManualClock())
        await Scribe.on(store, "written").start()
        await store.close()
    except StoreError as error:
        say({"error": error.message})
    else:
        say({"error": None})


async def run_on_a_full_disk(folder: Path) -> None:
    """Run a tool that leaves no space on the disk; make space when planwarden complains; say how it ended."""
    ballast = folder / "ballast"
    errors: list[str] = []

    async def fill() -> None:
        with ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    class MakeSpace(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(record.getMessage())
            ballast.unlink(missing_ok=True)

    logging.getLogger("planwarden").addHandler(MakeSpace())
    ledger = Ledger(Path(os.devnull))
    # The result is larger than what is left in the pages of the log.
    text: JsonValue = "x" * 100_000
    tools = Registry([recording_tool(ledger, "mail", after=fill)])
    store = SqliteStore.open(folder / "planwarden.db", clock=ManualClock())
    async with engine_on(store, tools) as engine:
        created = await start(engine, step("a", "mail", arguments={"text": text}))
        finished = await engine.wait(created, 60)
        recorded = await store.read(created.execution_id)
    await store.close()
    kinds: list[JsonValue] = [type(entry.event).__name__ for entry in recorded]
    say({"status": finished.status, "errors": list[JsonValue](errors), "events": kinds})


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
