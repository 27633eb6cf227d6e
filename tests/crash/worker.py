"""Programs that tests start as processes of their own, to be killed, starved of disk space, or raced.

`python -m tests.crash.worker PROGRAM FOLDER [ARGUMENT...]`. Each speaks one JSON value per line on standard output;
planwarden has acknowledged whatever is printed there.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import StoreError, UsageError
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import FINISHED, ExecutionState
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.ports.store import Append
from planwarden.agent.runtime.engine import Engine
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.tools.registry import Registry
from tests.crash.scenario import PERSON, PRINCIPAL, plan_document, scenario_tools, truthful_answer
from tests.storage.suite import Scribe
from tests.support.fakes import EffectLedger, RefusingStore, StoreCall, WatchedStore, recording_tool

Program = Callable[[Path, list[str]], Awaitable[None]]


def say(value: JsonValue) -> None:
    """One line in one write, so that a killed process leaves whole lines."""
    os.write(1, f"{json.dumps(value)}\n".encode())


async def hold(folder: Path, arguments: list[str]) -> None:
    """Own a running execution until somebody kills the process or closes its standard input."""
    store = SqliteStore.open(folder / "planwarden.db", clock=ManualClock())
    await Scribe.on(store, "held", owner="the-dead-one").start()
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
    async with Engine(store, tools, CallerModel(), OperatorPolicy()) as engine:
        plan, _ = parse_plan({"todoList": [step]}, author="caller", tools=engine.tool_facts())
        created = await engine.create(
            thread_id="t", requester=Requester("ann"), goal=None, plan=plan, options=ev.Options()
        )
        finished = await engine.wait(created, 60)
        recorded = await store.read(created.execution_id)
    await store.close()
    kinds: list[JsonValue] = [type(entry.event).__name__ for entry in recorded]
    say({"status": finished.status, "errors": list[JsonValue](errors), "events": kinds})


class Toil:
    """Runs executions to their end and answers every question, in competition with other processes on the file."""

    def __init__(self, engine: Engine, ledger: EffectLedger) -> None:
        self._engine = engine
        self._ledger = ledger

    async def keep_starting(self) -> None:
        while True:
            plan, _ = parse_plan(plan_document(0.02), author="caller", tools=self._engine.tool_facts())
            execution = await self._engine.create(
                thread_id=self._engine.ids.new(),
                requester=Requester(PRINCIPAL),
                goal=None,
                plan=plan,
                options=ev.Options(),
            )
            say(["created", execution.execution_id])
            await self.drive(execution.execution_id)

    async def drive(self, execution_id: str) -> None:
        while True:
            execution = await self._engine.find(execution_id)
            execution = await self._engine.wait(execution, 60)
            if execution.is_finished:
                say(["finished", execution_id, execution.status])
                return
            for found in execution.open_suspensions:
                await self._answer(execution, found.question)

    async def _answer(self, execution: ExecutionState, question: ev.Question) -> None:
        if question.addressee == "clock":
            assert question.expires_at is not None
            await anyio.sleep(max(0.0, question.expires_at - self._engine.store.clock.now()))
            await self._engine.tick()
            return
        decision = truthful_answer(execution.execution_id, question, self._ledger)
        # Another process may have answered, or have ended the execution, at the same moment.
        with suppress(UsageError):
            await self._engine.answer(execution, question.suspension_id, decision, PERSON)
            say(["answered", question.suspension_id, True])


async def toil(folder: Path, arguments: list[str]) -> None:
    """Take over, answer, begin and finish executions until killed; with `finish`, finish all and begin none."""
    say(["mark", "opening"])
    store = SqliteStore.open(folder / "planwarden.db")
    ledger = EffectLedger(folder / "effects")

    async def watch(moment: StoreCall) -> None:
        say(["mark", moment.when, moment.call])

    async def mark() -> None:
        say(["mark", "tool"])

    watched = WatchedStore(store, watch)
    tools = Registry(scenario_tools(ledger, mark))
    with anyio.fail_after(120) if "finish" in arguments else nullcontext():
        async with (
            Engine(watched, tools, CallerModel(), OperatorPolicy()) as engine,
            anyio.create_task_group() as tasks,
        ):
            work = Toil(engine, ledger)
            for header in await watched.executions(None, 1_000_000):
                if header.status not in FINISHED:
                    tasks.start_soon(work.drive, header.execution_id)
            for _ in range(0 if "finish" in arguments else 3):
                tasks.start_soon(work.keep_starting)
    await store.close()


async def large_effect(folder: Path, arguments: list[str]) -> None:
    """Run a tool with an effect and a large result; die after the effect, before its result can be committed."""
    ledger = EffectLedger(folder / "effects")

    def die(append: Append) -> bool:
        if append.artifacts:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    store = RefusingStore(SqliteStore.open(folder / "planwarden.db"), die)
    tools = Registry([recording_tool(ledger, "dump", filler_bytes=300_000)])
    async with Engine(store, tools, CallerModel(), OperatorPolicy()) as engine:
        steps: JsonValue = {"todoList": [{"id": "a", "description": "dump", "toolCalls": [{"toolName": "dump"}]}]}
        plan, _ = parse_plan(steps, author="caller", tools=engine.tool_facts())
        execution = await engine.create(
            thread_id="t", requester=Requester(PRINCIPAL), goal=None, plan=plan, options=ev.Options()
        )
        await engine.wait(execution, 60)


PROGRAMS: dict[str, Program] = {
    "large_effect": large_effect,
    "toil": toil,
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
