"""Tasks whose client cannot be asked, or whose person is sent to a page: nobody polls without end, and reading decides
nothing."""

from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp.types import INVALID_PARAMS, CallToolResult, ElicitResult, InputRequiredResult
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.server.mcp.tasks import state as mcp_tasks_standing
from planwarden.server.mcp.tasks.state import PAGE_S
from planwarden.storage.clock import ManualClock
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.server.mcp.support import Document, Served, nobody, ok, question_of, sender, served
from tests.server.mcp.tasks_support import TERMINAL, TakesTasks, code_of, get, key_of, listen, start, until, update
from tests.server.mcp.wire_support import FORMS, LINKS, TAKES, wired
from tests.support.wardens import Ledger, PausingTool, confirm, model_step, plan, tool_step

pytestmark = pytest.mark.anyio

INBOX = "http://127.0.0.1:4711/inbox"
ACCEPTED = ElicitResult(action="accept", content={"decision": "approve"})
APPROVED: JsonValue = {"action": "accept", "content": {"decision": "approve"}}
ERASED = plan(tool_step("a", "erase", {"ids": [1]}))
SENT = plan(tool_step("a", "send", {"to": "ann"}))


def connect_without_elicitation(found: Served) -> Client:
    """A client that takes tasks and can be asked nothing."""
    return Client(found.server, mode="auto", extensions=[TakesTasks()])


def connect_with_forms(found: Served, extension: TakesTasks | None = None) -> Client:
    """A client that takes tasks, shows forms and opens addresses."""
    return Client(found.server, mode="auto", extensions=[extension or TakesTasks()], elicitation_callback=nobody)


async def decide(found: Served, *, approved: bool = True) -> None:
    """What a person does on the page, with the one open question."""
    [question] = (await found.warden.service.list_suspensions(principal="local")).suspensions
    person = Authority(assurance="human", channel="inbox", principal="ann", digest=question.digest)
    await found.warden.service.answer(
        question.thread_id, question.suspension_id, Decision(approved=approved), person, principal=None
    )


async def kinds(found: Served, task_id: str) -> list[str]:
    """What the audit says of the execution."""
    return [row.kind for row in (await found.warden.service.audit.read_page(execution_id=task_id)).rows]


def result_of(task: Document) -> Document:
    """The structured content of a task's result; its text has to stand alone too."""
    assert task["status"] == "completed"
    result = CallToolResult.model_validate(task["result"])
    shown: Document = result.structured_content
    [content] = result.content
    assert shown["nextAction"] in content.model_dump()["text"]
    return shown


@requirement("tasks:waiting")
@pytest.mark.parametrize("steps", [ERASED, SENT, plan(confirm("a"))], ids=["dangerous", "a form", "a confirmation"])
async def test_a_call_that_waits_for_a_person_who_cannot_be_asked_is_an_ordinary_result(
    tmp_path: Path, steps: JsonValue
) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=[*ledger.tools(), sender(ledger)]) as found,
        connect_without_elicitation(found) as client,
    ):
        asked = await ok(client, "execute_plan", plan=steps)
        assert (asked["status"], asked["awaiting"]) == ("suspended", "human")
        assert f"planwarden approve {question_of(asked)['suspensionId']}" in asked["nextAction"]
        again = await ok(
            client,
            "resume_execution",
            threadId=asked["threadId"],
            suspensionId=question_of(asked)["suspensionId"],
            decision={"approved": True},
        )
        assert (again["status"], again["awaiting"], ledger.lines) == ("suspended", "human", [])


@requirement("tasks:waiting", "tasks:durable")
async def test_a_task_that_comes_to_wait_for_a_person_who_cannot_be_asked_ends_and_stays_ended(tmp_path: Path) -> None:
    ledger, gate = Ledger(), PausingTool()
    tools = [*ledger.tools(), gate.tool()]
    steps = plan(tool_step("a", "gate"), tool_step("b", "erase", {"ids": [1]}), tool_step("c", "note", {"text": "x"}))
    async with served(tmp_path, tools=tools, on_disk=True) as found, connect_without_elicitation(found) as client:
        task_id = (await start(client, "execute_plan", plan=steps))["taskId"]
        with anyio.fail_after(60):
            await gate.started.wait()
        assert (await get(client, task_id))["status"] == "working"
        gate.opened.set()
        over = await until(client, task_id, *TERMINAL)
        shown = result_of(over)
        assert (shown["status"], shown["awaiting"], shown["executionId"]) == ("suspended", "human", task_id)
        question = question_of(shown)
        assert question["howToAnswer"]["command"] == f"planwarden --home {tmp_path} approve {question['suspensionId']}"
        assert over["ttlMs"] is None and await get(client, task_id) == over
    async with served(tmp_path, tools=tools, on_disk=True) as found, connect_without_elicitation(found) as client:
        assert result_of(await get(client, task_id)) == shown
        await decide(found)
        done = result_of(await get(client, task_id))
        assert (done["status"], ledger.lines) == ("completed", ["erase [1]", "note x"])
        assert (await ok(client, "get_execution", threadId=shown["threadId"]))["status"] == done["status"]
        assert (await kinds(found, task_id)).count("task_ended") == 1
        assert (await found.warden.service.audit.verify()).problems == ()


