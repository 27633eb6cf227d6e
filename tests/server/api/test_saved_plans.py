"""Saved plans: what runs by name, the version that runs, retries and forks record, and what a changed file does."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, InvalidPlan, KeyConflict, PlanChanged, UnknownPlan
from planwarden.agent.core import events as ev
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState
from planwarden.server.views.encoding import to_json
from tests.kit import NO, Decision, Ledger, PausingTool, Settings, decide, plan, requirement, tool_step, warden

pytestmark = pytest.mark.anyio

REMIND = """
title: Remind a customer
description: Writes one reminder.
inputs:
  properties:
    customer: {type: string}
    times: {type: integer, default: 1}
  required: [customer]
todoList:
  - id: write
    description: Write it
    toolCalls:
      - toolName: note
        arguments:
          text:
            $text: "{times} x {customer}"
            with:
              customer: {$from: inputs, pointer: /customer}
              times: {$from: inputs, pointer: /times}
"""


LETTER = """
inputs: {properties: {who: {type: string}}, required: [who]}
todoList:
  - id: first
    description: Write
    toolCalls: [{toolName: note, arguments: {text: {$from: inputs, pointer: /who}}}]
  - id: send
    description: Send
    toolCalls: [{toolName: erase, arguments: {ids: [1]}}]
"""
THINK = """
todoList:
  - {id: think, description: Think, stepType: reasoning}
  - id: write
    description: Write
    toolCalls: [{toolName: note, arguments: {text: as planned}}]
