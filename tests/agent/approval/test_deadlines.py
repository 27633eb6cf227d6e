"""What time does to a question: silence means what the operator says, reminders fire once, an answer ends both."""

from dataclasses import dataclass
from math import inf, nan

import anyio
import msgspec
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import Schedule
from planwarden.agent.core.execution.thread_effects import list_thread_effects
from planwarden.server.settings.tables import ToolSettings
from tests import kit
from tests.storage.suite import BackEnd
from tests.support.fakes import StoreCall, WatchedStore
from tests.support.wardens import pass_time


def settings(name: str, /, **given: object) -> kit.Settings:
    """The operator lets silence approve calls of this tool."""
    tools = {name: ToolSettings.model_validate({"on_timeout": "approve", **given})}
    return kit.Settings(home=kit.NOWHERE, tools=tools)


@kit.requirement("approval:silence")
@pytest.mark.parametrize(
    ("asked_s", "limit_s", "until_s", "on_timeout"),
    [
        (0.001, 600.0, 600.0, "approve"),
        (None, 600.0, 600.0, "approve"),
        (900, 600.0, 900.0, "reject"),
        (0.001, None, 0.001, "reject"),
        (None, None, None, "approve"),
    ],
)
async def test_a_plan_only_lengthens_the_operators_limit_and_its_own_number_never_approves(
    asked_s: float | None, limit_s: float | None, until_s: float | None, on_timeout: str
) -> None:
    ledger, clock = kit.Ledger(), kit.ManualClock()
    limits = {} if limit_s is None else {"answer_within_s": limit_s}
    arguments: dict[str, JsonValue] = {"action": "Pay everybody?"}
    if asked_s is not None:
        arguments["timeoutSeconds"] = asked_s
    given = settings("displayConfirmation", **limits)
    steps = kit.plan(
        kit.tool_step("ask", "displayConfirmation", arguments, confirms=["pay"]),
        kit.tool_step("pay", "note", {"text": "paid"}),
    )
    async with kit.warden(ledger, store=kit.MemoryStore(clock), settings=given) as w:
        began = clock.now()
        asked = await w.execute_plan(steps)
        [question] = asked.suspensions
        assert question.on_timeout == on_timeout
        until = None if question.expires_at is None else round(question.expires_at.timestamp() - began, 3)
        assert until == until_s
        for seconds, is_over in ((1, False), (1_000, True)):
            assert ledger.lines == []
            await pass_time(w, clock, asked, seconds)
            assert is_over or ledger.lines == []
    assert ledger.lines == (["note paid"] if until_s is not None and on_timeout == "approve" else [])


@kit.requirement("approval:silence")
@pytest.mark.parametrize(
    ("send", "erase", "until_s", "on_timeout"),
    [
        ({"on_timeout": "reject", "answer_within_s": 60}, None, 1, "reject"),
        ({"on_timeout": "approve", "answer_within_s": 60}, None, 60, "approve"),
        ({"on_timeout": "approve", "answer_within_s": 0.5}, None, 1, "approve"),
        # Nobody is ever late with the answer to a question that has no limit.
        ({"on_timeout": "approve"}, None, 1, "reject"),
        ({"on_timeout": "approve", "answer_within_s": 60}, {"answer_within_s": 90}, 90, "approve"),
        ({"on_timeout": "approve", "answer_within_s": 60}, {"on_timeout": "reject"}, 1, "reject"),
        # A call that needs nobody has no say.
        ({"on_timeout": "reject", "answer_within_s": 60, "risk": "read"}, None, 1, "approve"),
    ],
)
async def test_silence_confirms_only_what_silence_would_approve_and_not_before_that(
    send: dict[str, object], erase: dict[str, object] | None, until_s: float, on_timeout: str
) -> None:
    ledger, clock = kit.Ledger(), kit.ManualClock()
    usual = {"risk": "confirm", "on_timeout": "approve"}
    given = {
        "displayConfirmation": {"on_timeout": "approve", "answer_within_s": 1},
        "send": {**usual, **send},
        "erase": {**usual, **(erase or {})},
    }
    tools = {name: ToolSettings.model_validate(values) for name, values in given.items()}
    steps = [kit.tool_step("letter", "send", {"to": "Ann"})]
    steps += [] if erase is None else [kit.tool_step("last", "erase", {"ids": [1]})]
    confirms: JsonValue = [step["id"] for step in steps]
    async with kit.warden(
        ledger,
        tools=[kit.acting("send", ledger.lines)],
        store=kit.MemoryStore(clock),
        settings=kit.Settings(home=kit.NOWHERE, tools=tools),
    ) as w:
        began = clock.now()
        asked = await w.execute_plan(kit.plan(kit.confirm("ask", confirms=confirms), *steps))
        [question] = asked.suspensions
        assert question.expires_at is not None and question.on_timeout == on_timeout
        assert round(question.expires_at.timestamp() - began, 3) == until_s
        await pass_time(w, clock, asked, until_s + 1)
    ran = ["send Ann"] if erase is None else ["send Ann", "erase [1]"]
    assert ledger.lines == (ran if on_timeout == "approve" else [])


