"""Reminders and escalations: fixed when the question is asked, fired once, silent after the answer."""

from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from pydantic import JsonValue

import planwarden
from planwarden.agent.core import events as ev
from planwarden.agent.core.alarms import Schedule
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.memory import MemoryStore
from tests.kit import YES, Ledger, PausingTool, by, confirm, decide, governed, plan, requirement, tool_step, warden
from tests.storage.suite import BackEnd
from tests.support.fakes import StoreCall, WatchedStore

pytestmark = pytest.mark.anyio

of_two_processes = pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
"""The race is decided by the store, whose laws every kind of store keeps."""


def policy(*remind_after_s: float, escalate_after_s: float | None = None, to: tuple[str, ...] = ("bob",)) -> Settings:
    schedule = Schedule(
        remind_after_s=remind_after_s,
        escalate_after_s=escalate_after_s,
        escalate_to=() if escalate_after_s is None else to,
    )
    return governed(default_schedule=schedule)


@dataclass
class Asked:
    """One open question in a warden, and how its time goes by."""

    warden: planwarden.Warden
    clock: ManualClock
    thread_id: str
    suspension_id: str

    @classmethod
    async def by(cls, warden: planwarden.Warden, clock: ManualClock, *steps: dict[str, JsonValue]) -> "Asked":
        execution = await warden.execute_plan(plan(*(steps or (tool_step("a", "erase", {"ids": [1]}),))))
        return cls(warden, clock, execution.thread_id, execution.suspensions[0].suspension_id)

    async def after(self, seconds: float) -> list[tuple[int, str]]:
        """Everything that fired when so much more time has passed."""
        self.clock.advance(seconds)
        await self.warden.service.engine.tick()
        return await self.fired()

    async def fired(self) -> list[tuple[int, str]]:
        store = self.warden.service.engine.store
        [header] = await store.thread(self.thread_id)
        events = [entry.event for entry in await store.read(header.execution_id)]
        return [(event.number, event.kind) for event in events if isinstance(event, ev.SuspensionReminded)]

    async def approve(self) -> planwarden.Execution:
        return await self.warden.service.answer(self.thread_id, self.suspension_id, YES, by(), principal="local")


@requirement("alarm:once")
async def test_reminders_and_the_escalation_fire_once_each_before_the_time_out() -> None:
    clock = ManualClock()
    settings = policy(300, 1200, escalate_after_s=1800)
    async with warden(Ledger(), store=MemoryStore(clock), settings=settings) as w:
        asked = await Asked.by(w, clock)
        assert await asked.after(299) == []
        assert await asked.after(1) == await asked.after(0) == [(1, "remind")]
        assert await asked.after(900) == [(1, "remind"), (2, "remind")]
        assert await asked.after(600) == [(1, "remind"), (2, "remind"), (3, "escalate")]
        assert len(await asked.after(1e6)) == 3
        view = await w.get_execution(asked.thread_id, observations_after=0)
        rows = (await w.service.audit.read_page(thread_id=asked.thread_id)).rows
        done = await asked.approve()
        verdict = await w.service.audit.verify()
    reminders = [seen for seen in view.observations or () if seen.type == "AGENT_SUSPENDED" and "reminder" in seen.data]
    assert [seen.data["reminder"] for seen in reminders] == [
        {"number": 1, "kind": "remind", "to": []},
        {"number": 2, "kind": "remind", "to": []},
        {"number": 3, "kind": "escalate", "to": ["bob"]},
    ]
    assert {(seen.step_id, seen.data["suspensionId"]) for seen in reminders} == {("a", asked.suspension_id)}
    assert [row.kind for row in rows] == ["asked", "reminded", "reminded", "escalated"]
    assert rows[-1].facts["to"] == ["bob"] and rows[-1].suspension_id == asked.suspension_id
    assert done.status == "completed" and verdict.is_whole


@requirement("alarm:once")
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
    clock, settings = ManualClock(), policy(*remind, escalate_after_s=escalate)
    store = MemoryStore(clock)
    async with warden(Ledger(), store=store, settings=settings) as w:
        before = await Asked.by(w, clock)
    async with warden(Ledger(), store=store, settings=settings) as w:
        asked = Asked(w, clock, before.thread_id, before.suspension_id)
        assert await asked.after(down_s) == await asked.after(0) == fired
        assert len(await asked.after(1000)) == (2 if fired[0][0] < len(remind) + (escalate is not None) else 1)


@requirement("alarm:once")
async def test_nothing_fires_after_the_answer_nor_when_the_time_is_over() -> None:
    clock, settings = ManualClock(), policy(60, 120)
    async with warden(Ledger(), store=MemoryStore(clock), settings=settings) as w:
        answered = await Asked.by(w, clock)
        assert await answered.after(60) == [(1, "remind")]
        await answered.approve()
        assert await answered.after(60) == [(1, "remind")]
        cancelled = await Asked.by(w, clock)
        await w.cancel_execution(cancelled.thread_id)
        assert await cancelled.after(200) == []
        late = await Asked.by(w, clock, tool_step("a", "displayConfirmation", {"action": "?", "timeoutSeconds": 100}))
        assert await late.after(101) == []
        assert (await w.get_execution(late.thread_id)).status == "rejected"


