"""The same job on LangGraph: SQLite (write-ahead log, synchronous=FULL) or PostgreSQL, durability "sync".

Three forms of it, from the one that does most to the one that does least:

* `plan-executor`: the plan is data. A node reads the next planned call from the state and emits an `AIMessage` with
  `tool_calls`; `ToolNode` validates the arguments and runs the `@tool`; a conditional edge loops. It is the only form
  that, like planwarden, takes any plan at run time, stores it, and records which tool was called with what.
* `step-nodes`: the plan is compiled into the graph, one node per step, each calling `ToolNode` inside. Arguments are
  validated; the plan is not data any more.
* `functional`: `@entrypoint` and `@task` over a plan given at run time; no tools, no messages, no validation. The
  leanest LangGraph program of all.

The confirmation is `interrupt()` in place of the third call, answered with `Command(resume=...)`, in all three. On
PostgreSQL a saver lets one statement run at a time, so a process has several, each with a connection of its own.
"""

# LangGraph ships no stubs for pyright and leaves some of its generics open.
# pyright: reportMissingTypeStubs=false

import os
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import aiosqlite
from langchain_core.messages import AIMessage, AnyMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from benchmarks.side import CONFIRMATION, FUNCTIONS, Side, make_order, plan_job

# Tracing to a service is off unless an environment variable says otherwise; a stray one must not falsify the figures.
os.environ["LANGSMITH_TRACING"] = "false"

DATABASE = "langgraph.db"
SAVERS = 4
STEPS = range(len(plan_job("")))

Form = tuple[Any, Callable[[], Any]]
"""A program, and what makes the input of a new thread."""


class PlanState(TypedDict, total=False):
    """What the plan executor keeps."""

    plan: list[dict[str, Any]]
    position: int
    messages: Annotated[list[AnyMessage], add_messages]


class StepState(TypedDict, total=False):
    """What the compiled plan with tools keeps."""

    order: str
    messages: Annotated[list[AnyMessage], add_messages]


async def confirm(action: str) -> Any:
    """Ask a person to approve an action before it happens."""
    return interrupt({"action": action})


def make_tools() -> ToolNode:
    """Return the node that checks arguments and calls."""
    return ToolNode([*map(tool, FUNCTIONS), tool(CONFIRMATION)(confirm)])


def make_plan() -> list[dict[str, Any]]:
    """Return the plan of a new order, for the forms that take it at run time."""
    return [{"tool": call.tool, "arguments": call.arguments} for call in plan_job(make_order())]


def request(number: int, name: str, arguments: dict[str, Any]) -> dict[str, list[AnyMessage]]:
    """Return the message of a model that calls a tool."""
    return {"messages": [AIMessage(content="", tool_calls=[ToolCall(name=name, args=arguments, id=f"s{number}")])]}


def plan_executor(saver: Any) -> Form:
    """Build a loop of two nodes over a plan in the state."""

    def dispatch(state: Any) -> Any:
        position = state.get("position", 0)
        call = state["plan"][position]
        return {"position": position + 1, **request(position, call["tool"], call["arguments"])}

    def find_next(state: Any) -> str:
        return "dispatch" if state["position"] < len(state["plan"]) else END

    graph: Any = StateGraph(PlanState)
    graph.add_node("dispatch", dispatch)
    graph.add_node("tools", make_tools())
    graph.add_edge(START, "dispatch")
    graph.add_edge("dispatch", "tools")
    graph.add_conditional_edges("tools", find_next, ["dispatch", END])
    return graph.compile(checkpointer=saver), lambda: {"plan": make_plan()}


def step_nodes(saver: Any) -> Form:
    """Build a graph of one node per step, each with a `ToolNode` inside."""
    tools = make_tools()

    def node(number: int) -> Any:
        async def step(state: Any, config: RunnableConfig) -> Any:
            call = plan_job(state["order"])[number]
            return await tools.ainvoke(request(number, call.tool, call.arguments), config)

        return f"s{number}", step

    graph: Any = StateGraph(StepState)
    graph.add_sequence(list(map(node, STEPS)))
    graph.add_edge(START, "s0")
    return graph.compile(checkpointer=saver), lambda: {"order": make_order(), "messages": []}


def functional(saver: Any) -> Form:
    """Build an entrypoint that loops over the plan and awaits a task for each call."""
    tasks: dict[str, Any] = {function.__name__: task(function) for function in FUNCTIONS}

    async def job(plan: list[dict[str, Any]]) -> list[Any]:
        results: list[Any] = []
        for call in plan:
            name, arguments = call["tool"], call["arguments"]
            results.append(interrupt(arguments) if name == CONFIRMATION else await tasks[name](**arguments))
        return results

    return cast("Any", entrypoint(checkpointer=saver)(job)), make_plan


VARIANTS = {"plan-executor": plan_executor, "step-nodes": step_nodes, "functional": functional}


class LangGraph(Side):
    """Programs of one form, which take turns."""

    def __init__(self, forms: list[Form]) -> None:
        self._forms = cycle(forms)

    async def suspend_one(self) -> tuple[str, str]:
        return (await self._suspend(*next(self._forms)), "")

    async def run_one(self) -> None:
        program, make_input = next(self._forms)
        thread_id = await self._suspend(program, make_input)
        done = await program.ainvoke(Command(resume={"approved": True}), _configure(thread_id), durability="sync")
        if "kim@shop.test" not in str(done):
            raise RuntimeError(f"the graph did not complete: {done}")

    async def _suspend(self, program: Any, make_input: Callable[[], Any]) -> str:
        thread_id = str(uuid.uuid4())
        waiting = await program.ainvoke(make_input(), _configure(thread_id), durability="sync")
        if "__interrupt__" not in waiting:
            raise RuntimeError(f"the graph did not wait for the person: {waiting}")
        return thread_id


def _configure(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


@asynccontextmanager
async def open_side(variant: str, place: str) -> AsyncGenerator[LangGraph]:
    """Open one form on a database: in a folder, with the pragmas that planwarden uses, or on PostgreSQL."""
    async with AsyncExitStack() as stack:
        savers: list[Any] = []
        if "dbname=" in place:
            for _ in range(SAVERS):
                savers.append(await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(place)))
            await savers[0].setup()
        else:
            connection = await stack.enter_async_context(aiosqlite.connect(Path(place) / DATABASE))
            savers.append(AsyncSqliteSaver(connection))
            await savers[0].setup()
            await connection.execute("PRAGMA synchronous = FULL")
            for pragma, wanted in (("journal_mode", "wal"), ("synchronous", 2)):
                [[value]] = await connection.execute_fetchall(f"PRAGMA {pragma}")
                if value != wanted:
                    raise RuntimeError(f"{pragma} is {value!r}, not {wanted!r}; the comparison would not be fair")
        yield LangGraph([VARIANTS[variant](saver) for saver in savers])