@requirement("tasks:waiting")
async def test_a_client_without_forms_that_reads_a_task_does_not_end_it_for_clients_with_forms(tmp_path: Path) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=[sender(ledger)]) as found,
        connect_without_elicitation(found) as other,
        connect_with_forms(found) as client,
    ):
        task_id = (await start(client, "execute_plan", plan=SENT))["taskId"]
        key = await key_of(client, task_id)
        assert result_of(await get(other, task_id))["awaiting"] == "human"
        await update(other, task_id, **{key: APPROVED})
        assert ledger.lines == []
        assert await key_of(client, task_id) == key
        await update(client, task_id, **{key: APPROVED})
        await until(client, task_id, *TERMINAL)
        assert result_of(await get(other, task_id))["status"] == "completed"
        assert ledger.lines == ["send ann 1 False"]


@requirement("tasks:waiting")
async def test_what_continues_a_task_that_is_over_gives_an_ordinary_result(tmp_path: Path) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[sender(ledger)]) as found, connect_with_forms(found) as client:
        task_id = (await start(client, "execute_plan", plan=SENT))["taskId"]
        key = await key_of(client, task_id)
        await update(client, task_id, **{key: {"action": "cancel"}})
        shown = result_of(await get(client, task_id))
        arguments: Document = {
            "threadId": shown["threadId"],
            "suspensionId": question_of(shown)["suspensionId"],
            "decision": {"approved": True},
        }
        returned = await client.session.call_tool("resume_execution", arguments, allow_input_required=True)
        assert isinstance(returned, InputRequiredResult) and returned.input_requests is not None
        done = await client.session.call_tool(
            "resume_execution",
            arguments,
            input_responses=dict.fromkeys(returned.input_requests, ACCEPTED),
            request_state=returned.request_state,
        )
        assert (done.structured_content["status"], ledger.lines) == ("completed", ["send ann 1 False"])
        over = result_of(await get(client, task_id))
        assert over.items() >= done.structured_content.items() and over["executionId"] == task_id


@requirement("tasks:waiting")
async def test_a_client_with_only_forms_learns_of_questions_that_no_form_decides(tmp_path: Path) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, wired(found.server) as wire:
        found.warden.service.inbox_url = INBOX
        formal = wire.declaring(TAKES, FORMS)
        asked = await formal.call("execute_plan", arguments={"plan": ERASED})
        assert asked["resultType"] == "complete"
        document = asked["structuredContent"]
        assert (document["awaiting"], question_of(document)["needs"]) == ("human", "human")
        assert question_of(document)["howToAnswer"]["inboxUrl"].startswith(INBOX)
        for key in (f"{question_of(document)['suspensionId']}.1", "decision", ""):
            answer = await formal.task("tasks/update", document["executionId"], inputResponses={key: APPROVED})
            assert answer["result"]["resultType"] == "complete"
        assert ledger.lines == []
        assert (await formal.task("tasks/get", document["executionId"]))["result"]["status"] == "completed"


@requirement("tasks:waiting")
async def test_other_branches_go_on_before_a_task_ends_over_a_question(tmp_path: Path) -> None:
    gate = PausingTool()
    steps = plan(confirm("a", dependencies=[]), tool_step("b", "gate", dependencies=[]))
    async with served(tmp_path, tools=[gate.tool()]) as found, connect_without_elicitation(found) as client:
        task_id = (await start(client, "execute_plan", plan=steps))["taskId"]
        with anyio.fail_after(60):
            await gate.started.wait()
        assert (await get(client, task_id))["status"] == "working"
        gate.opened.set()
        assert result_of(await until(client, task_id, *TERMINAL))["awaiting"] == "human"


