"""What becomes of calls that end oddly or do not stop; no execution gets stuck."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import CommitUnknown, InvalidArguments, InvalidPlan, UsageError
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.ports.model import AskCaller, CallerModel
from planwarden.agent.ports.store import Append
from planwarden.agent.runtime.engine import Engine
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.tools.registry import Registry
from tests.harness.seams import wrap
from tests.kit import (
    Ledger,
    MemoryStore,
    PausingTool,
    SqliteStore,
    decide,
    ev,
    model_step,
    plan,
    requirement,
    tool_step,
    warden,
)
from tests.support.loop_time import pass_time as pass_loop_time
from tests.support.wardens import end_at_once

NAN = math.nan


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    """A test that hangs for a minute hangs until it is killed."""
    with anyio.fail_after(60):
        yield


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "home" / "planwarden.db")
    yield opened
    await opened.close()


@requirement("engine:foreign-values")
@pytest.mark.parametrize("value", [NAN, -math.inf, [10**5000]], ids=["nan", "infinity", "endless"])
async def test_a_plan_or_an_answer_with_a_number_that_json_cannot_hold_is_refused_and_the_question_stays(
    store: SqliteStore, value: JsonValue
) -> None:
    ledger = Ledger()

    def note(text: JsonValue) -> JsonValue:
        return {"toolCalls": [{"toolName": "note", "arguments": {"text": text}}]}

    async with warden(ledger, store=store) as w:
        with pytest.raises(InvalidPlan):
            await w.execute_plan(plan(tool_step("a", "note", {"text": value})))
        assert await store.executions(None, 10) == ()
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]}), model_step("b", "note")))
        with pytest.raises(InvalidArguments):
            await decide(w, asked, planwarden.Decision(approved=True, modified_args={"ids": [1], "x": value}))
        asked = await decide(w, asked)
        place = (asked.thread_id, asked.suspensions[0].suspension_id)
        with pytest.raises(InvalidArguments):
            await w.submit_answer(*place, note(value))
        done = await w.submit_answer(*place, note("now"))
    assert (done.status, ledger.lines) == ("completed", ["erase [1]", "note now"])


@planwarden.tool(name="hard", risk="read", execution_mode="blocking", effect="read")
async def hard(kind: str) -> planwarden.Suspend:
    """Ask with something that is no JSON."""
    if kind == "payload":
        return planwarden.Suspend(message="?", resume_payload=cast("JsonValue", {"a": object()}))
    return planwarden.Suspend(message="?", form=cast("dict[str, JsonValue]", {"type": object()}))


@planwarden.tool(risk="read", effect="effect")
async def impatient() -> str:
    """Wait for something that was given up."""
    given_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    given_up.cancel()
    return await given_up


@planwarden.tool(risk="read", effect="read", timeout_s=5.0)
async def look() -> str:
    """Never ends."""
    pass_loop_time(5.0)
    await anyio.sleep_forever()
    return "never"


@planwarden.tool(name="mistaken", risk="read", effect="effect")
async def mistaken() -> None:
    """Raise an error that is not meant for tools."""
    raise UsageError("not like this")


@requirement("engine:foreign-values")
@pytest.mark.parametrize(
    ("tool", "kind", "code"),
    [
        ("hard", "payload", "tool_error"),
        ("hard", "form", "tool_error"),
        ("mistaken", None, "tool_error"),
        ("impatient", None, "tool_error"),
        ("look", None, "timeout"),
    ],
)
async def test_a_tool_that_ends_oddly_fails_its_step_and_nobody_is_asked(
    store: SqliteStore, tool: str, kind: str | None, code: str
) -> None:
    step = tool_step("a", tool, {"kind": kind} if kind else {})
    async with warden(tools=[hard, mistaken, impatient, look], store=store) as w:
        done = await w.execute_plan(plan(step), wait_seconds=60)
    error = done.steps[0].error
    assert done.status == "failed" and error is not None and error.code == code and error.message


class RaisingModel:
    async def reply(self, prompt: Prompt, tools: object) -> Reply | AskCaller:
        raise ZeroDivisionError("a fault of the provider")


@requirement("engine:foreign-values")
async def test_a_model_that_raises_fails_the_prompt_and_is_not_asked_again_without_end() -> None:
    async with warden(model=RaisingModel()) as w:
        done = await w.run_goal("anything", wait_seconds=60)
    assert done.status == "failed" and done.error is not None and done.error.code == "model_error"
    assert "ZeroDivisionError" in done.error.message


@dataclass
class OddModel:
    """A model that gives its answers in turn, and the last one again and again."""

    answers: list[object]
    prompts: int = 0

    async def reply(self, prompt: Prompt, tools: object) -> Reply | AskCaller:
        self.prompts += 1
        return cast("Reply", self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


@requirement("engine:foreign-values")
@pytest.mark.parametrize(
    "answer",
    [
        Reply(calls=(ev.ProposedCall(tool_name="find", arguments={"topic": cast("JsonValue", object())}),)),
        Reply(content=cast("str", 5)),
        Reply(content="fine", input_tokens=cast("int", "many")),
        None,
        "text",
    ],
    ids=["not JSON", "not text", "no count", "nothing", "no reply"],
)
async def test_a_reply_that_cannot_be_stored_fails_the_prompt_and_is_not_asked_for_again(answer: object) -> None:
    model = OddModel([answer])
    async with warden(Ledger(), model=model) as w:
        done = await w.execute_plan(plan(model_step("a", "find")), wait_seconds=60)
    assert done.error is not None and (done.status, done.error.code, model.prompts) == ("failed", "model_error", 1)
    assert "reply cannot be stored" in done.error.message


async def test_a_reply_that_cannot_be_stored_is_charged() -> None:
    odd = Reply(content=cast("str", 5), input_tokens=30, output_tokens=4)
    async with warden(Ledger(), model=OddModel([odd])) as w:
        done = await w.execute_plan(plan(model_step("a", "find")), wait_seconds=60)
    assert (done.usage.input_tokens, done.usage.output_tokens) == (30, 4)


def nest(levels: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(levels):
        value = [value]
    return value


@requirement("engine:foreign-values")
@pytest.mark.parametrize("value", [math.nan, math.inf, nest(3000), 10**5000], ids=["NaN", "infinity", "deep", "digits"])
async def test_a_plan_or_call_with_a_value_that_is_not_accepted_is_asked_for_again(value: JsonValue) -> None:
    good = Reply(plan=plan(tool_step("a", "note", {"text": "x"})))
    odd = Reply(plan=plan(tool_step("a", "note", {"text": value})))
    for answers, start in (
        ([odd, good, Reply(content="done")], None),
        ([calling({"text": value}), calling({"text": "x"}), Reply(content="done")], plan(model_step("a", "note"))),
    ):
        ledger = Ledger()
        async with warden(ledger, model=OddModel([*answers])) as w:
            done = await (
                w.run_goal("do", wait_seconds=60) if start is None else w.execute_plan(start, wait_seconds=60)
            )
        assert (done.status, ledger.lines) == ("completed", ["note x"])


def calling(arguments: dict[str, JsonValue]) -> Reply:
    return Reply(calls=(ev.ProposedCall(tool_name="note", arguments=arguments),))


@dataclass
class StubbornTool:
    """A tool that survives three cancellations, then waits on, or waits for what nobody will finish."""

    end: Literal["waits on", "cancels itself"]
    has_begun: anyio.Event = field(default_factory=anyio.Event)
    survived: int = 0

    def tool(self, timeout_s: float | None) -> object:
        @planwarden.tool(risk="read", effect="read", timeout_s=timeout_s)
        async def go_on() -> str:
            """Go on although it is cancelled."""
            self.has_begun.set()
            while self.survived < 3:
                with suppress(anyio.get_cancelled_exc_class()):
                    await anyio.sleep_forever()
                self.survived += 1
            abandoned: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            if self.end == "cancels itself":
                abandoned.cancel()
            return await abandoned

        return go_on


@pytest.mark.parametrize("end", ["waits on", "cancels itself"])
@pytest.mark.parametrize(("reason", "status"), [("timeout", "failed"), ("cancelled", "cancelled"), ("closed", "")])
async def test_a_tool_that_goes_on_although_it_was_cancelled_holds_up_neither_its_execution_nor_the_close(
    reason: str, status: str, end: Literal["waits on", "cancels itself"]
) -> None:
    stubborn = StubbornTool(end)
    async with warden(tools=[stubborn.tool(0.001 if reason == "timeout" else None)]) as w:
        execution = await w.execute_plan(plan(tool_step("a", "go_on")), wait_seconds=0)
        await stubborn.has_begun.wait()
        if reason == "closed":
            end_at_once(w)
        else:
            if reason == "cancelled":
                await w.cancel_execution(execution.thread_id)
            await w.service.wait(await w.service.find(execution.execution_id), 60)
            execution = await w.get_execution(execution.thread_id)
            error = execution.steps[0].error
            assert execution.status == status and (error is None or error.code == reason)
    assert stubborn.survived == 3


@pytest.mark.parametrize("by", ["anyio", "asyncio"])
@pytest.mark.parametrize("switches", range(8))
async def test_an_opening_that_is_cancelled_at_any_moment_ends(store: SqliteStore, switches: int, by: str) -> None:
    engine = Engine(store, Registry(), CallerModel(), OperatorPolicy())
    scope = anyio.CancelScope()

    async def cancel_soon() -> None:
        for _ in range(switches):
            await anyio.lowlevel.checkpoint()
        scope.cancel() if by == "anyio" else opening.cancel()

    async def refresh() -> None:
        """Begin to count where the engine has waited for the store the last time."""
        tasks.start_soon(cancel_soon)

    async def open_engine() -> None:
        with scope:
            async with engine:
                await anyio.sleep_forever()

    wrap(engine, "refresh_grants", lambda _: refresh)
    async with anyio.create_task_group() as tasks:
        opening = asyncio.create_task(open_engine())
        await asyncio.wait([opening], timeout=5)
        assert opening.done() and (opening.cancelled() or scope.cancelled_caught)


@pytest.mark.parametrize("switches", range(12))
async def test_a_closing_that_is_cancelled_at_any_moment_leaves_no_task(switches: int) -> None:
    before, pausing = asyncio.all_tasks(), PausingTool()

    async def open_and_close() -> None:
        async with warden(tools=[pausing.tool()]) as w:
            await w.execute_plan(plan(tool_step("a", "gate")), wait_seconds=0)
            await pausing.started.wait()

    closing = asyncio.create_task(open_and_close())
    await pausing.started.wait()
    for _ in range(switches):
        await anyio.lowlevel.checkpoint()
    closing.cancel()
    await asyncio.wait([closing], timeout=5)
    assert closing.cancelled() and asyncio.all_tasks() == before


@pytest.mark.parametrize("waits_for", ["commit", "result"])
async def test_a_caller_that_still_waits_when_the_engine_ends_is_let_go(waits_for: str) -> None:
    pausing, store = PausingTool(), MemoryStore()
    if waits_for == "commit":

        async def append(_: Append) -> None:
            pausing.started.set()
            await anyio.sleep_forever()

        wrap(store, "append", lambda _: append)
    async with warden(tools=[pausing.tool()], store=store) as w:
        end_at_once(w)
        call = asyncio.create_task(w.execute_plan(plan(tool_step("a", "gate")), wait_seconds=60))
        await pausing.started.wait()
    await asyncio.wait([call], timeout=5)
    if waits_for == "commit":
        with pytest.raises(CommitUnknown, match="the engine has ended"):
            call.result()
    else:
        assert call.result().status == "running"
