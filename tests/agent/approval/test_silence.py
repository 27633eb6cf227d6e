"""What silence means: the operator's limit and choice, whatever a plan, a model or a tool's question says."""

from math import inf, nan
from pathlib import Path

import msgspec
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.thread_effects import list_thread_effects
from planwarden.server.settings.tables import ToolSettings
from tests.kit import Client, Ledger, ManualClock, MemoryStore, Settings, governed, plan, requirement, tool_step, warden
from tests.server.mcp.support import ids_of, ok, question_of, served

pytestmark = pytest.mark.anyio

CONFIRM = "displayConfirmation"


def settings(name: str = CONFIRM, /, **given: object) -> Settings:
    tools = {name: ToolSettings.model_validate({"on_timeout": "approve", **given})}
    return Settings(home=Path("/nonexistent"), tools=tools)


def steps(name: str = CONFIRM, /, **arguments: JsonValue) -> dict[str, JsonValue]:
    given: dict[str, JsonValue] = {"action": "Pay everybody?", **arguments} if name == CONFIRM else {**arguments}
    return plan(tool_step("ask", name, given, confirms=["pay"]), tool_step("pay", "note", {"text": "paid"}))


@requirement("approval:silence")
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
    tmp_path: Path, asked_s: float | None, limit_s: float | None, until_s: float | None, on_timeout: str
) -> None:
    ledger, clock = Ledger(), ManualClock()
    limits = {} if limit_s is None else {"answer_within_s": limit_s}
    arguments: dict[str, JsonValue] = {} if asked_s is None else {"timeoutSeconds": asked_s}
    async with (
        served(tmp_path, tools=ledger.tools(), store=MemoryStore(clock), settings=settings(**limits)) as found,
        Client(found.server) as client,
    ):
        began = clock.now()
        asked = await ok(client, "execute_plan", plan=steps(**arguments))
        [question] = (await found.warden.get_execution(asked["threadId"])).suspensions
        assert (question.on_timeout, question_of(asked)["onTimeout"]) == (on_timeout, on_timeout)
        until = None if question.expires_at is None else round(question.expires_at.timestamp() - began, 3)
        assert until == until_s
        clock.advance(1)
        await found.warden.service.engine.tick()
        assert ledger.lines == []
        clock.advance(1_000)
        await found.warden.service.engine.tick()
        await ok(client, "get_execution", threadId=asked["threadId"])
    assert ledger.lines == (["note paid"] if until_s is not None and on_timeout == "approve" else [])


@requirement("approval:silence")
async def test_a_question_of_a_tool_never_makes_silence_looser_than_its_tool() -> None:
    @planwarden.tool(execution_mode="blocking", effect="read", risk="confirm", timeout_s=600)
    async def ask(seconds: float) -> planwarden.Suspend:
        """Ask."""
        return planwarden.Suspend(message="Pay?", timeout_s=seconds, on_timeout="approve")

    clock = ManualClock()
    async with warden(tools=[ask], store=MemoryStore(clock)) as w:
        for seconds, until_s in ((0.001, 600), (900.0, 900)):
            began = clock.now()
            asked = await w.execute_plan(plan(tool_step("a", "ask", {"seconds": seconds})))
            [question] = asked.suspensions
            assert question.expires_at is not None and question.on_timeout == "reject"
            assert round(question.expires_at.timestamp() - began) == until_s


@requirement("approval:silence", "thread:effects")
async def test_what_silence_let_run_does_not_count_as_approved_by_a_person() -> None:
    ledger, clock = Ledger(), ManualClock()
    given = settings("erase", answer_within_s=60, risk="confirm")
    async with warden(ledger, store=MemoryStore(clock), settings=given) as w:
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})))
        clock.advance(61)
        await w.service.engine.tick()
        done = await w.service.engine.find(asked.execution_id)
    assert (done.status, ledger.lines) == ("completed", ["erase [1]"])
    assert [effect.is_approved for effect in list_thread_effects(done)] == [False]


@requirement("approval:silence")
@pytest.mark.parametrize("why", ["dangerous", "critical", "another policy"])
async def test_silence_approves_no_call_above_confirm_and_none_under_another_policy(why: str) -> None:
    ledger, clock = Ledger(), ManualClock()
    store, risk = MemoryStore(clock), "confirm" if why == "another policy" else why
    given = settings("erase", answer_within_s=60, risk=risk)
    async with warden(ledger, store=store, settings=given) as w:
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})))
        assert asked.suspensions[0].on_timeout == ("approve" if risk == "confirm" else "reject")
    changed = governed(facts={"changed": True}).policy if risk == "confirm" else given.policy
    async with warden(ledger, store=store, settings=msgspec.structs.replace(given, policy=changed)) as w:
        clock.advance(61)
        await w.service.engine.tick()
        done = await w.get_execution(asked.thread_id)
    assert (done.status, ledger.lines) == ("rejected", [])


@requirement("approval:silence")
@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_tool_whose_question_has_no_usable_limit_fails_with_a_sentence(seconds: float) -> None:
    @planwarden.tool(execution_mode="blocking", effect="read", risk="confirm")
    async def ask(kind: int) -> planwarden.Suspend:
        """Ask."""
        return planwarden.Suspend(message="Pay?", timeout_s=(seconds, inf, nan)[kind])

    async with warden(tools=[ask]) as w:
        for kind in range(3):
            done = await w.execute_plan(plan(tool_step("a", "ask", {"kind": kind})))
            error = done.steps[0].error
            assert (
                done.status == "failed" and error is not None and "a limit is more than 0 and at most" in error.message
            )


@requirement("approval:silence")
async def test_what_was_revised_is_never_approved_by_silence(tmp_path: Path) -> None:
    ledger, clock = Ledger(), ManualClock()
    given = settings("send", answer_within_s=60)

    @planwarden.tool(risk="confirm")
    async def send(to: str) -> str:
        """Send."""
        ledger.lines.append(to)
        return "sent"

    async with (
        served(tmp_path, tools=[send], store=MemoryStore(clock), settings=given) as found,
        Client(found.server) as client,
    ):
        asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "send", {"to": "ann"})))
        assert question_of(asked)["onTimeout"] == "approve"
        decision = {"approved": True, "modifiedArgs": {"to": "mallory"}}
        edited = await ok(client, "resume_execution", **ids_of(asked), decision=decision)
        assert question_of(edited)["onTimeout"] == "reject"
        clock.advance(61)
        await found.warden.service.engine.tick()
        done = await ok(client, "get_execution", threadId=asked["threadId"])
    assert (done["status"], ledger.lines) == ("rejected", [])


@requirement("approval:silence")
@pytest.mark.parametrize("limit_s", [inf, nan, 0, -1.0])
def test_a_tool_with_an_infinite_limit_is_refused_where_it_is_defined(limit_s: float) -> None:
    with pytest.raises(UsageError, match="None for no limit"):

        @planwarden.tool(timeout_s=limit_s)
        async def slow() -> str:
            """Slow."""
            return ""
