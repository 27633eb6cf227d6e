"""Threads: later executions take results of earlier ones, and who is asked about a call again is told first."""

import json
from contextlib import AbstractAsyncContextManager

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidPlan, UnknownThread
from planwarden.agent.core.execution import thread_effects
from planwarden.server.views.card import build_card
from tests import kit
from tests.kit import ITEM, Execution, Json, Store, plan
from tests.storage.suite import BackEnd

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
    office: Office, script: list[JsonValue] | None = None, store: Store | None = None
) -> AbstractAsyncContextManager[planwarden.Warden]:
    """A process over the store, or over one of its own."""
    return kit.warden(tools=office.tools(), script=script, store=store)


def taking(step: str, pointer: str = "", tool: str = "send", **more: JsonValue) -> dict[str, JsonValue]:
    """A plan with one step that takes a value from a step that it does not have."""
    binding: dict[str, JsonValue] = {"$from": step, **({"pointer": pointer} if pointer else {}), **more}
    return plan(kit.tool_step("mail", tool, {"to": binding}))


@kit.requirement("thread:bindings")
async def test_a_later_execution_takes_the_newest_completed_result_of_its_thread() -> None:
    office = Office()
    async with opened(office) as w:
        first = await w.execute_plan(plan(kit.tool_step("find", "find")))
        office.customers = ["Cem"]
        await w.execute_plan(plan(kit.tool_step("find", "find")), thread_id=first.thread_id)
        office.is_broken = True
        failed = await w.execute_plan(plan(kit.tool_step("find", "find")), thread_id=first.thread_id)
        assert failed.status == "failed"
        office.is_broken = False
        done = await w.execute_plan(taking("find", "/customers/0"), thread_id=first.thread_id)
        assert done.status == "completed" and office.sent == ["Cem"]
        own = plan(kit.tool_step("find", "read_text"), kit.tool_step("mail", "send", {"to": {"$from": "find"}}))
        done = await w.execute_plan(own, thread_id=first.thread_id)
    assert done.status == "completed" and office.sent[1] == '{"customers": ["Cem"]}'


@kit.requirement("thread:bindings")
async def test_what_was_taken_survives_a_crash_a_prune_and_a_newer_execution(back_end: BackEnd) -> None:
    office = Office()
    async with opened(office, store=back_end.connect()) as w:
        first = await w.execute_plan(plan(kit.tool_step("find", "find")))
        steps = [kit.confirm("ask"), kit.tool_step("mail", "send", {"to": {"$from": "find", "pointer": "/customers"}})]
        waiting = await w.execute_plan(plan(*steps), thread_id=first.thread_id)
        assert waiting.status == "suspended"
    back_end.clock.advance(100.0)
    async with opened(office, store=back_end.connect()) as w:
        assert await w.service.store.prune(back_end.clock.now()) == 1
        done = await kit.decide(w, waiting)
    assert done.status == "completed" and office.sent == [["Ann", "Bob"]]


@kit.requirement("thread:bindings")
async def test_large_results_and_text_are_taken_from_earlier_executions() -> None:
    office = Office()
    async with opened(office) as w:
        first = await w.execute_plan(plan(kit.tool_step("all", "list_all"), kit.tool_step("text", "read_text")))
        thread = first.thread_id
        done = await w.execute_plan(taking("all", f"/{MANY - 1}"), thread_id=thread)
        assert done.status == "completed" and office.sent == [MANY - 1]
        done = await w.execute_plan(taking("text", "/customers/1", parse="json"), thread_id=thread)
        assert done.status == "completed" and office.sent[1] == "Bob"
        with pytest.raises(InvalidPlan, match="does not fit into arguments"):
            await w.execute_plan(taking("all"), thread_id=thread)
    assert len(office.sent) == 2