@kit.requirement("approval:silence")
async def test_silence_approves_rows_of_a_loop_not_before_the_longest_limit_of_their_tools() -> None:
    ledger, clock = kit.Ledger(), kit.ManualClock()
    limits = {"erase": 60, "note": 90}
    usual = {"risk": "confirm", "on_timeout": "approve"}
    tools = {name: ToolSettings.model_validate({**usual, "answer_within_s": s}) for name, s in limits.items()}
    item: JsonValue = {"$from": "item"}
    step = kit.tool_step("a", "erase", {"ids": [item]}, forEach=[1, 2])
    step["toolCalls"] = [
        {"toolName": "erase", "arguments": {"ids": [item]}},
        {"toolName": "note", "arguments": {"text": "erased"}},
    ]
    settings = kit.Settings(home=kit.NOWHERE, tools=tools)
    async with kit.warden(ledger, store=kit.MemoryStore(clock), settings=settings) as w:
        began = clock.now()
        asked = await w.execute_plan(kit.plan(step))
        [question] = asked.suspensions
        assert question.on_timeout == "approve" and question.expires_at is not None
        assert round(question.expires_at.timestamp() - began) == 90


@kit.requirement("approval:silence")
async def test_a_question_of_a_tool_never_makes_silence_looser_than_its_tool() -> None:
    @planwarden.tool(execution_mode="blocking", effect="read", risk="confirm", timeout_s=600)
    async def ask(seconds: float) -> planwarden.Suspend:
        """Ask."""
        return planwarden.Suspend(message="Pay?", timeout_s=seconds, on_timeout="approve")

    clock = kit.ManualClock()
    async with kit.warden(tools=[ask], store=kit.MemoryStore(clock)) as w:
        for seconds, until_s in ((0.001, 600), (900.0, 900)):
            began = clock.now()
            asked = await w.execute_plan(kit.plan(kit.tool_step("a", "ask", {"seconds": seconds})))
            [question] = asked.suspensions
            assert question.expires_at is not None and question.on_timeout == "reject"
            assert round(question.expires_at.timestamp() - began) == until_s


@kit.requirement("approval:silence", "thread:effects")
async def test_what_silence_let_run_does_not_count_as_approved_by_a_person() -> None:
    ledger, clock = kit.Ledger(), kit.ManualClock()
    given = settings("erase", answer_within_s=60, risk="confirm")
    async with kit.warden(ledger, store=kit.MemoryStore(clock), settings=given) as w:
        asked = await w.execute_plan(kit.plan(kit.tool_step("a", "erase", {"ids": [1]})))
        clock.advance(61)
        await w.service.tick()
        done = await w.service.find(asked.execution_id)
    assert (done.status, ledger.lines) == ("completed", ["erase [1]"])
    assert [effect.is_approved for effect in list_thread_effects(done)] == [False]


@kit.requirement("approval:silence")
@pytest.mark.parametrize("why", ["dangerous", "critical", "another policy"])
async def test_silence_approves_no_call_above_confirm_and_none_under_another_policy(why: str) -> None:
    ledger, clock = kit.Ledger(), kit.ManualClock()
    store, risk = kit.MemoryStore(clock), "confirm" if why == "another policy" else why
    given = settings("erase", answer_within_s=60, risk=risk)
    async with kit.warden(ledger, store=store, settings=given) as w:
        asked = await w.execute_plan(kit.plan(kit.tool_step("a", "erase", {"ids": [1]})))
        assert asked.suspensions[0].on_timeout == ("approve" if risk == "confirm" else "reject")
    changed = kit.governed(facts={"changed": True}).policy if risk == "confirm" else given.policy
    async with kit.warden(ledger, store=store, settings=msgspec.structs.replace(given, policy=changed)) as w:
        clock.advance(61)
        await w.service.tick()
        done = await w.get_execution(asked.thread_id)
    assert (done.status, ledger.lines) == ("rejected", [])


