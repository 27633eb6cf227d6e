"""Running saved plans by name: what runs, what is recorded of it, and what a changed or missing file does."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, InvalidPlan, KeyConflict, PlanChanged, UnknownPlan
from planwarden.agent.core import events as ev
from planwarden.agent.core.requester import Requester
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.encoding import to_json
from tests.requirements import requirement
from tests.support.wardens import Ledger, PausingTool, plan, tool_step, warden

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


@asynccontextmanager
async def opened(home: Path, ledger: Ledger | None = None, *tools: object) -> AsyncGenerator[planwarden.Warden]:
    """A warden with the plan `remind` in its home."""
    (home / "plans").mkdir()
    (home / "plans" / "remind.yaml").write_text(REMIND)
    async with warden(ledger or Ledger(), tools=tools, settings=Settings(home=home)) as made:
        yield made


@requirement("plans:version")
async def test_a_saved_plan_runs_with_its_inputs_and_leaves_name_and_version_in_log_view_and_audit(
    tmp_path: Path,
) -> None:
    ledger = Ledger()
    async with opened(tmp_path, ledger) as made:
        [known] = await made.plans()
        done = await made.run_plan("remind", {"customer": "Ada"})
        service = made.service
        [first, *_] = await service.engine.store.read(done.execution_id, 0)
        [run] = [row.entry for row in await service.engine.store.audit_rows() if row.entry.kind == "plan_run"]
        assert (await service.audit.verify()).is_whole
    assert (done.status, done.goal, ledger.lines) == ("completed", "Remind a customer", ["note 1 x Ada"])
    assert to_json(done)["savedPlan"] == {"name": "remind", "version": known.version}
    assert isinstance(first.event, ev.ExecutionCreated)
    assert first.event.saved_plan == ev.PlanVersion(name="remind", digest=known.version)
    assert run.execution_id == done.execution_id
    assert (run.facts["plan"], run.facts["version"]) == ("remind", known.version)
    assert (known.name, known.title, known.source) == ("remind", "Remind a customer", "home")
    assert known.inputs is not None and known.inputs["required"] == ["customer"]


@requirement("plans:version")
async def test_a_run_of_any_other_plan_has_no_version(tmp_path: Path) -> None:
    async with opened(tmp_path) as made:
        done = await made.execute_plan(plan(tool_step("a", "note", {"text": "x"})))
        rows = await made.service.engine.store.audit_rows()
    assert done.saved_plan is None and "savedPlan" not in to_json(done)
    assert "plan_run" not in [row.entry.kind for row in rows]


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


async def test_an_unknown_name_is_refused_with_the_names_that_there_are(tmp_path: Path) -> None:
    async with opened(tmp_path) as made:
        (tmp_path / "plans" / "broken.yaml").write_text("secret: [")
        with pytest.raises(UnknownPlan, match="did you mean 'remind'") as refused:
            await made.run_plan("reminder")
        assert refused.value.details == {"plans": ["remind"]}
        with pytest.raises(UnknownPlan, match="cannot be used; `planwarden doctor` says why") as refused:
            await made.run_plan("broken")
        assert "secret" not in refused.value.message


async def test_a_plan_that_cannot_run_here_is_refused_like_any_other(tmp_path: Path) -> None:
    async with opened(tmp_path) as made:
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
        [line] = await made.plans()
        with pytest.raises(PlanChanged):
            await made.service.run_plan("remind", {"customer": "Ada"}, requester=Requester("local"), shown="0" * 64)
        assert ledger.lines == [] and await made.service.engine.store.executions(None, 1) == ()
        done = await made.service.run_plan(
            "remind", {"customer": "Ada"}, requester=Requester("local", starter=starter), shown=line.version
        )
        [row] = [r.entry for r in await made.service.engine.store.audit_rows() if r.entry.kind == "plan_run"]
        assert (await made.service.audit.verify()).is_whole
    assert done.status == "completed" and (row.facts["principal"], row.facts["channel"]) == ("ann", "inbox")


async def test_the_same_plan_with_the_same_inputs_warns_while_the_first_run_is_unfinished(tmp_path: Path) -> None:
    gate = PausingTool()
    async with opened(tmp_path, None, gate.tool()) as made:
        (tmp_path / "plans" / "slow.yaml").write_text(
            "todoList: [{id: a, description: x, requiredTools: [gate], toolCalls: [{toolName: gate}]}]"
        )
        first = await made.run_plan("slow", wait_seconds=0)
        second = await made.run_plan("slow", wait_seconds=0)
        assert first.warnings == () and first.execution_id in second.warnings[0]
        gate.opened.set()


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
