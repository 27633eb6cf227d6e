"""Standing grants: what they let through, what not, and that nobody gets more uses than a person gave."""

import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, StoreError, UnknownGrant, UnknownTool
from planwarden.agent.core import events as ev
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.server.api.grants import GrantRequest
from planwarden.tools.base import Tool, define
from tests.kit import Authority, ManualClock, MemoryStore, requirement
from tests.support.wardens import HUMAN, Ledger, plan, statuses, tool_step, warden

pytestmark = pytest.mark.anyio


def erase(*ids: int) -> dict[str, JsonValue]:
    return plan(tool_step("a", "erase", {"ids": list(ids)}))


def request(uses: int = 1, tool: str = "erase", hours: float = 1.0, **arguments: JsonValue) -> GrantRequest:
    return GrantRequest(tool_name=tool, arguments=arguments, opens_others=True, uses=uses, expires_in_s=hours * 3600)


@requirement("approval:grants")
async def test_a_grant_lets_the_named_call_through_without_a_question_and_only_so_often() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        made = await w.service.grants.make(request(2, ids=[1]), HUMAN)
        for _ in range(2):
            assert (await w.execute_plan(erase(1))).status == "completed"
        assert (await w.execute_plan(erase(1))).status == "suspended"
        [shown] = await w.service.grants.list()
        rows = (await w.service.audit.read_page()).rows
    assert ledger.lines == ["erase [1]"] * 2 and (shown.uses_left, shown.is_open) == (0, False)
    assert [row.kind for row in rows if row.kind != "policy"] == ["grant_made", "granted", "granted", "asked"]
    assert all(row.facts["grant"] == made.grant_id for row in rows if "grant" in row.facts)


@requirement("approval:grants")
@pytest.mark.parametrize("other", ["arguments", "owner", "late", "revoked", "tool"])
async def test_anything_that_the_grant_does_not_name_is_asked(other: str) -> None:
    ledger, clock = Ledger(), ManualClock()
    store = MemoryStore(clock)
    async with warden(ledger, store=store) as w:
        grant = GrantRequest(
            tool_name="erase",
            arguments={"ids": [1]},
            uses=9,
            expires_in_s=3600,
            owner="zoe" if other == "owner" else None,
        )
        made = await w.service.grants.make(grant, HUMAN)
        if other == "late":
            clock.advance(3600)
        if other == "revoked":
            await w.service.grants.revoke(made.grant_id, HUMAN)
    tools: list[object] = []
    if other == "tool":

        @planwarden.tool(name="erase", description="Delete records, and their backups.")
        async def changed(ids: list[int]) -> str:
            ledger.lines.append("changed")
            return "done"

        tools.append(changed)
    async with warden(None if tools else ledger, tools=tools, store=store) as w:
        asked = await w.execute_plan(erase(2) if other == "arguments" else erase(1))
    assert asked.status == "suspended" and ledger.lines == []


@requirement("approval:grants")
@pytest.mark.parametrize("opened", ["nothing", "one name", "all others"])
async def test_a_call_with_an_argument_that_nobody_allowed_is_asked_about(opened: str) -> None:
    sent: list[str] = []

    @planwarden.tool
    async def send(to: str, text: str, bcc: str | None = None, amount: float | None = None) -> str:
        """Send."""
        sent.append(f"{to} {text} {bcc} {amount}")
        return "sent"

    async with warden(tools=[send]) as w:
        grant = GrantRequest(
            tool_name="send",
            arguments={"to": "ann"},
            free=("text",) if opened == "nothing" else ("text", "bcc"),
            opens_others=opened == "all others",
            uses=9,
            expires_in_s=60,
        )
        made = await w.service.grants.make(grant, HUMAN)

        async def call(**others: JsonValue) -> str:
            arguments: dict[str, JsonValue] = {"to": "ann", "text": "hello", **others}
            return (await w.execute_plan(plan(tool_step("a", "send", arguments)))).status

        ended = [await call(), await call(bcc="eve"), await call(amount=1e9)]
        row = next(row for row in (await w.service.audit.read_page()).rows if row.kind == "grant_made")
    assert [ended.count("completed"), len(sent)] == [{"nothing": 1, "one name": 2, "all others": 3}[opened]] * 2
    assert ended[0] == "completed" and row.facts["free"] == list(made.free)
    # What was left out has its default, which is in every call.
    assert made.arguments == {
        "nothing": {"to": "ann", "bcc": None, "amount": None},
        "one name": {"to": "ann", "amount": None},
    }.get(opened, {"to": "ann"})


