"""Once per business key: a second call is refused before anybody is asked, in whatever plan, retry or fork."""

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.once import MissingKey, build_once_key
from planwarden.agent.common.errors import DuplicateEffect, OutcomeUnknown, ToolError
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.requester import Requester
from planwarden.agent.ports.policy import OnceRule
from tests.kit import Decision, ManualClock, MemoryStore, decide, governed, requirement
from tests.support.wardens import calls, model_step, pass_time, plan, says, statuses, tool_step, warden

pytestmark = pytest.mark.anyio

RULE = OnceRule(("/payment_id",), 90 * 86_400.0)
ONCE = governed(once={"refund": RULE, "pay": RULE})
HAPPENED_NOT = Decision(approved=True, content={"happened": False})


class Till:
    """`refund` asks a person, `pay` does not; both keep a ledger and fail as they are told."""

    def __init__(self, *faults: Exception | None) -> None:
        self.ledger: list[str] = []
        self.faults = list(faults)

    def happen(self, line: str) -> str:
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        self.ledger.append(line)
        return line

    def tools(self) -> list[object]:
        @planwarden.tool()
        async def refund(payment_id: str | float | None = None, amount: int = 1) -> str:
            """Pay money back."""
            return self.happen(f"refund {payment_id}")

        @planwarden.tool(risk="read", effect="effect")
        async def pay(payment_id: str | float | None = None) -> str:
            """Pay."""
            return self.happen(f"pay {payment_id}")

        return [refund, pay]


def call(tool: str, **arguments: JsonValue) -> dict[str, JsonValue]:
    return plan(tool_step("a", tool, arguments))


async def forget(store: MemoryStore) -> None:
    """Free the only key of `pay`, as the operator does."""
    [key] = await store.list_once("pay", 10)
    await store.forget_once(key.key, AuditEntry(kind="once_forgotten", facts={}))


@requirement("rules:once")
async def test_a_second_call_is_refused_before_anybody_is_asked() -> None:
    till, store = Till(), MemoryStore(ManualClock())
    async with warden(tools=till.tools(), store=store, settings=ONCE) as w:
        first = await decide(w, await w.execute_plan(call("refund", payment_id="p-7")))
        second = await w.execute_plan(call("refund", payment_id="p-7", amount=5))
        other = await w.execute_plan(call("refund", payment_id="p-8"))
        theirs = await w.service.execute_plan(call("refund", payment_id="p-7"), requester=Requester("zoe"))
    assert (first.status, second.status, other.status) == ("completed", "failed", "suspended")
    assert till.ledger == ["refund p-7"] and not second.suspensions
    assert second.error is not None and second.error.code == "duplicate_effect"
    [step] = second.steps
    assert step.error is not None and step.error.code == "duplicate_effect"
    for part in (first.execution_id, "'a:1'", "'local'", 'payment_id = "p-7"'):
        assert part in step.error.message
    assert """planwarden once forget refund --key 'payment_id="p-7"'""" in step.error.message
    # Another principal is told that the key is used, and nothing more.
    [step] = theirs.steps
    assert step.error is not None and step.error.message.startswith(
        'refund failed: refund was called for payment_id = "p-7" before. It happens once, so nothing'
    )


@requirement("rules:once")
async def test_of_two_open_questions_on_one_key_the_second_approval_is_refused() -> None:
    till = Till()
    async with warden(tools=till.tools(), settings=ONCE) as w:
        asked = [await w.execute_plan(call("refund", payment_id="p-7")) for _ in range(2)]
        assert (await decide(w, asked[0])).status == "completed"
        for _ in range(2):
            # The same answer again is answered the same.
            with pytest.raises(DuplicateEffect, match="was called for payment_id"):
                await decide(w, asked[1])
        failed = await w.get_execution(asked[1].thread_id)
    assert (failed.status, statuses(failed)) == ("failed", {"a": "failed"})
    assert failed.error is not None and failed.error.code == "duplicate_effect" and till.ledger == ["refund p-7"]


