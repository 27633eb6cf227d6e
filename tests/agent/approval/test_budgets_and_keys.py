"""What a call takes before it runs: its business key, once over all plans, and its share of each budget of its rule."""

from collections.abc import Collection
from contextlib import suppress

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.business_keys import MissingKey, build_once_key
from planwarden.agent.common.errors import DuplicateEffect, OutcomeUnknown, StaleDefinition, ToolError
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.ports.budgets_and_keys import HeldKey
from planwarden.agent.ports.policy import OnceRule
from planwarden.server.settings.rules import build_rule_book
from tests import kit
from tests.support.wardens import pass_time

DAY_S = 86_400
RULE = OnceRule(("/payment_id",), 90.0 * DAY_S)
ONCE = kit.governed(once={"refund": RULE, "pay": RULE})
SUM: dict[str, JsonValue] = {"sum": "amount", "limit": 500, "per": "day"}
COUNT: dict[str, JsonValue] = {"count": 2, "per": "hour"}
HAPPENED_NOT = kit.Decision(approved=True, content={"happened": False})


def limited(
    *budgets: dict[str, JsonValue], tool: str = "refund", before: tuple[JsonValue, ...] = (), **policy: object
) -> kit.Settings:
    """Calls of the tool pass within these budgets, if no rule before says something else."""
    rule: JsonValue = {"tool": tool, "then": "allow", "budget": [*budgets], "because": "small ones"}
    rules = [*before, rule]
    return kit.governed(rules=build_rule_book(rules), facts={"rules": rules}, **policy)


class Till:
    """`refund` asks a person, `pay` does not; both fail as they are told, and keep a ledger."""

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
        async def refund(payment_id: str | float | None = None, amount: float = 1) -> str:
            """Pay money back."""
            return self.happen(f"refund {payment_id or f'{amount:g}'}")

        @planwarden.tool(risk="read", effect="effect")
        async def pay(payment_id: str | float | None = None, amount: float = 1) -> str:
            """Pay."""
            return self.happen(f"pay {payment_id}")

        return [refund, pay]


def call(tool: str, **arguments: JsonValue) -> dict[str, JsonValue]:
    return kit.plan(kit.tool_step("a", tool, arguments))


async def run(w: planwarden.Warden, *amounts: float) -> list[str]:
    return [(await w.execute_plan(call("refund", amount=amount))).status for amount in amounts]


async def forget(store: kit.MemoryStore) -> None:
    [key] = await store.list_once("pay", 10)
    await store.forget_once_key(key.key, AuditEntry(kind="once_forgotten", facts={}))


@kit.requirement("rules:once")
async def test_a_second_call_is_refused_before_anybody_is_asked() -> None:
    till, store = Till(), kit.MemoryStore(kit.ManualClock())
    async with kit.warden(tools=till.tools(), store=store, settings=ONCE) as w:
        # A rehearsal takes no key.
        await w.execute_plan(call("pay", payment_id="p-7"), options={"rehearse": True})
        assert await store.list_once(None, 10) == ()
        first = await kit.decide(w, await w.execute_plan(call("refund", payment_id="p-7")))
        second = await w.execute_plan(call("refund", payment_id="p-7", amount=5))
        other = await w.execute_plan(call("refund", payment_id="p-8"))
        theirs = await w.execute_plan(call("refund", payment_id="p-7"), principal="zoe")
    assert (first.status, second.status, other.status) == ("completed", "failed", "suspended")
    assert till.ledger == ["refund p-7"] and not second.suspensions
    error = second.steps[0].error
    assert error is not None and error.code == "duplicate_effect"
    forget_it = """planwarden once forget refund --key 'payment_id="p-7"'"""
    for part in (first.execution_id, "'a:1'", "'local'", 'payment_id = "p-7"', forget_it):
        assert part in error.message
    # Another principal is told that the key is used, and nothing more.
    error = theirs.steps[0].error
    assert error is not None and error.message.startswith(
        'refund failed: refund was called for payment_id = "p-7" before. It happens once, so nothing'
    )


@kit.requirement("rules:once", "plan:forecast")
async def test_a_forecast_says_which_calls_would_be_refused_because_another_one_has_their_key() -> None:
    case: JsonValue = {"value": {"$from": "inputs", "pointer": "/n"}, "matches": {"minimum": 2}}
    p9: dict[str, JsonValue] = {"payment_id": "p-9"}
    steps = [
        kit.tool_step("a", "pay", {"payment_id": "p-7"}),
        kit.tool_step("b", "pay", {"payment_id": "p-8"}),
        kit.tool_step("c", "pay", {"payment_id": "p-8", "amount": 2}),
        kit.tool_step("d", "pay", p9, when=case),
        kit.tool_step("e", "pay", p9),
    ]
    till, store = Till(), kit.MemoryStore(kit.ManualClock())
    plan: dict[str, JsonValue] = {"inputs": {"properties": {"n": {}}, "required": ["n"]}, **kit.plan(*steps)}
    async with kit.warden(tools=till.tools(), store=store, settings=ONCE) as w:
        await w.execute_plan(call("pay", payment_id="p-7"))
        forecast = await w.service.forecast_plan(plan, principal="local")
        assert [held.holder for held in await store.list_once(None, 10)] and till.ledger == ["pay p-7"]
    assert [call.step_id for call in forecast.impossible] == ["a", "c"]
    assert "pay was called for payment_id = \"p-7\" before: call 'a:1'" in forecast.impossible[0].why
    assert "pay happens once per /payment_id, and step 'b' makes the same call before" == forecast.impossible[1].why


