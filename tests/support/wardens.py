"""What tests of the engine share: a warden on a memory store, scripted models, and tools that keep a ledger."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from pydantic import JsonValue

import planwarden
from planwarden import Execution, Warden
from planwarden.agent.core.tool import CallContext, Risk, ToolDefinition
from planwarden.agent.models.scripted import ScriptedModel
from planwarden.agent.ports.model import CallerModel, Model
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.service import Service
from planwarden.server.settings.configuration import Settings
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.store import MemoryStore
from planwarden.tools.base import Tool, define

NOWHERE = Path("/nonexistent")


@dataclass
class PausingTool:
    """A tool that sets `started` when it runs, and returns when a test sets `opened`."""

    started: anyio.Event = field(default_factory=anyio.Event)
    opened: anyio.Event = field(default_factory=anyio.Event)

    def tool(self) -> object:
        @planwarden.tool(risk="read", effect="read")
        async def gate() -> str:
            """Waits."""
            self.started.set()
            await self.opened.wait()
            return "through"

        return gate


@asynccontextmanager
async def open_service(warden: Warden) -> AsyncGenerator[Service]:
    """Opens the warden for one server at a time."""
    async with warden:
        yield warden.service


def end_at_once(warden: Warden) -> None:
    """Running calls of an open warden get no time to end when it closes."""
    find_engine(warden)._grace_s = 0.0  # pyright: ignore[reportPrivateUsage]


def find_engine(warden: Warden) -> Engine:
    """Returns the engine of an open warden, which makes its own and shows it to nobody."""
    return warden.service._engine  # pyright: ignore[reportPrivateUsage]


@dataclass
class Ledger:
    lines: list[str] = field(default_factory=list[str])

    def tools(self) -> list[object]:
        """Returns `find` (read), `note` (effect, read risk), `erase` (effect, dangerous) and `broken` (raises)."""

        @planwarden.tool(name="find", risk="read", effect="read")
        async def find(topic: str, limit: int = 3) -> dict[str, JsonValue]:
            """Find ids for a topic."""
            return {"ids": list(range(1, limit + 1)), "topic": topic}

        @planwarden.tool(name="note", risk="read", effect="effect")
        async def note(text: str) -> dict[str, JsonValue]:
            """Write a line."""
            self.lines.append(f"note {text}")
            return {"written": text}

        @planwarden.tool(name="erase")
        async def erase(ids: list[int]) -> dict[str, JsonValue]:
            """Delete records."""
            self.lines.append(f"erase {ids}")
            return {"erased": len(ids)}

        @planwarden.tool(name="broken", risk="read", effect="read")
        async def broken() -> dict[str, JsonValue]:
            """Always fails."""
            raise RuntimeError("the machine is on fire")

        return [find, note, erase, broken]


def acting(
    name: str, lines: list[str], risk: Risk = "dangerous", *, says: str = "Do it.", fault: Exception | None = None
) -> Tool:
    """A tool with an effect: it takes any arguments, writes its name and their values down, and may fail after that."""

    async def act(arguments: dict[str, JsonValue], context: CallContext) -> str:
        lines.append(" ".join([name, *map(str, arguments.values())]))
        if fault is not None:
            raise fault
        return "done"

    return Tool(define(ToolDefinition(name=name, description=says, input_schema={"type": "object"}, risk=risk)), act)


@asynccontextmanager
async def warden(
    ledger: Ledger | None = None,
    *,
    script: Sequence[JsonValue] | None = None,
    tools: Sequence[object] = (),
    store: Store | None = None,
    settings: Settings | None = None,
    model: Model | None = None,
) -> AsyncGenerator[Warden]:
    """Runs a warden without a disk. Its model is `model`, or a scripted one with `script`, or else the caller."""
    model = model or (CallerModel() if script is None else ScriptedModel({"replies": list(script)}))
    given = [*(ledger.tools() if ledger else []), *tools]
    made = Warden(settings=settings or Settings(home=NOWHERE), model=model, tools=given, store=store or MemoryStore())
    async with made:
        yield made


async def run(
    *steps: dict[str, JsonValue],
    script: Sequence[JsonValue] | None = None,
    tools: Sequence[object] = (),
    inputs: dict[str, JsonValue] | None = None,
    settings: Settings | None = None,
    options: Mapping[str, JsonValue] | None = None,
) -> tuple[Execution, list[str]]:
    """Runs the steps in a warden of their own; returns the execution with its observations, and what happened."""
    ledger = Ledger()
    async with warden(ledger, script=script, tools=tools, settings=settings) as w:
        execution = await w.execute_plan(plan(*steps), inputs=inputs, options=options, wait_seconds=60)
        return await w.get_execution(execution.thread_id, observations_after=0), ledger.lines


async def pass_time(w: Warden, clock: ManualClock, execution: Execution, seconds: float) -> Execution:
    """Returns the execution after so much time, when everything that was due then is done."""
    clock.advance(seconds)
    await w.service.tick()
    await w.service.wait(await w.service.find(execution.execution_id), 60)
    return await w.get_execution(execution.thread_id)


def tool_step(step_id: str, tool: str, arguments: JsonValue = None, **extra: JsonValue) -> dict[str, JsonValue]:
    return {
        "id": step_id,
        "description": f"use {tool}",
        "requiredTools": [tool],
        "toolCalls": [{"toolName": tool, "arguments": arguments or {}}],
        **extra,
    }


def model_step(step_id: str, *tools: str, **extra: JsonValue) -> dict[str, JsonValue]:
    return {"id": step_id, "description": f"use {', '.join(tools)}", "requiredTools": list(tools), **extra}


def plan(*steps: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {"todoList": list(steps)}


def calls(*named: tuple[str, dict[str, JsonValue]]) -> dict[str, JsonValue]:
    made: list[JsonValue] = [{"toolName": name, "arguments": arguments} for name, arguments in named]
    return {"when": {"purpose": "step"}, "reply": {"toolCalls": made}}


def says(content: str, purpose: str = "step") -> dict[str, JsonValue]:
    return {"when": {"purpose": purpose}, "reply": {"content": content}}


def confirm(step_id: str, action: str = "go on?", **extra: JsonValue) -> dict[str, JsonValue]:
    return tool_step(step_id, "displayConfirmation", {"action": action}, **extra)


def statuses(execution: Execution) -> dict[str, str]:
    return {step.id: step.status for step in execution.steps}
