"""How a host waits for a gated call, by what it can do: as a task, asked in a form, or held."""

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from planwarden.agent.approval.answers import Decision
from planwarden.server.gate.answers import DISPOSITION
from tests.gate.host import NEWER, PEER, Home, Host, read_text
from tests.requirements import requirement

pytestmark = requirement("gate:waits")
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
ADDRESSES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
CONFIRM = """
[tools."peer_write"]
risk = "confirm"
effect = "effect"
"""


async def wait_for_task(host: Host, task_id: str, status: str) -> dict[str, Any]:
    while True:
        task = (await host.ask("tasks/get", {"taskId": task_id}))["result"]
        if task["status"] == status:
            return task
        # The decision comes from another process.
        await anyio.sleep(0.1)


@pytest.mark.parametrize("serves_all", [False, True])
async def test_call_as_a_task_brings_the_result_later_and_to_the_next_gate(
    tmp_path: Path, tasks: TaskGroup, *, serves_all: bool
) -> None:
    home, name = Home(tmp_path), "peer_write" if serves_all else "write"
    first = {"other": {"command": sys.executable, "args": [str(PEER), str(tmp_path)]}}
    async with home.host(tasks, newer=TASKS, serves_all=serves_all, others=first) as host:
        task = await host.call(name, {"text": "a"})
        assert (task["resultType"], task["status"]) == ("task", "working")
        assert (await host.call(name, {"text": "a"}))["taskId"] == task["taskId"]
        assert "not found" in (await host.ask("tasks/get", {"taskId": "planwarden-guess"}))["error"]["message"]
        await home.decide()
        end = await wait_for_task(host, task["taskId"], "completed")
        assert end["result"]["_meta"] == {DISPOSITION: "approved-executed"}
        # What exists is answered without a task.
        assert read_text(await host.call(name, {"text": "a"})).startswith("ran at")
        await host.kill()
    async with home.host(tasks, newer=TASKS, serves_all=serves_all, others=first) as host:
        assert (await wait_for_task(host, task["taskId"], "completed"))["result"] == end["result"]
    assert len(home.ledger) == 1


async def test_cancelled_task_is_withdrawn_only_before_a_decision(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    async with home.host(tasks, newer=TASKS) as host:
        task_id = (await host.call("write", {"text": "a"}))["taskId"]
        await host.ask("tasks/cancel", {"taskId": task_id})
        await wait_for_task(host, task_id, "cancelled")
        # Nothing is remembered: the same call is a new question.
        second = (await host.call("write", {"text": "a"}))["taskId"]
        assert second != task_id
        await home.decide()
        await host.ask("tasks/cancel", {"taskId": second})
        await wait_for_task(host, second, "completed")
    assert len(home.ledger) == 1


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_task_is_asked_in_a_form(tmp_path: Path, tasks: TaskGroup, decision: str) -> None:
    home = Home(tmp_path, more=CONFIRM)
    async with home.host(tasks, newer={**TASKS, **FORMS}) as host:
        task = await host.call("write", {"text": "a"})
        assert task["status"] == "input_required"
        [key] = task["inputRequests"]
        answer = {"action": "accept", "content": {"decision": decision}}
        for _ in range(3):
            await host.ask("tasks/update", {"taskId": task["taskId"], "inputResponses": {key: answer}})
        end = await wait_for_task(host, task["taskId"], "completed")
        disposition = "approved-executed" if decision == "approve" else "denied-not-executed"
        assert end["result"]["_meta"][DISPOSITION] == disposition
    assert len(home.ledger) == (decision == "approve")


@pytest.mark.parametrize("is_newer", [False, True])
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"action": "accept", "content": {"decision": "approve"}}, "write {'text': 'a'}"),
        ({"action": "accept", "content": {"decision": "reject"}}, "a person rejected"),
        ({"action": "accept", "content": {}}, "Nobody has decided"),
        ({"action": "decline"}, "Nobody has decided"),
    ],
)
async def test_form_decides_in_the_same_call_and_an_empty_one_does_not(
    tmp_path: Path, tasks: TaskGroup, answer: dict[str, Any], text: str, *, is_newer: bool
) -> None:
    home = Home(tmp_path, hold_s=2, more=CONFIRM)
    arguments = {"text": "a"}
    async with home.host(tasks, capabilities=FORMS, newer=FORMS if is_newer else None) as host:
        call = await host.begin_call("write", arguments)
        if is_newer:
            asked = (await host.wait(call))["result"]
            [key] = asked["inputRequests"]
            more = {"inputResponses": {key: answer}, "requestState": asked["requestState"]}
            call = await host.begin_call("write", arguments, **more)
        else:
            question = await host.wait_for_note("elicitation/create")
            # Another client on its connection, which cannot be asked.
            host.capabilities = {}
            await host.ask("ping", {})
            host.capabilities = None
            await host.send({"id": question["id"], "result": answer})
        assert text in read_text((await host.wait(call))["result"])
        # The same call asks in no second form.
        assert text in read_text(await host.call("write", arguments))
    assert len(home.ledger) == (text.startswith("write"))


