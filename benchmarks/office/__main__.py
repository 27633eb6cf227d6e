"""The seat of a model: it reads the tools, gets a goal, calls tools, and says its answer; a person decides beside it.

python -m benchmarks.office open /tmp/office          keeps the office open, in the background
python -m benchmarks.office tools /tmp/office         prints the server's instructions and its tools
python -m benchmarks.office goal /tmp/office 1 run_goal    begins with goal 1, empty ledger, empty home
python -m benchmarks.office call /tmp/office NAME '{"goal": "..."}'    calls a tool and prints the answer
python -m benchmarks.office done /tmp/office 'ANSWER'      ends the goal; what was counted goes to /tmp/office.jsonl
    python -m benchmarks.office table careful=/tmp/office.jsonl ...    prints the table of README.md, a column a session
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.shared.exceptions import MCPError

import planwarden
from benchmarks.office.goals import GOALS
from benchmarks.office.tools import Office, build_tools
from planwarden.agent.models.caller import CallerModel
from planwarden.server.api.service import Service
from planwarden.server.api.warden import Warden
from planwarden.server.mcp.server import PlanwardenServer

DECIDES_AFTER_S = 1.0
MAX_LINE_BYTES = 4 * 1024 * 1024
Document = dict[str, Any]


class Conversation:
    """One goal: the office, a server, a client of it, and a person."""

    def __init__(self, number: int, way: str, warden: Warden, client: Client, office: Office) -> None:
        self.number, self.way, self.goal = number, way, GOALS[number - 1]
        self._warden, self._client, self._office = warden, client, office
        self._questions: set[str] = set()
        self.calls = self.refusals = self.read_chars = self.written_chars = 0

    async def describe_tools(self) -> str:
        """Return the server's instructions and its tools, as a host shows them to a model."""
        listed = await self._client.list_tools()
        kept = {"name", "description", "input_schema"}
        tools = [tool.model_dump(by_alias=True, exclude_none=True, include=kept) for tool in listed.tools]
        return "\n".join([f"{self._client.instructions}\n", *map(json.dumps, tools)])

    async def call(self, name: str, arguments: Document) -> Document:
        """Return what a host shows its model of the answer."""
        self.calls += 1
        self.written_chars += len(json.dumps(arguments))
        result = await self._client.call_tool(name, arguments)
        shown: Document = result.structured_content
        text = json.dumps(shown, ensure_ascii=False)
        self.read_chars += len(text)
        self.refusals += bool(result.is_error) or "Your last plan was refused" in text
        return shown

    async def decide(self) -> None:
        """Be the person: approve what is asked, after an edit where the goal has one."""
        while True:
            await anyio.sleep(DECIDES_AFTER_S)
            page = await self._warden.list_suspensions(addressee="human", limit=100)
            for found in page.suspensions:
                self._questions.add(found.suspension_id)
                edit = None if found.tool_call is None else self.goal.edits.get(found.tool_call.tool_name)
                call = found.tool_call
                decision = planwarden.Decision(
                    approved=found.kind != "input",
                    reason="I do not know" if found.kind == "input" else None,
                    modified_args=None if edit is None or call is None else {**call.arguments, **edit},
                )
                await self._warden.resume_execution(found.thread_id, found.suspension_id, decision, wait_seconds=0)

    def sum_up(self, answer: str) -> Document:
        """Return what was counted, and whether the goal was reached or honestly left alone."""
        asked, most = len(self._questions), self.goal.max_questions
        return {
            "goal": self.number,
            "way": self.way,
            "reached": self.goal.is_reached(self._office, answer),
            "asked": asked,
            "askedEnough": most is None or asked <= most,
            "calls": self.calls,
            "refusals": self.refusals,
            "written": self.written_chars,
            "read": self.read_chars,
            "ledger": self._office.effects,
            "answer": answer,
        }


