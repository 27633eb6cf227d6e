"""A question of an agent that has no plan: who answers it, what is refused, and that it is asked once."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from planwarden.agent.approval.answers import Authority, Decision
from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Era, Person, Served, approving, ids_of, ok, question_of, refused, served

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
    async with (
        served(tmp_path) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        done = await ok(client, "ask_person", message="Which seat?", form=FORM, addressee="Ann", details={"row": 7})
        [step] = done["steps"]
        assert done["status"] == "completed" and step["result"]["content"] == {"seat": "7A"}
        whole = await ok(client, "get_execution", threadId=done["threadId"])
    [shown] = person.shown
    assert "Which seat?" in shown.message and '"Ann"' in shown.message and '{"row": 7}' in shown.message
    assert whole["steps"][0]["actualToolCalls"][0]["toolName"] == "requestInput"


@requirement("ask_person:answer")
async def test_a_person_who_says_no_in_the_form_has_rejected(tmp_path: Path, era: Era) -> None:
    person = Person(content={"decision": "reject", "reason": "too early"})
    async with (
        served(tmp_path) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        done = await ok(client, "ask_person", message="Send it?")
        assert done["status"] == "rejected" and done["steps"][0]["error"]["message"] == "too early"


@requirement("ask_person:answer")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_form_that_nobody_filled_in_decides_nothing(tmp_path: Path, era: Era, action: Any) -> None:
    async with (
        served(tmp_path) as found,
        Client(found.server, mode=era, elicitation_callback=Person(action=action)) as client,
    ):
        asked = await ok(client, "ask_person", message="Send it?", key="k")
        assert asked["status"] == "suspended" and "did not decide" in asked["nextAction"]
        assert (await ok(client, "list_suspensions"))["total"] == 1
        await decide(found, asked, Decision(approved=True))
        done = await ok(client, "ask_person", message="Send it?", key="k")
        assert done["status"] == "completed" and done["steps"][0]["result"]["approved"] is True


@requirement("ask_person:answer")
async def test_a_client_without_forms_waits_for_the_answer_of_another_channel(tmp_path: Path, era: Era) -> None:
    results = list[dict[str, Any]]()
    async with served(tmp_path) as found, Client(found.server, mode=era) as client, anyio.create_task_group() as tasks:

        async def ask() -> None:
            results.append(await ok(client, "ask_person", message="Send it?", waitSeconds=300))

        with anyio.fail_after(60):
            at_once = await ok(client, "ask_person", message="Before that?", waitSeconds=0)
            assert at_once["status"] == "suspended" and at_once["awaiting"] == "human"
            assert question_of(at_once)["kind"] == "confirmation"
            tasks.start_soon(ask)
            asked: list[dict[str, Any]] = []
            while not asked:
                page = await ok(client, "list_suspensions")
                asked = [found for found in page["suspensions"] if found["message"] == "Send it?"]
            await decide(found, {**asked[0], "suspensions": asked}, Decision(approved=True))
    assert results[0]["status"] == "completed"


@requirement("ask_person:refused")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ({"message": ""}, "invalid_arguments", "'message' is empty"),
        ({"message": " \n"}, "invalid_arguments", "'message' is empty"),
        ({"message": "x" * 4_001}, "limit_exceeded", "the limit is 4000"),
        ({"message": "?", "addressee": "x" * 201}, "limit_exceeded", "the limit is 200"),
        ({"message": "?", "details": {"a": "x" * 70_000}}, "limit_exceeded", "'details' has more than"),
        ({"message": "?", "details": {"a": {"$from": "b"}}}, "invalid_arguments", "'$from'"),
        ({"message": "?", "form": {"type": "string"}}, "invalid_arguments", "type 'object'"),
        ({"message": "?", "form": {"type": "object", "properties": 7}}, "invalid_arguments", "not a usable"),
        ({"message": "?", "form": {"type": "object", "$ref": "http://x/y"}}, "invalid_arguments", "not a usable"),
        ({"message": "?", "form": {"type": "object", "title": "x" * 70_000}}, "limit_exceeded", "'form' has more"),
        ({"message": "?", "key": ""}, "invalid_arguments", "'key' is empty"),
        ({"message": "?", "waitSeconds": 301}, "invalid_arguments", "at most 300"),
        ({"message": "?", "to": "Ann"}, "invalid_arguments", "to"),
        ({"details": {}}, "invalid_arguments", "message"),
    ],
)
async def test_a_question_that_nobody_could_answer_is_refused_before_it_is_asked(
    tmp_path: Path, era: Era, arguments: dict[str, Any], code: str, said: str
) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        error = await refused(client, "ask_person", **arguments)
        assert error["code"] == code and said in error["message"]
        assert (await ok(client, "list_suspensions"))["total"] == 0


@requirement("ask_person:refused")
async def test_a_hostile_text_stays_one_quoted_line(tmp_path: Path, era: Era) -> None:
    hostile = "Fine.\n\n[Approve]\x1b[2J \u202e evil \u200b" + "\n" * 500
    person = Person(action="decline")
    async with (
        served(tmp_path) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        asked = await ok(client, "ask_person", message=hostile, waitSeconds=0)
        assert question_of(asked)["message"] == hostile
    assert all("\x1b" not in form.message and "\u202e" not in form.message for form in person.shown)


@requirement("ask_person:once")
async def test_two_callers_with_one_key_at_the_same_moment_ask_once(tmp_path: Path, era: Era) -> None:
    threads = set[str]()
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                asked = await ok(client, "ask_person", message="Send it?", key="k", waitSeconds=0)
                threads.add(asked["threadId"])

            for _ in range(8):
                tasks.start_soon(ask)
        assert len(threads) == 1 and (await ok(client, "list_suspensions"))["total"] == 1
        error = await refused(client, "ask_person", message="Send another?", key="k")
        assert error["code"] == "key_conflict"


@requirement("ask_person:once")
async def test_a_question_survives_the_server_and_its_key_finds_it_again(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, on_disk=True) as found, Client(found.server, mode=era) as client:
        first = await ok(client, "ask_person", message="Send it?", key="k", waitSeconds=0)
    async with served(tmp_path, on_disk=True) as found, Client(found.server, mode=era) as client:
        again = await ok(client, "ask_person", message="Send it?", key="k", waitSeconds=0)
        assert ids_of(again) == ids_of(first)
        await decide(found, again, Decision(approved=True))
        done = await ok(client, "ask_person", message="Send it?", key="k")
        assert done["status"] == "completed"


@requirement("ask_person:answer")
async def test_a_model_that_approves_by_itself_has_decided_nothing(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "ask_person", message="Send it?", waitSeconds=0)
        claimed = await ok(client, "resume_execution", **ids_of(asked), decision={"approved": True})
        assert claimed["status"] == "suspended" and claimed["awaiting"] == "human"
