"""The answer "it did not happen" runs a call again, so it needs what the operator asks of that call now."""

import anyio
import anyio.lowlevel
import pytest

import planwarden
from planwarden.agent.common.errors import OutcomeUnknown, StaleDefinition
from planwarden.agent.core import events as ev
from planwarden.agent.core.tool import Risk
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.service import Service
from planwarden.server.settings.tables import ToolSettings
from tests.kit import NOWHERE, Ledger, MemoryStore, Settings, by, decide, governed, plan, requirement, tool_step, warden

pytestmark = pytest.mark.anyio

PLAN = plan(tool_step("a", "pay", {"amount": 7}))
NO = planwarden.Decision(content={"happened": False})
YES = planwarden.Decision(content={"happened": True, "result": "paid"})


def pay(ledger: Ledger, risk: Risk = "read") -> object:
    """A tool whose first call gets lost."""

    @planwarden.tool(risk=risk, effect="effect")
    async def pay(amount: int) -> str:
        """Pay."""
        ledger.lines.append(f"pay {amount}")
        if len(ledger.lines) == 1:
            raise OutcomeUnknown("the connection was lost")
        return "paid"

    return pay


def strict(**policy: object) -> Settings:
    """The tool is critical now, and the policy says so."""
    tools = {"pay": ToolSettings(risk="critical")}
    return Settings(home=NOWHERE, tools=tools, policy=governed(facts={"tools": "critical"}, **policy).policy)


@requirement("approval:reconcile")
async def test_a_stricter_policy_reaches_an_open_question_about_a_lost_call() -> None:
    ledger, store = Ledger(), MemoryStore()
    async with warden(tools=[pay(ledger)], store=store) as w:
        asked = await w.execute_plan(PLAN)
        [question] = asked.suspensions
        assert (question.kind, question.needs, ledger.lines) == ("reconcile", "client", ["pay 7"])
    async with warden(tools=[pay(ledger)], store=store, settings=strict(critical="second", quorum=2)) as w:
        with pytest.raises(StaleDefinition, match=r"pay changed|policy changed"):
            await decide(w, question, NO, by("local", "client"))
        [now] = (await w.get_execution(asked.thread_id)).suspensions
        assert (now.needs, now.quorum, now.revision, now.risk) == ("second", 2, 2, "critical")
        for who in ("local", "bob"):
            still = await decide(w, question, NO, by(who))
            assert still.status == "suspended" and ledger.lines == ["pay 7"]
        done = await decide(w, question, NO, by("carol"))
    assert done.status == "completed" and ledger.lines == ["pay 7", "pay 7"]


@requirement("approval:reconcile", "approval:quorum")
async def test_people_who_answer_differently_do_not_count_together() -> None:
    ledger = Ledger()
    async with warden(tools=[pay(ledger, "critical")], settings=governed(critical="second", quorum=2)) as w:
        asked = await w.execute_plan(PLAN)
        for who in ("bob", "carol"):
            asked = await decide(w, asked, authority=by(who))
        [question] = asked.suspensions
        assert question.kind == "reconcile" and ledger.lines == ["pay 7"]
        await decide(w, question, YES, by("bob"))
        still = await decide(w, question, NO, by("carol"))
        votes = [(vote.principal, vote.content) for vote in still.suspensions[0].endorsements]
        assert votes == [("bob", YES.content), ("carol", NO.content)] and ledger.lines == ["pay 7"]
        changed = await decide(w, question, NO, by("bob"))
    assert changed.status == "completed" and ledger.lines == ["pay 7", "pay 7"]


@requirement("approval:reconcile")
@pytest.mark.parametrize("kind", ["approval", "reconcile"])
@pytest.mark.parametrize("change", ["policy", "tool", "both"])
async def test_an_answer_releases_nothing_in_a_process_with_another_policy_or_tool(kind: str, change: str) -> None:
    ledger, store = Ledger(), MemoryStore()
    lines = [] if kind == "approval" else ["pay 7"]

    def pay(text: str) -> object:
        @planwarden.tool(description=text, risk="dangerous" if kind == "approval" else "read", effect="effect")
        async def pay(amount: int) -> str:
            ledger.lines.append(f"pay {amount}")
            raise OutcomeUnknown("the connection was lost")

        return pay

    async with warden(tools=[pay("Pay.")], store=store) as w:
        asked = await w.execute_plan(PLAN)
        place = (asked.thread_id, asked.suspensions[0].suspension_id)
        tools, policy = w.service.engine.tools, w.service.engine.grants.policy
    # The process that asked is gone, or it would continue under its own policy: this one only records.
    async with Engine(store, tools, CallerModel(), policy, adopts=False, follows=False) as recorder:
        recording = Service(recorder, ev.Options(), max_steps=0)
        decision = planwarden.Decision(approved=True) if kind == "approval" else NO
        await recording.answer(*place, decision, by("local"), principal="local", wait_seconds=0)
    assert ledger.lines == lines
    changed = pay("Pay twice." if change == "tool" else "Pay.")
    settings = {"policy": governed(facts={"changed": True}), "both": strict()}.get(change)
    async with warden(tools=[changed], store=store, settings=settings) as w:
        await w.service.engine.tick()
        with anyio.fail_after(60):
            while (now := await w.get_execution(asked.thread_id)).status == "running":
                await anyio.lowlevel.checkpoint()
    assert ledger.lines == lines
    [question] = now.suspensions
    assert (question.kind, question.suspension_id != place[1]) == (kind, True)
    assert change != "both" or question.needs == "signed"
