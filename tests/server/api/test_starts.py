"""Starts: a key finds what it started, a saved plan runs as one version, and a start that cannot be is refused."""

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common import errors
from planwarden.server.views.encoding import to_json
from tests import kit
from tests.kit import MemoryStore, Requester, StartOptions, ev, plan
from tests.storage.suite import BackEnd
from tests.support.fakes import Crash, StoreCall, WatchedStore

NOTE = plan(kit.tool_step("a", "note", {"text": "once"}))
ASK = plan(kit.confirm("ask"))
PLANNED: list[JsonValue] = [
    {"when": {"purpose": "plan"}, "reply": {"plan": plan(kit.tool_step("a", "note", {"text": "planned"}))}},
    kit.says("done", "synthesize"),
]


@kit.requirement("key:once")
async def test_a_goal_is_planned_and_run_once_for_a_key() -> None:
    ledger = kit.Ledger()
    async with kit.warden(ledger, script=PLANNED) as made:
        first = await made.run_goal("note it", key="k")
        assert await made.run_goal("note it", key="k") == first
        with pytest.raises(errors.KeyConflict):
            await made.run_goal("note something else", key="k")
    assert ledger.lines == ["note planned"]


@kit.requirement("key:once")
@pytest.mark.parametrize("key", ["run it", "plan it"])
async def test_a_planned_execution_waits_and_is_run_once_for_another_or_the_same_key(key: str) -> None:
    ledger = kit.Ledger()
    async with kit.warden(ledger, script=PLANNED) as made:
        planned = await made.create_plan("note it", key="plan it")
        assert planned.status == "planned" and ledger.lines == []
        with pytest.raises(errors.ThreadBusy):
            await made.execute_plan(NOTE, thread_id=planned.thread_id)
        for _ in range(2):
            done = await made.execute_plan(thread_id=planned.thread_id, key=key)
            assert (done.execution_id, done.status) == (planned.execution_id, "completed")
        assert (await made.create_plan("note it", key="plan it")).status == "completed"
        elsewhere = await made.create_plan("note it")
        with pytest.raises(errors.KeyConflict, match=planned.execution_id):
            await made.execute_plan(thread_id=elsewhere.thread_id, key=key)
        with pytest.raises(errors.KeyConflict):
            await made.execute_plan(NOTE, key=key)
        if key == "run it":
            with pytest.raises(errors.KeyConflict):
                await made.create_plan("note it", key=key)
        with pytest.raises(errors.InvalidArguments, match="no planned execution"):
            await made.execute_plan(thread_id=planned.thread_id, key="a third")
    assert ledger.lines == ["note planned"]


async def test_a_plan_that_a_thread_has_rehearsed_is_run_once_without_being_sent_again() -> None:
    ledger = kit.Ledger()
    async with kit.warden(ledger, script=PLANNED) as made:
        planned = await made.create_plan("note it")
        thread_id = planned.thread_id
        rehearsed = await made.execute_plan(thread_id=thread_id, options={"rehearse": True})
        assert (rehearsed.status, ledger.lines) == ("rehearsed", [])
        assert "execute_plan with this threadId (and no plan) runs it" in rehearsed.next_action
        run, again = [await made.execute_plan(thread_id=thread_id, key="k") for _ in range(2)]
        assert (run.status, run.goal, run.execution_id) == ("completed", "note it", again.execution_id)
        with pytest.raises(errors.InvalidArguments, match="no planned execution"):
            await made.execute_plan(thread_id=thread_id)
    assert ledger.lines == ["note planned"]


@kit.requirement("plans:inputs")
async def test_a_rehearsed_plan_runs_once_for_callers_at_once_and_keeps_the_inputs_that_are_not_given_again() -> None:
    ledger, refusals = kit.Ledger(), list[errors.NotRetryable]()
    schema: JsonValue = {"properties": {"text": {"type": "string"}, "more": {"type": "string"}}}
    texts: list[JsonValue] = [{"$from": "inputs", "pointer": pointer} for pointer in ("/text", "/more")]
    steps = plan(*(kit.tool_step(f"s{n}", "note", {"text": text}) for n, text in enumerate(texts)))
    async with kit.warden(ledger) as made:
        given: dict[str, JsonValue] = {"text": "old", "more": "kept"}
        rehearsed = await made.execute_plan({**steps, "inputs": schema}, inputs=given, options={"rehearse": True})

        async def run() -> None:
            try:
                await made.execute_plan(thread_id=rehearsed.thread_id, inputs={"text": "new"})
            except errors.NotRetryable as error:
                refusals.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            group.start_soon(run)
    assert (ledger.lines, len(refusals)) == (["note new", "note kept"], 1)
    assert "is no longer the last one of thread" in refusals[0].message


