"""Runs of plans that use saved plans: what runs, what is recorded, and what the stored log says after a crash."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply
from planwarden.agent.core.references import list_sources, resolve
from planwarden.agent.core.state import new_execution
from planwarden.server.api.replay import replay_logs
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.encoding import to_json
from tests.requirements import requirement
from tests.support.wardens import Ledger, plan, tool_step, warden

pytestmark = pytest.mark.anyio

GREET = """
inputs: {properties: {name: {type: string}, mark: {type: string, default: "!"}}, required: [name]}
todoList:
  - id: write
    description: Greet
    when: {value: {$from: inputs, pointer: /name}, matches: {minLength: 2}}
    toolCalls:
      - toolName: note
        arguments:
          text:
            $text: "Hello {name}{mark}"
            with: {name: {$from: inputs, pointer: /name}, mark: {$from: inputs, pointer: /mark}}
"""
PARTY = """
title: Greet guests
inputs: {properties: {guests: {type: array}, host: {type: string}}, required: [guests]}
todoList:
  - {id: host, use: greet, inputs: {name: {$from: inputs, pointer: /host}}}
  - {id: short, use: greet, inputs: {name: "A"}}
  - id: each
    description: Greet every guest
    forEach: {$from: inputs, pointer: /guests}
    toolCalls: [{toolName: note, arguments: {text: {$from: item}}}]
"""
CIRCLE = "todoList: [{id: again, use: circle}]"


@planwarden.tool(risk="read")
def look() -> dict[str, JsonValue]:
    """Looks who is there."""
    return {"guests": ["Bo", "Cy"], "host": "Ann"}


@asynccontextmanager
async def opened(home: Path, ledger: Ledger) -> AsyncGenerator[planwarden.Warden]:
    """A warden with the plans above in its home."""
    (home / "plans").mkdir()
    for name, text in {"greet": GREET, "party": PARTY, "circle": CIRCLE}.items():
        (home / "plans" / f"{name}.yaml").write_text(text)
    async with warden(ledger, tools=[look], settings=Settings(home=home)) as made:
        yield made


PLAN = plan(
    tool_step("look", "look"),
    {
        "id": "party",
        "use": "party",
        "inputs": {"guests": {"$from": "look", "pointer": "/guests"}, "host": {"$from": "look", "pointer": "/host"}},
    },
    tool_step("last", "note", {"text": "done"}),
)


@requirement("plans:use")
async def test_nested_plans_run_with_what_earlier_steps_found_and_each_of_them_is_recorded(tmp_path: Path) -> None:
    """spec: plans, use; the execution records names and versions of all used plans"""
    ledger = Ledger()
    async with opened(tmp_path, ledger) as made:
        versions = {known.name: known.version for known in await made.plans()}
        done = await made.execute_plan(PLAN)
        log = await made.service.engine.store.read(done.execution_id, 0)
        rows = [row.entry for row in await made.service.engine.store.audit_rows() if row.entry.kind == "plan_run"]
        assert (await made.service.audit.verify()).is_whole
    assert done.status == "completed", done.error
    assert ledger.lines == ["note Hello Ann!", "note Bo", "note Cy", "note done"]
    assert [(step.id, step.status) for step in done.steps] == [
        ("look", "completed"),
        ("party.host.write", "completed"),
        ("party.short.write", "skipped"),
        ("party.each", "completed"),
        ("last", "completed"),
    ]
    used = {"party": versions["party"], "greet": versions["greet"]}
    steps = {"party": ["party.each"], "greet": ["party.host.write", "party.short.write"]}
    assert to_json(done)["usedPlans"] == [
        {"name": name, "version": version, "steps": steps[name]} for name, version in used.items()
    ]
    assert [row.facts["uses"] for row in rows] == [used]
    accepted = log[1].event
    assert isinstance(accepted, ev.PlanAccepted)
    assert [found.place for found in accepted.used_plans] == ["party", "party.host", "party.short"]
    # Wherever a process dies, the stored log alone leads to the same arguments.
    execution, intended = new_execution(done.execution_id, done.thread_id, "ann"), 0
    for recorded in log:
        event = recorded.event
        if isinstance(event, ev.ToolCallIntended):
            call = execution.call(event.call_id)
            item = execution.steps[call.step_id].find_item(call)
            assert resolve(call.proposed, list_sources(execution, None, item)) == event.arguments
            intended += 1
        execution = apply(execution, event, recorded.at)
    assert intended == 5 and execution.status == "completed"


@requirement("plans:use")
async def test_a_saved_plan_that_uses_itself_is_refused_and_a_used_one_is_recorded_beside_it(tmp_path: Path) -> None:
    """spec: plans, use; cycles are refused with the chain"""
    ledger = Ledger()
    async with opened(tmp_path, ledger) as made:
        with pytest.raises(InvalidPlan, match="circle -> circle"):
            await made.run_plan("circle")
        with pytest.raises(InvalidPlan, match="did you mean 'greet'"):
            await made.execute_plan(plan({"id": "a", "use": "gret"}))
        done = await made.run_plan("party", {"guests": ["Di"], "host": "Eve"})
    assert done.saved_plan is not None and done.saved_plan.name == "party"
    assert [found.name for found in done.used_plans] == ["greet"]
    assert ledger.lines == ["note Hello Eve!", "note Di"]


@requirement("plans:use-checked", "retry:rest")
async def test_a_bound_input_that_does_not_fit_fails_its_step_with_a_code_before_anything_of_it_runs(
    tmp_path: Path,
) -> None:
    """spec: plans, use; the failure names input and fault, and a retry goes on with what fits"""
    ledger, names = Ledger(), list[JsonValue]([7, "Ann"])

    @planwarden.tool(risk="read", effect="read")
    def guess() -> dict[str, JsonValue]:
        """Guesses a name."""
        return {"name": names.pop(0)}

    steps = plan(
        tool_step("guess", "guess"),
        {"id": "greet", "use": "greet", "inputs": {"name": {"$from": "guess", "pointer": "/name"}}},
        tool_step("after", "note", {"text": "after"}),
    )
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "greet.yaml").write_text(GREET)
    async with warden(ledger, tools=[guess], settings=Settings(home=tmp_path)) as made:
        failed = await made.execute_plan(steps)
        step = failed.steps[1]
        assert (failed.status, step.status, failed.steps[2].status) == ("failed", "failed", "skipped")
        assert step.error is not None and step.error.code == "invalid_arguments" and step.actual_tool_calls == ()
        assert step.error.message == (
            "the inputs of the plan that 'greet' uses do not fit: inputs: /name: 7 is not of type \"string\""
        )
        assert ledger.lines == []
        again = await made.retry(failed.thread_id)
        assert again.steps[1].error == step.error
        done = await made.retry(failed.thread_id, from_step="guess")
        assert done.status == "completed" and ledger.lines == ["note Hello Ann!", "note after"]
        report = await replay_logs(made.service.engine.store, has_finished=True)
        assert (report.executions, report.faults) == (3, [])