@requirement("alarm:once")
async def test_a_question_still_counts_as_asked_after_it_was_reminded_of_and_edited() -> None:
    clock, ledger = ManualClock(), Ledger()
    async with warden(ledger, store=MemoryStore(clock), settings=policy(60, 120)) as w:
        asked = await Asked.by(w, clock)
        shown = await w.get_execution(asked.thread_id)
        assert await asked.after(60) == [(1, "remind")]
        still = await w.get_execution(asked.thread_id)
        assert still.suspensions[0].digest == shown.suspensions[0].digest
        revised = await decide(
            w, still, planwarden.Decision(approved=True, modified_args={"ids": [2]}), by("local", "claimed")
        )
        assert (still.suspensions[0].revision, revised.suspensions[0].revision) == (1, 2)
        assert await asked.after(60) == [(1, "remind"), (2, "remind")]
        await asked.approve()
    assert ledger.lines == ["erase [2]"]


@requirement("alarm:once")
async def test_only_questions_to_people_are_reminded_of_and_without_a_schedule_nothing_is_stored() -> None:
    clock = ManualClock()
    async with warden(store=MemoryStore(clock), settings=policy(60)) as w:
        await w.execute_plan(plan(tool_step("a", "wait", {"seconds": 600})))
        await w.execute_plan(plan({"id": "a", "description": "think"}))
        assert await w.service.engine.store.next_deadline() == clock.now() + 600
    async with warden(Ledger(), store=MemoryStore(clock)) as w:
        await Asked.by(w, clock)
        assert await w.service.engine.store.next_deadline() is None


@requirement("alarm:once")
@of_two_processes
async def test_two_processes_that_notice_the_same_alarm_record_it_once(back_end: BackEnd) -> None:
    clock, settings = back_end.clock, policy(60)
    waiting, go = set[int](), anyio.Event()

    def watching(number: int) -> WatchedStore:
        async def hold(moment: StoreCall) -> None:
            if (moment.call, moment.when) == ("append", "before") and clock.now() > began:
                waiting.add(number)
                if len(waiting) == 2:
                    go.set()
                await go.wait()

        return WatchedStore(back_end.connect(), hold)

    began = clock.now()
    async with (
        warden(Ledger(), store=watching(1), settings=settings) as first,
        warden(Ledger(), store=watching(2), settings=settings) as second,
    ):
        asked = await Asked.by(first, clock)
        clock.advance(60)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.service.engine.tick)
            tasks.start_soon(second.service.engine.tick)
        assert waiting == {1, 2} and await asked.fired() == [(1, "remind")]


@requirement("alarm:once", "race:decision")
@of_two_processes
@pytest.mark.parametrize("first", ["decision", "reminder"])
async def test_a_decision_silences_a_reminder_that_comes_second_and_a_reminder_turns_no_decision_away(
    back_end: BackEnd, first: str
) -> None:
    clock, settings, ledger = back_end.clock, policy(60), Ledger()
    second = "reminder" if first == "decision" else "decision"
    held, go = anyio.Event(), anyio.Event()

    def store_of(what: str) -> WatchedStore:
        async def hook(moment: StoreCall) -> None:
            if what == "decision" and moment.call == "due":
                # The person's process never gets to look for what is due.
                await anyio.sleep_forever()
            if what == second and (moment.call, moment.when) == ("append", "before") and not held.is_set():
                held.set()
                await go.wait()

        return WatchedStore(back_end.connect(), hook)

    async def act(w: planwarden.Warden, what: str) -> None:
        own = Asked(w, clock, asked.thread_id, asked.suspension_id)
        await (own.approve() if what == "decision" else w.service.engine.tick())

    async with (
        warden(ledger, store=store_of(first), settings=settings) as winner,
        warden(ledger, store=store_of(second), settings=settings) as loser,
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
    assert done.status == "completed" and ledger.lines == ["erase [1]"]


async def test_a_branch_that_still_runs_keeps_its_owner_when_a_reminder_is_recorded_elsewhere() -> None:
    clock, slow = ManualClock(), PausingTool()
    store, settings = MemoryStore(clock), policy(5)
    steps = plan(confirm("ask", dependencies=[]), tool_step("slow", "gate", dependencies=[]))
    async with (
        warden(tools=[slow.tool()], store=store, settings=settings) as owner,
        warden(tools=[slow.tool()], store=store, settings=settings) as other,
    ):
        running = await owner.execute_plan(steps, wait_seconds=0)
        await slow.started.wait()
        assert await Asked(other, clock, running.thread_id, "").after(5) == [(1, "remind")]
        slow.opened.set()
        done = await owner.service.engine.wait((await owner.service.load_newest(running.thread_id, "local")), 60)
    assert done.status == "suspended" and done.steps["slow"].status == "completed"


FILE = """
[approvals]
remind_after_s = [600]
escalate_after_s = 3600
escalate_to = ["ops"]
[tools.wipe]
remind_after_s = [60, 300]
escalate_to = ["bob", "carol"]
escalate_after_s = 900
[tools.quiet]
remind_after_s = []
escalate_after_s = 0
[tools.plain]
risk = "critical"
"""


def test_the_operators_file_says_when_to_remind_and_a_tool_may_differ(tmp_path: Path) -> None:
    def load(text: str) -> OperatorPolicy:
        (tmp_path / "planwarden.toml").write_text(text)
        return load_settings(home=tmp_path, environment={}).policy

    found = load(FILE)
    default = Schedule(remind_after_s=(600,), escalate_after_s=3600, escalate_to=("ops",))
    assert found.schedule("plain") == found.schedule("anything") == default
    assert found.schedule("wipe") == replace(
        default, remind_after_s=(60, 300), escalate_after_s=900, escalate_to=("bob", "carol")
    )
    assert found.schedule("quiet").remind_after_s == () and found.schedule("quiet").escalate_after_s is None
    # Nobody has to look at a pending question again because reminders come at another time.
    assert load(FILE.replace("[60, 300]", "[61]").replace("3600", "4000")).policy_digest == found.policy_digest
    assert load(FILE.replace('"critical"', '"dangerous"')).policy_digest != found.policy_digest
