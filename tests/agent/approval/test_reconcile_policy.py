"""The answer "it did not happen" runs a call again, so it needs what the operator asks of that call now."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import planwarden
from planwarden.agent.common.errors import OutcomeUnknown, StaleDefinition
from planwarden.agent.core import events as ev
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.service import Service
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.settings.tables import ToolSettings
from planwarden.storage.memory.store import MemoryStore
from tests.kit import by
from tests.requirements import requirement
from tests.support.wardens import Ledger, plan, tool_step, warden

pytestmark = pytest.mark.anyio

HOME = Path("/nonexistent")
PLAN = plan(tool_step("a", "pay", {"amount": 7}))
NO = planwarden.Decision(content={"happened": False})
YES = planwarden.Decision(content={"happened": True, "result": "paid"})


def pay(ledger: Ledger) -> object:
    """A tool whose first call gets lost."""

    @planwarden.tool(risk="read", effect="effect")
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
    facts: dict[str, object] = {"facts": {"tools": "critical"}, **policy}
    return Settings(home=HOME, tools=tools, policy=OperatorPolicy(**facts))  # pyright: ignore[reportArgumentType]


@requirement("approval:reconcile")
async def test_a_stricter_policy_reaches_an_open_question_about_a_lost_call() -> None:
    ledger, store = Ledger(), MemoryStore()
    async with warden(tools=[pay(ledger)], store=store) as w:
        asked = await w.execute_plan(PLAN)
        [question] = asked.suspensions
        assert (question.kind, question.needs, ledger.lines) == ("reconcile", "client", ["pay 7"])
    place = (asked.thread_id, question.suspension_id)
    async with warden(tools=[pay(ledger)], store=store, settings=strict(critical="second", quorum=2)) as w:
        with pytest.raises(StaleDefinition, match=r"pay changed|policy changed"):
            await w.service.answer(*place, NO, by("local", "client"), principal="local")
        [now] = (await w.get_execution(asked.thread_id)).suspensions
        assert (now.needs, now.quorum, now.revision, now.risk) == ("second", 2, 2, "critical")
        for who in ("local", "bob"):
            still = await w.service.answer(*place, NO, by(who), principal="local")
            assert still.status == "suspended" and ledger.lines == ["pay 7"]
        done = await w.service.answer(*place, NO, by("carol"), principal="local")
    assert done.status == "completed" and ledger.lines == ["pay 7", "pay 7"]


@requirement("approval:reconcile", "approval:quorum")
async def test_people_who_answer_differently_do_not_count_together() -> None:
    ledger = Ledger()
    settings = Settings(home=HOME, policy=OperatorPolicy(critical="second", quorum=2))

    @planwarden.tool(name="pay", risk="critical")
    async def pay(amount: int) -> str:
        """Pay."""
        ledger.lines.append(f"pay {amount}")
        if len(ledger.lines) == 1:
            raise OutcomeUnknown("the connection was lost")
        return "paid"

    async with warden(tools=[pay], settings=settings) as w:
        asked = await w.execute_plan(PLAN)
        place = (asked.thread_id, asked.suspensions[0].suspension_id)
        for who in ("bob", "carol"):
            asked = await w.service.answer(*place, planwarden.Decision(approved=True), by(who), principal="local")
        [question] = asked.suspensions
        place = (asked.thread_id, question.suspension_id)
        assert question.kind == "reconcile" and ledger.lines == ["pay 7"]
        await w.service.answer(*place, YES, by("bob"), principal="local")
        still = await w.service.answer(*place, NO, by("carol"), principal="local")
        votes = [(vote.principal, vote.content) for vote in still.suspensions[0].endorsements]
        assert votes == [("bob", YES.content), ("carol", NO.content)] and ledger.lines == ["pay 7"]
        changed = await w.service.answer(*place, NO, by("bob"), principal="local")
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
    other = Settings(home=HOME, policy=OperatorPolicy(facts={"changed": True}))
    settings = {"policy": other, "both": strict()}.get(change)
    async with warden(tools=[changed], store=store, settings=settings) as w:
        await w.service.engine.tick()
        with anyio.fail_after(60):
            while (now := await w.get_execution(asked.thread_id)).status == "running":
                await anyio.lowlevel.checkpoint()
    assert ledger.lines == lines
    [question] = now.suspensions
    assert (question.kind, question.suspension_id != place[1]) == (kind, True)
    assert change != "both" or question.needs == "signed"
