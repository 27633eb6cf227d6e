"""A review: before the first step a person approves, edits or rejects the plan, and may cover what is known already."""

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.evidence import gather_evidence
from planwarden.agent.common.errors import IllegalTransition, InvalidArguments, InvalidPlan, StaleDefinition
from planwarden.agent.core.execution.state import new_execution
from planwarden.server.cli.checks.store import replay_logs
from tests import kit
from tests.kit import apply, ev, plan

pytestmark = kit.requirement("plan:review")
REVIEW: dict[str, JsonValue] = {"review": "person"}
COVER = kit.Decision(approved=True, content={"cover": True})
STEPS = (
    kit.tool_step("find", "find", {"topic": "x"}),
    kit.tool_step("note", "note", {"text": "hello"}),
    kit.tool_step("known", "erase", {"ids": [7]}),
    kit.tool_step("bound", "erase", {"ids": {"$from": "find", "pointer": "/ids"}}),
)


async def reviewed(w: planwarden.Warden, *steps: dict[str, JsonValue], **more: JsonValue) -> planwarden.Execution:
    asked = await w.execute_plan(plan(*(steps or STEPS)), options={**REVIEW, **more}, wait_seconds=60)
    assert asked.status == "suspended" and [found.kind for found in asked.suspensions] == ["review"]
    return asked


async def answer(
    w: planwarden.Warden, asked: planwarden.Execution, decision: kit.Decision, assurance: ev.Assurance = "human"
) -> planwarden.Execution:
    return await kit.decide(w, asked, decision, kit.by(assurance=assurance, digest=asked.suspensions[0].digest))


async def find_faults(w: planwarden.Warden, execution: planwarden.Execution) -> tuple[str, ...]:
    log = await w.service.store.read(execution.execution_id)
    new = new_execution(execution.execution_id, execution.thread_id, "local")
    policy = w.settings.policy.policy_digest
    return gather_evidence(new, log, {policy[:8]: [policy]}).faults


async def test_nothing_begins_before_a_person_approved_the_plan_and_then_each_call_asks_for_itself() -> None:
    ledger = kit.Ledger()
    async with kit.warden(ledger) as w:
        asked = await reviewed(w)
        [question] = asked.suspensions
        assert set(kit.statuses(asked).values()) == {"pending"} and ledger.lines == []
        assert (question.addressee, question.step_id, question.needs) == ("human", None, "client")
        assert [(covered.step_id, covered.arguments) for covered in question.confirms] == [("known", {"ids": [7]})]
        found = " ".join(question.found)
        assert "4 steps; 2 calls will ask a person" in found and 'Calls of "erase" are dangerous.' in found
        assert 'Only the run will know the arguments of "bound"' in found
        going = await answer(w, asked, kit.YES, "client")
        assert [found.kind for found in going.suspensions] == ["approval"]
        assert kit.statuses(going)["known"] == "suspended" and ledger.lines == ["note hello"]


async def test_covering_needs_what_its_calls_need_and_lets_exactly_the_known_ones_through() -> None:
    ledger = kit.Ledger()
    async with kit.warden(ledger, tools=[kit.acting("wipe", ledger.lines, "critical")]) as w:
        critical = await reviewed(w, kit.tool_step("a", "wipe"))
        assert critical.suspensions[0].confirms == ()
        going = await answer(w, critical, COVER)
        assert [(question.kind, question.needs) for question in going.suspensions] == [("approval", "signed")]
        asked = await reviewed(w)
        still = await answer(w, asked, COVER, "client")
        assert still.status == "suspended" and still.awaiting == "human" and ledger.lines == []
        going = await answer(w, still, COVER)
        [question] = going.suspensions
        assert (question.step_id, ledger.lines) == ("bound", ["note hello", "erase [7]"])
        assert question.tool_call is not None and question.tool_call.arguments == {"ids": [1, 2, 3]}
        done = await answer(w, going, kit.YES)
        rows = (await kit.read_audit_page(w.service.store, thread_id=done.thread_id)).rows
        assert done.status == "completed" and await find_faults(w, done) == ()
    assert [row.kind for row in rows if row.kind != "policy"] == ["asked", "decided", "covered", "asked", "decided"]


async def test_covering_reaches_the_rows_of_a_loop_whose_items_are_known_and_no_others() -> None:
    ledger, long = kit.Ledger(), list[JsonValue]([0] * 600)
    steps = (
        kit.tool_step("listed", "erase", {"ids": [{"$from": "item"}]}, forEach=[1, 2]),
        kit.tool_step("same", "erase", {"ids": [3]}, forEach=["x", "y"], dependencies=["listed"]),
        kit.tool_step("find", "find", {"topic": "x"}, dependencies=["same"]),
        kit.tool_step("bound", "erase", {"ids": [{"$from": "item"}]}, forEach={"$from": "find", "pointer": "/ids"}),
        kit.tool_step("many", "erase", {"ids": [4]}, forEach=long, maxItems=600),
    )
    async with kit.warden(ledger) as w:
        asked = await reviewed(w, *steps)
        [question] = asked.suspensions
        rows = [("listed", {"ids": [1]}), ("listed", {"ids": [2]}), ("same", {"ids": [3]}), ("same", {"ids": [3]})]
        assert [(covered.step_id, covered.arguments) for covered in question.confirms] == rows
        assert 'one question for all rows of "listed", "same", "bound", "many"' in " ".join(question.found)
        assert (await answer(w, await reviewed(w, steps[0]), kit.YES)).suspensions[0].calls
        going = await answer(w, asked, COVER)
        assert ledger.lines == ["erase [1]", "erase [2]", "erase [3]", "erase [3]"]
        assert await find_faults(w, going) == ()
    assert [(found.step_id, len(found.calls)) for found in going.suspensions] == [("bound", 3)]


