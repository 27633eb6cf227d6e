"""A question without a plan, in Python and over every store: two processes, one key, one question, one answer."""

import anyio
import anyio.lowlevel
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import InvalidArguments, KeyConflict
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.storage.suite import BackEnd
from tests.support.fakes import Crash, StoreCall, WatchedStore
from tests.support.wardens import warden

pytestmark = pytest.mark.anyio

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
                decision = Decision(approved=True, content={"seat": "7A"})
                await two.resume_execution(question.thread_id, question.suspension_id, decision)
    assert len({execution.execution_id for execution in answered}) == 1
    assert [execution.status for execution in answered] == ["completed"] * 2
    assert [execution.steps[0].result for execution in answered] == [{"approved": True, "content": {"seat": "7A"}}] * 2


@requirement("ask_person:once")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_around_the_commit_of_the_question_leaves_it_asked_once(when: str) -> None:
    store = MemoryStore()

    async def die(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", when):
            raise Crash

    try:
        async with warden(store=WatchedStore(store, die)) as dying:
            await dying.ask_person("Send it?", key="k", wait_seconds=0)
    except* Crash:
        pass
    async with warden(store=store) as made:
        asked = await made.ask_person("Send it?", key="k", wait_seconds=0)
        assert (await made.list_suspensions()).total == 1 == len(asked.suspensions)
        with pytest.raises(KeyConflict):
            await made.ask_person("Send it?", details="now", key="k", wait_seconds=0)


@requirement("ask_person:refused")
async def test_a_form_that_is_no_object_is_refused() -> None:
    async with warden() as made:
        wrong: list[dict[str, JsonValue]] = [{}, {"type": "array"}, {"type": "object", "properties": []}]
        for form in wrong:
            with pytest.raises(InvalidArguments, match="'form'"):
                await made.ask_person("Which?", form=form)
        assert await made.service.engine.store.executions(None, 10) == ()
