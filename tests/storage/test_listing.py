"""Lists over every store there is: what a row says, its order, its pages, and what is found."""

import pytest
from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.execution.synopsis import MAX_WORD_CHARS, TITLE_CHARS
from planwarden.agent.core.plan.plan import Plan, PlannedCall, PlanStep
from planwarden.agent.ports.listing import ExecutionFilter, ListedExecution
from planwarden.agent.ports.store import Store, SuspensionRow
from tests.kit import ManualClock, ev, requirement
from tests.storage.suite import PLAN, BackEnd, Scribe, decided, guard, question

EVERYTHING = ExecutionFilter()


def steps(*tools: str) -> Plan:
    return Plan(
        steps=tuple(
            PlanStep(
                step_id=f"s{number}",
                description=f"use {tool}",
                step_type="tool",
                tool_calls=(PlannedCall(tool_name=tool, arguments={}),),
            )
            for number, tool in enumerate(tools)
        )
    )


async def create(
    store: Store, name: str, plan: Plan = PLAN, *, principal: str = "ann", saved: str = "", **fields: str | None
) -> Scribe:
    scribe = Scribe.on(store, name, principal=principal)
    version = ev.PlanVersion(name=saved, digest="digest") if saved else None
    created = ev.ExecutionCreated(goal=fields.get("goal"), host=fields.get("host"), saved_plan=version)
    await scribe.write(created, ev.PlanAccepted(plan=plan))
    return scribe


async def complete(scribe: Scribe) -> None:
    """Every step in turn, up to the end."""
    for step in scribe.execution.plan.steps if scribe.execution.plan else ():
        call = f"{step.step_id}:1"
        await scribe.write(
            ev.StepStarted(step_id=step.step_id),
            ev.ToolCallIntended(call_id=call, arguments={}),
            ev.ToolReturned(call_id=call, value=1),
            ev.StepCompleted(step_id=step.step_id, validation="passed"),
        )
    await scribe.write(ev.ExecutionCompleted())


async def names(store: Store, wanted: ExecutionFilter = EVERYTHING) -> list[str]:
    return [row.execution_id for row in (await store.list_executions(wanted)).rows]


async def only(store: Store) -> ListedExecution:
    [row] = (await store.list_executions(EVERYTHING)).rows
    return row


@requirement("store:listed")
async def test_a_row_says_what_it_is_how_far_it_is_and_who_is_asked(store: Store) -> None:
    assert (await store.list_executions(EVERYTHING)).rows == () and await store.list_hosts() == ()
    scribe = await create(store, "e1", steps("find", "pay"), goal="Pay all", host="Claude Code", saved="monthly")
    row = await only(store)
    assert (row.title, row.is_goal, row.host, row.saved_plan) == ("Pay all", True, "Claude Code", "monthly")
    assert (row.status, row.step_count, row.steps_done, row.fault) == ("running", 2, 0, "")
    assert (row.thread_id, row.principal, row.version) == ("thread of e1", "ann", 2)
    await scribe.write(
        ev.StepStarted(step_id="s0"),
        ev.ToolCallIntended(call_id="s0:1", arguments={}),
        ev.ToolReturned(call_id="s0:1", value=1),
        ev.StepCompleted(step_id="s0", validation="passed"),
        ev.StepStarted(step_id="s1"),
    )
    assert (await only(store)).steps_done == 1
    questions: dict[str, ev.SuspensionKind] = {"q1": "wait", "q2": "plan", "q3": "review", "q4": "review"}
    for name, kind in questions.items():
        call_id = "s1:1" if kind == "wait" else None
        asked = ev.Question(suspension_id=name, kind=kind, call_id=call_id, message="?", digest=name)
        await scribe.write(ev.Suspended(question=asked))
        expected = {"q1": "clock", "q2": "caller"}.get(name, "human")
        row = await only(store)
        assert (row.waits_for, row.question) == (expected, "q3" if expected == "human" else None)
    await scribe.write(ev.ExecutionFailed(code="tool_error", message="no money"))
    row = await only(store)
    assert (row.status, row.fault, row.waits_for, row.question) == ("failed", "no money", None, None)
    assert (row.step_count, row.steps_done) == (2, 1)


@requirement("store:listed")
async def test_the_newest_activity_comes_first_page_by_page(store: Store, back_end: BackEnd) -> None:
    scribes: list[Scribe] = []
    for number in range(9):
        scribes.append(await create(store, f"e{number}"))
        # Two at a time change in the same moment.
        back_end.clock.advance(number % 2)
    for number in (5, 1):
        back_end.clock.advance(1)
        await complete(scribes[number])
    assert await names(store) == ["e1", "e5", "e8", "e7", "e6", "e4", "e3", "e2", "e0"]
    found: list[str] = []
    cursor: str | None = None
    for _ in range(5):
        page = await store.list_executions(EVERYTHING, limit=2, cursor=cursor)
        found += [row.execution_id for row in page.rows]
        cursor = page.next_cursor
    assert cursor is None and found == await names(store)
    exact = await store.list_executions(EVERYTHING, limit=9)
    assert exact.next_cursor is None and len(exact.rows) == 9