@kit.requirement("approval:silence")
@pytest.mark.parametrize("seconds", [0, -1, inf, nan])
async def test_a_tool_whose_question_has_no_usable_limit_fails_with_a_sentence(seconds: float) -> None:
    @planwarden.tool(execution_mode="blocking", effect="read", risk="confirm")
    async def ask() -> planwarden.Suspend:
        """Ask."""
        return planwarden.Suspend(message="Pay?", timeout_s=seconds)

    async with kit.warden(tools=[ask]) as w:
        done = await w.execute_plan(kit.plan(kit.tool_step("a", "ask")))
    error = done.steps[0].error
    assert done.status == "failed" and error is not None and "a limit is more than 0 and at most" in error.message


@kit.requirement("approval:silence")
async def test_what_was_revised_is_never_approved_by_silence() -> None:
    ledger, clock = kit.Ledger(), kit.ManualClock()
    given = settings("erase", answer_within_s=60, risk="confirm")
    async with kit.warden(ledger, store=kit.MemoryStore(clock), settings=given) as w:
        asked = await w.execute_plan(kit.plan(kit.tool_step("a", "erase", {"ids": [1]})))
        edit = planwarden.Decision(approved=True, modified_args={"ids": [2]})
        edited = await kit.decide(w, asked, edit, kit.by("local", "claimed"))
        assert [view.suspensions[0].on_timeout for view in (asked, edited)] == ["approve", "reject"]
        done = await pass_time(w, clock, asked, 61)
    assert (done.status, ledger.lines) == ("rejected", [])


@kit.requirement("gate:renews")
@pytest.mark.parametrize(
    ("passed_s", "on_timeout", "left_s"), [(299, "reject", 301), (301, "reject", 600), (301, "approve", 299)]
)
async def test_identical_call_gives_a_question_its_time_again_once_half_of_it_is_over(
    passed_s: float, on_timeout: str, left_s: float
) -> None:
    clock = kit.ManualClock()
    given = settings("erase", answer_within_s=600, risk="confirm", on_timeout=on_timeout)
    async with kit.warden(kit.Ledger(), store=kit.MemoryStore(clock), settings=given) as w:
        asked = await w.execute_plan(kit.plan(kit.tool_step("a", "erase", {"ids": [1]})))
        clock.advance(passed_s)
        asked_state = await w.service.find(asked.execution_id)
        once = await w.service.renew(asked_state, asked.suspensions[0].suspension_id)
        renewed = await w.service.renew(once, asked.suspensions[0].suspension_id)
        question = renewed.open_suspensions[0].question
        assert question.expires_at is not None and question.expires_at - clock.now() == left_s
        assert question.revision == 1 + (left_s == 600)
        clock.advance(left_s)
        assert (await w.service.renew(renewed, question.suspension_id)).version == renewed.version


def policy(
    *remind_after_s: float, escalate_after_s: float | None = None, to: tuple[str, ...] = ("bob",)
) -> kit.Settings:
    schedule = Schedule(
        remind_after_s=remind_after_s,
        escalate_after_s=escalate_after_s,
        escalate_to=() if escalate_after_s is None else to,
    )
    return kit.governed(default_schedule=schedule)


@dataclass
class Asked:
    """One open question in a warden, and how its time goes by."""

    warden: planwarden.Warden
    clock: kit.ManualClock
    thread_id: str
    suspension_id: str

    @classmethod
    async def by(cls, warden: planwarden.Warden, clock: kit.ManualClock, *steps: dict[str, JsonValue]) -> "Asked":
        execution = await warden.execute_plan(kit.plan(*(steps or (kit.tool_step("a", "erase", {"ids": [1]}),))))
        return cls(warden, clock, execution.thread_id, execution.suspensions[0].suspension_id)

    async def after(self, seconds: float) -> list[tuple[int, str]]:
        """Everything that fired when so much more time has passed."""
        self.clock.advance(seconds)
        await self.warden.service.tick()
        return await self.fired()

    async def fired(self) -> list[tuple[int, str]]:
        store = self.warden.service.store
        [header] = await store.thread(self.thread_id)
        events = [entry.event for entry in await store.read(header.execution_id)]
        return [(event.number, event.kind) for event in events if isinstance(event, ev.SuspensionReminded)]

    async def approve(self) -> planwarden.Execution:
        return await kit.decide(self.warden, (self.thread_id, self.suspension_id), kit.YES, kit.by(), principal="local")


