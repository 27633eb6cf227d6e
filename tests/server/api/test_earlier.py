"""Later executions of a thread take results of earlier ones, and what was taken stays what it was."""

import json
from contextlib import AbstractAsyncContextManager

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidPlan, UnknownThread
from planwarden.server.inbox.question_view import build_question_view
from tests.kit import confirm, decide, plan, requirement, tool_step, warden
from tests.storage.suite import BackEnd

pytestmark = pytest.mark.anyio

MANY = 30_000


class Office:
    """Tools over customers who change, and a ledger of what was sent."""

    def __init__(self) -> None:
        self.customers = ["Ann", "Bob"]
        self.sent: list[JsonValue] = []
        self.is_broken = False

    def tools(self) -> list[object]:
        @planwarden.tool(name="find", risk="read", effect="read")
        async def find() -> dict[str, JsonValue]:
            """Find customers."""
            if self.is_broken:
                raise RuntimeError("the machine is on fire")
            return {"customers": [*self.customers]}

        @planwarden.tool(name="list_all", risk="read", effect="read")
        async def list_all() -> list[int]:
            """Return more than the log holds."""
            return list(range(MANY))

        @planwarden.tool(name="read_text", risk="read", effect="read")
        async def read_text() -> str:
            """Return JSON as text."""
            return json.dumps({"customers": self.customers})

        @planwarden.tool(name="send", risk="read", effect="effect")
        async def send(to: JsonValue) -> str:
            """Send a letter."""
            self.sent.append(to)
            if self.is_broken:
                raise RuntimeError("no stamps")
            return "sent"

        @planwarden.tool(name="pay", risk="dangerous")
        async def pay(to: str) -> str:
            """Pay money."""
            self.sent.append(to)
            return "paid"

        return [find, list_all, read_text, send, pay]


def opened(
    back_end: BackEnd, office: Office, script: list[JsonValue] | None = None
) -> AbstractAsyncContextManager[planwarden.Warden]:
    """A process over the store."""
    return warden(tools=office.tools(), script=script, store=back_end.connect())


def taking(step: str, pointer: str = "", tool: str = "send", **more: JsonValue) -> dict[str, JsonValue]:
    """A plan with one step that takes a value from a step that it does not have."""
    binding: dict[str, JsonValue] = {"$from": step, **({"pointer": pointer} if pointer else {}), **more}
    return plan(tool_step("mail", tool, {"to": binding}))


@requirement("thread:bindings")
async def test_a_later_execution_takes_the_newest_completed_result_of_its_thread(back_end: BackEnd) -> None:
    office = Office()
    async with opened(back_end, office) as w:
        first = await w.execute_plan(plan(tool_step("find", "find")))
        office.customers = ["Cem"]
        await w.execute_plan(plan(tool_step("find", "find")), thread_id=first.thread_id)
        office.is_broken = True
        failed = await w.execute_plan(plan(tool_step("find", "find")), thread_id=first.thread_id)
        assert failed.status == "failed"
        office.is_broken = False
        done = await w.execute_plan(taking("find", "/customers/0"), thread_id=first.thread_id)
        assert done.status == "completed" and office.sent == ["Cem"]
        own = plan(tool_step("find", "read_text"), tool_step("mail", "send", {"to": {"$from": "find"}}))
        done = await w.execute_plan(own, thread_id=first.thread_id)
    assert done.status == "completed" and office.sent[1] == '{"customers": ["Cem"]}'


@requirement("thread:bindings")
async def test_what_was_taken_survives_a_crash_a_prune_and_a_newer_execution(back_end: BackEnd) -> None:
    office = Office()
    async with opened(back_end, office) as w:
        first = await w.execute_plan(plan(tool_step("find", "find")))
        steps = [confirm("ask"), tool_step("mail", "send", {"to": {"$from": "find", "pointer": "/customers"}})]
        waiting = await w.execute_plan(plan(*steps), thread_id=first.thread_id)
        assert waiting.status == "suspended"
    back_end.clock.advance(100.0)
    async with opened(back_end, office) as w:
        assert await w.service.engine.store.prune(back_end.clock.now()) == 1
        done = await decide(w, waiting)
    assert done.status == "completed" and office.sent == [["Ann", "Bob"]]


@requirement("thread:bindings")
async def test_large_results_and_text_are_taken_from_earlier_executions(back_end: BackEnd) -> None:
    office = Office()
    async with opened(back_end, office) as w:
        first = await w.execute_plan(plan(tool_step("all", "list_all"), tool_step("text", "read_text")))
        thread = first.thread_id
        done = await w.execute_plan(taking("all", f"/{MANY - 1}"), thread_id=thread)
        assert done.status == "completed" and office.sent == [MANY - 1]
        done = await w.execute_plan(taking("text", "/customers/1", parse="json"), thread_id=thread)
        assert done.status == "completed" and office.sent[1] == "Bob"
        for wrong, why in (
            (taking("all"), "does not fit into arguments"),
            (taking("all", "/nowhere"), "has nothing there"),
            (taking("text", "/customers"), '"parse": "json"'),
        ):
            with pytest.raises(InvalidPlan, match=why):
                await w.execute_plan(wrong, thread_id=thread)
    assert len(office.sent) == 2


