"""Keys of starts, and plans that are unfinished, over every store there is."""

from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from planwarden.agent.common.errors import KeyUsed, PlanUnfinished, ThreadBusy, ThreadMovedOn
from planwarden.agent.core import events as ev
from planwarden.agent.ports.store import Append, StartedExecution, StartRequest, Store
from tests.requirements import requirement
from tests.storage.suite import PLAN, BackEnd, Scribe

pytestmark = pytest.mark.anyio

KEYED = StartRequest(key="monday", request="digest of the request", plan="digest of the plan")
UNKEYED = StartRequest(plan="digest of the plan", is_only=True)


def creation(scribe: Scribe, start: StartRequest) -> Append:
    return replace(scribe.append(ev.ExecutionCreated(goal="go"), ev.PlanAccepted(plan=PLAN)), start=start)


async def create(store: Store, execution_id: str, start: StartRequest, *, principal: str = "ann") -> Scribe:
    scribe = Scribe.on(store, execution_id, principal=principal)
    append = creation(scribe, start)
    scribe.lease, scribe.execution = await store.append(append), append.execution
    return scribe


@requirement("store:starts", "store:atomic")
async def test_a_key_starts_one_execution_of_a_principal(store: Store) -> None:
    await create(store, "e1", KEYED)
    with pytest.raises(KeyUsed):
        await create(store, "e2", replace(KEYED, request="another", plan=None))
    assert await store.header("e2") is None and await store.read("e2") == ()
    await create(store, "e3", KEYED, principal="bob")
    found = StartedExecution(execution_id="e1", thread_id="thread of e1", request="digest of the request")
    assert await store.find_start("ann", "monday") == found
    assert await store.find_start("bob", "monday") == replace(found, execution_id="e3", thread_id="thread of e3")
    assert await store.find_start("ann", "tuesday") is None


@requirement("store:starts")
async def test_a_later_start_of_a_planned_execution_has_a_key_of_its_own(store: Store) -> None:
    scribe = await create(store, "e1", KEYED)
    await scribe.write(ev.ExecutionPlanned())
    append = replace(scribe.append(ev.ExecutionStarted()), start=StartRequest(key="tuesday", request="run it"))
    stale = replace(append, owner="p2")
    await store.append(append)
    with pytest.raises(KeyUsed):
        await store.append(stale)
    found = await store.find_start("ann", "tuesday")
    assert found is not None and (found.execution_id, found.request) == ("e1", "run it")


@requirement("store:starts", "store:atomic")
async def test_an_unfinished_execution_of_the_same_plan_is_said_before_another_starts(store: Store) -> None:
    first = await create(store, "e1", UNKEYED)
    with pytest.raises(PlanUnfinished, match=r"'e1' \(thread 'thread of e1'\).*such as 'plan-") as told:
        await create(store, "e2", UNKEYED)
    assert told.value.execution_id == "e1" and await store.header("e2") is None
    await create(store, "e2", replace(UNKEYED, is_only=False))
    await create(store, "e3", UNKEYED, principal="bob")
    await create(store, "e4", replace(UNKEYED, plan="another"))
    await first.write(ev.StepStarted(step_id="a"))
    with pytest.raises(PlanUnfinished, match="'e1'"):
        await create(store, "e5", UNKEYED)
    await first.write(ev.ExecutionFailed(code="x", message="y"))
    with pytest.raises(PlanUnfinished, match="'e2'"):
        await create(store, "e5", UNKEYED)
    await create(store, "e6", replace(KEYED, plan="keyed"))
    with pytest.raises(PlanUnfinished, match="with key 'monday'"):
        await create(store, "e5", replace(UNKEYED, plan="keyed"))


async def _create(store: Store, execution_id: str, start: StartRequest, won: list[str]) -> None:
    try:
        await create(store, execution_id, start)
    except (KeyUsed, PlanUnfinished):
        return
    won.append(execution_id)


@requirement("store:starts", "store:one-winner")
@pytest.mark.parametrize("start", [KEYED, UNKEYED])
async def test_of_racing_starts_through_two_connections_one_is_stored(back_end: BackEnd, start: StartRequest) -> None:
    connections = back_end.connect(), back_end.connect()
    for number in range(10):
        request = replace(start, key=start.key and f"{start.key} {number}", plan=f"plan {number}")
        won: list[str] = []
        async with anyio.create_task_group() as tasks:
            for task in range(8):
                tasks.start_soon(_create, connections[task % 2], f"e{number}.{task}", request, won)
        [winner] = won
        assert await connections[1].header(winner) is not None
        if request.key is not None:
            found = await connections[0].find_start("ann", request.key)
            assert found is not None and found.execution_id == winner


@requirement("store:starts", "store:atomic")
async def test_what_goes_on_from_an_execution_starts_only_while_that_is_the_last_one_unchanged(store: Store) -> None:
    first = await create(store, "e1", StartRequest())
    await first.write(ev.ExecutionFailed(code="x", message="y"))
    thread = first.execution.thread_id

    def start(execution_id: str, **fields: Any) -> Append:
        scribe = Scribe.on(store, execution_id, thread_id=thread)
        return creation(scribe, StartRequest(**fields))

    version = first.execution.version
    for wrong in (("e1", version - 1), ("e1", version + 1), ("nothing", version)):
        with pytest.raises(ThreadMovedOn):
            await store.append(start("e2", after=wrong[0], after_version=wrong[1], key="k"))
        assert await store.header("e2") is None and await store.find_start("ann", "k") is None
    with pytest.raises(ThreadMovedOn):
        await store.append(creation(Scribe.on(store, "e2"), StartRequest(after="e1", after_version=version)))
    append = start("e2", after="e1", after_version=version)
    lease = await store.append(append)
    with pytest.raises(ThreadMovedOn):
        await store.append(start("e3", after="e1", after_version=version))
    second = Scribe.on(store, "e2", thread_id=thread)
    second.execution, second.lease = append.execution, lease
    await second.write(ev.ExecutionFailed(code="x", message="y"))
    with pytest.raises(ThreadMovedOn):
        await store.append(start("e3", after="e1", after_version=version))
    await store.append(start("e3", after="e2", after_version=second.execution.version))


@requirement("store:starts")
async def test_of_many_that_go_on_at_the_same_moment_one_starts(back_end: BackEnd) -> None:
    stores = [back_end.connect() for _ in range(2)]
    first = await create(stores[0], "e1", StartRequest())
    await first.write(ev.ExecutionFailed(code="x", message="y"))
    request = StartRequest(after="e1", after_version=first.execution.version)
    started, refused = list[str](), list[str]()

    async def go_on(number: int) -> None:
        scribe = Scribe.on(stores[number % 2], f"n{number}", thread_id=first.execution.thread_id)
        ended = scribe.append(
            ev.ExecutionCreated(goal="go"), ev.PlanAccepted(plan=PLAN), ev.ExecutionFailed(code="x", message="y")
        )
        try:
            await scribe.store.append(replace(ended, start=request))
            started.append(scribe.execution.execution_id)
        except (ThreadMovedOn, ThreadBusy):
            refused.append(scribe.execution.execution_id)

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(go_on, number)
    assert len(started) == 1 and len(refused) == 11