@kit.requirement("thread:bindings")
async def test_failed_pruned_and_foreign_steps_are_refused_with_the_reason_before_anything_runs() -> None:
    office, clock = Office(), kit.ManualClock()
    office.is_broken = True
    async with opened(office, store=kit.MemoryStore(clock)) as w:
        failed = await w.execute_plan(plan(kit.tool_step("find", "find")))
        office.is_broken = False
        other = await w.execute_plan(plan(kit.tool_step("elsewhere", "find")))
        with pytest.raises(InvalidPlan, match=f"of execution '{failed.execution_id}', which has no result.*failed"):
            await w.execute_plan(taking("find"), thread_id=failed.thread_id)
        with pytest.raises(InvalidPlan, match="results of other threads and of pruned executions cannot be taken"):
            await w.execute_plan(taking("elsewhere"), thread_id=failed.thread_id)
        with pytest.raises(UnknownThread):
            await w.execute_plan(taking("elsewhere"), thread_id=other.thread_id, principal="eve")
        with pytest.raises(InvalidPlan, match="run the plan on its thread"):
            await w.execute_plan(taking("elsewhere"))
        clock.advance(100.0)
        later = await w.execute_plan(plan(kit.tool_step("later", "find")), thread_id=other.thread_id)
        await w.service.store.prune(clock.now())
        assert later.status == "completed"
        with pytest.raises(InvalidPlan, match="of pruned executions cannot be taken"):
            await w.execute_plan(taking("elsewhere"), thread_id=other.thread_id)
    assert office.sent == []


@kit.requirement("thread:bindings")
@pytest.mark.parametrize("asks_caller", [True, False])
async def test_a_planner_takes_earlier_results_and_is_corrected_like_for_any_fault(asks_caller: bool) -> None:
    office = Office()
    wrong, right = taking("nowhere"), taking("find", "/customers/1")
    replies: list[JsonValue] = [{"when": {"purpose": "plan"}, "reply": {"plan": reply}} for reply in (wrong, right)]
    async with opened(office, None if asks_caller else replies) as w:
        first = await w.execute_plan(plan(kit.tool_step("find", "find")))
        found = await w.run_goal("write to Bob", thread_id=first.thread_id, options={"synthesize": False})
        for answer in (wrong, right) if asks_caller else ():
            [question] = found.suspensions
            assert question.kind == "plan" and "takes the result of such a step" in (question.prompt or "")
            found = await w.submit_answer(found.thread_id, question.suspension_id, answer)
        assert found.status == "completed" and office.sent == ["Bob"]
        execution = await w.service.find(found.execution_id)
    assert "nowhere" in execution.refusals[0]


@kit.requirement("thread:bindings")
async def test_a_revision_takes_earlier_results_and_cannot_change_what_is_taken() -> None:
    office = Office()
    patch: list[JsonValue] = [
        {"op": "add", "step": kit.tool_step("second", "send", {"to": {"$from": "all", "pointer": "/1"}})}
    ]
    hidden: list[JsonValue] = [{"op": "add", "step": kit.tool_step("find", "read_text")}]
    script: list[JsonValue] = [
        {"when": {"purpose": "step"}, "reply": {"content": "Thought.", "revise": revise}}
        for revise in (patch, hidden, None)
    ]
    think: list[dict[str, JsonValue]] = [{"id": name, "description": "think"} for name in ("one", "two")]
    mail = kit.tool_step("mail", "send", {"to": {"$from": "find", "pointer": "/customers/0"}}, dependencies=["two"])
    async with opened(office, script) as w:
        first = await w.execute_plan(plan(kit.tool_step("find", "find"), kit.tool_step("all", "list_all")))
        done = await w.execute_plan(plan(think[0], think[1], mail), thread_id=first.thread_id)
        execution = await w.service.find(done.execution_id)
    assert done.status == "completed" and sorted(map(str, office.sent)) == ["1", "Ann"]
    assert "a new step cannot be named 'find'" in (execution.steps["two"].revision_refused or "")


@kit.requirement("failure:done")
async def test_a_failure_says_what_is_completed_and_how_a_later_plan_takes_it() -> None:
    office = Office()
    async with opened(office) as w:
        receivers: list[JsonValue] = ["Zoe", {"$from": "find", "pointer": "/nobody"}]
        office_calls: list[JsonValue] = [{"toolName": "send", "arguments": {"to": to}} for to in receivers]
        twice: dict[str, JsonValue] = {"id": "mail", "description": "send", "toolCalls": office_calls}
        failed = await w.execute_plan(plan(kit.tool_step("find", "find"), twice))
        assert failed.status == "failed" and failed.error is not None
        assert "completed, not to be repeated: find" in failed.error.message
        assert 'Completed, do not repeat: find; a later plan on this thread takes their results: {"$from": "find"}' in (
            failed.next_action
        )
        assert "Done in steps that did not fully complete: mail:1 (send)." in failed.next_action
        office.is_broken = True
        again = await w.execute_plan(taking("find", "/customers/0"), thread_id=failed.thread_id)
    assert again.status == "failed" and "do not repeat: find" in again.next_action


