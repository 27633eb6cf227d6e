"""Progress over MCP: steps as they run, and a final answer while it is written, of which only the end is kept."""

from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from tests.kit import Client, Ledger, PausingTool, first_only, model_step, plan, requirement, tool_step
from tests.server.cli.support import Cli, make_home, start_on_terminal
from tests.server.mcp.support import Document, Era, ids_of, open_desk, served
from tests.support.doubles.manners import Manner, obedient
from tests.support.doubles.messages import ModelReply, ModelRequest
from tests.support.doubles.server import WIRES, build_provider_model, serve_double

every_wire = pytest.mark.parametrize("wire", first_only(*WIRES))
ANSWER = "BEGIN " + " ".join(f"word-{number}" for number in range(200)) + " END\u202e"
OTHER = "It was all done. " * 60


def writing(*answers: ModelReply) -> Manner:
    """Plans and calls as it should; its final answers come from the list, the last one again and again."""
    left = list(answers)

    def answer(asked: ModelRequest) -> ModelReply:
        if asked.is_streamed:
            return left.pop(0) if len(left) > 1 else left[0]
        return obedient(asked)

    return Manner("test", "as the test says", answer)


@dataclass
class Watcher:
    """Keeps the progress that a client is shown; `seen` is set once some of an answer was in it."""

    messages: list[str] = field(default_factory=list[str])
    seen: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.messages.append(message or "")
        if self.written:
            self.seen.set()

    @property
    def written(self) -> list[str]:
        return [message for message in self.messages if "; writing: " in message]


async def run_goal(home: Path, wire: str, manner: Manner, watcher: Watcher) -> Document:
    async with (
        serve_double(wire, manner) as double,
        served(home, tools=Ledger().tools(), model=build_provider_model(double)) as found,
        Client(found.server) as client,
    ):
        with anyio.fail_after(60):
            result = await client.call_tool("run_goal", {"goal": "note it"}, progress_callback=watcher)
    return result.structured_content


@every_wire
async def test_a_client_sees_the_answer_grow_and_then_the_whole(tmp_path: Path, wire: str) -> None:
    watcher = Watcher()
    done = await run_goal(tmp_path, wire, writing(ModelReply(text=ANSWER, goes_on=watcher.seen)), watcher)
    assert done["status"] == "completed" and done["output"] == ANSWER
    assert watcher.written[0].startswith('1 of 1 step done; writing: "...')
    assert any("word-" in message for message in watcher.written)
    assert all(len(message) < 300 and "\u202e" not in message and "END" not in message for message in watcher.written)


@requirement("stream:no-record")
@every_wire
@pytest.mark.parametrize("ends_well", [True, False])
async def test_an_answer_that_broke_off_is_not_the_answer(tmp_path: Path, wire: str, ends_well: bool) -> None:
    watcher = Watcher()
    answers = [ModelReply(text=ANSWER, breaks_off=True), ModelReply(text=OTHER, goes_on=watcher.seen)]
    done = await run_goal(tmp_path, wire, writing(*answers[: 1 + ends_well]), watcher)
    assert "word-" not in str(done)
    if ends_well:
        assert done["status"] == "completed" and done["output"] == OTHER.strip()
    else:
        assert done["status"] == "suspended" and "waits for the provider" in done["nextAction"] and "output" not in done


async def test_a_person_at_a_terminal_sees_the_answer_grow_and_then_the_outcome(tmp_path: Path) -> None:
    pytest.importorskip("pty", reason="needs a pseudo-terminal")
    cli, going_on = Cli(make_home(tmp_path / "home")), anyio.Event()
    async with serve_double(
        "anthropic", writing(ModelReply(text=ANSWER, goes_on=going_on)), plan=plan(model_step("a", "find"))
    ) as double:
        environment = {"PLANWARDEN_MODEL": double.wire.setting, **double.environment}
        terminal = start_on_terminal(cli, "run-goal", "look for it", env=environment)
        try:
            await anyio.to_thread.run_sync(terminal.expect, "writing: …")
            going_on.set()
            await anyio.to_thread.run_sync(terminal.expect, "completed")
            assert await anyio.to_thread.run_sync(terminal.finish) == 0
        finally:
            terminal.close()
    assert cli.ledger == ["find the topic"] and "word-1 word-2" in terminal.text


async def test_progress_is_reported_on_request_until_the_execution_ends_or_asks(tmp_path: Path, era: Era) -> None:
    gate = PausingTool()
    seen: list[tuple[float, str | None]] = []

    async def show(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))
        gate.opened.set()

    arguments = {"plan": plan(tool_step("a", "gate"), model_step("b", "gate")), "options": {"waitSeconds": 300}}
    async with open_desk(tmp_path, era, gate.tool()) as desk:
        with anyio.fail_after(60):
            result = await desk.client.call_tool("execute_plan", arguments, progress_callback=show)
            assert result.structured_content["status"] == "suspended"
            numbers = [number for number, _ in seen]
            assert numbers == sorted(set(numbers))
            assert any(message == "0 of 2 steps done; running a" for _, message in seen)
            count = len(seen)
            await desk.ok("submit_answer", **ids_of(result.structured_content), content={"content": "no"})
        assert len(seen) == count
