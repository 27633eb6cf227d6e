"""Values of tools, models and callers that no log can hold: refused or recorded as failed; no execution gets stuck."""

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, InvalidPlan, UsageError
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.ports.model import AskCaller
from planwarden.storage.sqlite.store import SqliteStore
from tests.requirements import requirement
from tests.support.wardens import Ledger, calls, decide, model_step, plan, says, tool_step, warden

pytestmark = pytest.mark.anyio

NAN = math.nan
ENDLESS: JsonValue = [10**5000]


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    """A test that hangs for a minute hangs until it is killed."""
    with anyio.fail_after(60):
        yield


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store that really encodes."""
    opened = SqliteStore.open(tmp_path / "home" / "planwarden.db")
    yield opened
    await opened.close()


@requirement("engine:foreign-values")
@pytest.mark.parametrize("value", [NAN, -math.inf, ENDLESS])
async def test_a_plan_or_an_answer_with_a_number_that_json_cannot_hold_is_refused_and_the_question_stays(
    store: SqliteStore, value: JsonValue
) -> None:
    ledger = Ledger()
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
            await w.submit_answer(*place, {"toolCalls": [{"toolName": "note", "arguments": {"text": value}}]})
        done = await w.submit_answer(*place, {"toolCalls": [{"toolName": "note", "arguments": {"text": "now"}}]})
    assert (done.status, ledger.lines) == ("completed", ["erase [1]", "note now"])


@requirement("engine:foreign-values")
@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "1" * 5000])
async def test_a_call_in_a_models_text_with_such_a_number_is_no_call(store: SqliteStore, number: str) -> None:
    ledger = Ledger()
    text = f'{{"toolCalls": [{{"toolName": "note", "arguments": {{"text": {number}}}}}]}}'
    script = [says(text), calls(("note", {"text": "now"}))]
    async with warden(ledger, store=store, script=list[JsonValue](script)) as w:
        done = await w.execute_plan(plan(model_step("a", "note")), wait_seconds=60)
    assert (done.status, done.steps[0].retries, ledger.lines) == ("completed", 1, ["note now"])


@planwarden.tool(name="odd", risk="read", effect="effect")
async def odd(kind: str) -> Any:
    """Return something that is no JSON."""
    made: dict[str, object] = {"nan": NAN, "endless": 10**5000, "object": {"a": object()}, "deep": _nested(500)}
    return made[kind]


def _nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@planwarden.tool(name="hard", risk="read", execution_mode="blocking", effect="read")
async def hard(kind: str) -> planwarden.Suspend:
    """Ask with something that is no JSON."""
    if kind == "payload":
        return planwarden.Suspend(message="?", resume_payload=cast("JsonValue", {"a": object()}))
    return planwarden.Suspend(message="?", form=cast("dict[str, JsonValue]", {"type": object()}))


@planwarden.tool(name="mistaken", risk="read", effect="effect")
async def mistaken() -> None:
    """Raise an error that is not meant for tools."""
    raise UsageError("not like this")


@requirement("engine:foreign-values")
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("odd", {"kind": "nan"}),
        ("odd", {"kind": "endless"}),
        ("odd", {"kind": "object"}),
        ("odd", {"kind": "deep"}),
        ("hard", {"kind": "payload"}),
        ("hard", {"kind": "form"}),
        ("mistaken", {}),
    ],
)
async def test_a_tool_whose_result_cannot_be_stored_fails_its_step(
    store: SqliteStore, tool: str, arguments: JsonValue
) -> None:
    async with warden(tools=[odd, hard, mistaken], store=store) as w:
        done = await w.execute_plan(plan(tool_step("a", tool, arguments)), wait_seconds=60)
    assert (done.status, done.steps[0].status) == ("failed", "failed")
    assert done.error is not None and done.error.message


class RaisingModel:
    """A provider with a fault of its own."""

    async def reply(self, prompt: Prompt, tools: object) -> Reply | AskCaller:
        raise ZeroDivisionError("a fault of the provider")


@requirement("engine:foreign-values")
async def test_a_model_that_raises_fails_the_prompt_and_is_not_asked_again_without_end() -> None:
    async with warden(model=RaisingModel()) as w:
        done = await w.run_goal("anything", wait_seconds=60)
    assert done.status == "failed" and done.error is not None and done.error.code == "model_error"
    assert "ZeroDivisionError" in done.error.message
