"""The same job on LangGraph with its SQLite checkpointer: write-ahead log, synchronous=FULL, durability "sync".

Four forms of it, from the one that does most to the one that does least:

* `plan-executor`: the plan is data. A node reads the next planned call from the state and emits an `AIMessage` with
  `tool_calls`; `ToolNode` validates the arguments and runs the `@tool`; a conditional edge loops. This is how a
  plan-and-execute agent is written with LangGraph. It is the only form that, like planwarden, takes any plan at run
  time, stores it, validates arguments, and records which tool was called with what. It is the headline comparison.
* `step-nodes`: the plan is compiled into the graph, one node per step, each calling `ToolNode` inside. Arguments are
  validated; the plan is not data any more.
* `bare`: the plan is compiled into five plain functions; no tools, no messages, no validation. The leanest graph.
* `functional`: `@entrypoint` and `@task` over a plan given at run time; no tools, no messages, no validation. The
  leanest LangGraph program of all.

The confirmation is `interrupt()` in place of the third call, answered with `Command(resume=...)`, in all four.

Not compared: durability "async" and "exit", which promise less than planwarden does. None of the four proves that a
required tool was called, records an intent before an effect, or keeps a second process from running the same thread.
"""

# LangGraph ships no stubs for pyright and leaves some of its generics open; what is used of it is cast to `Program`.
# pyright: reportMissingTypeStubs=false

import operator
import os
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol, TypedDict, cast

import aiosqlite
from langchain_core.messages import AIMessage, AnyMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from benchmarks.side import Executions, Side
from benchmarks.workload import CONFIRMATION, FUNCTIONS, PlannedCall, make_order, plan_job

# Tracing to a service is off unless an environment variable says otherwise; a stray one must not falsify the figures.
os.environ["LANGSMITH_TRACING"] = "false"

DATABASE = "langgraph.db"

STEPS = len(plan_job(""))

MakeInput = Callable[[], Any]
"""Makes what a new thread starts with."""


def make_plan() -> list[dict[str, Any]]:
    """The plan of a new order, for the variants that take it at run time."""
    return [{"tool": call.tool, "arguments": call.arguments} for call in plan_job(make_order())]


class Program(Protocol):
    """The part of a compiled graph that is used here."""

    async def ainvoke(self, input: Any, config: RunnableConfig, *, durability: str) -> Any: ...


class PlanState(TypedDict, total=False):
    """What the plan executor keeps."""

    plan: list[dict[str, Any]]
    position: int
    messages: Annotated[list[AnyMessage], add_messages]


class StepState(TypedDict, total=False):
    """What the compiled plan with tools keeps."""

    order: str
    messages: Annotated[list[AnyMessage], add_messages]


class BareState(TypedDict, total=False):
    """What the five plain functions keep."""

    order: str
    results: Annotated[list[Any], operator.add]


async def confirm(action: str) -> Any:
    """Ask a person to approve an action before it happens."""
    return interrupt({"action": action})


def _tools() -> list[BaseTool]:
    confirmation: BaseTool = tool(CONFIRMATION)(confirm)
    return [*(tool(function) for function in FUNCTIONS), confirmation]


def _planned(state: StepState | BareState, number: int) -> PlannedCall:
    return plan_job(state.get("order", ""))[number - 1]


def _request(number: int, name: str, arguments: dict[str, Any]) -> AIMessage:
    return AIMessage(content="", tool_calls=[ToolCall(name=name, args=arguments, id=f"s{number}")])


def plan_executor(saver: BaseCheckpointSaver[str]) -> tuple[Program, MakeInput]:
    """A loop of two nodes over a plan in the state."""

    def dispatch(state: PlanState) -> PlanState:
        position = state.get("position", 0)
        planned = state.get("plan", [])[position]
        message = _request(position + 1, planned["tool"], planned["arguments"])
        return {"position": position + 1, "messages": [message]}

    def further(state: PlanState) -> Hashable:
        return "dispatch" if state.get("position", 0) < len(state.get("plan", [])) else END

    graph: Any = StateGraph(PlanState)
    graph.add_node("dispatch", dispatch)
    graph.add_node("tools", ToolNode(_tools()))
    graph.add_edge(START, "dispatch")
    graph.add_edge("dispatch", "tools")
    graph.add_conditional_edges("tools", further, ["dispatch", END])
    return cast("Program", graph.compile(checkpointer=saver)), lambda: {"plan": make_plan()}


