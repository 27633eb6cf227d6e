"""What runs, retries and forks of saved plans record of their version, and what a changed plan does to it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Decision
from planwarden.agent.core.state import ExecutionState
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.encoding import to_json
from tests.requirements import requirement
from tests.support.wardens import Ledger, plan, tool_step, warden

pytestmark = pytest.mark.anyio

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
NO = Decision(approved=False)


@asynccontextmanager
async def opened(
    home: Path, ledger: Ledger | None = None, script: list[JsonValue] | None = None
) -> AsyncGenerator[planwarden.Warden]:
    (home / "plans").mkdir()
    for name, text in {"letter": LETTER, "think": THINK}.items():
        (home / "plans" / f"{name}.yaml").write_text(text)
    async with warden(ledger or Ledger(), script=script, settings=Settings(home=home)) as made:
        yield made


async def run_letter(made: planwarden.Warden) -> planwarden.Execution:
    """A run of `letter` whose `send` was rejected."""
    asked = await made.run_plan("letter", {"who": "Ada"})
    return await made.resume_execution(asked.thread_id, asked.suspensions[0].suspension_id, NO)


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
        [question] = asked.suspensions
        edit = Decision(approved=True, content={"plan": edited})
        done = await made.resume_execution(asked.thread_id, question.suspension_id, edit)
        while done.suspensions:
            done = await made.resume_execution(
                done.thread_id, done.suspensions[0].suspension_id, Decision(approved=True)
            )
        assert done.status == "completed" and not (await load(made, done)).is_as_saved
        shown = to_json(done)["savedPlan"]
        assert isinstance(shown, dict) and shown["name"] == "letter" and shown["changed"] is True
        again = await load(made, await made.retry(done.thread_id, from_step="send"))
        assert again.saved_plan is None


@requirement("plans:exact")
async def test_a_plan_that_a_model_revised_is_no_saved_version_any_more(tmp_path: Path) -> None:
    patch: JsonValue = {"op": "change", "id": "write", "set": tool_step("write", "note", {"text": "else"})}
    assert isinstance(patch["set"], dict)
    del patch["set"]["id"]
    reply: JsonValue = {"when": {"purpose": "step"}, "reply": {"content": "thought", "revise": [patch]}}
    ledger = Ledger()
    async with opened(tmp_path, ledger, [reply]) as made:
        done = await made.run_plan("think")
        assert done.status == "completed" and ledger.lines == ["note else"]
        assert not (await load(made, done)).is_as_saved
        assert done.saved_plan is not None and done.saved_plan.changed