@requirement("approval:grants")
async def test_an_argument_without_a_default_that_the_grant_does_not_name_is_asked_about() -> None:
    sent: list[dict[str, JsonValue]] = []
    properties: dict[str, JsonValue] = {"to": {"type": "string"}, "bcc": {"type": "string"}}

    async def call(arguments: dict[str, JsonValue], context: CallContext) -> str:
        sent.append(arguments)
        return "sent"

    schema: dict[str, JsonValue] = {"type": "object", "properties": properties}
    send = Tool(define(ToolDefinition(name="send", description="Send.", input_schema=schema)), call)
    async with warden(tools=[send]) as w:
        grant = GrantRequest(tool_name="send", arguments={"to": "ann"}, uses=9, expires_in_s=60)
        await w.service.grants.make(grant, HUMAN)
        asked = await w.execute_plan(plan(tool_step("a", "send", {"to": "ann", "bcc": "eve"})))
        done = await w.execute_plan(plan(tool_step("a", "send", {"to": "ann"})))
    assert (asked.status, done.status, sent) == ("suspended", "completed", [{"to": "ann"}])


@requirement("approval:grants")
async def test_a_grant_is_worth_what_its_makers_word_is_worth() -> None:
    done: list[str] = []

    @planwarden.tool(name="wipe", risk="critical")
    async def wipe() -> str:
        """Wipe."""
        done.append("wipe")
        return "done"

    makers: tuple[tuple[ev.Assurance, str], ...] = (("human", "suspended"), ("signed", "completed"))
    async with warden(tools=[wipe]) as w:
        for assurance, status in makers:
            maker = Authority(assurance=assurance, channel="test", principal="local")
            await w.service.grants.make(request(5, "wipe"), maker)
            assert (await w.execute_plan(plan(tool_step("a", "wipe")))).status == status
    assert done == ["wipe"]


@requirement("approval:grants")
@pytest.mark.parametrize(
    ("wanted", "authority", "error"),
    [
        (request(1), Authority(assurance="claimed", channel="mcp", principal="m"), InvalidArguments),
        (request(1), Authority(assurance="client", channel="elicitation", principal="m"), InvalidArguments),
        (request(0), HUMAN, InvalidArguments),
        (request(1001), HUMAN, InvalidArguments),
        (request(1, hours=8.1), HUMAN, InvalidArguments),
        (request(1, hours=0), HUMAN, InvalidArguments),
        (request(1, "nothing"), HUMAN, UnknownTool),
        (request(1, "find"), HUMAN, InvalidArguments),
        (request(1, "displayConfirmation"), HUMAN, InvalidArguments),
        (request(1, colour="red"), HUMAN, InvalidArguments),
        (request(1, ids="x" * 70_000), HUMAN, InvalidArguments),
    ],
)
async def test_a_grant_that_is_too_much_or_not_a_persons_is_refused(
    wanted: GrantRequest, authority: Authority, error: type[Exception]
) -> None:
    async with warden(Ledger()) as w:
        with pytest.raises(error):
            await w.service.grants.make(wanted, authority)
        assert await w.service.grants.list() == ()
        with pytest.raises(UnknownGrant):
            await w.service.grants.revoke("nothing", HUMAN)


@requirement("approval:grants", "store:grants")
async def test_parallel_steps_and_two_processes_share_the_uses_of_one_grant(tmp_path: Path) -> None:
    ledger, results = Ledger(), list[planwarden.Execution]()
    steps = plan(*(tool_step(f"s{n}", "erase", {"ids": [n]}, dependencies=[]) for n in range(6)))
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(planwarden.Warden(home=tmp_path, tools=ledger.tools())) for _ in range(2)
        ]
        await one.service.grants.make(request(5), HUMAN)

        async def run(w: planwarden.Warden) -> None:
            results.append(await w.execute_plan(steps))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, one)
            tasks.start_soon(run, two)
        [grant] = await two.service.grants.list()
        assert (await one.service.audit.verify()).problems == ()
    done = [status for found in results for status in statuses(found).values()]
    assert len(ledger.lines) == done.count("completed") == grant.uses - grant.uses_left <= 5
    assert done.count("completed") + done.count("suspended") == 12


@requirement("store:grants")
async def test_an_intent_whose_grant_is_spent_is_not_stored_and_a_damaged_grant_is_named(tmp_path: Path) -> None:
    ledger = Ledger()
    async with planwarden.Warden(home=tmp_path, tools=ledger.tools()) as w:
        made = await w.service.grants.make(request(5), HUMAN)
        engine = w.service.engine
        open_now = await engine.store.grants(only_open=True)
        await w.service.grants.revoke(made.grant_id, HUMAN)
        # As in a process that was not told yet.
        engine.grants.fill(open_now)
        asked = await w.execute_plan(erase(1))
        log = await engine.store.read(asked.execution_id)
        assert asked.status == "suspended" and ledger.lines == []
        assert not any(isinstance(entry.event, ev.ToolCallIntended) for entry in log)
        with closing(sqlite3.connect(tmp_path / "planwarden.db", isolation_level=None)) as connection:
            connection.execute("UPDATE grants SET arguments = '[1'")
        with pytest.raises(StoreError, match=f"grant '{made.grant_id}' is damaged"):
            await w.service.grants.list()