@requirement("tasks:caller", "tasks:waiting")
async def test_a_question_to_the_calling_model_ends_the_task_once_its_person_has_answered(tmp_path: Path) -> None:
    ledger = Ledger()
    steps = plan(confirm("a", dependencies=[]), model_step("b", "note", dependencies=[]))
    async with served(tmp_path, tools=ledger.tools()) as found, connect_with_forms(found) as client:
        shown = await ok(client, "execute_plan", plan=steps)
        assert [question["addressee"] for question in shown["suspensions"]] == ["human", "caller"]
        key = await key_of(client, shown["executionId"])
        await update(client, shown["executionId"], **{key: APPROVED})
        over = result_of(await until(client, shown["executionId"], *TERMINAL))
        question = question_of(over)
        assert (question["addressee"], question["kind"]) == ("caller", "step") and "submit_answer" in over["nextAction"]
        done = await ok(
            client,
            "submit_answer",
            threadId=over["threadId"],
            suspensionId=question["suspensionId"],
            content={"toolCalls": [{"toolName": "note", "arguments": {"text": "x"}}]},
        )
        assert (done["status"], ledger.lines) == ("completed", ["note x"])
        assert result_of(await get(client, shown["executionId"]))["status"] == done["status"]


@requirement("tasks:waiting")
async def test_a_plan_is_a_task_from_when_it_is_run(tmp_path: Path) -> None:
    script: list[JsonValue] = [
        {"when": {"purpose": "plan"}, "reply": {"plan": plan(tool_step("a", "note", {"text": "x"}))}},
    ]
    async with served(tmp_path, tools=Ledger().tools(), script=script) as found, connect_with_forms(found) as client:
        planned = await ok(client, "create_plan", goal="write it down")
        assert planned["status"] == "planned"
        assert await code_of(get(client, planned["executionId"])) == INVALID_PARAMS
        created = await start(client, "execute_plan", threadId=planned["threadId"])
        assert created["taskId"] == planned["executionId"]
        assert result_of(await until(client, created["taskId"], *TERMINAL))["status"] == "completed"


@requirement("tasks:link")
@pytest.mark.parametrize("content", [None, {}, {"decision": "approve"}, {"approved": True}], ids=str)
async def test_a_dangerous_call_is_asked_as_an_address_and_opening_it_decides_nothing(
    tmp_path: Path, content: Document | None
) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools(), on_disk=True) as found, connect_with_forms(found) as client:
        found.warden.service.inbox_url = INBOX
        task_id = (await start(client, "execute_plan", plan=ERASED))["taskId"]
        [(key, request)] = (await until(client, task_id, "input_required"))["inputRequests"].items()
        assert (request["method"], request["params"]["mode"]) == ("elicitation/create", "url")
        suspension = key.partition(".")[0]
        assert request["params"]["url"] == f"{INBOX}/suspensions/{suspension}"
        assert request["params"]["message"].endswith("accepting here only opens it.")
        opened: JsonValue = {"action": "accept", **({} if content is None else {"content": content})}
        for _ in range(3):
            await update(client, task_id, **{key: opened})
        for name in (f"{suspension}.1", key):
            await update(client, task_id, **{name: APPROVED})
        still = await get(client, task_id)
        assert (still["status"], ledger.lines) == ("working", []) and "inputRequests" not in still
        assert still["statusMessage"].endswith("and has not decided there yet")
        found_kinds = await kinds(found, task_id)
        assert (found_kinds.count("link_answered"), found_kinds.count("form_closed")) == (1, 0)
        assert (await ok(client, "list_suspensions"))["total"] == 1
        await decide(found)
        assert result_of(await until(client, task_id, *TERMINAL))["status"] == "completed"
        assert ledger.lines == ["erase [1]"]
        assert (await found.warden.service.audit.verify()).problems == ()


@requirement("tasks:link")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_an_address_that_was_not_opened_is_not_a_rejection(tmp_path: Path, action: str) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, connect_with_forms(found) as client:
        found.warden.service.inbox_url = INBOX
        task_id = (await start(client, "execute_plan", plan=ERASED))["taskId"]
        key = await key_of(client, task_id)
        await update(client, task_id, **{key: {"action": action}})
        await update(client, task_id, **{key: {"action": "accept"}})
        shown = result_of(await get(client, task_id))
        assert (shown["status"], shown["awaiting"], ledger.lines) == ("suspended", "human", [])
        assert question_of(shown)["howToAnswer"]["inboxUrl"].startswith(INBOX)
        await decide(found)
        assert result_of(await get(client, task_id))["status"] == "completed"
        assert ledger.lines == ["erase [1]"]