@pytest.mark.parametrize(
    "content",
    [None, {"cover": True}, {"plan": plan(kit.tool_step("a", "note", {"text": "mine"}))}],
    ids=["approve", "cover", "edit"],
)
async def test_what_a_model_sends_decides_nothing_and_changes_nothing(content: JsonValue) -> None:
    ledger = kit.Ledger()
    async with kit.warden(ledger) as w:
        asked = await reviewed(w)
        for assurance in ("claimed", "caller"):
            still = await answer(w, asked, kit.Decision(approved=True, content=content), assurance)
            assert still.suspensions[0].digest == asked.suspensions[0].digest
        with pytest.raises(InvalidArguments, match="addressed to a person"):
            await w.submit_answer(asked.thread_id, asked.suspensions[0].suspension_id, content or {"content": "yes"})
    assert ledger.lines == [] and still.status == "suspended" and set(kit.statuses(still).values()) == {"pending"}


async def test_a_person_removes_reorders_and_changes_steps_and_the_edited_plan_runs() -> None:
    ledger = kit.Ledger()
    edited = plan(
        kit.tool_step("note", "note", {"text": "changed"}, dependencies=[]),
        kit.tool_step("find", "find", {"topic": "x"}, dependencies=["note"]),
        kit.tool_step("known", "erase", {"ids": [8]}, dependencies=["find"]),
    )
    async with kit.warden(ledger) as w:
        asked = await reviewed(w)
        done = await answer(w, asked, kit.Decision(approved=True, content={"plan": edited, "cover": True}))
        observed = await w.get_execution(done.thread_id, observations_after=0)
        assert await find_faults(w, done) == ()
    assert (done.status, ledger.lines) == ("completed", ["note changed", "erase [8]"])
    [revised] = [entry for entry in observed.observations or () if entry.type == "PLAN_REVISED"]
    assert (revised.step_id, revised.data["removed"], revised.data["moved"]) == (None, ["bound"], ["note", "find"])
    assert revised.data["changed"] == ["note", "find", "known"]
    [edit] = [entry for entry in observed.observations or () if "edited" in entry.data]
    assert (edit.data["principal"], edit.data["assurance"]) == ("ann", "human")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"plan": {"todoList": []}}, InvalidPlan),
        ({"plan": plan(kit.tool_step("a", "eraze", {"ids": [1]}))}, InvalidPlan),
        ({"plan": {**plan(kit.tool_step("a", "note", {"text": "x"})), "inputs": {"type": "object"}}}, InvalidPlan),
        ({"plan": "todoList"}, InvalidArguments),
        ({"cover": "true"}, InvalidArguments),
    ],
)
async def test_a_wrong_edit_is_refused_like_a_plan_and_decides_nothing(
    content: JsonValue, error: type[Exception]
) -> None:
    ledger = kit.Ledger()
    async with kit.warden(ledger) as w:
        asked = await reviewed(w)
        with pytest.raises(error):
            await answer(w, asked, kit.Decision(approved=True, content=content))
        with pytest.raises(InvalidArguments):
            await answer(w, asked, kit.Decision(content={}))
        still = await w.get_execution(asked.thread_id)
    assert still.suspensions[0].digest == asked.suspensions[0].digest and ledger.lines == []


async def test_a_tool_that_changes_while_the_plan_is_reviewed_is_shown_again() -> None:
    store, ran = kit.MemoryStore(), list[str]()
    async with kit.warden(kit.Ledger(), store=store) as w:
        asked = await reviewed(w, kit.tool_step("a", "erase", {"ids": [1]}))
    async with kit.warden(tools=[kit.acting("erase", ran, says="Erase everything.")], store=store) as w:
        with pytest.raises(StaleDefinition):
            await answer(w, asked, COVER)
        again = await w.get_execution(asked.thread_id)
        [question] = again.suspensions
        # What changed since the plan was accepted is asked about by itself, with the difference.
        assert (question.revision, question.confirms) == (2, ())
        [question] = (await answer(w, again, COVER)).suspensions
    assert question.kind == "approval" and "changed" in question.found[0] and ran == []


