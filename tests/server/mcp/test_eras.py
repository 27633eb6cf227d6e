"""The two eras of the protocol: the server pushes a form while a call waits, or the call returns a question."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.types import (
    INTERNAL_ERROR,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
    InputResponses,
)

from planwarden.agent.approval.answers import Authority, Decision
from tests.kit import Ledger, confirm, plan, requirement, tool_step
from tests.server.mcp.support import Document, ids_of, nobody, ok, served

pytestmark = pytest.mark.anyio

APPROVE = {"approved": True}
CONFIRMED = plan(confirm("a", "write it down?"), tool_step("b", "note", {"text": "x"}))


def _says(decision: str) -> InputResponses:
    return {"decision": ElicitResult(action="accept", content={"decision": decision})}


async def test_somebody_who_decides_elsewhere_ends_an_open_form(tmp_path: Path) -> None:
    opened = anyio.Event()

    async def slow(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        opened.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with (
        served(tmp_path) as found,
        Client(found.server, mode="legacy", elicitation_callback=slow) as client,
        anyio.create_task_group() as tasks,
    ):
        asked = await ok(client, "execute_plan", plan=plan(confirm("a")))
        ended: list[Document] = []

        async def resume() -> None:
            ended.append(await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE))

        with anyio.fail_after(60):
            tasks.start_soon(resume)
            await opened.wait()
            ids = ids_of(asked)
            await found.warden.service.answer(
                ids["threadId"],
                ids["suspensionId"],
                Decision(approved=False),
                Authority(assurance="human", channel="terminal", principal="local"),
                principal="local",
            )
            while not ended:
                await anyio.lowlevel.checkpoint()
        assert ended[0]["status"] == "rejected"


async def test_a_client_that_fails_to_show_the_form_decides_nothing(tmp_path: Path) -> None:
    async def broken(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        return ErrorData(code=INTERNAL_ERROR, message="no screen")

    async with (
        served(tmp_path) as found,
        Client(found.server, mode="legacy", elicitation_callback=broken) as client,
    ):
        asked = await ok(client, "execute_plan", plan=plan(confirm("a")))
        still = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert still["awaiting"] == "human" and "could not be asked" in still["nextAction"]


async def _returned(client: Client, arguments: Document) -> InputRequiredResult:
    result = await client.session.call_tool("resume_execution", arguments, allow_input_required=True)
    assert isinstance(result, InputRequiredResult)
    return result


async def test_one_sealed_question_answered_a_hundred_times_has_one_effect(tmp_path: Path) -> None:
    ledger = Ledger()
    yes = _says("approve")
    async with (
        served(tmp_path, tools=ledger.tools(), on_disk=True) as found,
        Client(found.server, elicitation_callback=nobody) as client,
    ):
        asked = await ok(client, "execute_plan", plan=CONFIRMED)
        arguments: Document = {**ids_of(asked), "decision": APPROVE}
        question = await _returned(client, arguments)
        # Asked again it is the same question, to the letter.
        assert (await _returned(client, arguments)).input_requests == question.input_requests
    async with (
        served(tmp_path, tools=ledger.tools(), on_disk=True) as found,
        Client(found.server, elicitation_callback=nobody) as client,
    ):
        for _ in range(100):
            result = await client.session.call_tool(
                "resume_execution", arguments, input_responses=yes, request_state=question.request_state
            )
            assert result.structured_content["status"] == "completed"
        assert ledger.lines == ["note x"]
        no = _says("reject")
        late = await client.session.call_tool(
            "resume_execution", arguments, input_responses=no, request_state=question.request_state
        )
        assert late.structured_content["error"]["code"] == "already_decided"


@requirement("ask_person:once")
async def test_a_question_without_a_plan_is_asked_once_however_often_its_call_is_repeated(tmp_path: Path) -> None:
    arguments: Document = {"message": "Send it?"}
    async with served(tmp_path, on_disk=True) as found, Client(found.server, elicitation_callback=nobody) as client:
        question = await client.session.call_tool("ask_person", arguments, allow_input_required=True)
        assert isinstance(question, InputRequiredResult)
        silent = await client.session.call_tool("ask_person", arguments, request_state=question.request_state)
        assert silent.structured_content["status"] == "suspended"
    async with served(tmp_path, on_disk=True) as found, Client(found.server, elicitation_callback=nobody) as client:
        for _ in range(20):
            result = await client.session.call_tool(
                "ask_person", arguments, input_responses=_says("approve"), request_state=question.request_state
            )
            assert result.structured_content["status"] == "completed"
        assert (await ok(client, "list_suspensions"))["total"] == 0
        assert len(await found.warden.service.engine.store.executions(None, 10)) == 1


async def test_a_forged_or_moved_state_is_refused(tmp_path: Path) -> None:
    ledger = Ledger()
    yes = _says("approve")
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, elicitation_callback=nobody) as client,
    ):
        asked = await ok(client, "execute_plan", plan=CONFIRMED)
        other = await ok(client, "execute_plan", plan=CONFIRMED)
        question = await _returned(client, {**ids_of(asked), "decision": APPROVE})
        assert question.request_state is not None and ids_of(asked)["suspensionId"] not in question.request_state
        for arguments, state in (
            ({**ids_of(other), "decision": APPROVE}, question.request_state),
            ({**ids_of(asked), "decision": APPROVE}, question.request_state[:-2] + "AA"),
            ({**ids_of(asked), "decision": APPROVE}, '{"suspensionId": "x", "digest": "y"}'),
        ):
            with pytest.raises(MCPError, match="requestState"):
                await client.session.call_tool("resume_execution", arguments, input_responses=yes, request_state=state)
        # Without the state an answer belongs to no question: it is asked anew.
        result = await client.session.call_tool(
            "resume_execution",
            {**ids_of(asked), "decision": APPROVE},
            input_responses=yes,
            allow_input_required=True,
        )
        assert isinstance(result, InputRequiredResult)
        assert ledger.lines == []
