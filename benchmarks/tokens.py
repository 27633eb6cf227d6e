"""What a calling model reads and writes: a scripted caller over a real MCP client, message by message.

The caller is the model: it writes the plan, the calls of each step and the final text, as `run_goal` asks it. The other
way sends the same plan, with its calls, to `execute_plan`. Counted are the arguments of its calls as compact JSON, and
what a host puts before its model: structured content (Claude Code, Codex), text (Gemini CLI, opencode), or both (VS
Code, Cursor, Claude Desktop). `python -m benchmarks.tokens` writes results/tokens.json and a table in README.md.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dev.page import write_parts, write_table
from mcp import Client
from mcp.types import TextContent
from pydantic import JsonValue
from tests.support.wardens import open_service

import planwarden
from benchmarks.harness import README, write_result
from planwarden.agent.ports.model import CallerModel
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
    rows: list[dict[str, str | int]] = [
        {"customer": firm, "invoice": f"R-{100 + n}", "amount": 250 * (n + 1)} for n, firm in enumerate(FIRMS)
    ]
    return rows[:limit]


@planwarden.tool(risk="read", effect="idempotent")
async def draft_reminder(customer: str, invoice: str, tone: str = "friendly") -> dict[str, str]:
    """Write the draft of a reminder to a customer, and keep it among the drafts."""
    return {"draft": f"d-{customer.lower()}", "subject": f"Reminder: invoice {invoice}", "state": "kept"}


class Conversation:
    """Calls tools as a model does, and counts until the execution is over."""

    def __init__(self, way: str, steps: int, client: Client) -> None:
        self.way, self.steps, self._client = way, steps, client
        self.messages: list[Document] = []
        """Each call and its answer: tool, what it is about, and bytes sent and read in both forms."""

    async def call(self, tool: str, about: str, arguments: Document) -> Document:
        """Return the structured content of the answer."""
        result = await self._client.call_tool(tool, arguments)
        [block] = result.content
        if result.is_error or not isinstance(block, TextContent):
            raise RuntimeError(f"{tool} was refused: {result.content}")
        document: Document = result.structured_content
        sizes = {
            "sent": measure_json(arguments),
            "structured": measure_json(document),
            "text": len(block.text.encode()),
        }
        self.messages.append({"tool": tool, "about": about, **sizes})
        return document

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes sent, and sent and read in each form; the two forms say the same."""
        sent, structured, text = (
            sum(message[key] for message in self.messages) for key in ("sent", "structured", "text")
        )
        return {"sent": sent, "structured": sent + structured, "text": sent + text, "both": sent + structured + text}

    def to_json(self) -> Document:
        """Return it as it is in results/tokens.json."""
        limit = LIMITS[self.steps] if self.way == "run_goal" else None
        return {"way": self.way, "steps": self.steps, "limit": limit, **self.sizes, "messages": self.messages}


def list_steps(count: int) -> dict[str, tuple[str, Document]]:
    """Return tool and arguments of each step, by its id: one that finds, and one for each reminder."""
    steps: dict[str, tuple[str, Document]] = {"find": ("find_overdue", {"days": 30, "limit": count - 1})}
    for number, firm in enumerate(FIRMS[: count - 1]):
        arguments = {"customer": firm, "invoice": f"R-{100 + number}", "tone": "firm"}
        steps[f"remind_{firm.lower()}"] = ("draft_reminder", arguments)
    return steps


def write_plan(count: int, *, with_calls: bool) -> Document:
    """Return the plan as a careful model writes it."""
    steps: list[Document] = []
    for step_id, (tool, arguments) in list_steps(count).items():
        what = f"Draft a reminder to {arguments['customer']}" if "customer" in arguments else "Find who is overdue"
        calls = {"toolCalls": [{"toolName": tool, "arguments": arguments}]} if with_calls else {"requiredTools": [tool]}
        steps.append({"id": step_id, "description": what, **calls})
    return {"todoList": steps}


async def run_goal(client: Client, count: int) -> Conversation:
    """Plan, make each call and write the text, one question after the other."""
    caller, steps = Conversation("run_goal", count, client), list_steps(count)
    goal = f"Remind the {count - 1} customers who owe us longest: a firm letter to each, as a draft."
    answer = await caller.call("run_goal", "goal", {"goal": goal})
    while answer["status"] == "suspended":
        [question] = answer["suspensions"]
        content: Document
        match question["kind"]:
            case "plan":
                content = write_plan(count, with_calls=False)
            case "step":
                tool, arguments = steps[question["stepId"]]
                content = {"toolCalls": [{"toolName": tool, "arguments": arguments}]}
            case _:
                content = {"content": f"I kept {count - 1} drafts of firm reminders; nothing was sent. Please look."}
        about = question.get("stepId") or question["kind"]
        ids = {"threadId": answer["threadId"], "suspensionId": question["suspensionId"]}
        answer = await caller.call("submit_answer", about, {**ids, "content": content})
    if answer["status"] != "completed":
        raise RuntimeError(f"the goal did not complete: {answer}")
    return caller


async def execute_plan(client: Client, count: int) -> Conversation:
    """Send every step at once."""
    caller = Conversation("execute_plan", count, client)
    answer = await caller.call("execute_plan", "plan", {"plan": write_plan(count, with_calls=True)})
    if answer["status"] != "completed":
        raise RuntimeError(f"the plan did not complete: {answer}")
    return caller


@asynccontextmanager
async def serve(home: Path) -> AsyncGenerator[Client]:
    """Open a client of protocol 2026-07-28 to a server as it is shipped, with the two tools."""
    warden = Warden(home=home, model=CallerModel(), tools=[find_overdue, draft_reminder], store=MemoryStore())
    async with Client(PlanwardenServer(lambda: open_service(warden)), mode="auto") as client:
        yield client


def measure_json(value: JsonValue) -> int:
    """Return the bytes of compact JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


async def measure() -> list[Document]:
    """Return each way with each number of steps."""
    with tempfile.TemporaryDirectory() as home:
        async with serve(Path(home)) as client:
            return [(await way(client, count)).to_json() for way in (run_goal, execute_plan) for count in LIMITS]


def write_conversations(conversations: list[Document]) -> str:
    """Return the table of the README."""
    head = ("way", "steps", "sent", "structured content", "text", "both", "at most")
    keys = ("sent", "structured", "text", "both", "limit")
    rows = [
        [row["way"], row["steps"], *(f"{row[key]:,}" if row[key] is not None else "" for key in keys)]
        for row in conversations
    ]
    return write_table(head, rows)


def main() -> None:
    """Measure, print and write."""
    conversations = asyncio.run(measure())
    write_result("tokens", {"conversations": conversations})
    for conversation in conversations:
        print(f"\n{conversation['way']}, {conversation['steps']} steps: sent, structured, text")
        for message in conversation["messages"]:
            print(*message.values())
    write_parts(README, {"tokens": write_conversations(conversations)})


if __name__ == "__main__":
    main()