@kit.requirement("plans:inputs")
async def test_a_planned_execution_takes_inputs_when_it_starts() -> None:
    ledger = kit.Ledger()
    schema: JsonValue = {"properties": {"text": {"type": "string", "default": "default"}, "more": {"default": 1}}}
    step = kit.tool_step("a", "note", {"text": {"$from": "inputs", "pointer": "/text"}})
    reply: JsonValue = {"when": {"purpose": "plan"}, "reply": {"plan": {**plan(step), "inputs": schema}}}
    script: list[JsonValue] = [reply, kit.says("done", "synthesize")] * 2
    async with kit.warden(ledger, script=script) as made:
        for inputs in (None, {"text": "chosen"}):
            planned = await made.create_plan("note it", wait_seconds=60)
            for wrong, said in (({"text": 1}, "not of type"), ({"other": 1}, "other")):
                with pytest.raises(errors.InvalidArguments, match=said):
                    await made.execute_plan(thread_id=planned.thread_id, inputs=wrong)
            done = await made.execute_plan(thread_id=planned.thread_id, inputs=inputs, wait_seconds=60)
            assert done.status == "completed"
    assert ledger.lines == ["note default", "note chosen"]


@kit.requirement("key:conflict")
@pytest.mark.parametrize("key", ["run it", "plan it"])
async def test_a_key_that_ran_a_planned_execution_is_refused_with_other_inputs_and_for_a_rehearsal(key: str) -> None:
    ledger = kit.Ledger()
    schema: JsonValue = {"properties": {"text": {"type": ["string", "number", "boolean"], "default": "default"}}}
    reply: JsonValue = {"when": {"purpose": "plan"}, "reply": {"plan": {**NOTE, "inputs": schema}}}
    # Of these only Python says that some are equal to 1, and one does not fit.
    others: tuple[dict[str, Any], ...] = (
        *({"inputs": {"text": text}} for text in ("other", "1", True, [1])),
        {},
        {"inputs": {"text": 1}, "options": {"rehearse": True}},
    )
    async with kit.warden(ledger, script=[reply, kit.says("done", "synthesize")]) as made:
        planned = await made.create_plan("note it", key="plan it", wait_seconds=60)
        run = partial(made.execute_plan, thread_id=planned.thread_id, key=key, wait_seconds=60)
        first = await run(inputs={"text": 1})
        for same in (1, 1.0):
            assert await run(inputs={"text": same}) == first
        for other in others:
            with pytest.raises(
                errors.KeyConflict, match=f"'{first.execution_id}' .* with another goal, plan or inputs"
            ):
                await run(**other)
    assert ledger.lines == ["note once"]


@kit.requirement("key:once")
async def test_only_goal_and_plan_say_what_a_key_stands_for() -> None:
    gate = kit.PausingTool()
    async with kit.warden(tools=[gate.tool()]) as made, anyio.create_task_group():
        steps = plan(kit.tool_step("a", "gate"))
        with anyio.fail_after(60):
            first = await made.execute_plan(steps, key="k", options={"waitSeconds": 0})
            again = await made.execute_plan(steps, key="k", options={"waitSeconds": 0.01, "maxIterations": 1})
            in_thread = await made.execute_plan(steps, key="k", thread_id=first.thread_id, wait_seconds=0)
            assert {first.execution_id} == {again.execution_id, in_thread.execution_id}
            assert again.status == "running"
            gate.opened.set()
            done = await made.execute_plan(steps, key="k", wait_seconds=300)
            assert (done.execution_id, done.status) == (first.execution_id, "completed")
        reordered: JsonValue = dict(reversed(kit.tool_step("a", "gate").items()))
        assert (await made.execute_plan({"todoList": [reordered]}, key="k")).execution_id == first.execution_id


