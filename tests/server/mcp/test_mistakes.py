"""Mistakes that models make: understood, or refused before anything ran in a sentence that shows what is right."""

from pathlib import Path
from typing import Any, cast

import pytest
from mcp import Client

from tests.requirements import requirement
from tests.server.mcp.language_mistakes import list_language_mistakes
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
from tests.server.mcp.support import ERAS, Document, Era, Served, ids_of, ok, question_of, served, text_of
from tests.support.slices import each_once
from tests.support.wardens import Ledger, model_step, plan, tool_step

pytestmark = pytest.mark.anyio

MISTAKES = [*list_mistakes(), *list_language_mistakes()]
REFUSALS = {"invalid_arguments", "invalid_plan", "limit_exceeded", "unknown_thread", "unknown_suspension"} | {
    "unknown_tool",
    "already_decided",
}


def test_each_mistake_has_a_name_of_its_own() -> None:
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) > 200


@requirement("mcp:mistakes")
@pytest.mark.parametrize(("mistake", "era"), each_once(MISTAKES, ERAS), ids=lambda value: getattr(value, "name", value))
async def test_a_mistake_is_understood_or_refused_before_anything_ran(
    tmp_path: Path, era: Era, mistake: Mistake
) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        ids = await _set(client, mistake.stage)
        result = await client.call_tool(mistake.tool, _fill_in(mistake.arguments, ids))
        document: Document = result.structured_content
        match mistake.outcome:
            case Refused(words, code):
                assert result.is_error, text_of(result)
                message = document["error"]["message"]
                assert document["error"]["code"] == code and code in REFUSALS, message
                for word in words:
                    assert _fill_in(word, ids) in message
                assert not set(document["error"]["details"].get("problems", ())) & set(message.split("; "))
                assert ledger.lines == []
                await _check_unchanged(found, client, mistake.stage, ids)
            case Understood(lines, status):
                assert not result.is_error, text_of(result)
                assert (document["status"], tuple(ledger.lines)) == (status, lines if status != "suspended" else ())
            case AskedAgain(words):
                assert not result.is_error, text_of(result)
                assert all(word in question_of(document)["prompt"] for word in words)
                assert ledger.lines == []


async def _set(client: Client, stage: Stage) -> dict[str, str]:
    """The ids of what waits before the call."""
    match stage:
        case "nothing":
            return {}
        case "plan":
            asked = await ok(client, "run_goal", goal="note x", options={"synthesize": False})
        case "step":
            asked = await ok(client, "execute_plan", plan=plan(model_step("a", "note")))
        case "human" | "done":
            asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "erase", {"ids": [1]})))
    if stage == "done":
        await ok(client, "resume_execution", **ids_of(asked), decision={"approved": False})
    ids = ids_of(asked)
    return {
        THREAD: ids["threadId"],
        SUSPENSION: ids["suspensionId"],
        EXECUTION: asked["executionId"],
        BEGINNING: ids["threadId"][:8],
    }


async def _check_unchanged(found: Served, client: Client, stage: Stage, ids: dict[str, str]) -> None:
    """What waited still waits, and nothing else was started."""
    started = await found.warden.service.engine.store.executions(None, 10)
    assert len(started) == (0 if stage == "nothing" else 1)
    if stage not in ("nothing", "done"):
        still = await ok(client, "get_execution", threadId=ids[THREAD])
        assert (still["status"], question_of(still)["suspensionId"]) == ("suspended", ids[SUSPENSION])


def _fill_in(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        return {key: _fill_in(part, ids) for key, part in found.items()}
    if isinstance(value, list):
        return [_fill_in(part, ids) for part in cast("list[Any]", value)]
    if isinstance(value, str):
        for name, real in ids.items():
            value = value.replace(name, real)
    return value