@requirement("store:listed")
async def test_words_and_filters_find_what_meets_all_of_them(store: Store, back_end: BackEnd) -> None:
    await create(store, "e1", steps("find", "pay"), goal="Remind OVERDUE customers\nin Łódź", host="Codex")
    await create(store, "e2", steps("pay"), saved="monthly", host="Claude", principal="bob")
    await complete(await create(store, "e3", steps("find"), goal="100% of \\ 'it'", host="Codex"))
    for search, found in (
        ("", ["e3", "e2", "e1"]),
        ("  overdue   ŁÓDŹ ", ["e1"]),
        ("overdue monthly", []),
        ("monthly", ["e2"]),
        ("thread of e2", ["e2"]),
        ("%", ["e3"]),
        ("_", []),
        ("\\ 'it'", ["e3"]),
        ("x" * 10 * MAX_WORD_CHARS, []),
        ("\0", []),
        ("\udcff", []),
    ):
        assert sorted(await names(store, ExecutionFilter(search=search))) == sorted(found), search
    for wanted, found in (
        (ExecutionFilter(status="completed"), ["e3"]),
        (ExecutionFilter(host="Codex"), ["e1", "e3"]),
        (ExecutionFilter(host="codex"), []),
        (ExecutionFilter(host="\0\udcff"), []),
        (ExecutionFilter(tool="pay"), ["e1", "e2"]),
        (ExecutionFilter(tool="pa"), []),
        (ExecutionFilter(tool_prefix="pa"), ["e1", "e2"]),
        (ExecutionFilter(is_gated=False), ["e1", "e2", "e3"]),
        (ExecutionFilter(is_gated=True), []),
        (ExecutionFilter(saved_plan="monthly"), ["e2"]),
        (ExecutionFilter(principal="bob"), ["e2"]),
        (ExecutionFilter(host="Codex", tool="find", status="running", search="remind"), ["e1"]),
    ):
        assert sorted(await names(store, wanted)) == found, wanted
    assert await store.list_hosts() == ("Claude", "Codex")
    titles = {row.execution_id: (row.title, row.is_goal) for row in (await store.list_executions(EVERYTHING)).rows}
    assert titles["e2"] == ("monthly", False) and titles["e1"][1]
    await create(store, "e4", steps("find", "pay"))
    assert (await store.list_executions(EVERYTHING, limit=1)).rows[0].title == "use find; use pay"
    thinking = await create(store, "e5", Plan(steps=(PlanStep(step_id="a", description="?", step_type="reasoning"),)))
    asked = ev.ModelReplied(
        purpose="step", step_id="a", content=None, calls=(ev.ProposedCall(tool_name="lookup", arguments={}),)
    )
    await thinking.write(ev.StepStarted(step_id="a"), asked, ev.ToolCallIntended(call_id="a:1", arguments={}))
    assert await names(store, ExecutionFilter(tool="lookup")) == ["e5"]
    back_end.clock.advance(10)
    assert await store.prune(back_end.clock.now()) == 1
    assert "e3" not in await names(store) and await store.list_hosts() == ("Claude", "Codex")
    for cursor in ("", "nobody", "1", ":", "nan:1", "inf:1", "1:-1", "1:x", "1.0:1" * 20, "\0:1"):
        with pytest.raises(InvalidArguments, match="cursor"):
            await store.list_executions(EVERYTHING, cursor=cursor)


@requirement("store:listed")
async def test_hostile_texts_are_cut_and_stored(store: Store) -> None:
    hostile = "\0\ud800<b>\u202e" + "x" * 20_000
    await create(store, "e1", goal=hostile, host=hostile, saved=hostile)
    row = await only(store)
    assert row.title.startswith("\ufffd\ufffd<b>\u202e") and len(row.title) == TITLE_CHARS
    assert len(row.host) + len(row.saved_plan) < 1_000
    assert await names(store, ExecutionFilter(host=row.host, saved_plan=row.saved_plan)) == ["e1"]
    assert await names(store, ExecutionFilter(host=hostile, saved_plan=hostile, search="<B>\u202ex")) == ["e1"]