"""


@asynccontextmanager
async def opened(
    home: Path, ledger: Ledger | None = None, *tools: object, script: list[JsonValue] | None = None
) -> AsyncGenerator[planwarden.Warden]:
    """A warden with the plans `remind`, `letter` and `think` in its home."""
    (home / "plans").mkdir()
    for name, text in {"remind": REMIND, "letter": LETTER, "think": THINK}.items():
        (home / "plans" / f"{name}.yaml").write_text(text)
    async with warden(ledger or Ledger(), script=script, tools=tools, settings=Settings(home=home)) as made:
        yield made


@requirement("plans:version")
async def test_a_saved_plan_runs_with_its_inputs_and_leaves_name_and_version_in_log_view_and_audit(
    tmp_path: Path,
) -> None:
    ledger = Ledger()
    async with opened(tmp_path, ledger) as made:
        [known] = [line for line in await made.plans() if line.name == "remind"]
        done = await made.run_plan("remind", {"customer": "Ada"})
        other = await made.execute_plan(plan(tool_step("a", "note", {"text": "x"})))
        assert other.saved_plan is None and "savedPlan" not in to_json(other)
        service = made.service
        [first, *_] = await service.engine.store.read(done.execution_id, 0)
        [run] = [row.entry for row in await service.engine.store.audit_rows() if row.entry.kind == "plan_run"]
        assert (await service.audit.verify()).is_whole
    assert (done.status, done.goal, ledger.lines) == ("completed", "Remind a customer", ["note 1 x Ada", "note x"])
    assert to_json(done)["savedPlan"] == {"name": "remind", "version": known.version}
    assert isinstance(first.event, ev.ExecutionCreated)
    assert first.event.saved_plan == ev.PlanVersion(name="remind", digest=known.version)
    assert run.execution_id == done.execution_id
    assert (run.facts["plan"], run.facts["version"]) == ("remind", known.version)
    assert (known.name, known.title, known.source) == ("remind", "Remind a customer", "home")
    assert known.inputs is not None and known.inputs["required"] == ["customer"]


async def test_what_a_plan_does_not_take_is_refused_before_anything_happens(tmp_path: Path) -> None:
    ledger = Ledger()
    wrong: list[dict[str, JsonValue]] = [
        {},
        {"customer": 3},
        {"customer": "Ada", "times": "x"},
        {"customer": "A", "x": 1},
    ]
    async with opened(tmp_path, ledger) as made:
        for inputs in wrong:
            with pytest.raises(InvalidArguments, match="inputs: "):
                await made.run_plan("remind", inputs)
        assert await made.service.engine.store.executions(None, 1) == ()
    assert ledger.lines == []


async def test_an_unknown_name_and_a_plan_that_cannot_run_are_refused_with_what_there_is(tmp_path: Path) -> None:
    async with opened(tmp_path) as made:
        (tmp_path / "plans" / "broken.yaml").write_text("secret: [")
        with pytest.raises(UnknownPlan, match="did you mean 'remind'") as refused:
            await made.run_plan("reminder")
        assert refused.value.details == {"plans": ["letter", "remind", "think"]}
        with pytest.raises(UnknownPlan, match="cannot be used; `planwarden doctor` says why") as refused:
            await made.run_plan("broken")
        assert "secret" not in refused.value.message
        (tmp_path / "plans" / "odd.yaml").write_text("todoList: [{id: a, description: x, requiredTools: [nothing]}]")
        with pytest.raises(InvalidPlan, match="unknown tools: 'nothing'"):
            await made.run_plan("odd")


@requirement("key:once")
async def test_a_key_finds_its_run_again_also_when_the_file_has_changed_or_is_gone(tmp_path: Path) -> None:
    ledger = Ledger()
    async with opened(tmp_path, ledger) as made:
        first = await made.run_plan("remind", {"customer": "Ada"}, key="monday")
        path = tmp_path / "plans" / "remind.yaml"
        path.write_text(REMIND.replace("one", "another"))
        assert await made.run_plan("remind", {"customer": "Ada"}, key="monday") == first
        path.unlink()
        assert await made.run_plan("remind", {"customer": "Ada"}, key="monday") == first
        with pytest.raises(KeyConflict):
            await made.run_plan("remind", {"customer": "Eve"}, key="monday")
        with pytest.raises(KeyConflict):
            await made.run_plan("other", {"customer": "Ada"}, key="monday")
    assert ledger.lines == ["note 1 x Ada"]


@requirement("key:once")
async def test_a_key_that_began_a_rehearsal_does_not_stand_for_the_real_run(tmp_path: Path) -> None:
    ledger = Ledger()
    async with opened(tmp_path, ledger) as made:
        await made.run_plan("remind", {"customer": "Ada"}, key="monday", options={"rehearse": True})
        with pytest.raises(KeyConflict):
            await made.run_plan("remind", {"customer": "Ada"}, key="monday")
    assert ledger.lines == []


@requirement("saved:as-shown")
async def test_another_version_than_a_person_saw_starts_nothing(tmp_path: Path) -> None:
    ledger = Ledger()
    starter = ev.Starter(principal="ann", channel="inbox")
    async with opened(tmp_path, ledger) as made:
        [line] = [line for line in await made.plans() if line.name == "remind"]
        with pytest.raises(PlanChanged):
            await made.service.run_plan("remind", {"customer": "Ada"}, requester=Requester("local"), shown="0" * 64)
        assert ledger.lines == [] and await made.service.engine.store.executions(None, 1) == ()
        done = await made.service.run_plan(
            "remind", {"customer": "Ada"}, requester=Requester("local", starter=starter), shown=line.version
        )
        [row] = [r.entry for r in await made.service.engine.store.audit_rows() if r.entry.kind == "plan_run"]
        assert (await made.service.audit.verify()).is_whole
    assert done.status == "completed" and (row.facts["principal"], row.facts["channel"]) == ("ann", "inbox")


@requirement("plans:version")
async def test_a_file_that_changes_while_it_runs_changes_only_later_runs(tmp_path: Path) -> None:
    ledger = Ledger()
    gate = PausingTool()
    path = tmp_path / "plans" / "two.yaml"
    text = (
        "todoList: [{id: a, description: x, toolCalls: [{toolName: gate}]},"
        " {id: b, description: x, toolCalls: [{toolName: note, arguments: {text: first}}]}]"
    )
    async with opened(tmp_path, ledger, gate.tool()) as made:
        path.write_text(text)
        running = await made.run_plan("two", wait_seconds=0)
        await gate.started.wait()
        path.write_text(text.replace("first", "second"))
        gate.opened.set()
        ended = await made.service.engine.wait(await made.service.load_newest(running.thread_id, "local"), 60)
        later = await made.run_plan("two")
    assert (ended.status, ledger.lines) == ("completed", ["note first", "note second"])
    assert running.saved_plan is not None and later.saved_plan is not None
    assert running.saved_plan.version != later.saved_plan.version


async def run_letter(made: planwarden.Warden) -> planwarden.Execution:
    """A run of `letter` whose `send` was rejected."""
    return await decide(made, await made.run_plan("letter", {"who": "Ada"}), NO)


async def load(made: planwarden.Warden, execution: planwarden.Execution) -> ExecutionState:
    return await made.service.engine.find(execution.execution_id)


@requirement("plans:exact")
async def test_a_retry_and_a_fork_go_on_with_the_version_that_their_plan_came_from_whatever_the_file_says_now(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as made:
        first = await run_letter(made)
        before = await load(made, first)
        assert before.is_as_saved
        (tmp_path / "plans" / "letter.yaml").write_text("todoList: [{id: other, description: x}]")
        retried = await load(made, await made.retry(first.thread_id))
        assert not retried.is_revised and retried.saved_plan == before.saved_plan
        await made.cancel_execution(first.thread_id)
        forked = await load(made, await made.retry(first.thread_id, from_step="first", inputs={"who": "Bo"}))
        assert not forked.is_revised and dict(forked.inputs) == {"who": "Bo"}
        assert forked.saved_plan == before.saved_plan
        rows = [row.entry for row in await made.service.engine.store.audit_rows() if row.entry.kind == "plan_run"]
        assert [row.facts["plan"] for row in rows] == ["letter"] * 3
        assert len({str(row.facts["version"]) for row in rows}) == 1


@requirement("plans:exact")
async def test_a_fork_with_a_changed_plan_is_no_saved_version_and_neither_is_what_goes_on_from_it(
    tmp_path: Path,
) -> None:
    changed = plan(tool_step("write", "note", {"text": "another"}), tool_step("send", "erase", {"ids": [1, 2]}))
    async with opened(tmp_path) as made:
        first = await run_letter(made)
        forked = await made.retry(first.thread_id, plan=changed, from_step="send")
        assert forked.saved_plan is None
        assert not (await load(made, forked)).is_as_saved
        await made.cancel_execution(first.thread_id)
        again = await load(made, await made.retry(first.thread_id))
        assert again.saved_plan is None


@requirement("plans:exact")
async def test_a_plan_that_a_person_edited_in_its_review_is_no_saved_version_any_more(tmp_path: Path) -> None:
    edited = plan(tool_step("send", "note", {"text": "instead"}))
    async with opened(tmp_path) as made:
        asked = await made.run_plan("letter", {"who": "Ada"}, options={"review": "person"})
        assert (await load(made, asked)).is_as_saved
        done = await decide(made, asked, Decision(approved=True, content={"plan": edited}))
        assert done.status == "completed" and not (await load(made, done)).is_as_saved
        shown = to_json(done)["savedPlan"]
        assert isinstance(shown, dict) and shown["name"] == "letter" and shown["changed"] is True
        again = await load(made, await made.retry(done.thread_id, from_step="send"))
        assert again.saved_plan is None


@requirement("plans:exact")
async def test_a_plan_that_a_model_revised_is_no_saved_version_any_more(tmp_path: Path) -> None:
    changed = {key: value for key, value in tool_step("write", "note", {"text": "else"}).items() if key != "id"}
    patch: JsonValue = {"op": "change", "id": "write", "set": changed}
    reply: JsonValue = {"when": {"purpose": "step"}, "reply": {"content": "thought", "revise": [patch]}}
    ledger = Ledger()
    async with opened(tmp_path, ledger, script=[reply]) as made:
        done = await made.run_plan("think")
        assert done.status == "completed" and ledger.lines == ["note else"]
        assert not (await load(made, done)).is_as_saved
        assert done.saved_plan is not None and done.saved_plan.changed
