"""A question of an agent that has no plan: who answers it, what is refused, and that it is asked once."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from planwarden.agent.approval.answers import Authority, Decision
from tests.kit import open_desk, requirement
from tests.server.mcp.support import ERAS, Desk, Era, Person, Served, approving, ids_of, question_of

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("era", ERAS)]

FORM: dict[str, Any] = {"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]}


async def decide(found: Served, document: dict[str, Any], decision: Decision) -> None:
    """Answers as a person does in the inbox."""
    authority = Authority(assurance="human", channel="inbox", principal="ann")
    ids = ids_of(document)
    await found.warden.service.answer(ids["threadId"], ids["suspensionId"], decision, authority, principal=None)


@requirement("ask_person:answer")
async def test_a_form_of_the_host_answers_in_the_same_call(tmp_path: Path, era: Era) -> None:
    person = approving(seat="7A")
    async with open_desk(tmp_path, era, asks=person) as desk:
        done = await desk.ok("ask_person", message="Which seat?", form=FORM, addressee="Ann", details={"row": 7})
        [step] = done["steps"]
        assert done["status"] == "completed" and step["result"]["content"] == {"seat": "7A"}
        whole = await desk.ok("get_execution", threadId=done["threadId"])
    [shown] = person.shown
    assert "Which seat?" in shown.message and '"Ann"' in shown.message and '{"row": 7}' in shown.message
    assert whole["steps"][0]["actualToolCalls"][0]["toolName"] == "requestInput"


@requirement("ask_person:answer")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_form_that_nobody_filled_in_decides_nothing(tmp_path: Path, era: Era, action: Any) -> None:
    async with open_desk(tmp_path, era, asks=Person(action=action)) as desk:
        asked = await desk.ok("ask_person", message="Send it?", key="k")
        assert asked["status"] == "suspended" and "did not decide" in asked["nextAction"]
        assert (await desk.ok("list_suspensions"))["total"] == 1
        await decide(desk, asked, Decision(approved=True))
        done = await desk.ok("ask_person", message="Send it?", key="k")
        assert done["status"] == "completed" and done["steps"][0]["result"]["approved"] is True


@requirement("ask_person:answer")
async def test_a_client_without_forms_waits_for_the_answer_of_another_channel(tmp_path: Path, era: Era) -> None:
    results = list[dict[str, Any]]()
    async with open_desk(tmp_path, era) as desk, anyio.create_task_group() as tasks:

        async def ask() -> None:
            results.append(await desk.ok("ask_person", message="Send it?", waitSeconds=300))

        with anyio.fail_after(60):
            at_once = await desk.ok("ask_person", message="Before that?", waitSeconds=0)
            assert at_once["status"] == "suspended" and at_once["awaiting"] == "human"
            assert question_of(at_once)["kind"] == "confirmation"
            tasks.start_soon(ask)
            asked: list[dict[str, Any]] = []
            while not asked:
                page = await desk.ok("list_suspensions")
                asked = [found for found in page["suspensions"] if found["message"] == "Send it?"]
            await decide(desk, {**asked[0], "suspensions": asked}, Decision(approved=True))
    assert results[0]["status"] == "completed"


@requirement("ask_person:once")
async def test_two_callers_with_one_key_at_the_same_moment_ask_once(desk: Desk) -> None:
    threads = set[str]()
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            asked = await desk.ok("ask_person", message="Send it?", key="k", waitSeconds=0)
            threads.add(asked["threadId"])

        for _ in range(8):
            tasks.start_soon(ask)
    assert len(threads) == 1 and (await desk.ok("list_suspensions"))["total"] == 1
    error = await desk.refused("ask_person", message="Send another?", key="k")
    assert error["code"] == "key_conflict"


@requirement("ask_person:once")
async def test_a_question_survives_the_server_and_its_key_finds_it_again(tmp_path: Path, era: Era) -> None:
    async with open_desk(tmp_path, era, on_disk=True) as desk:
        first = await desk.ok("ask_person", message="Send it?", key="k", waitSeconds=0)
    async with open_desk(tmp_path, era, on_disk=True) as desk:
        again = await desk.ok("ask_person", message="Send it?", key="k", waitSeconds=0)
        assert ids_of(again) == ids_of(first)
        await decide(desk, again, Decision(approved=True))
        done = await desk.ok("ask_person", message="Send it?", key="k")
        assert done["status"] == "completed"