@kit.requirement("key:conflict")
async def test_a_key_with_another_goal_or_plan_is_refused_and_names_the_execution() -> None:
    ledger = kit.Ledger()
    others: tuple[dict[str, Any], ...] = (
        {"plan": plan(kit.tool_step("a", "note", {"text": "twice"}))},
        {"plan": NOTE, "goal": "another goal"},
        {"plan": {"todoList": []}},
    )
    async with kit.warden(ledger) as made:
        first = await made.execute_plan(NOTE, key="k", goal="a goal")
        for other in others:
            with pytest.raises(
                errors.KeyConflict, match=f"key 'k' started execution '{first.execution_id}'"
            ) as refused:
                await made.execute_plan(key="k", **other)
            assert refused.value.details == {"executionId": first.execution_id, "threadId": first.thread_id}
    assert ledger.lines == ["note once"]


@kit.requirement("key:owner")
async def test_owners_do_not_see_each_others_keys() -> None:
    ledger = kit.Ledger()
    async with kit.warden(ledger) as made:
        mine = await made.execute_plan(NOTE, key="k", principal="ann")
        theirs = await made.execute_plan(NOTE, key="k", principal="bob")
        other = await made.execute_plan(ASK, key="only ann's", principal="ann")
        free = await made.execute_plan(ASK, key="only ann's", goal="a goal", principal="bob")
        warned = await made.execute_plan(ASK, principal="eve")
    assert len({mine.execution_id, theirs.execution_id, other.execution_id, free.execution_id}) == 4
    assert warned.warnings == () and len(ledger.lines) == 2


@kit.requirement("key:valid")
async def test_a_key_that_cannot_be_used_is_refused_before_anything_starts() -> None:
    wrong: list[tuple[Any, str]] = [
        ("  ", "'key' is empty; choose 1 to 200 characters"),
        ("x" * 201, "'key' has 201 characters, the limit is 200"),
        ("line\nbreak", r"'key' has the control character U\+000A at place 5"),
        ("\ud800", r"control character U\+D800"),
        (7, "'key' must be text of 1 to 200 characters"),
    ]
    async with kit.warden(kit.Ledger()) as made:
        for key, said in wrong:
            for start in (
                made.execute_plan(NOTE, key=key),
                made.run_goal("x", key=key),
                made.create_plan("x", key=key),
                made.execute_plan(thread_id="t", key=key),
            ):
                with pytest.raises(errors.InvalidArguments, match=said):
                    await start
        assert await made.service.store.executions(None, 10) == ()
        longest = await made.execute_plan(NOTE, key="é" * 200)
        assert (await made.execute_plan(NOTE, key="é" * 200)).execution_id == longest.execution_id


@kit.requirement("key:once", "key:processes")
async def test_the_same_start_at_the_same_moment_in_two_processes_starts_once(back_end: BackEnd) -> None:
    ledger, found = kit.Ledger(), list[planwarden.Execution]()

    async def start(made: planwarden.Warden) -> None:
        found.append(await made.execute_plan(NOTE, key="k", wait_seconds=60))

    async with kit.warden(ledger, store=back_end.connect()) as one, kit.warden(ledger, store=back_end.connect()) as two:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(start, (one, two)[number % 2])
    assert len({execution.execution_id for execution in found}) == 1
    assert {execution.status for execution in found} == {"completed"} and ledger.lines == ["note once"]