@requirement("tasks:link")
async def test_a_client_that_opens_addresses_only_is_sent_to_the_page_for_every_question(tmp_path: Path) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[sender(ledger)]) as found, wired(found.server) as wire:
        found.warden.service.inbox_url = INBOX
        opens, shows = wire.declaring(TAKES, LINKS), wire.declaring(TAKES, FORMS)
        created = await opens.call("execute_plan", arguments={"plan": SENT})
        requests: list[Document] = []
        for client in (opens, shows):
            task = (await client.task("tasks/get", created["taskId"]))["result"]
            assert task["status"] == "input_required"
            requests.append(task["inputRequests"])
        [[link_key], [form_key]] = requests
        assert link_key != form_key
        modes = [request["params"]["mode"] for asked in requests for request in asked.values()]
        assert modes == ["url", "form"]
        # Each key is the key of its own request only.
        await opens.task("tasks/update", created["taskId"], inputResponses={form_key: APPROVED})
        assert ledger.lines == []
        await opens.task("tasks/update", created["taskId"], inputResponses={link_key: {"action": "accept"}})
        await decide(found)
        assert ledger.lines == ["send ann 1 False"]


@requirement("tasks:link")
async def test_an_address_that_changed_is_another_request_until_one_was_answered(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, connect_with_forms(found) as client:
        found.warden.service.inbox_url = INBOX
        task_id = (await start(client, "execute_plan", plan=ERASED))["taskId"]
        old = await key_of(client, task_id)
        found.warden.service.inbox_url = "http://127.0.0.1:4712/inbox"
        new = await key_of(client, task_id)
        assert new != old
        await update(client, task_id, **{old: {"action": "accept"}})
        assert await key_of(client, task_id) == new
        await update(client, task_id, **{new: {"action": "accept"}})
        found.warden.service.inbox_url = INBOX
        assert (await get(client, task_id))["status"] == "working"


@requirement("tasks:link", "tasks:waiting")
async def test_a_task_waits_for_a_person_who_opened_the_page_for_a_limited_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        served(tmp_path, tools=Ledger().tools(), store=MemoryStore(clock)) as found,
        connect_with_forms(found) as client,
    ):
        found.warden.service.inbox_url = INBOX
        task_id = (await start(client, "execute_plan", plan=ERASED))["taskId"]
        await update(client, task_id, **{await key_of(client, task_id): {"action": "accept"}})
        clock.advance(PAGE_S - 1)
        assert (await get(client, task_id))["status"] == "working"
        clock.advance(2)
        assert result_of(await get(client, task_id))["awaiting"] == "human"


@requirement("tasks:notified", "tasks:waiting")
@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_a_listener_learns_of_an_end_without_a_commit(
    tmp_path: Path, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_tasks_standing, "PAGE_S", 0.05)
    extension = TakesTasks()
    async with (
        served(tmp_path, tools=Ledger().tools()) as found,
        connect_with_forms(found, extension) as client,
        anyio.create_task_group() as tasks,
    ):
        found.warden.service.inbox_url = INBOX
        task_id = (await start(client, "execute_plan", plan=ERASED))["taskId"]
        tasks.start_soon(listen, client, task_id)
        asked = await extension.wait_for_update(lambda task: task["status"] == "input_required")
        await update(client, task_id, **{key: {"action": action} for key in asked["inputRequests"]})
        over = await extension.wait_for_update(lambda task: task["status"] == "completed")
        assert result_of(over)["awaiting"] == "human"
        tasks.cancel_scope.cancel()


@requirement("tasks:durable", "tasks:waiting")
async def test_every_process_knows_the_answers_that_one_process_took(tmp_path: Path) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=[sender(ledger)], on_disk=True) as one,
        served(tmp_path, tools=[sender(ledger)], on_disk=True) as other,
        connect_with_forms(one) as first,
        connect_with_forms(other) as second,
    ):
        task_id = (await start(first, "execute_plan", plan=SENT))["taskId"]
        key = await key_of(second, task_id)
        await update(first, task_id, **{key: {"action": "cancel"}})
        assert result_of(await get(second, task_id))["awaiting"] == "human"
        await update(second, task_id, **{key: APPROVED})
        assert ledger.lines == []
        await decide(one)
        assert [result_of(await get(client, task_id))["status"] for client in (first, second)] == ["completed"] * 2