def step_nodes(saver: BaseCheckpointSaver[str]) -> tuple[Program, MakeInput]:
    """One node per step, each with a `ToolNode` inside."""
    tools = ToolNode(_tools())

    def node(number: int) -> Callable[[StepState, RunnableConfig], Coroutine[Any, Any, Any]]:
        async def step(state: StepState, config: RunnableConfig) -> Any:
            call = _planned(state, number)
            return await tools.ainvoke({"messages": [_request(number, call.tool, call.arguments)]}, config)

        return step

    graph: Any = StateGraph(StepState)
    before = START
    for number in range(1, STEPS + 1):
        graph.add_node(f"s{number}", node(number))
        graph.add_edge(before, f"s{number}")
        before = f"s{number}"
    graph.add_edge(before, END)
    return cast("Program", graph.compile(checkpointer=saver)), lambda: {"order": make_order(), "messages": []}


def bare(saver: BaseCheckpointSaver[str]) -> tuple[Program, MakeInput]:
    """One plain function per step."""
    functions: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {f.__name__: f for f in FUNCTIONS}
    functions[CONFIRMATION] = confirm

    def node(number: int) -> Callable[[BareState], Coroutine[Any, Any, BareState]]:
        async def step(state: BareState) -> BareState:
            call = _planned(state, number)
            return {"results": [await functions[call.tool](**call.arguments)]}

        return step

    graph: Any = StateGraph(BareState)
    before = START
    for number in range(1, STEPS + 1):
        graph.add_node(f"s{number}", node(number))
        graph.add_edge(before, f"s{number}")
        before = f"s{number}"
    graph.add_edge(before, END)
    return cast("Program", graph.compile(checkpointer=saver)), lambda: {"order": make_order(), "results": []}


def functional(saver: BaseCheckpointSaver[str]) -> tuple[Program, MakeInput]:
    """An entrypoint that loops over the plan and awaits a task for each call."""
    tasks: dict[str, Callable[..., Any]] = {function.__name__: task(function) for function in FUNCTIONS}

    async def job(plan: list[dict[str, Any]]) -> list[Any]:
        results: list[Any] = []
        for planned in plan:
            name, arguments = planned["tool"], planned["arguments"]
            if name == CONFIRMATION:
                results.append(interrupt(arguments))
            else:
                results.append(await tasks[name](**arguments))
        return results

    return cast("Program", entrypoint(checkpointer=saver)(job)), make_plan


VARIANTS: dict[str, Callable[[BaseCheckpointSaver[str]], tuple[Program, MakeInput]]] = {
    "plan-executor": plan_executor,
    "step-nodes": step_nodes,
    "bare": bare,
    "functional": functional,
}


async def suspend_one(program: Program, make_input: MakeInput) -> tuple[str, str]:
    """Runs a new thread up to the question; returns its id twice, because the answer needs no other."""
    thread_id = str(uuid.uuid4())
    waiting = await program.ainvoke(make_input(), _config(thread_id), durability="sync")
    if "__interrupt__" not in waiting:
        raise RuntimeError(f"the graph did not wait for the person: {waiting}")
    return thread_id, thread_id


async def resume_one(program: Program, thread_id: str) -> None:
    """Answer the question and run the rest."""
    answer: Command[Any] = Command(resume={"approved": True})
    done = await program.ainvoke(answer, _config(thread_id), durability="sync")
    if "kim@shop.test" not in str(done):
        raise RuntimeError(f"the graph did not complete: {done}")


async def run_one(program: Program, make_input: MakeInput) -> None:
    """One whole execution, suspension and approval included."""
    thread_id, _ = await suspend_one(program, make_input)
    await resume_one(program, thread_id)


@asynccontextmanager
async def open_side(name: str, folder: Path) -> AsyncGenerator[Side]:
    """One variant on a database in `folder`, with the pragmas that planwarden uses."""
    async with aiosqlite.connect(folder / DATABASE) as connection:
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        await connection.execute("PRAGMA synchronous = FULL")
        await _expect(connection, "journal_mode", "wal")
        await _expect(connection, "synchronous", 2)
        program, make_input = VARIANTS[name](saver)
        yield Executions(lambda: run_one(program, make_input), lambda: suspend_one(program, make_input))


async def _expect(connection: aiosqlite.Connection, pragma: str, value: str | int) -> None:
    rows = list(await connection.execute_fetchall(f"PRAGMA {pragma}"))
    if rows[0][0] != value:
        raise RuntimeError(f"{pragma} is {rows[0][0]!r}, not {value!r}; the comparison would not be fair")


def _config(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}