@kit.requirement("rules:once")
async def test_of_two_open_questions_on_one_key_the_second_approval_is_refused() -> None:
    till = Till()
    async with kit.warden(tools=till.tools(), settings=ONCE) as w:
        asked = [await w.execute_plan(call("refund", payment_id="p-7")) for _ in range(2)]
        assert (await kit.decide(w, asked[0])).status == "completed"
        for _ in range(2):
            # The same answer again is answered the same.
            with pytest.raises(DuplicateEffect, match="was called for payment_id"):
                await kit.decide(w, asked[1])
        failed = await w.get_execution(asked[1].thread_id)
    assert kit.statuses(failed) == {"a": "failed"} and till.ledger == ["refund p-7"]


class FastClock(kit.MemoryStore):
    """The store of a process by whose clock every key is free, which is not what its database says."""

    async def find_once(self, keys: Collection[str]) -> tuple[HeldKey, ...]:
        return ()


@kit.requirement("rules:once")
async def test_a_key_that_the_database_alone_knows_to_be_held_is_refused_in_the_words_of_any_other() -> None:
    till = Till()
    async with kit.warden(tools=till.tools(), store=FastClock(), settings=ONCE) as w:
        first, second = [await w.execute_plan(call("pay", payment_id="p-7")) for _ in range(2)]
    error = second.steps[0].error
    assert error is not None and error.code == "duplicate_effect" and first.execution_id in error.message
    assert till.ledger == ["pay p-7"]


@kit.requirement("rules:once")
def test_numbers_are_equal_by_value_and_never_equal_text() -> None:
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


@kit.requirement("rules:once")
async def test_a_call_without_its_key_asks() -> None:
    till = Till()
    async with kit.warden(tools=till.tools(), settings=ONCE) as w:
        asked = [await w.execute_plan(call("pay")) for _ in range(2)]
        [question] = asked[0].suspensions
        assert question.needs == "human" and any("nothing at /payment_id" in found for found in question.found)
        assert [(await kit.decide(w, each)).status for each in asked] == ["completed"] * 2
    assert till.ledger == ["pay None"] * 2


@kit.requirement("rules:once", "rules:budget")
@pytest.mark.parametrize(
    ("fault", "comes_back"),
    [
        (ToolError("busy", retryable=True), True),
        (ToolError("refused"), False),
        (RuntimeError("broke"), False),
        (OutcomeUnknown("lost"), False),
    ],
    ids=["nothing happened", "failed", "raised", "unknown"],
)
async def test_a_failed_call_gives_its_key_and_its_share_back_only_if_nothing_happened(
    store: kit.Store, fault: Exception, comes_back: bool
) -> None:
    till = Till(fault, *([None] * comes_back), fault)
    settings = limited(SUM, once={"pay": RULE})
    async with kit.warden(tools=till.tools(), store=store, settings=settings) as w:
        await w.execute_plan(call("pay", payment_id="p-7"))
        again = await w.execute_plan(call("pay", payment_id="p-7"))
        assert again.status == ("completed" if comes_back else "failed") and len(till.ledger) == comes_back
        _, last = await run(w, 500, 500)
    assert last == ("completed" if comes_back else "suspended") and len(till.ledger) == 2 * comes_back


@kit.requirement("rules:once")
async def test_a_call_that_failed_and_is_made_again_has_its_key_each_time() -> None:
    till, clock = Till(ToolError("busy", retryable=True)), kit.ManualClock()
    step = kit.tool_step("a", "pay", {"payment_id": "p-7"}, retry={"attempts": 2, "delayS": 60})
    async with kit.warden(tools=till.tools(), store=kit.MemoryStore(clock), settings=ONCE) as w:
        waiting = await w.execute_plan(kit.plan(step))
        assert (await w.execute_plan(call("pay", payment_id="p-7"))).status == "completed"
        done = await pass_time(w, clock, waiting, 61)
    assert done.error is not None and done.error.code == "duplicate_effect" and till.ledger == ["pay p-7"]