async def test_a_plan_that_a_model_makes_or_revises_is_reviewed() -> None:
    ledger = kit.Ledger()
    patch: JsonValue = [{"op": "add", "step": kit.tool_step("b", "note", {"text": "b"})}]
    called: JsonValue = [{"toolName": "note", "arguments": {"text": "a"}}]
    script: list[JsonValue] = [
        {"when": {"purpose": "plan"}, "reply": {"plan": plan(kit.model_step("a", "note"))}},
        {"when": {"purpose": "step"}, "reply": {"toolCalls": called, "revise": patch}},
    ]
    async with kit.warden(ledger, script=script) as w:
        asked = await w.run_goal("write", options={**REVIEW, "synthesize": False}, wait_seconds=60)
        assert asked.suspensions[0].kind == "review" and ledger.lines == []
        again = await answer(w, asked, kit.YES)
        assert [found.kind for found in again.suspensions] == ["review"] and "note b" not in ledger.lines
        assert 'A model revised the plan after "a" began.' in again.suspensions[0].found
        edited = plan(kit.tool_step("c", "note", {"text": "c"}))
        with pytest.raises(InvalidPlan, match="has begun"):
            await answer(w, again, kit.Decision(approved=True, content={"plan": edited}))
        done = await answer(w, again, kit.YES)
        assert (await replay_logs(w.service.store, has_finished=True)).faults == []
    assert (done.status, ledger.lines) == ("completed", ["note a", "note b"])


async def test_what_an_answer_about_an_earlier_plan_covered_is_listed_again_when_a_model_revised_the_plan() -> None:
    ledger = kit.Ledger()
    patch: JsonValue = [{"op": "add", "step": kit.tool_step("b", "note", {"text": "b"})}]
    called: JsonValue = [{"toolName": "note", "arguments": {"text": "a"}}]
    script: list[JsonValue] = [{"when": {"purpose": "step"}, "reply": {"toolCalls": called, "revise": patch}}]
    first, last = (kit.tool_step(name, "erase", {"ids": [number]}) for name, number in (("z", 0), ("c", 1)))
    async with kit.warden(ledger, script=script) as w:
        asked = await reviewed(w, first, kit.model_step("a", "note"), last, synthesize=False)
        again = await answer(w, asked, COVER)
        assert [covered.step_id for covered in again.suspensions[0].confirms] == ["c"]
        done = await answer(w, again, COVER)
    assert (done.status, sorted(ledger.lines)) == ("completed", ["erase [0]", "erase [1]", "note a", "note b"])


async def test_the_log_itself_refuses_a_step_before_the_review_and_an_edit_without_one() -> None:
    async with kit.warden(kit.Ledger()) as w:
        asked = await reviewed(w)
        state = await w.service.find(asked.execution_id)
        assert state.plan is not None
        done = await answer(w, asked, kit.YES)
        ended = await w.service.find(done.execution_id)
    running = apply(state, ev.CancelRequested(), 1.0)
    for event in (ev.StepStarted(step_id="find"), ev.ToolCallIntended(call_id="find:1", arguments={}, effect="read")):
        with pytest.raises(IllegalTransition, match="nobody approved"):
            apply(running, event, 1.0)
    with pytest.raises(IllegalTransition, match="no open review"):
        apply(ended, ev.PlanRevised(step_id="", plan=state.plan), 1.0)
    with pytest.raises(IllegalTransition, match="no model revises"):
        apply(state, ev.PlanRevised(step_id="find", plan=state.plan), 1.0)


async def test_review_that_releases_reads_of_a_large_result_is_approved_once() -> None:
    ran: list[str] = []
    argument: dict[str, JsonValue] = {"name": {"$from": "z", "pointer": "/results/0/url"}}
    step: dict[str, JsonValue] = {**kit.tool_step("c", "wipe", argument), "dependencies": ["z"]}
    call: dict[str, JsonValue] = {"toolName": "note", "arguments": {"text": "x"}}
    revision: dict[str, JsonValue] = {"toolCalls": [call], "revise": [{"op": "add", "step": step, "after": "a"}]}
    answers: list[dict[str, JsonValue]] = [revision, {"content": "done"}, {"content": "done"}]
    script: list[JsonValue] = [{"when": {"purpose": "step"}, "reply": reply} for reply in answers]
    last: dict[str, JsonValue] = {"id": "a", "description": "d", "requiredTools": ["note"], "dependencies": ["z"]}
    async with kit.warden(kit.Ledger(), tools=[kit.crawl, kit.acting("wipe", ran)], script=script) as w:
        revised = await answer(w, await reviewed(w, kit.tool_step("z", "crawl"), last), kit.YES)
        assert [question.kind for question in revised.suspensions] == ["review"]
        going = await answer(w, revised, kit.YES)
        assert [question.kind for question in going.suspensions] == ["approval"] and ran == []


async def test_large_edits_at_the_same_moment_are_each_answered() -> None:
    faults: list[InvalidPlan] = []
    async with kit.warden(kit.Ledger()) as w:
        asked = await reviewed(w)

        async def edit(number: int) -> None:
            texts: list[JsonValue] = [str(index) for index in range(2_000)]
            edited = plan(*STEPS, kit.tool_step("more", f"nothing{number}", {"text": texts}))
            with pytest.raises(InvalidPlan) as refusal:
                await answer(w, asked, kit.Decision(approved=True, content={"plan": edited}))
            faults.append(refusal.value)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(edit, number)
    assert len(faults) == 3
