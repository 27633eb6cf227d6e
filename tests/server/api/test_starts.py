"""Starting once: a start sent again with its key finds what the first one started; the same for a bare question."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, KeyConflict, LimitExceeded, ThreadBusy
from planwarden.storage.sqlite.memory import MemoryStore
from tests.kit import Decision, Ledger, PausingTool, confirm, decide, plan, requirement, says, tool_step, warden
from tests.storage.suite import BackEnd
from tests.support.fakes import Crash, StoreCall, WatchedStore

pytestmark = pytest.mark.anyio

NOTE = plan(tool_step("a", "note", {"text": "once"}))
ASK = plan(confirm("ask"))
PLANNED: list[JsonValue] = [
    {"when": {"purpose": "plan"}, "reply": {"plan": plan(tool_step("a", "note", {"text": "planned"}))}},
    says("done", "synthesize"),
]


@requirement("key:once")
async def test_a_start_sent_again_with_its_key_is_answered_with_the_first_execution() -> None:
    ledger = Ledger()
    async with warden(ledger) as made:
        first = await made.execute_plan(NOTE, key="k")
        again = await made.execute_plan(NOTE, key="k")
        other = await made.execute_plan(NOTE, key="another")
    assert again == first and first.status == "completed"
    assert other.execution_id != first.execution_id
    assert ledger.lines == ["note once"] * 2


@requirement("key:once")
@pytest.mark.parametrize("verb", ["run_goal", "create_plan"])
async def test_a_goal_is_planned_once_for_a_key(verb: str) -> None:
    ledger = Ledger()
    async with warden(ledger, script=PLANNED) as made:
        start: Callable[..., Awaitable[planwarden.Execution]] = getattr(made, verb)
        first = await start("note it", key="k")
        assert await start("note it", key="k") == first
        with pytest.raises(KeyConflict):
            await start("note something else", key="k")
    assert ledger.lines == (["note planned"] if verb == "run_goal" else [])


@requirement("key:once")
@pytest.mark.parametrize("key", ["run it", "plan it"])
async def test_a_planned_execution_waits_and_is_run_once_for_another_or_the_same_key(key: str) -> None:
    ledger = Ledger()
    async with warden(ledger, script=PLANNED) as made:
        planned = await made.create_plan("note it", key="plan it")
        assert planned.status == "planned" and ledger.lines == []
        with pytest.raises(ThreadBusy):
            await made.execute_plan(NOTE, thread_id=planned.thread_id)
        for _ in range(2):
            done = await made.execute_plan(thread_id=planned.thread_id, key=key)
            assert (done.execution_id, done.status) == (planned.execution_id, "completed")
        assert (await made.create_plan("note it", key="plan it")).status == "completed"
        elsewhere = await made.create_plan("note it")
        with pytest.raises(KeyConflict, match=planned.execution_id):
            await made.execute_plan(thread_id=elsewhere.thread_id, key=key)
        with pytest.raises(KeyConflict):
            await made.execute_plan(NOTE, key=key)
        if key == "run it":
            with pytest.raises(KeyConflict):
                await made.create_plan("note it", key=key)
        with pytest.raises(InvalidArguments, match="no planned execution"):
            await made.execute_plan(thread_id=planned.thread_id, key="a third")
    assert ledger.lines == ["note planned"]


@requirement("key:once")
async def test_only_goal_and_plan_say_what_a_key_stands_for() -> None:
    gate = PausingTool()
    async with warden(tools=[gate.tool()]) as made, anyio.create_task_group():
        steps = plan(tool_step("a", "gate"))
        with anyio.fail_after(60):
            first = await made.execute_plan(steps, key="k", options={"waitSeconds": 0})
            again = await made.execute_plan(steps, key="k", options={"waitSeconds": 0.01, "maxIterations": 1})
            in_thread = await made.execute_plan(steps, key="k", thread_id=first.thread_id, wait_seconds=0)
            assert {first.execution_id} == {again.execution_id, in_thread.execution_id}
            assert again.status == "running"
            gate.opened.set()
            done = await made.execute_plan(steps, key="k", wait_seconds=300)
            assert (done.execution_id, done.status) == (first.execution_id, "completed")
        reordered: JsonValue = dict(reversed(tool_step("a", "gate").items()))
        assert (await made.execute_plan({"todoList": [reordered]}, key="k")).execution_id == first.execution_id


@requirement("key:conflict")
@pytest.mark.parametrize(
    "other",
    [
        {"plan": plan(tool_step("a", "note", {"text": "twice"}))},
        {"plan": NOTE, "goal": "another goal"},
        {"plan": {"todoList": []}},
    ],
)
async def test_a_key_with_another_goal_or_plan_is_refused_and_names_the_execution(other: dict[str, Any]) -> None:
    ledger = Ledger()
    async with warden(ledger) as made:
        first = await made.execute_plan(NOTE, key="k", goal="a goal")
        with pytest.raises(KeyConflict, match=f"key 'k' started execution '{first.execution_id}'") as refused:
            await made.execute_plan(key="k", **other)
        assert refused.value.details == {"executionId": first.execution_id, "threadId": first.thread_id}
        assert refused.value.code == "key_conflict"
    assert ledger.lines == ["note once"]


@requirement("key:owner")
async def test_owners_do_not_see_each_others_keys() -> None:
    ledger = Ledger()
    async with warden(ledger) as made:
        mine = await made.execute_plan(NOTE, key="k", principal="ann")
        theirs = await made.execute_plan(NOTE, key="k", principal="bob")
        other = await made.execute_plan(ASK, key="only ann's", principal="ann")
        free = await made.execute_plan(ASK, key="only ann's", goal="a goal", principal="bob")
        warned = await made.execute_plan(ASK, principal="eve")
    assert len({mine.execution_id, theirs.execution_id, other.execution_id, free.execution_id}) == 4
    assert warned.warnings == () and len(ledger.lines) == 2


@requirement("key:valid")
@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "'key' is empty; choose 1 to 200 characters"),
        ("  ", "'key' is empty"),
        ("x" * 201, "'key' has 201 characters, the limit is 200"),
        ("line\nbreak", r"'key' has the control character U\+000A at place 5"),
        ("\0", r"control character U\+0000 at place 1"),
        ("\ud800", r"control character U\+D800"),
        (7, "'key' must be text of 1 to 200 characters"),
    ],
)
async def test_a_key_that_cannot_be_used_is_refused_before_anything_starts(key: Any, said: str) -> None:
    ledger = Ledger()
    async with warden(ledger) as made:
        starts = (
            made.execute_plan(NOTE, key=key),
            made.run_goal("x", key=key),
            made.create_plan("x", key=key),
            made.execute_plan(thread_id="t", key=key),
        )
        for start in starts:
            with pytest.raises(InvalidArguments, match=said):
                await start
        assert await made.service.engine.store.executions(None, 10) == ()
        longest = await made.execute_plan(NOTE, key="é" * 200)
        assert (await made.execute_plan(NOTE, key="é" * 200)).execution_id == longest.execution_id


@requirement("key:once")
async def test_a_known_key_is_answered_although_the_plan_could_not_start_now() -> None:
    store = MemoryStore()
    async with warden(Ledger(), store=store) as made:
        thread = (await made.execute_plan(NOTE)).thread_id
        asked = await made.execute_plan(ASK, key="ask", thread_id=thread)
        assert await made.execute_plan(ASK, key="ask", thread_id=thread) == asked
        done = await made.execute_plan(NOTE, key="note")
    async with warden(store=store) as without_tools:
        assert (await without_tools.execute_plan(NOTE, key="note")).steps == done.steps


@requirement("key:once", "key:processes")
async def test_the_same_start_at_the_same_moment_in_two_processes_starts_once(back_end: BackEnd) -> None:
    ledger, found = Ledger(), list[planwarden.Execution]()

    async def start(made: planwarden.Warden) -> None:
        found.append(await made.execute_plan(NOTE, key="k", wait_seconds=60))

    async with warden(ledger, store=back_end.connect()) as one, warden(ledger, store=back_end.connect()) as two:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(start, (one, two)[number % 2])
    assert len({execution.execution_id for execution in found}) == 1
    assert {execution.status for execution in found} == {"completed"} and ledger.lines == ["note once"]


@requirement("key:once", "key:processes")
async def test_a_planned_execution_run_by_two_processes_at_once_runs_once(back_end: BackEnd) -> None:
    ledger, statuses = Ledger(), list[str]()

    async with (
        warden(ledger, script=PLANNED, store=back_end.connect()) as one,
        warden(ledger, script=PLANNED, store=back_end.connect()) as two,
    ):
        planned = await one.create_plan("note it")

        async def run(made: planwarden.Warden) -> None:
            done = await made.execute_plan(thread_id=planned.thread_id, key="k", wait_seconds=60)
            statuses.append(done.status)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for made in (one, two, one, two):
                    tasks.start_soon(run, made)
    assert statuses == ["completed"] * 4 and ledger.lines == ["note planned"]


@requirement("key:once", "key:processes")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_around_the_commit_of_a_start_leaves_it_to_be_started_once(when: str) -> None:
    ledger, store = Ledger(), MemoryStore()

    async def die(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", when):
            raise Crash

    try:
        async with warden(ledger, store=WatchedStore(store, die)) as dying:
            await dying.execute_plan(ASK, key="k", wait_seconds=0)
    except* Crash:
        pass
    stored = [header.execution_id for header in await store.executions(None, 10)]
    assert len(stored) == (when == "after")
    async with warden(ledger, store=store) as made:
        found = await made.execute_plan(ASK, key="k", wait_seconds=60)
    assert stored in ([], [found.execution_id])
    assert len(await store.executions(None, 10)) == 1


@requirement("key:warning")
async def test_a_plan_sent_twice_without_a_key_starts_twice_and_says_so(back_end: BackEnd) -> None:
    async with warden(store=back_end.connect()) as one, warden(store=back_end.connect()) as two:
        first = await one.execute_plan(ASK)
        assert first.warnings == ()
        for made in (one, two):
            again = await made.execute_plan(ASK)
            [warning] = again.warnings
            assert again.execution_id != first.execution_id and again.status == "suspended"
            assert f"execution '{first.execution_id}' (thread '{first.thread_id}')" in warning and "'plan-" in warning
            assert (await two.get_execution(again.thread_id)).warnings == (warning,)
        assert (await one.execute_plan(plan(confirm("ask", "something else?")))).warnings == ()


@requirement("key:warning")
async def test_the_warning_names_the_key_of_the_other_execution_and_ends_with_it() -> None:
    async with warden() as made:
        first = await made.execute_plan(ASK, key="monday's")
        [warning] = (again := await made.execute_plan(ASK)).warnings
        assert 'sent with key "monday\'s"' in warning and first.execution_id in warning
        assert (await made.execute_plan(ASK, key="another")).warnings == ()
        for open_one in await made.service.engine.store.executions(None, 10):
            await made.cancel_execution(open_one.thread_id)
        assert (await made.execute_plan(ASK)).warnings == () != again.warnings


async def test_waiting_longer_than_allowed_is_refused_before_anything_starts() -> None:
    async with warden(Ledger()) as made:
        for start in (made.execute_plan(NOTE, wait_seconds=-1), made.run_goal("x", wait_seconds=1e9)):
            with pytest.raises(InvalidArguments, match="between 0 and 300"):
                await start
        deep: JsonValue = 1
        for _ in range(100):
            deep = [deep]
        with pytest.raises(LimitExceeded, match="nested deeper"):
            await made.execute_plan(plan(tool_step("a", "note", {"text": deep})), key="k")
        assert await made.service.engine.store.executions(None, 10) == ()


FORM: dict[str, JsonValue] = {"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]}


@requirement("ask_person:answer", "ask_person:once")
async def test_two_processes_ask_once_and_both_get_the_answer(back_end: BackEnd) -> None:
    answered = list[planwarden.Execution]()

    async def ask(made: planwarden.Warden) -> None:
        answered.append(await made.ask_person("Which seat?", form=FORM, key="k", wait_seconds=120))

    async with warden(store=back_end.connect()) as one, warden(store=back_end.connect()) as two:
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, one)
                tasks.start_soon(ask, two)
                while not (page := await one.list_suspensions()).suspensions:
                    await anyio.lowlevel.checkpoint()
                [question] = page.suspensions
                await decide(two, question, Decision(approved=True, content={"seat": "7A"}))
        with pytest.raises(KeyConflict):
            await one.ask_person("Which seat?", details="now", form=FORM, key="k", wait_seconds=0)
    assert len({execution.execution_id for execution in answered}) == 1
    assert [execution.status for execution in answered] == ["completed"] * 2
    assert [execution.steps[0].result for execution in answered] == [{"approved": True, "content": {"seat": "7A"}}] * 2


@requirement("ask_person:refused")
async def test_a_form_that_is_no_object_is_refused() -> None:
    async with warden() as made:
        wrong: list[dict[str, JsonValue]] = [{}, {"type": "array"}, {"type": "object", "properties": []}]
        for form in wrong:
            with pytest.raises(InvalidArguments, match="'form'"):
                await made.ask_person("Which?", form=form)
        assert await made.service.engine.store.executions(None, 10) == ()
