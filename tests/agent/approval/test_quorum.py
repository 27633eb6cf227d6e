"""Who may decide: a signature or somebody else, several people, and what the policy asks now, not then."""

from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import OutcomeUnknown, StaleDefinition, StaleRevision
from planwarden.agent.core.tool import CallContext, Risk, Suspend, ToolDefinition
from planwarden.server.settings.tables import ToolSettings
from tests import kit
from tests.kit import Engine, ev

WIPE = kit.plan(kit.tool_step("a", "wipe", {"target": "old"}))


def wipe(ledger: kit.Ledger) -> object:
    return kit.acting("wipe", ledger.lines, "critical")


TWINS: dict[str, object] = {"same_person": frozenset({"local", "ann"})}
SECOND: dict[str, object] = {"critical": "second"}
APPROVERS: dict[str, object] = {"approvers": ("carol",)}
CASES: list[tuple[str | None, dict[str, object], str, ev.Assurance, bool]] = [
    ("bob", {}, "bob", "human", False),
    ("bob", {}, "bob", "signed", True),
    ("bob", {}, "carol", "human", True),
    ("bob", SECOND, "bob", "signed", False),
    ("bob", SECOND, "carol", "human", True),
    ("bob", TWINS, "ann", "human", False),
    (None, {}, "local", "human", False),
    (None, {}, "local", "signed", True),
    (None, {}, "bob", "human", True),
    (None, {}, "bob", "client", False),
    (None, SECOND, "local", "signed", False),
    (None, SECOND, "bob", "human", True),
    (None, APPROVERS, "bob", "signed", False),
    (None, APPROVERS, "carol", "human", True),
    (None, TWINS, "ann", "human", False),
    (None, TWINS, "ann", "signed", True),
    (None, {}, "local", "claimed", False),
    (None, {"trust_caller": True}, "local", "claimed", True),
]


@kit.requirement("approval:critical", "approval:starter")
@pytest.mark.parametrize(
    ("starter", "policy", "who", "assurance", "runs", "is_retried"),
    [*((*case, False) for case in CASES), *((*case, True) for case in CASES if case[0])],
)
async def test_who_may_approve_a_critical_call_that_somebody_started_for_its_owner(
    tmp_path: Path,
    starter: str | None,
    policy: dict[str, object],
    who: str,
    assurance: ev.Assurance,
    runs: bool,
    is_retried: bool,
) -> None:
    ledger = kit.Ledger()
    kit.save_plan(tmp_path, "clean", WIPE)
    async with kit.warden(tools=[wipe(ledger)], settings=kit.governed(tmp_path, **policy)) as w:
        began = None if starter is None else ev.Starter(principal=starter, channel="inbox")
        started = await w.service.run_plan("clean", kit.StartOptions(requester=kit.Requester("local", starter=began)))
        asked = w.service.build_view(await w.service.wait(started, 60))
        if is_retried:
            await w.cancel_execution(asked.thread_id)
            # A caller without a person's session, such as the owner's model, does not become the one who began it.
            asked = await w.retry(asked.thread_id)
        done = await kit.decide(w, asked, kit.YES, kit.by(who, assurance))
    assert ledger.lines == (["wipe old"] if runs else [])
    assert (done.status, done.awaiting) == (("completed", None) if runs else ("suspended", "human"))


@kit.requirement("approval:quorum")
async def test_edited_arguments_void_the_approvals_given_before_and_one_no_is_enough() -> None:
    ledger = kit.Ledger()
    async with kit.warden(tools=[wipe(ledger)], settings=kit.governed(critical="second", quorum=2)) as w:
        asked = await w.execute_plan(WIPE)
        [question] = asked.suspensions
        place = (asked.thread_id, question.suspension_id)
        await kit.decide(w.service, place, kit.YES, kit.by("bob"), principal="local")
        edit = planwarden.Decision(approved=True, modified_args={"target": "older"})
        edited = await kit.decide(w.service, place, edit, kit.by("carol"), principal="local")
        [now] = edited.suspensions
        assert [vote.principal for vote in now.endorsements] == ["carol"] and now.revision == 2
        with pytest.raises(StaleRevision):
            await kit.decide(w.service, place, kit.YES, kit.by("dan", digest=question.digest), principal="local")
        rejected = await kit.decide(w.service, place, kit.NO, kit.by("dan", digest=now.digest), principal="local")
    assert rejected.status == "rejected" and ledger.lines == []