@requirement("rules:once")
async def test_a_model_reads_that_its_call_was_made_before() -> None:
    till = Till()
    script = [calls(("pay", {"payment_id": "p-7"}), ("pay", {"payment_id": "p-7"})), says("paid once")]
    async with warden(tools=till.tools(), settings=ONCE, script=script) as w:
        done = await w.execute_plan(plan(model_step("a", "pay")))
    [step] = done.steps
    assert done.status == "completed" and till.ledger == ["pay p-7"]
    assert [found.error.code if found.error else None for found in step.actual_tool_calls] == [None, "duplicate_effect"]


@requirement("rules:once")
async def test_numbers_are_equal_by_value_and_never_equal_text() -> None:
    def key(value: JsonValue) -> str:
        return build_once_key(RULE, "pay", {"payment_id": value}).key

    assert key(1) == key(1.0) != key("1") and key(-0.0) == key(0) and key(2**53) == key(float(2**53))
    different: list[JsonValue] = [1, True, "1", [1], {"a": 1}, 1.5, "1.0", ""]
    assert len({key(value) for value in different}) == len(different)
    assert key([1.0, {"a": 2.0}]) == key([1, {"a": 2}])
    assert build_once_key(RULE, "refund", {"payment_id": 1}).key != key(1)
    nested = OnceRule(("/payment/id", "/lines/0"), 1.0)
    arguments: dict[str, JsonValue] = {"payment": {"id": 1}, "lines": [2], "x": 3}
    assert build_once_key(nested, "pay", arguments).values == {"/payment/id": 1, "/lines/0": 2}
    long = build_once_key(RULE, "pay", {"payment_id": "x" * 10_000})
    assert len(str(long.values)) < 300 and long.key != key("x" * 9_999)
    for lacking in ({}, {"payment_id": None}, {"payment": 1}):
        with pytest.raises(MissingKey):
            build_once_key(RULE, "pay", lacking)


@requirement("rules:once")
async def test_a_call_without_its_key_asks() -> None:
    till = Till()
    async with warden(tools=till.tools(), settings=ONCE) as w:
        asked = [await w.execute_plan(call("pay")) for _ in range(2)]
        [question] = asked[0].suspensions
        assert question.needs == "human" and any("nothing at /payment_id" in found for found in question.found)
        assert [(await decide(w, each)).status for each in asked] == ["completed"] * 2
    assert till.ledger == ["pay None"] * 2


@requirement("rules:once")
@pytest.mark.parametrize(
    ("fault", "again"),
    [
        (ToolError("busy", retryable=True), "completed"),
        (ToolError("refused"), "failed"),
        (RuntimeError("broke"), "failed"),
        (OutcomeUnknown("lost"), "failed"),
    ],
    ids=["nothing happened", "failed", "raised", "unknown"],
)
async def test_a_failed_call_frees_its_key_only_if_nothing_happened(fault: Exception, again: str) -> None:
    till = Till(fault)
    async with warden(tools=till.tools(), settings=ONCE) as w:
        first = await w.execute_plan(call("pay", payment_id="p-7"))
        assert first.status in ("failed", "suspended") and not till.ledger
        second = await w.execute_plan(call("pay", payment_id="p-7"))
    assert second.status == again and len(till.ledger) == (again == "completed")


@requirement("rules:once")
async def test_a_call_that_failed_and_is_made_again_has_its_key_each_time() -> None:
    till, clock = Till(ToolError("busy", retryable=True)), ManualClock()
    step = tool_step("a", "pay", {"payment_id": "p-7"}, retry={"attempts": 2, "delayS": 60})
    async with warden(tools=till.tools(), store=MemoryStore(clock), settings=ONCE) as w:
        waiting = await w.execute_plan(plan(step))
        assert waiting.status == "suspended"
        assert (await w.execute_plan(call("pay", payment_id="p-7"))).status == "completed"
        done = await pass_time(w, clock, waiting, 61)
    assert done.error is not None and done.error.code == "duplicate_effect" and till.ledger == ["pay p-7"]


