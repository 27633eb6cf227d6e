"""Who decided about each call is said wherever its step is shown, and no step that left something out looks done."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState
from planwarden.server.cli.terminal.lines import outcome_lines, step_lines
from planwarden.server.inbox.plan_view import PlanView, build_plan_view
from planwarden.server.views.execution import Execution, build_execution_view, show_step
from planwarden.server.views.graph.plan_graph import build_graph
from planwarden.server.views.status_text import describe_state
from planwarden.server.views.voices import build_label
from tests.kit import Ledger, ManualClock, MemoryStore, calls, decide, plan, requirement, tool_step, warden

pytestmark = pytest.mark.anyio
ANN = Authority(assurance="human", channel="inbox", principal="ann")
BY_ANN = "by ann (human, inbox)"
Json = dict[str, JsonValue]


def _loop(*items: JsonValue, **extra: JsonValue) -> Json:
    return tool_step("wipe", "erase", {"ids": [{"$from": "item"}]}, forEach=list(items), **extra)


@asynccontextmanager
async def _asked(*steps: Json, **options: object) -> AsyncGenerator[tuple[planwarden.Warden, Execution]]:
    async with warden(Ledger(), **options) as made:  # pyright: ignore[reportArgumentType]
        yield made, await made.execute_plan(plan(*steps))


async def _answer(made: planwarden.Warden, asked: Execution, decision: Decision) -> ExecutionState:
    answered = await decide(made, asked, decision, ANN)
    return await made.service.engine.find(answered.execution_id)


def _view(execution: ExecutionState) -> PlanView:
    assert execution.plan is not None
    return build_plan_view(execution, build_graph(execution.plan, execution), is_newest=True, people=())


def _words(execution: ExecutionState, step_id: str = "wipe") -> list[str]:
    return [line.text for line in step_lines(execution, execution.steps[step_id])]


@requirement("decisions:said")
async def test_after_a_wait_for_the_next_attempt_it_is_said_what_was_called_with_what_result_and_who_approved_it() -> (
    None
):
    tried = list[int]()

    @planwarden.tool(name="send")
    async def send(number: int) -> str:
        """Send; the first time nothing happens."""
        tried.append(number)
        if len(tried) == 1:
            raise planwarden.ToolError("the line is busy", retryable=True)
        return "sent"

    clock = ManualClock()
    step = tool_step("mail", "send", {"number": 7}, retry={"attempts": 2, "delayS": 10})
    async with _asked(step, tools=[send], store=MemoryStore(clock=clock)) as (made, asked):
        waits = await _answer(made, asked, Decision(approved=True))
        [_, called] = _words(waits, "mail")
        assert called.startswith("send(number=7) → failed: the line is busy; called again at ")
        clock.advance(10)
        await made.service.engine.tick()
        await made.service.engine.wait(await made.service.engine.find(waits.execution_id), 60)
        done = await made.service.engine.find(waits.execution_id)
    assert _words(done, "mail")[1] == f'send(number=7) → "sent" (approved {BY_ANN})'
    [line] = _view(done).steps[0].calls
    assert (line.decided, line.state, line.attempts) == (f"approved {BY_ANN}", "done", 2)


@requirement("decisions:said")
async def test_a_rejected_loop_says_of_each_row_and_of_the_run_who_rejected_it_and_why() -> None:
    async with _asked(_loop(7, 8)) as (made, asked):
        ended = await _answer(made, asked, Decision(approved=False, reason="They\nhave paid"))
        seen = build_execution_view(ended, None)
        shown = show_step(seen, ended, "wipe", 0, 10).steps[0]
    assert _words(ended)[1:] == [
        f"erase(ids=[7]) → rejected {BY_ANN}",
        f"erase(ids=[8]) → rejected {BY_ANN}",
        f'rejected {BY_ANN}: "They have paid"',
    ]
    assert outcome_lines(ended)[-1].text == f'rejected {BY_ANN}: "They have paid"'
    assert describe_state(ended) == f'ended: rejected {BY_ANN}: "They have paid"'
    assert shown.items is not None and (shown.items.rejected, shown.items.succeeded) == (2, 0)
    assert [item.status for item in shown.item_results] == ["rejected", "rejected"]
    assert [call.decided for call in _view(ended).steps[0].calls] == [f'rejected {BY_ANN}: "They have paid"'] * 2


@requirement("decisions:said")
async def test_a_loop_all_of_whose_items_lost_a_row_is_rejected_by_the_person_who_left_them_out() -> None:
    step: Json = {
        "id": "wipe",
        "description": "wipe",
        "forEach": [7],
        "toolCalls": [{"toolName": "erase", "arguments": {"ids": [{"$from": "item"}]}} for _ in range(2)],
    }
    async with _asked(step) as (made, asked):
        ended = await _answer(made, asked, Decision(approved=True, content={"items": [1]}))
    assert (ended.status, ended.steps["wipe"].status) == ("rejected", "rejected")
    assert _words(ended)[-1] == f"rejected {BY_ANN}"


@requirement("decisions:said")
async def test_a_step_of_which_a_row_was_left_out_is_not_simply_done_and_an_edited_row_is_marked() -> None:
    async with _asked(_loop(7, 8, 9)) as (made, asked):
        decision = Decision(approved=True, content={"items": [0, 1]}, modified_args={"1": {"ids": [80]}})
        done = await _answer(made, asked, decision)
    head, *calls = step_lines(done, done.steps["wipe"])
    assert (head.mark, "of 3 items 1 was left out" in head.text) == ("partly", True)
    edited = "edited by ann (a person, in the inbox)"
    assert [call.text for call in calls] == [
        f"erase(ids=[7]) → erased: 1 (approved {BY_ANN})",
        f"erase(ids=[80]) → erased: 1 (approved {BY_ANN})  ({edited})",
        f"erase(ids=[9]) → rejected {BY_ANN}",
    ]
    step = _view(done).steps[0]
    assert (step.mark, step.sign, step.state, "1 was left out" in step.note) == ("partly", "◐", "partly done", True)
    assert sum(edited in call.decided for call in step.calls) == 1


@requirement("decisions:said")
async def test_a_mere_wait_is_not_a_question_that_nobody_answered() -> None:
    clock = ManualClock()
    wait = tool_step("rest", "wait", {"seconds": 5})
    async with _asked(wait, store=MemoryStore(clock=clock)) as (made, waiting):
        clock.advance(5)
        await made.service.engine.tick()
        await made.service.engine.wait(await made.service.engine.find(waiting.execution_id), 60)
        done = await made.service.engine.find(waiting.execution_id)
        view = await made.get_execution(waiting.thread_id, observations_after=0)
    assert _words(done, "rest")[1] == "wait → the time has passed"
    assert _view(done).steps[0].calls[0].decided == ""
    assert [seen.data["kind"] for seen in view.observations or () if seen.type == "SUSPENSION_TIMEOUT"] == ["wait"]


async def _label(requester: Requester, document: Json, **more: object) -> str:
    async with warden(Ledger(), **more) as made:  # pyright: ignore[reportArgumentType]
        asked = await made.service.execute_plan(document, requester=requester, wait_seconds=60)
        return build_label(asked.suspensions[0])


OPERATOR = Requester("local", is_operator=True)
CONFIRM: Json = tool_step("ask", "displayConfirmation", {"action": "Go?"}, dependencies=["find"])
TAKING: Json = {"$text": "Delete {n}?", "with": {"n": {"$from": "find", "pointer": "/topic"}}}


@requirement("voices:apart")
async def test_the_words_of_the_operators_own_plan_are_the_plans_and_values_within_them_are_unverified() -> None:
    find = tool_step("find", "find", {"topic": "old"})
    own, taking = plan(find, CONFIRM), plan(find, tool_step("ask", "displayConfirmation", {"action": TAKING}))
    assert await _label(OPERATOR, own) == "The plan says"
    assert await _label(OPERATOR, taking) == "The plan says (unverified)"
    assert await _label(Requester("local", host="Claude Code"), own) == "The agent says (unverified)"
    by_model = plan({"id": "ask", "description": "Ask", "requiredTools": ["displayConfirmation"]})
    script = [calls(("displayConfirmation", {"action": "Go?"}))]
    assert await _label(OPERATOR, by_model, script=script) == "The agent says (unverified)"


@requirement("voices:apart")
async def test_words_that_a_model_put_into_the_operators_question_are_not_the_plans() -> None:
    async with warden(Ledger()) as made:
        step = tool_step("wipe", "erase", {"ids": [1]})
        asked = await made.service.execute_plan(plan(step), requester=OPERATOR, wait_seconds=60)
        claimed = Authority(assurance="claimed", channel="mcp", principal="local")
        decision = Decision(approved=True, modified_args={"ids": [2]})
        [question] = asked.suspensions
        edited = await decide(made, question, decision, claimed, wait_seconds=0)
    assert build_label(question) == "The plan says"
    assert build_label(edited.suspensions[0]) == "The agent says (unverified)"