@kit.requirement("approval:quorum")
async def test_a_confirmation_by_somebody_who_is_no_longer_an_approver_covers_no_call_that_needs_several() -> None:
    ledger, store = kit.Ledger(), kit.MemoryStore()
    covered = kit.tool_step("c", "wipe", {"target": "old"})
    steps = kit.plan(kit.confirm("a", confirms=["c"]), kit.confirm("b"), covered)
    before, after = (
        kit.governed(critical="second", quorum=2, approvers=approvers)
        for approvers in (("bob", "carol"), ("carol", "dan"))
    )
    async with kit.warden(tools=[wipe(ledger)], store=store, settings=before) as w:
        waiting = await w.execute_plan(steps)
        for who in ("bob", "carol"):
            waiting = await kit.decide(w, waiting, authority=kit.by(who))
    async with kit.warden(tools=[wipe(ledger)], store=store, settings=after) as w:
        with pytest.raises(StaleDefinition):
            await kit.decide(w, waiting)
        [question] = (await kit.decide(w, waiting)).suspensions
    assert (question.kind, question.quorum, ledger.lines) == ("approval", 2, [])


@kit.requirement("approval:quorum")
async def test_what_comes_with_an_answer_waits_for_the_decision_and_precedes_what_it_releases() -> None:
    ledger = kit.Ledger()

    async def allow() -> None:
        ledger.lines.append("allowed")

    async with kit.warden(tools=[wipe(ledger)], settings=kit.governed(critical="second", quorum=2)) as w:
        asked = await w.execute_plan(WIPE)
        place = (asked.thread_id, asked.suspensions[0].suspension_id)
        for who, lines in (("bob", []), ("carol", ["allowed", "wipe old"])):
            await kit.decide(w.service, place, kit.YES, kit.by(who), principal="local", then=allow)
            assert ledger.lines == lines


PAY = kit.plan(kit.tool_step("a", "pay", {"amount": 7}))
NEVER = planwarden.Decision(content={"happened": False})
HAPPENED = planwarden.Decision(content={"happened": True, "result": "paid"})


def pay(ledger: kit.Ledger, risk: Risk = "read", *, times: int = 1, text: str = "Pay.") -> object:
    @planwarden.tool(risk=risk, effect="effect", description=text)
    async def pay(amount: int) -> str:
        ledger.lines.append(f"pay {amount}")
        if len(ledger.lines) <= times:
            raise OutcomeUnknown("the connection was lost")
        return "paid"

    return pay


def strict(**policy: object) -> kit.Settings:
    """The tool is critical now, and the policy says so."""
    tools = {"pay": ToolSettings(risk="critical")}
    return kit.Settings(
        home=kit.NOWHERE, tools=tools, policy=kit.governed(facts={"tools": "critical"}, **policy).policy
    )


@kit.requirement("approval:reconcile")
async def test_a_stricter_policy_reaches_an_open_question_about_a_lost_call() -> None:
    ledger, store = kit.Ledger(), kit.MemoryStore()
    async with kit.warden(tools=[pay(ledger)], store=store) as w:
        asked = await w.execute_plan(PAY)
        [question] = asked.suspensions
        assert (question.kind, question.needs, ledger.lines) == ("reconcile", "client", ["pay 7"])
    async with kit.warden(tools=[pay(ledger)], store=store, settings=strict(critical="second", quorum=2)) as w:
        with pytest.raises(StaleDefinition, match=r"pay changed|policy changed"):
            await kit.decide(w, question, NEVER, kit.by("local", "client"))
        [now] = (await w.get_execution(asked.thread_id)).suspensions
        assert (now.needs, now.quorum, now.revision, now.risk) == ("second", 2, 2, "critical")
        for who in ("local", "bob"):
            still = await kit.decide(w, question, NEVER, kit.by(who))
            assert still.status == "suspended" and ledger.lines == ["pay 7"]
        done = await kit.decide(w, question, NEVER, kit.by("carol"))
    assert done.status == "completed" and ledger.lines == ["pay 7", "pay 7"]


@kit.requirement("approval:quorum")
@pytest.mark.parametrize("kind", ["delegated", "confirmation"])
async def test_a_stricter_policy_reaches_an_open_question_of_a_tool_which_keeps_its_risk(kind: str) -> None:
    ledger, store = kit.Ledger(), kit.MemoryStore()

    async def go_on(payload: JsonValue, decision: JsonValue, context: CallContext) -> str:
        ledger.lines.append("went on")
        return "done"

    definition = ToolDefinition(name="hand_over", description="Ask.", input_schema={"type": "object"}, risk="read")
    asks = Suspend(message="May I?", is_delegated=kind == "delegated", asker="agent 'x'", risk="critical")
    tool = kit.Tool(kit.define(definition), kit.build_constant_call(asks), go_on)
    settings = [kit.governed(critical="second", quorum=quorum) for quorum in (1, 2)]
    async with kit.warden(tools=[tool], store=store, settings=settings[0]) as w:
        asked = await w.execute_plan(kit.plan(kit.tool_step("a", "hand_over")))
        [question] = asked.suspensions
        assert (question.kind, question.risk, question.quorum) == (kind, "critical", 1)
    async with kit.warden(tools=[tool], store=store, settings=settings[1]) as w:
        with pytest.raises(StaleDefinition, match="policy changed"):
            await kit.decide(w, asked, authority=kit.by("bob"))
        for who, lines in (("bob", []), ("carol", ["went on"])):
            await kit.decide(w, asked, authority=kit.by(who))
            assert ledger.lines == lines