@kit.requirement("key:once", "key:processes")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_around_the_commit_of_a_start_leaves_it_to_be_started_once(when: str) -> None:
    ledger, store = kit.Ledger(), MemoryStore()

    async def die(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", when):
            raise Crash

    try:
        async with kit.warden(ledger, store=WatchedStore(store, die)) as dying:
            await dying.execute_plan(ASK, key="k", wait_seconds=0)
    except* Crash:
        pass
    stored = [header.execution_id for header in await store.executions(None, 10)]
    assert len(stored) == (when == "after")
    async with kit.warden(ledger, store=store) as made:
        found = await made.execute_plan(ASK, key="k", wait_seconds=60)
    assert stored in ([], [found.execution_id])
    assert len(await store.executions(None, 10)) == 1


@kit.requirement("key:warning")
async def test_a_plan_sent_twice_without_a_key_starts_twice_and_says_that_the_first_runs(back_end: BackEnd) -> None:
    async with kit.warden(store=back_end.connect()) as one, kit.warden(store=back_end.connect()) as two:
        first = await one.execute_plan(ASK)
        assert first.warnings == ()
        for made in (one, two):
            again = await made.execute_plan(ASK)
            [warning] = again.warnings
            assert again.execution_id != first.execution_id and again.status == "suspended"
            assert f"execution '{first.execution_id}' (thread '{first.thread_id}')" in warning and "'plan-" in warning
            assert (await two.get_execution(again.thread_id)).warnings == (warning,)
        assert (await one.execute_plan(plan(kit.confirm("ask", "something else?")))).warnings == ()
        for open_one in await one.service.store.executions(None, 10):
            await one.cancel_execution(open_one.thread_id)
        assert (await one.execute_plan(ASK, key="monday's")).warnings == ()
        [warning] = (await one.execute_plan(ASK)).warnings
        assert 'sent with key "monday\'s"' in warning
        assert (await one.execute_plan(ASK, key="another")).warnings == ()


@kit.requirement("ask_person:refused")
async def test_a_wait_a_depth_or_a_form_that_is_not_allowed_is_refused_before_anything_starts() -> None:
    async with kit.warden(kit.Ledger()) as made:
        for start in (made.execute_plan(NOTE, wait_seconds=-1), made.run_goal("x", wait_seconds=1e9)):
            with pytest.raises(errors.InvalidArguments, match="between 0 and 300"):
                await start
        deep: JsonValue = 1
        for _ in range(100):
            deep = [deep]
        with pytest.raises(errors.LimitExceeded, match="nested deeper"):
            await made.execute_plan(plan(kit.tool_step("a", "note", {"text": deep})), key="k")
        forms: list[dict[str, JsonValue]] = [{}, {"type": "array"}, {"type": "object", "properties": []}]
        for form in forms:
            with pytest.raises(errors.InvalidArguments, match="'form'"):
                await made.ask_person("Which?", form=form)
        assert await made.service.store.executions(None, 10) == ()


@kit.requirement("ask_person:answer")
@pytest.mark.parametrize(
    ("decision", "status", "result"),
    [
        (kit.Decision(content={"size": 4}), "completed", {"approved": True, "content": {"size": 4}}),
        (kit.Decision(approved=False), "rejected", None),
    ],
)
async def test_a_program_that_waits_for_a_person_gets_the_answer_that_another_process_records(
    tmp_path: Path, decision: kit.Decision, status: str, result: JsonValue
) -> None:
    form: dict[str, JsonValue] = {"type": "object", "properties": {"size": {"type": "integer"}}}
    stores = [kit.SqliteStore.open(tmp_path / "s.db") for _ in range(2)]
    one, other = (planwarden.Warden(store=store) for store in stores)
    answers = list[planwarden.Execution]()

    async def wait() -> None:
        answers.append(await one.ask_person("Which?", form=form, key="k", wait_seconds=60))

    async with one, other:
        asked = await one.ask_person("Which?", form=form, key="k", wait_seconds=0)
        assert asked.status == "suspended"
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                [question] = (await other.list_suspensions()).suspensions
                assert answers == []
                await other.resume_execution(question.thread_id, question.suspension_id, decision)
    for store in stores:
        await store.close()
    assert [(answer.status, answer.steps[0].result) for answer in answers] == [(status, result)]


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


def opened(home: Path, ledger: kit.Ledger | None = None) -> AbstractAsyncContextManager[planwarden.Warden]:
    """A warden that has the plan `letter`, and its first step as the plan `note`."""
    for name, text in {"letter": LETTER, "note": LETTER.partition("  - id: send")[0]}.items():
        kit.save_plan(home, name, text)
    return kit.warden(ledger or kit.Ledger(), settings=kit.Settings(home=home))


@kit.requirement("saved:as-shown")
async def test_another_version_than_a_person_saw_starts_nothing(tmp_path: Path) -> None:
    ledger = kit.Ledger()
    by_ann = Requester("local", starter=ev.Starter(principal="ann", channel="inbox"))
    options = StartOptions(requester=by_ann, inputs={"who": "Ada"})
    async with opened(tmp_path, ledger) as made:
        with pytest.raises(errors.PlanChanged):
            await made.service.run_plan("note", options, shown_digest="0" * 64)
        assert ledger.lines == [] and await made.service.store.executions(None, 1) == ()
        done = await made.service.wait(await made.service.run_plan("note", options), 60)
        [row] = [r.entry for r in await made.service.store.audit_rows() if r.entry.kind == "plan_run"]
        assert (await kit.verify_audit(made.service.store)).is_whole
    assert done.status == "completed" and (row.facts["principal"], row.facts["channel"]) == ("ann", "inbox")


@kit.requirement("plans:exact")
async def test_a_retry_and_a_fork_go_on_with_the_version_of_their_run_whatever_the_file_says(tmp_path: Path) -> None:
    async with opened(tmp_path) as made:
        find = made.service.find
        first = await kit.decide(made, await made.run_plan("letter", {"who": "Ada"}), kit.NO)
        before = await find(first.execution_id)
        assert before.is_as_saved
        kit.save_plan(tmp_path, "letter", "todoList: [{id: other, description: x}]")
        retried = await find((await made.retry(first.thread_id)).execution_id)
        assert not retried.is_revised and retried.saved_plan == before.saved_plan
        await made.cancel_execution(first.thread_id)
        again = await made.retry(first.thread_id, from_step="first", inputs={"who": "Bo"})
        forked = await find(again.execution_id)
        assert not forked.is_revised and dict(forked.inputs) == {"who": "Bo"}
        assert forked.saved_plan == before.saved_plan
        rows = [row.entry for row in await made.service.store.audit_rows() if row.entry.kind == "plan_run"]
        assert [row.facts["plan"] for row in rows] == ["letter"] * 3
        assert len({str(row.facts["version"]) for row in rows}) == 1


@kit.requirement("plans:exact")
async def test_a_plan_that_a_review_or_a_fork_changed_is_not_a_saved_version(tmp_path: Path) -> None:
    edited = plan(kit.tool_step("send", "note", {"text": "instead"}))
    async with opened(tmp_path) as made:
        asked = await made.run_plan("letter", {"who": "Ada"}, options={"review": "person"})
        done = await kit.decide(made, asked, kit.Decision(approved=True, content={"plan": edited}))
        assert done.status == "completed" and not (await made.service.find(done.execution_id)).is_as_saved
        shown = to_json(done)["savedPlan"]
        assert isinstance(shown, dict) and shown["name"] == "letter" and shown["changed"] is True
        assert (await made.retry(done.thread_id, from_step="send")).saved_plan is None
        other = await kit.decide(made, await made.run_plan("letter", {"who": "Ada"}), kit.NO)
        assert (await made.retry(other.thread_id, plan=edited, from_step="send")).saved_plan is None


async def test_what_is_not_a_mapping_or_not_text_is_refused_by_name() -> None:
    def untyped(value: object) -> Any:
        return value

    async with kit.warden() as made:
        for wrong in ([1], "abc", 5, True):
            starts = {
                "inputs": lambda wrong=wrong: made.execute_plan(NOTE, inputs=untyped(wrong)),
                "plan": lambda wrong=wrong: made.execute_plan(untyped(wrong)),
                "form": lambda wrong=wrong: made.ask_person("How many?", form=untyped(wrong)),
            }
            for name, start in starts.items():
                with pytest.raises(errors.InvalidArguments, match=f"'{name}' must be a mapping"):
                    await start()
        for name, start in {
            "goal": lambda: made.run_goal(untyped(5)),
            "name": lambda: made.run_plan(untyped([1])),
            "message": lambda: made.ask_person(untyped(True)),
        }.items():
            with pytest.raises(errors.InvalidArguments, match=f"'{name}' must be text"):
                await start()