@asynccontextmanager
async def converse(number: int, way: str) -> AsyncGenerator[Conversation]:
    """A conversation in an empty home."""
    office = Office()
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        warden = Warden(home=home, model=CallerModel(), tools=build_tools(office))

        @asynccontextmanager
        async def opening() -> AsyncGenerator[Service]:
            yield warden.service

        await stack.enter_async_context(warden)
        client = await stack.enter_async_context(Client(PlanwardenServer(opening), mode="auto"))
        group = await stack.enter_async_context(anyio.create_task_group())
        conversation = Conversation(number, way, warden, client, office)
        group.start_soon(conversation.decide)
        try:
            yield conversation
        finally:
            group.cancel_scope.cancel()


class Desk:
    """Answers what is asked over the socket; one conversation at a time."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._stack = AsyncExitStack()
        self._conversation: Conversation | None = None

    async def answer(self, asked: list[str]) -> str:
        match asked:
            case ["tools"]:
                async with converse(1, "") as seat:
                    return await seat.describe_tools()
            case ["goal", number, way]:
                await self._stack.aclose()
                self._conversation = await self._stack.enter_async_context(converse(int(number), way))
                return f"Your user says: {self._conversation.goal.text}\nBegin with {way}."
            case ["call", name, arguments] if self._conversation is not None:
                try:
                    return json.dumps(await self._conversation.call(name, json.loads(arguments)), ensure_ascii=False)
                except (MCPError, ValueError) as error:
                    return f"{type(error).__name__}: {error}"
            case ["done", answer] if self._conversation is not None:
                row = self._conversation.sum_up(answer)
                await self._stack.aclose()
                self._conversation = None
                with self._place.with_suffix(".jsonl").open("a") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                return "Noted."
            case _:
                return "no goal has begun, or that is not a command"


async def keep_open(place: Path) -> None:
    """Answer one request after the other, all in this task, which is the one that opens and closes conversations."""
    desk = Desk(place)
    requests: asyncio.Queue[tuple[list[str], asyncio.Future[str]]] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await requests.put((json.loads(await reader.readline()), answered))
        writer.write((await answered).encode())
        writer.close()

    async with await asyncio.start_unix_server(serve, place, limit=MAX_LINE_BYTES):
        while True:
            words, answered = await requests.get()
            answered.set_result(await desk.answer(words))


async def ask(place: Path, words: list[str]) -> str:
    reader, writer = await asyncio.open_unix_connection(place, limit=MAX_LINE_BYTES)
    writer.write(json.dumps(words).encode() + b"\n")
    await writer.drain()
    return (await reader.read()).decode()


def write_table(sessions: dict[str, list[Document]]) -> str:
    """Return a row for each goal and way: calls, refusals, questions and characters of each session."""
    lines = [f"| goal | way | {' | '.join(sessions)} |", f"|---|---|{'---|' * len(sessions)}"]
    for number in range(1, len(GOALS) + 1):
        for way in ("run_goal", "execute_plan"):
            cells = [_write_cell(row, number, way) for row in sessions.values()]
            lines.append(f"| {number} | `{way}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _write_cell(rows: list[Document], number: int, way: str) -> str:
    row = next((row for row in rows if (row["goal"], row["way"]) == (number, way)), None)
    if row is None:
        return ""
    ended = "reached" if row["reached"] and row["askedEnough"] else "**missed**"
    return f"{ended}; {row['calls']}, {row['refusals']}, {row['asked']}, {row['written'] + row['read']:,}"


def main() -> None:
    match sys.argv[1:]:
        case ["table", *named]:
            files = (words.partition("=") for words in named)
            print(
                write_table(
                    {name: list(map(json.loads, Path(file).read_text().splitlines())) for name, _, file in files}
                )
            )
        case ["open", place]:
            asyncio.run(keep_open(Path(place)))
        case [command, place, *words]:
            print(asyncio.run(ask(Path(place), [command, *words])))
        case _:
            print(__doc__)


if __name__ == "__main__":
    main()