@kit.requirement("alarm:once")
async def test_reminders_and_the_escalation_fire_once_each_and_change_nothing_of_the_question() -> None:
    clock = kit.ManualClock()
    settings = policy(300, 1200, escalate_after_s=1800)
    async with kit.warden(kit.Ledger(), store=kit.MemoryStore(clock), settings=settings) as w:
        asked = await Asked.by(w, clock)
        [shown] = (await w.get_execution(asked.thread_id)).suspensions
        assert await asked.after(299) == []
        assert await asked.after(1) == await asked.after(0) == [(1, "remind")]
        assert await asked.after(900) == [(1, "remind"), (2, "remind")]
        assert await asked.after(600) == [(1, "remind"), (2, "remind"), (3, "escalate")]
        assert len(await asked.after(1e6)) == 3
        view = await w.get_execution(asked.thread_id, observations_after=0)
        rows = (await kit.read_audit_page(w.service.store, thread_id=asked.thread_id)).rows
        done = await asked.approve()
    reminders = [seen for seen in view.observations or () if seen.type == "AGENT_SUSPENDED" and "reminder" in seen.data]
    assert [seen.data["reminder"] for seen in reminders] == [
        {"number": 1, "kind": "remind", "to": []},
        {"number": 2, "kind": "remind", "to": []},
        {"number": 3, "kind": "escalate", "to": ["bob"]},
    ]
    assert [row.kind for row in rows] == ["asked", "reminded", "reminded", "escalated"]
    assert rows[-1].facts["to"] == ["bob"] and view.suspensions[0].digest == shown.digest
    assert done.status == "completed"


@kit.requirement("alarm:once")
@pytest.mark.parametrize(
    ("remind", "escalate", "down_s", "fired"),
    [
        ((60, 120, 180), None, 150, [(2, "remind")]),
        ((60, 120, 180), None, 500, [(3, "remind")]),
        ((60, 120), 180, 500, [(3, "escalate")]),
        ((60, 180), 120, 500, [(3, "escalate")]),
        ((60, 180), 120, 130, [(2, "escalate")]),
    ],
)
async def test_what_was_missed_while_nobody_was_there_fires_as_one(
    remind: tuple[float, ...], escalate: float | None, down_s: float, fired: list[tuple[int, str]]
) -> None:
    clock, settings = kit.ManualClock(), policy(*remind, escalate_after_s=escalate)
    store = kit.MemoryStore(clock)
    async with kit.warden(kit.Ledger(), store=store, settings=settings) as w:
        before = await Asked.by(w, clock)
    async with kit.warden(kit.Ledger(), store=store, settings=settings) as w:
        asked = Asked(w, clock, before.thread_id, before.suspension_id)
        assert await asked.after(down_s) == await asked.after(0) == fired
        assert len(await asked.after(1000)) == (2 if fired[0][0] < len(remind) + (escalate is not None) else 1)


@kit.requirement("alarm:once", "race:decision")
@pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("first", "second"), [("decision", "reminder"), ("reminder", "decision"), ("reminder", "reminder")]
)
async def test_a_decision_silences_a_reminder_that_comes_second_and_a_reminder_turns_no_decision_away(
    back_end: BackEnd, first: str, second: str
) -> None:
    clock, settings, ledger = back_end.clock, policy(60), kit.Ledger()
    held, go = anyio.Event(), anyio.Event()

    def store_of(what: str, *, is_second: bool) -> WatchedStore:
        async def hook(moment: StoreCall) -> None:
            if what == "decision" and moment.call == "due":
                # The person's process never gets to look for what is due.
                await anyio.sleep_forever()
            is_late = (moment.call, moment.when) == ("append", "before") and clock.now() > began
            if is_second and is_late and not held.is_set():
                held.set()
                await go.wait()

        return WatchedStore(back_end.connect(), hook)

    async def act(w: planwarden.Warden, what: str) -> None:
        own = Asked(w, clock, asked.thread_id, asked.suspension_id)
        await (own.approve() if what == "decision" else w.service.tick())

    began = clock.now()
    async with (
        kit.warden(ledger, store=store_of(first, is_second=False), settings=settings) as winner,
        kit.warden(ledger, store=store_of(second, is_second=True), settings=settings) as loser,
    ):
        asked = await Asked.by(winner, clock)
        clock.advance(60)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(act, loser, second)
            await held.wait()
            await act(winner, first)
            go.set()
        assert await asked.fired() == ([] if first == "decision" else [(1, "remind")])
        done = await winner.get_execution(asked.thread_id)
    is_decided = "decision" in (first, second)
    assert done.status == ("completed" if is_decided else "suspended")
    assert ledger.lines == (["erase [1]"] if is_decided else [])