@kit.requirement("approval:reconcile", "approval:quorum")
async def test_people_who_answer_differently_do_not_count_together() -> None:
    ledger = kit.Ledger()
    async with kit.warden(tools=[pay(ledger, "critical")], settings=kit.governed(critical="second", quorum=2)) as w:
        asked = await w.execute_plan(PAY)
        for who in ("bob", "carol"):
            asked = await kit.decide(w, asked, authority=kit.by(who))
        [question] = asked.suspensions
        assert question.kind == "reconcile" and ledger.lines == ["pay 7"]
        await kit.decide(w, question, HAPPENED, kit.by("bob"))
        still = await kit.decide(w, question, NEVER, kit.by("carol"))
        votes = [(vote.principal, vote.content) for vote in still.suspensions[0].endorsements]
        assert votes == [("bob", HAPPENED.content), ("carol", NEVER.content)] and ledger.lines == ["pay 7"]
        changed = await kit.decide(w, question, NEVER, kit.by("bob"))
    assert changed.status == "completed" and ledger.lines == ["pay 7", "pay 7"]


@kit.requirement("approval:quorum")
@pytest.mark.parametrize(
    ("first", "second", "runs"),
    [
        ([0, 1], [1, 0], ["old", "new"]),
        ([0, 1, 2], None, ["old", "new", "odd"]),
        ([0, 1], [0, 2], []),
    ],
)
async def test_people_who_choose_the_same_rows_count_together_in_whatever_order_they_name_them(
    first: list[JsonValue], second: list[JsonValue] | None, runs: list[str]
) -> None:
    ledger = kit.Ledger()
    step = kit.tool_step("a", "wipe", {"target": {"$from": "item"}}, forEach=["old", "new", "odd"])
    async with kit.warden(tools=[wipe(ledger)], settings=kit.governed(critical="second", quorum=2)) as w:
        [question] = (await w.execute_plan(kit.plan(step))).suspensions
        for who, rows in (("bob", first), ("carol", second), *((("bob", [*reversed(first)]),) if runs else ())):
            answer = kit.Decision(approved=True, content=None if rows is None else {"items": rows})
            await kit.decide(w, question, answer, kit.by(who))
    assert sorted(ledger.lines) == sorted(f"wipe {target}" for target in runs)


@kit.requirement("approval:reconcile")
@pytest.mark.parametrize("kind", ["approval", "reconcile"])
@pytest.mark.parametrize("change", ["policy", "tool", "both"])
async def test_an_answer_releases_nothing_in_a_process_with_another_policy_or_tool(kind: str, change: str) -> None:
    ledger, store = kit.Ledger(), kit.MemoryStore()
    lines = [] if kind == "approval" else ["pay 7"]
    risk: Risk = "dangerous" if kind == "approval" else "read"
    async with kit.warden(tools=[pay(ledger, risk)], store=store) as w:
        asked = await w.execute_plan(PAY)
        place = (asked.thread_id, asked.suspensions[0].suspension_id)
        tools, policy = w.service.tools, w.service.policy
    # The process that asked is gone, or it would continue under its own policy: this one only records.
    async with Engine(store, tools, kit.CallerModel(), policy, adopts=False, executes=False) as recorder:
        decision = kit.YES if kind == "approval" else NEVER
        recording = kit.Service(recorder, w.settings)
        await recording.answer(*place, decision, kit.by("local"), principal="local")
    assert ledger.lines == lines
    changed = pay(ledger, risk, text="Pay twice." if change == "tool" else "Pay.")
    settings = {"policy": kit.governed(facts={"changed": True}), "both": strict()}.get(change)
    async with kit.warden(tools=[changed], store=store, settings=settings) as w:
        await w.service.tick()
        await w.service.wait(await w.service.find(asked.execution_id), 60)
        now = await w.get_execution(asked.thread_id)
    assert ledger.lines == lines
    [question] = now.suspensions
    assert (question.kind, question.suspension_id != place[1]) == (kind, True)
    assert change != "both" or question.needs == "signed"