@kit.requirement("failure:done")
async def test_what_failed_in_an_advisory_step_is_not_called_completed() -> None:
    office = Office()
    office.is_broken = True
    calls: list[JsonValue] = [
        {"toolName": "read_text", "arguments": {}},
        {"toolName": "send", "arguments": {"to": "Ann"}},
    ]
    advisory = kit.tool_step("mail", "send", toolValidationMode="advisory", toolCalls=calls)
    async with opened(office) as w:
        failed = await w.execute_plan(plan(advisory, kit.tool_step("find", "find")))
    assert failed.steps[0].status == "completed" and failed.error is not None
    assert "not to be repeated" not in failed.error.message and "Completed, do not repeat" not in failed.next_action
    assert "Done in steps that did not fully complete: mail:1 (read_text)." in failed.next_action


@kit.requirement("thread:bindings")
async def test_the_person_who_approves_sees_from_which_execution_a_value_comes() -> None:
    office = Office()
    async with opened(office) as w:
        first = await w.execute_plan(plan(kit.tool_step("find", "find")))
        asked = await w.execute_plan(taking("find", "/customers/0", tool="pay"), thread_id=first.thread_id)
        execution = await w.service.find(asked.execution_id)
        [found] = execution.open_suspensions
        card = build_card(execution, found, w.service.tools)
    assert card.call is not None and card.call.values["to"] == "Ann"
    assert card.call.arguments[0].origins == (
        f"from the result of find at /customers/0 in the earlier execution {first.execution_id}",
    )


def erase(*ids: int, step_id: str = "wipe", **extra: JsonValue) -> Json:
    return kit.tool_step(step_id, "erase", {"ids": list(ids)}, **extra)


def repeats(execution: Execution) -> list[str]:
    [question] = execution.suspensions
    told = [sentence for sentence in question.found if sentence.startswith("The same call")]
    assert list(question.found[: len(told)]) == told
    return told


@kit.requirement("thread:effects")
async def test_the_same_call_is_told_first_however_many_plans_cancels_and_processes_lie_between() -> None:
    ledger, store = kit.Ledger(), kit.MemoryStore()
    async with kit.warden(ledger, store=store) as w:
        done = await kit.decide(w, await w.execute_plan(plan(erase(7))))
        thread = done.thread_id
        for step in (erase(8), kit.tool_step("look", "find", {"topic": "t"}), kit.confirm("ask")):
            asked = await w.execute_plan(plan(step), thread_id=thread)
            if asked.status != "completed":
                assert repeats(asked) == []
                await w.cancel_execution(thread)
    async with kit.warden(ledger, store=store) as w:
        asked = await w.execute_plan(plan(erase(7, step_id="again")), thread_id=thread)
        [told] = repeats(asked)
        other = await w.execute_plan(plan(erase(7)))
    assert "The same call ran in this thread on " in told and "UTC, in step 'wipe' of an earlier plan" in told
    # Another thread knows nothing of it.
    assert repeats(other) == [] and ledger.lines == ["erase [7]"]


