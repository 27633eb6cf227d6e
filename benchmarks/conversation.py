"""What a calling model reads and writes: a scripted caller over a real MCP client, message by message.

The caller is the model: it writes the plan, the calls of each step and the final text, as `run_goal` asks it. The other
way sends the same plan, with its calls, to `execute_plan`. Counted are the arguments of its calls as compact JSON, and
what a host puts before its model: structured content (Claude Code, Codex), text (Gemini CLI, opencode), or both (VS
Code, Cursor, Claude Desktop). Both forms say the same, so the figure is the larger one; hosts that show both pay for
both.
"""

import json
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.types import TextContent
from pydantic import JsonValue

import planwarden
from planwarden.agent.models.caller import CallerModel
from planwarden.server.api.service import Service
from planwarden.server.api.warden import Warden
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.storage.sqlite.store import MemoryStore

LIMITS = {3: 10_000, 10: 20_000}
"""Bytes of a whole conversation by number of steps: of `run_goal` with the caller as model."""
FIRMS = ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Ginkgo", "Hazel", "Ivy")

Document = dict[str, Any]


@planwarden.tool(risk="read", effect="read")
async def find_overdue(days: int, limit: int = 10) -> list[dict[str, str | int]]:
    """Find customers with invoices that are overdue by so many days."""
    return [{"customer": firm, "invoice": f"R-{100 + n}", "amount": 250 * (n + 1)} for n, firm in enumerate(FIRMS)][
        :limit
    ]


@planwarden.tool(risk="read", effect="idempotent")
async def draft_reminder(customer: str, invoice: str, tone: str = "friendly") -> dict[str, str]:
    """Write the draft of a reminder to a customer, and keep it among the drafts."""
    return {"draft": f"d-{customer.lower()}", "subject": f"Reminder: invoice {invoice}", "state": "kept"}


@dataclass(frozen=True)
class Message:
    """One call and its answer, in bytes."""

    tool: str
    about: str
    sent: int
    structured: int
    text: int


@dataclass(frozen=True)
class Conversation:
    """All messages until the execution was over."""

    way: str
    steps: int
    messages: tuple[Message, ...]

    @property
    def sent(self) -> int:
        return sum(message.sent for message in self.messages)

    @property
    def structured(self) -> int:
        return self.sent + sum(message.structured for message in self.messages)

    @property
    def text(self) -> int:
        return self.sent + sum(message.text for message in self.messages)

    @property
    def total(self) -> int:
        """What the dearer of the two forms costs."""
        return max(self.structured, self.text)

    @property
    def both(self) -> int:
        return self.structured + self.text - self.sent

    @property
    def limit(self) -> int | None:
        """The bytes that it may have at most."""
        return LIMITS[self.steps] if self.way == "run_goal" else None

    def to_json(self) -> Document:
        """As in results/tokens.json."""
        sums = {"sent": self.sent, "structured": self.structured, "text": self.text, "both": self.both}
        messages = [asdict(message) for message in self.messages]
        return {"way": self.way, "steps": self.steps, "limit": self.limit, **sums, "messages": messages}


class Caller:
    """Calls tools as a model does, and counts."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.messages: list[Message] = []

    async def call(self, tool: str, about: str, arguments: Document) -> Document:
        result = await self._client.call_tool(tool, arguments)
        [block] = result.content
        if result.is_error or not isinstance(block, TextContent):
            raise RuntimeError(f"{tool} was refused: {result.content}")
        document: Document = result.structured_content
        self.messages.append(
            Message(tool, about, measure_json(arguments), measure_json(document), len(block.text.encode()))
        )
        return document


def list_steps(count: int) -> list[tuple[str, str, Document]]:
    """Id, tool and arguments of each step: one that finds, and one for each reminder."""
    steps: list[tuple[str, str, Document]] = [("find", "find_overdue", {"days": 30, "limit": count - 1})]
    for number, firm in enumerate(FIRMS[: count - 1]):
        arguments = {"customer": firm, "invoice": f"R-{100 + number}", "tone": "firm"}
        steps.append((f"remind_{firm.lower()}", "draft_reminder", arguments))
    return steps


def write_plan(count: int, *, with_calls: bool) -> Document:
    """The plan as a careful model writes it."""
    written: list[Document] = []
    for step_id, tool, arguments in list_steps(count):
        what = f"Draft a reminder to {arguments['customer']}" if "customer" in arguments else "Find who is overdue"
        step: Document = {"id": step_id, "description": what}
        if with_calls:
            step["toolCalls"] = [{"toolName": tool, "arguments": arguments}]
        else:
            step["requiredTools"] = [tool]
        written.append(step)
    return {"todoList": written}


def _goal(count: int) -> str:
    return f"Remind the {count - 1} customers who owe us longest: a firm letter to each, as a draft."


async def run_goal(client: Client, count: int) -> Conversation:
    """The caller plans, makes each call and writes the text, one question after the other."""
    caller, steps = Caller(client), {step_id: (tool, given) for step_id, tool, given in list_steps(count)}
    answer = await caller.call("run_goal", "goal", {"goal": _goal(count)})
    while answer["status"] == "suspended":
        [question] = answer["suspensions"]
        content: Document
        match question["kind"]:
            case "plan":
                content = write_plan(count, with_calls=False)
            case "step":
                tool, given = steps[question["stepId"]]
                content = {"toolCalls": [{"toolName": tool, "arguments": given}]}
            case _:
                content = {"content": f"I kept {count - 1} drafts of firm reminders; nothing was sent. Please look."}
        about = question.get("stepId") or question["kind"]
        ids = {"threadId": answer["threadId"], "suspensionId": question["suspensionId"]}
        answer = await caller.call("submit_answer", about, {**ids, "content": content})
    if answer["status"] != "completed":
        raise RuntimeError(f"the goal did not complete: {answer}")
    return Conversation("run_goal", count, tuple(caller.messages))


async def execute_plan(client: Client, count: int) -> Conversation:
    """The caller knows every step and sends them at once."""
    caller = Caller(client)
    answer = await caller.call("execute_plan", "plan", {"plan": write_plan(count, with_calls=True)})
    if answer["status"] != "completed":
        raise RuntimeError(f"the plan did not complete: {answer}")
    return Conversation("execute_plan", count, tuple(caller.messages))


WAYS: tuple[Callable[[Client, int], Awaitable[Conversation]], ...] = (run_goal, execute_plan)


async def measure() -> list[Conversation]:
    """Each way with each number of steps, over a client of protocol 2026-07-28."""
    with tempfile.TemporaryDirectory() as home:
        async with serve(Path(home)) as client:
            return [await way(client, count) for way in WAYS for count in LIMITS]


@asynccontextmanager
async def serve(home: Path) -> AsyncGenerator[Client]:
    """A client of a server as it is shipped, with the two tools."""
    made = Warden(home=home, model=CallerModel(), tools=[find_overdue, draft_reminder], store=MemoryStore())

    @asynccontextmanager
    async def opening() -> AsyncGenerator[Service]:
        yield made.service

    async with made, Client(PlanwardenServer(opening), mode="auto") as client:
        yield client


def measure_json(value: JsonValue) -> int:
    """Bytes of compact JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
