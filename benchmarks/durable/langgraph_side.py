"""LangGraph with its checkpointers: https://docs.langchain.com/oss/python/langgraph/interrupts ("Approve or reject")"""

import sqlite3
from typing import Any, Literal, TypedDict

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from psycopg.rows import dict_row
from workload import JOB, PATIENCE_S, REFUSED, STEPS, Question, System, points, watch

CONFIG: Any = {"configurable": {"thread_id": JOB}}


class State(TypedDict, total=False):
    order: str
    refund: str


def approval(state: State) -> Command[Literal["send_refund", "add_note"]]:
    """Ask a person."""
    if interrupt({"question": "Send the refund?"}):
        return Command(goto="send_refund")
    return Command(goto="add_note", update={"refund": REFUSED})


def build(saver: Any) -> Any:
    """Return the five steps, with the question before the third."""

    def node(name: str) -> Any:
        key = "refund" if name == "send_refund" else "order"
        return name, lambda state: {key: STEPS[name](JOB)}

    graph: Any = StateGraph(State)
    graph.add_sequence([node("look_up_order"), node("check_stock"), ("approval", approval)])
    graph.add_sequence([node("send_refund"), node("add_note"), node("summarise")])
    graph.add_edge(START, "look_up_order")
    return graph.compile(checkpointer=saver)


class Adapter(System):
    """The graph on a checkpointer: SQLite, which waits for the disk by default, or PostgreSQL."""

    async def open(self) -> None:
        if self.url:
            connection: Any = psycopg.connect(self.url, autocommit=True, prepare_threshold=0, row_factory=dict_row)
            saver: Any = PostgresSaver(connection)
        else:
            path = self.folder / "langgraph.db"
            saver = SqliteSaver(sqlite3.connect(path, timeout=PATIENCE_S, check_same_thread=False))
        saver.setup()
        watch(saver, "put")
        watch(saver, "put_writes", lambda _, writes, *__: points(dict(writes), "__interrupt__", "__resume__"))
        self._graph = build(saver)

    async def advance(self) -> None:
        state = self._graph.get_state(CONFIG)
        if not state.created_at:
            self._graph.invoke({"order": JOB}, CONFIG, durability="sync")
        elif state.next and not state.interrupts:
            self._graph.invoke(None, CONFIG, durability="sync")

    async def question(self) -> Question | None:
        return "approve" if self._graph.get_state(CONFIG).interrupts else None

    async def answer(self, yes: bool) -> None:
        self._graph.invoke(Command(resume=yes), CONFIG, durability="sync")

    async def result(self) -> str | None:
        state = self._graph.get_state(CONFIG)
        return None if state.next else state.values.get("refund")
