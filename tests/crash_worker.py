"""Programs that tests start as processes of their own, to be killed, starved of disk space, or raced.

`python -m tests.crash_worker PROGRAM FOLDER [ARGUMENT...]`. Each speaks one JSON value per line on standard output; what
it has printed, it has been told by planwarden, so it counts as acknowledged.
"""

import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
from pydantic import JsonValue

from planwarden.agent import events as ev
from planwarden.agent.engine import Engine
from planwarden.agent.errors import StoreError
from planwarden.agent.llm import CallerModel
from planwarden.agent.plan import parse_plan
from planwarden.server.policy import Policy
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite import SqliteStore
from planwarden.tools.registry import Registry
from tests.fakes import EffectLedger, recording_tool
from tests.store_suite import Scribe

Program = Callable[[Path, list[str]], Awaitable[None]]


def say(value: JsonValue) -> None:
    """One line in one write, so that a killed process leaves whole lines."""
    os.write(1, f"{json.dumps(value)}\n".encode())


async def hold(folder: Path, arguments: list[str]) -> None:
    """Own a running execution until somebody kills the process or closes its standard input."""
    store = SqliteStore.open(folder / "planwarden.db", clock=ManualClock())
    await Scribe.on(store, "held", owner="the dead one").start()
    say("held")
    await anyio.to_thread.run_sync(sys.stdin.read)
    await store.close()


async def fill_the_disk(folder: Path, arguments: list[str]) -> None:
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


async def open_only(folder: Path, arguments: list[str]) -> None:
    """Open the store and say how that went."""
    try:
        store = SqliteStore.open(folder / "planwarden.db", clock=ManualClock())
        await Scribe.on(store, "written").start()
        await store.close()
    except StoreError as error:
        say({"error": error.message})
    else:
        say({"error": None})


async def run_on_a_full_disk(folder: Path, arguments: list[str]) -> None:
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
    ledger = EffectLedger(Path(os.devnull))
    # The result is larger than what is left in the pages of the log.
    text: JsonValue = "x" * 100_000
    tools = Registry([recording_tool(ledger, "mail", after=fill)])
    step: JsonValue = {"id": "a", "description": "a", "toolCalls": [{"toolName": "mail", "arguments": {"text": text}}]}
    store = SqliteStore.open(folder / "planwarden.db", clock=ManualClock())
    async with Engine(store, tools, CallerModel(), Policy()) as engine:
        plan, _ = parse_plan({"todoList": [step]}, author="caller", tools=engine.facts())
        created = await engine.create(thread_id="t", principal="ann", goal=None, plan=plan, options=ev.Options())
        finished = await engine.wait(created, 30)
        recorded = await store.read(created.execution_id)
    await store.close()
    kinds: list[JsonValue] = [type(entry.event).__name__ for entry in recorded]
    say({"status": finished.status, "errors": list[JsonValue](errors), "events": kinds})


PROGRAMS: dict[str, Program] = {
    "hold": hold,
    "fill_the_disk": fill_the_disk,
    "open_only": open_only,
    "run_on_a_full_disk": run_on_a_full_disk,
}


def main() -> None:
    program, folder, *arguments = sys.argv[1:]
    anyio.run(PROGRAMS[program], Path(folder), arguments)


if __name__ == "__main__":
    main()
