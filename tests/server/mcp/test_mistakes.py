"""Mistakes that models make: understood, or refused before anything ran in a sentence that shows what is right."""

import json
from typing import Any, cast

import pytest

from planwarden.agent.common.errors import MAX_MESSAGE_CHARS
from tests.kit import each_once, model_step, plan, requirement, tool_step
from tests.server.mcp.mistakes import (
    BEGINNING,
    EXECUTION,
    SUSPENSION,
    THREAD,
    AskedAgain,
    Mistake,
    Refused,
    Stage,
    Understood,
    list_mistakes,
)
from tests.server.mcp.support import ERAS, Desk, Document, ids_of, question_of, text_of

pytestmark = pytest.mark.anyio


@requirement("mcp:mistakes")
@pytest.mark.parametrize(
    ("mistake", "era"), each_once(list_mistakes(), ERAS), ids=lambda value: getattr(value, "name", value)
)
async def test_a_mistake_is_understood_or_refused_before_anything_ran(desk: Desk, mistake: Mistake) -> None:
    ids = await _prepare(desk, mistake.stage)
    result = await desk.call(mistake.tool, **_fill_in(mistake.arguments, ids))
    document: Document = result.structured_content
    lines = tuple(desk.ledger.lines)
    match mistake.outcome:
        case Refused(words, code):
            assert result.is_error, text_of(result)
            error = document["error"]
            assert (error["code"], lines) == (code, ()), error["message"]
            for word in words:
                assert _fill_in(word, ids) in error["message"]
            assert len(error["message"]) <= MAX_MESSAGE_CHARS and len(json.dumps(error)) < 20_000
            assert not set(error["details"].get("problems", ())) & set(error["message"].split("; "))
            await _check_unchanged(desk, mistake.stage, ids)
        case Understood(expected, status):
            assert not result.is_error, text_of(result)
            assert (document["status"], lines) == (status, expected if status != "suspended" else ())
        case AskedAgain(words):
            assert not result.is_error, text_of(result)
            assert all(word in question_of(document)["prompt"] for word in words)
            assert lines == ()


async def _prepare(desk: Desk, stage: Stage) -> dict[str, str]:
    """Return the ids of what waits before the call."""
    match stage:
        case "nothing":
            return {}
        case "plan":
            asked = await desk.ok("run_goal", goal="note x", options={"synthesize": False})
        case "step":
            asked = await desk.ok("execute_plan", plan=plan(model_step("a", "note")))
        case "human" | "done":
            asked = await desk.ok("execute_plan", plan=plan(tool_step("a", "erase", {"ids": [1]})))
    if stage == "done":
        await desk.ok("resume_execution", **ids_of(asked), decision={"approved": False})
    ids = ids_of(asked)
    return {
        THREAD: ids["threadId"],
        SUSPENSION: ids["suspensionId"],
        EXECUTION: asked["executionId"],
        BEGINNING: ids["threadId"][:8],
    }


async def _check_unchanged(desk: Desk, stage: Stage, ids: dict[str, str]) -> None:
    """What waited still waits, and nothing else was started."""
    started = await desk.warden.service.engine.store.executions(None, 10)
    assert len(started) == (0 if stage == "nothing" else 1)
    if stage not in ("nothing", "done"):
        still = await desk.ok("get_execution", threadId=ids[THREAD])
        assert (still["status"], question_of(still)["suspensionId"]) == ("suspended", ids[SUSPENSION])


def _fill_in(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill_in(part, ids) for key, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_fill_in(part, ids) for part in cast("list[Any]", value)]
    if isinstance(value, str):
        for name, real in ids.items():
            value = value.replace(name, real)
    return value