async def test_client_is_not_asked_because_another_on_its_connection_can_be(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path, hold_s=3, more=CONFIRM)
    async with home.host(tasks, newer={}) as host:
        # Over HTTP, clients of one principal share the connection to the server.
        calls: list[int] = []
        for host.capabilities in ({}, FORMS, {**TASKS, **FORMS}):
            calls.append(await host.begin_call("write", {"text": "a"}))
        results = [(await host.wait(call))["result"] for call in calls]
        assert [result["resultType"] for result in results] == ["complete", "input_required", "task"]


async def test_server_of_a_gated_call_is_offered_only_what_planwarden_answers(tmp_path: Path, tasks: TaskGroup) -> None:
    offered: dict[str, Any] = {"extensions": {"a/b": {}}, **FORMS}
    everything: dict[str, Any] = {
        "extensions": {**TASKS["extensions"], "a/b": {}},
        "sampling": {},
        "roots": {},
        **FORMS,
    }
    async with Home(tmp_path).host(tasks, newer=everything) as host:
        await host.call("write", {"text": "free", "reports": 1})
        assert host.notes[-1]["params"]["message"] == offered


async def test_address_is_sent_where_a_form_may_not_decide(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    async with home.host(tasks, capabilities=ADDRESSES) as host:
        call = await host.begin_call("write", {"text": "a"})
        question = await host.wait_for_note("elicitation/create")
        assert question["params"]["mode"] == "url" and "/suspensions/" in question["params"]["url"]
        await host.send({"id": question["id"], "result": {"action": "accept"}})
        await home.decide()
        assert read_text((await host.wait(call))["result"]).startswith("write")


async def test_server_that_asks_inside_an_approved_call_gets_the_answer(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    async with home.host(tasks, capabilities=FORMS) as host:
        call = await host.begin_call("ask", {"later": True})
        # Another request does not say what the client of this call can do.
        about: dict[str, Any] = {f"{NEWER}protocolVersion": "2026-07-28", f"{NEWER}clientCapabilities": {}}
        await host.ask("tools/list", {"_meta": about})
        await home.decide()
        question = await host.wait_for_note("elicitation/create")
        assert "Which?" in question["params"]["message"]
        answer = {"action": "accept", "content": {"x": "1"}}
        await host.send({"id": question["id"], "result": answer})
        result = (await host.wait(call))["result"]
        assert '"x": "1"' in read_text(result)
    async with home.host(tasks) as host:
        call = await host.begin_call("ask", {"later": 2})
        await home.decide(2, Decision(approved=True, content={"x": "2"}))
        assert '"x": "2"' in read_text((await host.wait(call))["result"])
    assert len(home.ledger) == 2


async def test_large_result_goes_to_those_who_wait(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    async with home.host(tasks) as host:
        calls = [await host.begin_call("write", {"text": "a", "size": 9_000_000}) for _ in range(2)]
        await home.decide()
        for call in calls:
            assert len(read_text((await host.wait(call))["result"])) == 9_000_000
        later = await host.call("write", {"text": "a", "size": 9_000_000})
        assert later["isError"] and "is not stored" in read_text(later)
        call = await host.begin_call("write", {"text": "b", "size": 9_000_000})
        await home.decide(decision=Decision(approved=True, modified_args={"text": "c", "size": 9_000_000}))
        first, large = (await host.wait(call))["result"]["content"]
        assert "The arguments were changed before it ran: text: b -> c" in first["text"]
        assert len(large["text"]) == 9_000_000
    assert len(home.ledger) == 2


@pytest.mark.parametrize("serves_all", [False, True])
async def test_arguments_run_as_sent(tmp_path: Path, tasks: TaskGroup, *, serves_all: bool) -> None:
    home, name = Home(tmp_path), "peer_write" if serves_all else "write"
    arguments = {"text": "<name>", "count": None, "x": {"$from": "call", "pointer": "nowhere"}, "y": {"$text": "{a}"}}
    async with home.host(tasks, serves_all=serves_all) as host:
        call = await host.begin_call(name, arguments)
        await home.decide()
        assert read_text((await host.wait(call))["result"]).startswith("write")
        assert "do not fit" in read_text(await host.call(name, {}))
        call = await host.begin_call(name, {"text": "b"})
        await home.decide(decision=Decision(approved=False))
        assert f"this call of {name}." in read_text((await host.wait(call))["result"])
    assert home.ledger == [["write", arguments]]


@pytest.mark.parametrize("text", ["a", "free"])
async def test_question_about_a_killed_call_opens_by_itself(tmp_path: Path, tasks: TaskGroup, text: str) -> None:
    home = Home(tmp_path)
    async with home.host(tasks) as host:
        await host.begin_call("write", {"text": text, "slow_s": 60})
        if text == "a":
            tasks.start_soon(home.decide)
        # Another process writes it.
        while not home.ledger:  # noqa: ASYNC110
            await anyio.sleep(0.05)
        await host.kill()
    found = Decision(approved=True, content={"happened": True, "result": "seen"})
    ends = await home.decide(1, found)
    assert [end.status for end in ends] == ["completed"]