@requirement("store:listed")
async def test_a_row_says_why_it_did_not_reach_its_goal(store: Store) -> None:
    rejected = Scribe.on(store, "e1")
    await rejected.suspend("q1")
    answer = replace(decided("q1"), decision=ev.RecordedDecision(approved=False, reason="not these"))
    await rejected.write(answer, guards=[guard("q1")])
    await rejected.write(ev.StepRejected(step_id="a", suspension_id="q1"), ev.ExecutionRejected())
    assert (await only(store)).fault == "not these"
    cancelled = await create(store, "e2")
    await cancelled.write(ev.CancelRequested(reason="too late"), ev.ExecutionCancelled(reason="too late"))
    spent = await create(store, "e3")
    await spent.write(ev.ExecutionExhausted(budget="toolCalls"))
    faults = {row.execution_id: row.fault for row in (await store.list_executions(EVERYTHING)).rows}
    assert faults == {"e1": "not these", "e2": "too late", "e3": "the budget of tool calls is used up"}
    await spent.write(ev.ExecutionStarted())
    rows = {row.execution_id: row for row in (await store.list_executions(EVERYTHING)).rows}
    assert (rows["e3"].status, rows["e3"].fault) == ("running", "")


@requirement("store:paging")
async def test_questions_are_filtered_by_principal_thread_and_addressee_and_no_wait_is_listed(store: Store) -> None:
    await Scribe.on(store, "e1", thread_id="t1", principal="ann").suspend("s1")
    await Scribe.on(store, "e2", thread_id="t2", principal="bob").suspend("s2", addressee="caller")
    await Scribe.on(store, "e3", thread_id="t3", principal="ann").suspend("s3", addressee="clock", expires_at=9e9)

    def ids(rows: tuple[SuspensionRow, ...]) -> list[str]:
        return [row.suspension_id for row in rows]

    assert ids((await store.suspensions()).rows) == ["s1", "s2"]
    assert ids((await store.suspensions(principal="ann")).rows) == ["s1"]
    assert ids((await store.suspensions(thread_id="t2")).rows) == ["s2"]
    assert ids((await store.suspensions(addressee="caller")).rows) == ["s2"]
    assert (await store.suspensions(principal="ann", addressee="caller")).total == 0
    row = await store.find_suspension("s3")
    assert row is not None and (row.execution_id, row.principal, row.expires_at) == ("e3", "ann", 9e9)


@requirement("store:paging")
async def test_what_waits_for_people_pages_the_most_dangerous_first_and_then_the_oldest(store: Store) -> None:
    risks = ["read", "dangerous", None, "critical", "confirm", "dangerous"]
    scribes = [Scribe.on(store, f"e{number}") for number in range(len(risks))]
    for number, (scribe, risk) in enumerate(zip(scribes, risks, strict=True)):
        await scribe.suspend(f"s{number}", risk=risk)
    await Scribe.on(store, "caller").suspend("to the model", addressee="caller", risk="critical")
    first = await store.waiting(limit=2)
    assert [row.suspension_id for row in first.rows] == ["s3", "s1"] and first.total == 6
    # The question at which the page ended is answered, and a later one turns out to be worse than all others.
    await scribes[1].write(decided("s1"))
    worse = question("s4", risk="critical", revision=2, digest="digest of worse")
    await scribes[4].write(ev.SuspensionRevised(question=worse, reason="edited"))
    rest = await store.waiting(limit=3, cursor=first.next_cursor)
    assert [row.suspension_id for row in rest.rows] == ["s5", "s0", "s2"] and rest.next_cursor is None
    assert [row.suspension_id for row in (await store.waiting(limit=2)).rows] == ["s3", "s4"]


@requirement("store:paging")
async def test_questions_to_people_that_are_over_are_listed_by_decision(store: Store, clock: ManualClock) -> None:
    scribes = [Scribe.on(store, f"e{number}") for number in range(6)]
    for number, scribe in enumerate(scribes):
        await scribe.suspend(f"s{number}")
    await Scribe.on(store, "caller").suspend("to the model", addressee="caller")
    for number in (3, 0, 4):
        clock.advance(1)
        await scribes[number].write(decided(f"s{number}"))
    clock.advance(1)
    await scribes[1].write(ev.CancelRequested(), ev.ExecutionCancelled())
    # At the same moment, what was asked last comes first.
    await scribes[5].write(decided("s5"))
    pages: list[str] = []
    cursor = None
    for _ in range(3):
        page = await store.decided(limit=2, cursor=cursor)
        pages += [row.suspension_id for row in page.rows]
        cursor = page.next_cursor
    assert pages == ["s5", "s1", "s4", "s0", "s3"] and cursor is None


@requirement("store:paging")
async def test_a_page_goes_on_where_the_last_one_ended_and_from_no_other_cursor(store: Store) -> None:
    for number in range(3):
        await Scribe.on(store, f"e{number}").suspend(f"s{number}")
    first = await store.suspensions(limit=2)
    rest = await store.suspensions(limit=2, cursor=first.next_cursor)
    assert first.total == 3 and [row.suspension_id for row in rest.rows] == ["s2"] and rest.next_cursor is None
    for cursor in ("s4", "", "' OR 1=1 --", "\0"):
        for page in (store.suspensions, store.waiting, store.decided):
            with pytest.raises(InvalidArguments):
                await page(cursor=cursor)