@kit.requirement("thread:effects")
async def test_rows_and_covered_calls_that_ran_before_are_named_and_the_calls_of_a_failed_plan_count() -> None:
    ledger = kit.Ledger()
    async with kit.warden(ledger) as w:
        steps = plan(erase(1), kit.tool_step("bad", "broken"))
        failed = await kit.decide(w, await w.execute_plan(steps))
        assert failed.status == "failed"
        asked = await w.execute_plan(
            plan(kit.tool_step("all", "erase", {"ids": [{"$from": "item"}]}, forEach=[3, 1])),
            thread_id=failed.thread_id,
        )
        assert [sentence.split(" ran ")[0] for sentence in repeats(asked)] == ["The same call as row 2"]
        rejected = await kit.decide(w, asked, kit.NO)
        assert "Completed by earlier plans of this thread, do not repeat: see doneBefore." in rejected.next_action
        [before] = rejected.done_before
        assert (before.tool_name, before.arguments, before.step_id) == ("erase", '{"ids":[1]}', "wipe")
        asked = await w.execute_plan(plan(kit.confirm("ask", confirms=["wipe"]), erase(1)), thread_id=failed.thread_id)
        [told] = repeats(asked)
    assert told.startswith("The same call of erase as in step 'wipe' ran in this thread")


@kit.requirement("thread:effects")
async def test_edited_arguments_are_judged_as_they_are_now_and_a_planning_prompt_lists_what_must_not_be_repeated() -> (
    None
):
    async with kit.warden(kit.Ledger()) as w:
        done = await kit.decide(w, await w.execute_plan(plan(erase(7))))
        asked = await w.execute_plan(plan(erase(8)), thread_id=done.thread_id)
        assert repeats(asked) == []
        for ids, count in ((7, 1), (9, 0)):
            edit = kit.Decision(approved=True, modified_args={"ids": [ids]})
            asked = await kit.decide(w, asked, edit, kit.by("local", "claimed", "mcp"), wait_seconds=0)
            assert len(repeats(asked)) == count
        await w.cancel_execution(done.thread_id)
        asked = await w.run_goal("wipe the rest", thread_id=done.thread_id)
    [question] = asked.suspensions
    assert question.prompt is not None and 'completed, do not repeat:\nerase {"ids":[7]} ran in this' in question.prompt


@kit.requirement("thread:effects")
async def test_the_first_of_many_effects_is_still_told_and_lists_say_how_many_more_there_are() -> None:
    loop = kit.tool_step("all", "erase", {"ids": [ITEM]}, forEach=list[JsonValue](range(150)), maxItems=150)
    async with kit.warden(kit.Ledger()) as w:
        done = await kit.decide(w, await w.execute_plan(plan(loop)))
        for number in (0, 49, 149):
            [told] = repeats(await w.execute_plan(plan(erase(number, step_id="again")), thread_id=done.thread_id))
            assert "in step 'all' of an earlier plan" in told
            cancelled = await w.cancel_execution(done.thread_id)
        asked = await w.run_goal("wipe the rest", thread_id=done.thread_id)
    assert len(cancelled.done_before) == 20 and cancelled.done_before[-1].arguments == '{"ids":[149]}'
    assert "see doneBefore, and 130 more before these (a question about a repeat says so)" in cancelled.next_action
    prompt = asked.suspensions[0].prompt
    assert prompt is not None and "\nand 130 more before these (a question about a repeat says so)" in prompt


@kit.requirement("thread:effects")
async def test_effects_that_nobody_was_asked_about_push_no_approved_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_effects, "MAX_EFFECTS", 50)
    ledger = kit.Ledger()
    many: list[JsonValue] = [f"line {number}" for number in range(50)]
    loop = kit.tool_step("all", "note", {"text": ITEM}, forEach=many, maxItems=1_000, maxConcurrent=32)
    async with kit.warden(ledger) as w:
        steps = plan(erase(7), kit.confirm("ask", confirms=["late"]), erase(8, step_id="late"))
        done = await kit.decide(w, await kit.decide(w, await w.execute_plan(steps)))
        # Once in the execution that made the approved ones, and twice after it.
        for steps in ([loop], [loop, erase(9)], [loop]):
            done = await w.execute_plan(plan(*steps), thread_id=done.thread_id)
            if done.suspensions:
                done = await kit.decide(w, done)
        asked = await w.execute_plan(
            plan(kit.tool_step("all", "erase", {"ids": [ITEM]}, forEach=[7, 8, 9])), thread_id=done.thread_id
        )
        state = await w.service.find(asked.execution_id)
    assert [sentence.split(" ran ")[0] for sentence in repeats(asked)] == [
        f"The same call as row {n}" for n in (1, 2, 3)
    ]
    assert len(state.thread_effects) == 50