@requirement("thread:bindings")
async def test_failed_pruned_and_foreign_steps_are_refused_with_the_reason_before_anything_runs(
    back_end: BackEnd,
) -> None:
    office = Office()
    office.is_broken = True
    async with opened(back_end, office) as w:
        failed = await w.execute_plan(plan(tool_step("find", "find")))
        office.is_broken = False
        other = await w.execute_plan(plan(tool_step("elsewhere", "find")))
        with pytest.raises(InvalidPlan, match=f"of execution '{failed.execution_id}', which has no result.*failed"):
            await w.execute_plan(taking("find"), thread_id=failed.thread_id)
        with pytest.raises(InvalidPlan, match="results of other threads and of pruned executions cannot be taken"):
            await w.execute_plan(taking("elsewhere"), thread_id=failed.thread_id)
        with pytest.raises(UnknownThread):
            await w.execute_plan(taking("elsewhere"), thread_id=other.thread_id, principal="eve")
        with pytest.raises(InvalidPlan, match="run the plan on its thread"):
            await w.execute_plan(taking("elsewhere"))
        back_end.clock.advance(100.0)
        later = await w.execute_plan(plan(tool_step("later", "find")), thread_id=other.thread_id)
        await w.service.engine.store.prune(back_end.clock.now())
        assert later.status == "completed"
        with pytest.raises(InvalidPlan, match="of pruned executions cannot be taken"):
            await w.execute_plan(taking("elsewhere"), thread_id=other.thread_id)
    assert office.sent == []


@requirement("thread:bindings")
@pytest.mark.parametrize("asks_caller", [True, False])
async def test_a_planner_takes_earlier_results_and_is_corrected_like_for_any_fault(
    back_end: BackEnd, asks_caller: bool
) -> None:
    office = Office()
    wrong, right = taking("nowhere"), taking("find", "/customers/1")
    replies: list[JsonValue] = [{"when": {"purpose": "plan"}, "reply": {"plan": reply}} for reply in (wrong, right)]
    async with opened(back_end, office, None if asks_caller else replies) as w:
        first = await w.execute_plan(plan(tool_step("find", "find")))
        found = await w.run_goal("write to Bob", thread_id=first.thread_id, options={"synthesize": False})
        for answer in (wrong, right) if asks_caller else ():
            [question] = found.suspensions
            assert question.kind == "plan" and "takes the result of such a step" in (question.prompt or "")
            found = await w.submit_answer(found.thread_id, question.suspension_id, answer)
        assert found.status == "completed" and office.sent == ["Bob"]
        execution = await w.service.engine.find(found.execution_id)
    assert "nowhere" in execution.refusals[0]


@requirement("thread:bindings")
async def test_a_revision_takes_earlier_results_and_cannot_change_what_is_taken(back_end: BackEnd) -> None:
    office = Office()
    patch: list[JsonValue] = [
        {"op": "add", "step": tool_step("second", "send", {"to": {"$from": "all", "pointer": "/1"}})}
    ]
    hidden: list[JsonValue] = [{"op": "add", "step": tool_step("find", "read_text")}]
    script: list[JsonValue] = [
        {"when": {"purpose": "step"}, "reply": {"content": "Thought.", "revise": revise}} for revise in (patch, hidden)
    ]
    think: list[dict[str, JsonValue]] = [{"id": name, "description": "think"} for name in ("one", "two")]
    mail = tool_step("mail", "send", {"to": {"$from": "find", "pointer": "/customers/0"}}, dependencies=["two"])
    async with opened(back_end, office, script) as w:
        first = await w.execute_plan(plan(tool_step("find", "find"), tool_step("all", "list_all")))
        done = await w.execute_plan(plan(think[0], think[1], mail), thread_id=first.thread_id)
        execution = await w.service.engine.find(done.execution_id)
    assert done.status == "completed" and sorted(map(str, office.sent)) == ["1", "Ann"]
    assert "a new step cannot be named 'find'" in execution.steps["two"].notes[0]


@requirement("failure:done")
async def test_a_failure_says_what_is_completed_and_how_a_later_plan_takes_it(back_end: BackEnd) -> None:
    office = Office()
    async with opened(back_end, office) as w:
        receivers: list[JsonValue] = ["Zoe", {"$from": "find", "pointer": "/nobody"}]
        office_calls: list[JsonValue] = [{"toolName": "send", "arguments": {"to": to}} for to in receivers]
        twice: dict[str, JsonValue] = {"id": "mail", "description": "send", "toolCalls": office_calls}
        failed = await w.execute_plan(plan(tool_step("find", "find"), twice))
        assert failed.status == "failed" and failed.error is not None
        assert "completed, not to be repeated: find" in failed.error.message
        assert 'Completed, do not repeat: find; a later plan on this thread takes their results: {"$from": "find"}' in (
            failed.next_action
        )
        assert "Done in steps that did not complete: mail:1 (send)." in failed.next_action
        office.is_broken = True
        again = await w.execute_plan(taking("find", "/customers/0"), thread_id=failed.thread_id)
    assert again.status == "failed" and "do not repeat: find" in again.next_action


@requirement("thread:bindings")
async def test_the_person_who_approves_sees_from_which_execution_a_value_comes(back_end: BackEnd) -> None:
    office = Office()
    async with opened(back_end, office) as w:
        first = await w.execute_plan(plan(tool_step("find", "find")))
        asked = await w.execute_plan(taking("find", "/customers/0", tool="pay"), thread_id=first.thread_id)
        execution = await w.service.engine.find(asked.execution_id)
        [found] = execution.open_suspensions
        view = build_question_view(execution, found, w.service.engine.tools, now=back_end.clock.now())
    assert view.call is not None and view.call.arguments[0].value.value == "Ann"
    assert view.call.arguments[0].origins == (
        f"from the result of find at /customers/0 in the earlier execution {first.execution_id}",
    )
