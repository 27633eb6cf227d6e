"""Saved plans in what a model writes, in its revision, and in a person's edit of a plan under review."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import InvalidPlan, StaleRevision
from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply
from planwarden.agent.core.state import new_execution
from planwarden.agent.ports.store import Store
from planwarden.server.api.grants import GrantRequest
from planwarden.server.api.replay import replay_logs
from planwarden.server.cli.terminal.lines import step_lines
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.encoding import to_json
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.support.wardens import Ledger, plan, tool_step, warden

pytestmark = pytest.mark.anyio

NOTE = """
description: Writes a line
inputs: {properties: {text: {type: string}}, required: [text]}
todoList:
  - id: write
    description: Write
    toolCalls: [{toolName: note, arguments: {text: {$from: inputs, pointer: /text}}}]
"""
WIPE = """
todoList:
  - id: erase
    description: Erase it
    toolCalls: [{toolName: erase, arguments: {ids: [7]}}]
"""
THINK = """
todoList:
  - {id: think, description: Think, stepType: reasoning}
  - id: last
    description: Write
    toolCalls: [{toolName: note, arguments: {text: as planned}}]
"""
CIRCLE = "todoList: [{id: again, use: circle}]"
PLANS = {"note": NOTE, "wipe": WIPE, "think": THINK, "circle": CIRCLE}


@asynccontextmanager
async def opened(
    home: Path, ledger: Ledger, script: list[JsonValue] | None = None, store: Store | None = None
) -> AsyncGenerator[planwarden.Warden]:
    (home / "plans").mkdir()
    for name, text in PLANS.items():
        (home / "plans" / f"{name}.yaml").write_text(text)
    async with warden(ledger, script=script, store=store, settings=Settings(home=home)) as made:
        yield made


def use(step_id: str, name: str, **inputs: JsonValue) -> dict[str, JsonValue]:
    """The step that a model writes for a saved plan."""
    step: dict[str, JsonValue] = {"id": step_id, "description": "By a saved plan", "use": name}
    return {**step, "inputs": inputs} if inputs else step


def planned(*steps: dict[str, JsonValue]) -> JsonValue:
    return {"when": {"purpose": "plan"}, "reply": {"plan": plan(*steps)}}


SAID: JsonValue = {"when": {"purpose": "synthesize"}, "reply": {"content": "Done."}}


async def read_events(made: planwarden.Warden, execution: planwarden.Execution) -> list[ev.Event]:
    return [row.event for row in await made.service.engine.store.read(execution.execution_id, 0)]


@requirement("plans:use-model")
async def test_a_plan_of_a_model_runs_the_saved_plan_that_it_uses_and_shows_where_each_step_came_from(
    tmp_path: Path,
) -> None:
    """spec: plans, use; origin of each step recorded and shown"""
    ledger, steps = Ledger(), (tool_step("own", "note", {"text": "mine"}), use("more", "note", text="kept"))
    async with opened(tmp_path, ledger, [planned(*steps), SAID]) as made:
        versions = {known.name: known.version for known in await made.plans()}
        done = await made.run_goal("write two lines")
        assert done.status == "completed" and ledger.lines == ["note mine", "note kept"]
        used = {"name": "note", "version": versions["note"], "steps": ["more.write"]}
        assert to_json(done)["usedPlans"] == [used] and done.saved_plan is None
        state = await made.service.engine.find(done.execution_id)
        shown = [str(step_lines(state, found)[0].parts) for found in state.steps.values()]
        assert [f"from saved plan note, version {versions['note'][:12]}" in line for line in shown] == [False, True]
        rows = [row.entry for row in await made.service.engine.store.audit_rows() if row.entry.kind == "plan_run"]
        assert [row.facts["uses"] for row in rows] == [{"note": versions["note"]}]
        # The log alone says everything: no file is looked at when it is folded again.
        for file in (tmp_path / "plans").iterdir():
            file.unlink()
        report = await replay_logs(made.service.engine.store, has_finished=True)
        assert (report.executions, report.faults) == (1, [])
        again = new_execution(done.execution_id, done.thread_id, state.principal)
        for recorded in await made.service.engine.store.read(done.execution_id, 0):
            again = apply(again, recorded.event, recorded.at)
        assert again.used_plans == state.used_plans and again.status == "completed"


@requirement("plans:use-model")
@pytest.mark.parametrize(
    ("name", "said"),
    [("nothing", "there is no saved plan 'nothing'"), ("circle", "circle -> circle"), ("note", '"text" is a required')],
)
async def test_a_model_that_uses_a_plan_wrongly_is_told_by_name_and_can_send_another_plan(
    tmp_path: Path, name: str, said: str
) -> None:
    """spec: plans, use; unknown plans, circles and wrong inputs"""
    ledger = Ledger()
    async with opened(tmp_path, ledger, [planned(use("a", name)), planned(use("a", "note", text="x")), SAID]) as made:
        done = await made.run_goal("write x")
        refused = [event for event in await read_events(made, done) if isinstance(event, ev.PlanRefused)]
    assert [said in event.message for event in refused] == [True]
    assert done.status == "completed" and ledger.lines == ["note x"]


@requirement("plans:use-model")
async def test_a_calling_model_sees_saved_plans_in_its_question_and_one_that_changed_since_is_refused_by_name(
    tmp_path: Path,
) -> None:
    """spec: plans, use; what was shown is what is used"""
    ledger = Ledger()
    async with opened(tmp_path, ledger) as made:
        asked = await made.run_goal("write x")
        [question] = asked.suspensions
        assert "note(text): Writes a line" in str(question.prompt)
        assert '"use"' in str(question.answer_schema).replace("'", '"')
        (tmp_path / "plans" / "note.yaml").write_text(NOTE.replace("Writes a line", "Writes another line"))
        answer = Decision(content=plan(use("a", "note", text="x")))
        again = await made.resume_execution(asked.thread_id, question.suspension_id, answer)
        [refused] = [event for event in await read_events(made, again) if isinstance(event, ev.PlanRefused)]
        assert "the saved plan 'note' changed after it was listed" in refused.message
        [question] = again.suspensions
        assert "note(text): Writes another line" in str(question.prompt)
        done = await made.resume_execution(again.thread_id, question.suspension_id, answer)
    assert ledger.lines == ["note x"] and [step.id for step in done.steps] == ["a.write"]


@requirement("plans:use-model")
async def test_a_process_with_other_plans_refuses_by_name_and_continues_what_the_log_has(tmp_path: Path) -> None:
    """ours: processes share a store, and each has its own folders"""
    ledger, store, other = Ledger(), MemoryStore(), Settings(home=tmp_path / "other")
    answer = Decision(
        content=plan(tool_step("ask", "displayConfirmation", {"action": "go on?"}), use("a", "note", text="x"))
    )
    async with opened(tmp_path, ledger, store=store) as one, warden(ledger, store=store, settings=other) as two:
        asked = await one.run_goal("write x")
        [question] = asked.suspensions
        assert "note(text)" in str(question.prompt)
        again = await two.resume_execution(asked.thread_id, question.suspension_id, answer)
        [refused] = [event for event in await read_events(two, again) if isinstance(event, ev.PlanRefused)]
        assert "there is no saved plan 'note': no folder of plans has one" in refused.message
        [question] = again.suspensions
        assert "aved plans" not in str(question.prompt) and '"use"' not in str(question.answer_schema)
        confirming = await one.resume_execution(asked.thread_id, question.suspension_id, answer)
        [question] = confirming.suspensions
        assert [step.id for step in confirming.steps] == ["ask", "a.write"] and ledger.lines == []
        done = await two.resume_execution(asked.thread_id, question.suspension_id, Decision(approved=True))
    assert ledger.lines == ["note x"] and [used.steps for used in done.used_plans] == [("a.write",)]


@requirement("plans:use-model")
async def test_a_revision_of_a_model_puts_a_saved_plan_into_the_plan(tmp_path: Path) -> None:
    """spec: plans, use; revision"""
    patch: list[JsonValue] = [{"op": "add", "step": use("more", "note", text="added")}]
    thinks: JsonValue = {"when": {"purpose": "step"}, "reply": {"content": "thought", "revise": patch}}
    ledger = Ledger()
    async with opened(tmp_path, ledger, [thinks, SAID]) as made:
        done = await made.run_plan("think")
        [revised] = [event for event in await read_events(made, done) if isinstance(event, ev.PlanRevised)]
    assert done.status == "completed" and ledger.lines == ["note as planned", "note added"]
    assert [found.step_ids for found in revised.used_plans] == [("more.write",)] and revised.added == ("more.write",)
    assert [found.steps for found in done.used_plans] == [("more.write",)]
    assert done.saved_plan is not None and done.saved_plan.changed


@requirement("plans:use-model")
async def test_an_edit_in_a_review_uses_a_saved_plan_and_covers_its_calls_only_after_they_were_shown(
    tmp_path: Path,
) -> None:
    """spec: plans, review; nobody approves calls that nobody has seen"""
    ledger = Ledger()
    async with opened(tmp_path, ledger) as made:
        first = plan(tool_step("a", "note", {"text": "a"}))
        asked = await made.execute_plan(first, options={"review": "person"})
        [question] = asked.suspensions
        wrong = Decision(approved=True, content={"plan": plan(use("a", "nothing"))})
        with pytest.raises(InvalidPlan, match="there is no saved plan 'nothing'"):
            await made.resume_execution(asked.thread_id, question.suspension_id, wrong)
        edit = Decision(approved=True, content={"plan": plan(use("a", "wipe")), "cover": True})
        with pytest.raises(StaleRevision, match="saved plans that the edit uses"):
            await made.resume_execution(asked.thread_id, question.suspension_id, edit)
        seen = await made.get_execution(asked.thread_id)
        [question] = seen.suspensions
        assert question.kind == "review" and question.revision == 2 and ledger.lines == []
        assert [step.id for step in seen.steps] == ["a.erase"] and [u.steps for u in seen.used_plans] == [("a.erase",)]
        going = await made.resume_execution(asked.thread_id, question.suspension_id, Decision(approved=True))
        [question] = going.suspensions
        assert question.tool_call is not None and question.tool_call.tool_name == "erase" and ledger.lines == []


@requirement("plans:use-model")
async def test_a_grant_for_a_step_of_a_saved_plan_still_asks_when_the_plan_of_a_model_uses_it(tmp_path: Path) -> None:
    """spec: schedules; a grant is bound to the saved plan alone, and what a model makes of it is another plan"""
    ledger = Ledger()
    async with opened(tmp_path, ledger, [planned(use("a", "wipe")), SAID]) as made:
        found = await made.service.grants.find_step("wipe", "erase", "erase")
        request = GrantRequest(tool_name="erase", step=found.step, uses=5, expires_in_s=86_400.0)
        authority = Authority(assurance="human", channel="cli", principal="local")
        await made.service.grants.make(request, authority)
        alone = await made.run_plan("wipe")
        assert alone.status == "completed" and ledger.lines == ["erase [7]"]
        asked = await made.run_goal("erase seven")
        [question] = asked.suspensions
        assert question.kind == "approval" and ledger.lines == ["erase [7]"]