@kit.requirement("rules:once")
@pytest.mark.parametrize("is_taken", [False, True], ids=["it has its key", "another one has it by now"])
async def test_a_lost_call_runs_again_only_while_it_has_its_key(is_taken: bool) -> None:
    till, store = Till(OutcomeUnknown("lost")), kit.MemoryStore()
    async with kit.warden(tools=till.tools(), store=store, settings=ONCE) as w:
        lost = await w.execute_plan(call("pay", payment_id="p-7"))
        if is_taken:
            await forget(store)
            await w.execute_plan(call("pay", payment_id="p-7"))
            with pytest.raises(DuplicateEffect):
                await kit.decide(w, lost, HAPPENED_NOT)
        else:
            await kit.decide(w, lost, HAPPENED_NOT)
            assert (await w.execute_plan(call("pay", payment_id="p-7"))).status == "failed"
        done = await w.get_execution(lost.thread_id)
    assert (done.status, till.ledger) == ("failed" if is_taken else "completed", ["pay p-7"])


@kit.requirement("rules:once")
async def test_a_retry_takes_the_call_over_and_may_go_on_with_its_key() -> None:
    till = Till(OutcomeUnknown("lost"), OutcomeUnknown("lost again"))
    async with kit.warden(tools=till.tools(), settings=ONCE) as w:
        lost = await w.execute_plan(call("pay", payment_id="p-7"))
        for status in ("suspended", "completed"):
            await w.cancel_execution(lost.thread_id)
            lost = await kit.decide(w, await w.retry(lost.thread_id), HAPPENED_NOT)
            assert lost.status == status
        # One that runs the same call again is another call.
        fork = await w.retry(lost.thread_id, from_step="a")
    assert fork.error is not None and fork.error.code == "duplicate_effect" and till.ledger == ["pay p-7"]


@kit.requirement("rules:once")
async def test_a_loop_calls_for_each_key_once_and_asks_only_about_those() -> None:
    till = Till()
    ids: JsonValue = ["p-1", "p-2", "p-1", "p-3", "p-2"]

    def loop(tool: str) -> dict[str, JsonValue]:
        item: JsonValue = {"payment_id": {"$from": "item"}}
        return kit.plan(kit.tool_step("a", tool, item, forEach=ids, maxConcurrent=5, onItemFailure="continue"))

    async with kit.warden(tools=till.tools(), settings=ONCE) as w:
        await kit.decide(w, await w.execute_plan(call("refund", payment_id="p-3")))
        asked = await w.execute_plan(loop("refund"))
        [question] = asked.suspensions
        assert [(row.arguments or {})["payment_id"] for row in question.calls] == ["p-1", "p-2"]
        await kit.decide(w, asked)
        await w.execute_plan(loop("pay"))
    assert sorted(till.ledger) == ["pay p-1", "pay p-2", "pay p-3", "refund p-1", "refund p-2", "refund p-3"]


@kit.requirement("rules:budget")
async def test_calls_pass_until_a_budget_is_spent_and_then_ask_also_if_they_only_read() -> None:
    till, clock = Till(), kit.ManualClock()
    async with kit.warden(tools=till.tools(), store=kit.MemoryStore(clock), settings=limited(SUM)) as w:
        assert await run(w, 400, 200, 100) == ["completed", "suspended", "completed"]
        asked = await w.execute_plan(call("refund", amount=1))
        [question] = asked.suspensions
        [found] = [sentence for sentence in question.found if "operator's rule" in sentence]
        assert question.needs == "human"
        assert "500 in 24 hours; 0 is left, and this call takes 1. The budget has room again at 20" in found
        # What a person approves takes nothing of it.
        assert (await kit.decide(w, asked)).status == "completed"
        clock.advance(DAY_S)
        assert await run(w, 500, 0.5) == ["completed", "suspended"]
    async with kit.warden(tools=till.tools(), settings=limited(SUM, COUNT, tool="pay")) as w:
        ended = [(await w.execute_plan(call("pay", amount=1))).status for _ in range(3)]
    assert ended == ["completed", "completed", "suspended"]
    assert till.ledger == ["refund 400", "refund 100", "refund 1", "refund 500", "pay None", "pay None"]


@kit.requirement("rules:budget")
async def test_a_lost_call_that_did_not_happen_and_must_not_run_gives_its_share_back() -> None:
    till, store = Till(OutcomeUnknown("lost")), kit.MemoryStore()
    async with kit.warden(tools=till.tools(), store=store, settings=limited(SUM)) as w:
        lost = await w.execute_plan(call("refund", amount=500))
    deny: JsonValue = {"tool": "refund", "when": {"amount": {"min": 500}}, "then": "deny", "because": "too much"}
    async with kit.warden(tools=till.tools(), store=store, settings=limited(SUM, before=(deny,))) as w:
        for _ in range(2):
            # The first answer was given under a policy that did not know the call yet.
            open_now = await w.get_execution(lost.thread_id)
            with suppress(StaleDefinition):
                await kit.decide(w, open_now, HAPPENED_NOT)
        ended = await w.get_execution(lost.thread_id)
        assert ended.error is not None and ended.error.code == "denied"
        assert await run(w, 499) == ["completed"]
    assert till.ledger == ["refund 499"]