@requirement("rules:once")
async def test_what_a_person_says_did_not_happen_runs_again_and_keeps_its_key() -> None:
    till = Till(OutcomeUnknown("lost"))
    async with warden(tools=till.tools(), settings=ONCE) as w:
        lost = await w.execute_plan(call("pay", payment_id="p-7"))
        assert [question.kind for question in lost.suspensions] == ["reconcile"]
        done = await decide(w, lost, HAPPENED_NOT)
        again = await w.execute_plan(call("pay", payment_id="p-7"))
    assert (done.status, again.status, till.ledger) == ("completed", "failed", ["pay p-7"])


@requirement("rules:once")
async def test_a_lost_call_whose_key_another_one_has_by_now_does_not_run_again() -> None:
    till, store = Till(OutcomeUnknown("lost")), MemoryStore()
    async with warden(tools=till.tools(), store=store, settings=ONCE) as w:
        lost = await w.execute_plan(call("pay", payment_id="p-7"))
        await forget(store)
        assert (await w.execute_plan(call("pay", payment_id="p-7"))).status == "completed"
        with pytest.raises(DuplicateEffect):
            await decide(w, lost, HAPPENED_NOT)
        assert (await w.get_execution(lost.thread_id)).status == "failed"
    assert till.ledger == ["pay p-7"]


@requirement("rules:once")
async def test_a_retry_takes_the_call_over_and_may_go_on_with_its_key() -> None:
    till = Till(OutcomeUnknown("lost"), OutcomeUnknown("lost again"))
    async with warden(tools=till.tools(), settings=ONCE) as w:
        lost = await w.execute_plan(call("pay", payment_id="p-7"))
        for status in ("suspended", "completed"):
            await w.cancel_execution(lost.thread_id)
            lost = await w.retry(lost.thread_id)
            assert [question.kind for question in lost.suspensions] == ["reconcile"]
            lost = await decide(w, lost, HAPPENED_NOT)
            assert lost.status == status
        assert till.ledger == ["pay p-7"]
        # One that runs the same call again is another call.
        fork = await w.retry(lost.thread_id, from_step="a")
        assert (fork.status, fork.error and fork.error.code) == ("failed", "duplicate_effect")
    assert till.ledger == ["pay p-7"]


@requirement("rules:once")
async def test_a_loop_calls_for_each_key_once_and_asks_only_about_those() -> None:
    till = Till()
    ids: JsonValue = ["p-1", "p-2", "p-1", "p-3", "p-2"]

    def loop(tool: str) -> dict[str, JsonValue]:
        item: JsonValue = {"payment_id": {"$from": "item"}}
        return plan(tool_step("a", tool, item, forEach=ids, maxConcurrent=5, onItemFailure="continue"))

    async with warden(tools=till.tools(), settings=ONCE) as w:
        await decide(w, await w.execute_plan(call("refund", payment_id="p-3")))
        asked = await w.execute_plan(loop("refund"))
        [question] = asked.suspensions
        assert [(row.arguments or {})["payment_id"] for row in question.calls] == ["p-1", "p-2"]
        await decide(w, asked)
        await w.execute_plan(loop("pay"))
    assert sorted(till.ledger) == ["pay p-1", "pay p-2", "pay p-3", "refund p-1", "refund p-2", "refund p-3"]


@requirement("rules:once")
async def test_a_freed_key_lets_the_retry_pass_and_a_rehearsal_takes_none() -> None:
    till, store = Till(), MemoryStore()
    async with warden(tools=till.tools(), store=store, settings=ONCE) as w:
        await w.execute_plan(call("pay", payment_id="p-7"), options={"rehearse": True})
        assert await store.list_once(None, 10) == ()
        await w.execute_plan(call("pay", payment_id="p-7"))
        refused = await w.execute_plan(call("pay", payment_id="p-7"))
        await forget(store)
        assert (await w.retry(refused.thread_id)).status == "completed"
    assert till.ledger == ["pay p-7"] * 2
