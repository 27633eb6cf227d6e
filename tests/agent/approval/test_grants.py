"""Standing grants: what they let through, what not, and that nobody gets more uses than a person gave."""

from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority
from planwarden.agent.common.errors import InvalidArguments, StoreError, UnknownGrant, UnknownTool
from planwarden.agent.core import events as ev
from planwarden.server.api.grants import GrantRequest
from planwarden.storage.clock import ManualClock
from planwarden.storage.memory.store import MemoryStore
from planwarden.storage.sqlite.store import SqliteStore
from tests.requirements import requirement
from tests.support.wardens import Ledger, plan, statuses, tool_step, warden

pytestmark = pytest.mark.anyio

PERSON = Authority(assurance="human", channel="test", principal="ann")


def erase(*ids: int) -> dict[str, JsonValue]:
    return plan(tool_step("a", "erase", {"ids": list(ids)}))


def request(uses: int = 1, tool: str = "erase", hours: float = 1.0, **arguments: JsonValue) -> GrantRequest:
    return GrantRequest(tool_name=tool, arguments=arguments, opens_others=True, uses=uses, expires_in_s=hours * 3600)


@requirement("approval:grants")
async def test_a_grant_lets_the_named_call_through_without_a_question_and_only_so_often() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        made = await w.service.grants.make(request(2, ids=[1]), PERSON)
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
        made = await w.service.grants.make(grant, PERSON)
        if other == "late":
            clock.advance(3600)
        if other == "revoked":
            await w.service.grants.revoke(made.grant_id, PERSON)
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
        made = await w.service.grants.make(grant, PERSON)

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
async def test_a_grant_is_worth_what_its_makers_word_is_worth() -> None:
    done: list[str] = []

    @planwarden.tool(name="wipe", risk="critical")
    async def wipe() -> str:
        """Wipe."""
        done.append("wipe")
        return "done"

    async with warden(tools=[wipe]) as w:
        await w.service.grants.make(request(5, "wipe"), Authority(assurance="human", channel="test", principal="local"))
        assert (await w.execute_plan(plan(tool_step("a", "wipe")))).status == "suspended" and done == []
        await w.service.grants.make(
            request(5, "wipe"), Authority(assurance="signed", channel="test", principal="local")
        )
        assert (await w.execute_plan(plan(tool_step("a", "wipe")))).status == "completed" and done == ["wipe"]


@requirement("approval:grants")
@pytest.mark.parametrize(
    ("wanted", "authority", "error"),
    [
        (request(1), Authority(assurance="claimed", channel="mcp", principal="m"), InvalidArguments),
        (request(1), Authority(assurance="client", channel="elicitation", principal="m"), InvalidArguments),
        (request(0), PERSON, InvalidArguments),
        (request(1001), PERSON, InvalidArguments),
        (request(1, hours=8.1), PERSON, InvalidArguments),
        (request(1, hours=0), PERSON, InvalidArguments),
        (request(1, "nothing"), PERSON, UnknownTool),
        (request(1, "find"), PERSON, InvalidArguments),
        (request(1, "displayConfirmation"), PERSON, InvalidArguments),
        (request(1, colour="red"), PERSON, InvalidArguments),
        (request(1, ids="x" * 70_000), PERSON, InvalidArguments),
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
            await w.service.grants.revoke("nothing", PERSON)


@requirement("approval:grants", "store:grants")
async def test_parallel_steps_and_two_processes_share_the_uses_of_one_grant(tmp_path: Path) -> None:
    ledger = Ledger()
    steps = plan(*(tool_step(f"s{n}", "erase", {"ids": [n]}, dependencies=[]) for n in range(6)))
    first, second = (SqliteStore.open(tmp_path / "planwarden.db") for _ in range(2))
    try:
        async with warden(ledger, store=first) as one:
            await one.service.grants.make(request(5), PERSON)
            async with warden(ledger, store=second) as two:
                results = dict[str, planwarden.Execution]()

                async def run(name: str, w: planwarden.Warden) -> None:
                    results[name] = await w.execute_plan(steps)

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run, "one", one)
                    tasks.start_soon(run, "two", two)
                [grant] = await two.service.grants.list()
                assert (await one.service.audit.verify()).problems == ()
    finally:
        await first.close()
        await second.close()
    done = [s for found in results.values() for s in statuses(found).values()]
    assert len(ledger.lines) == done.count("completed") == grant.uses - grant.uses_left <= 5
    assert done.count("completed") + done.count("suspended") == 12


@requirement("store:grants")
async def test_an_intent_whose_grant_is_spent_is_not_stored(tmp_path: Path) -> None:
    ledger = Ledger()
    store = SqliteStore.open(tmp_path / "planwarden.db")
    try:
        async with warden(ledger, store=store) as w:
            made = await w.service.grants.make(request(5), PERSON)
            believed = w.service.engine.grants
            open_now = await store.grants(only_open=True)
            await w.service.grants.revoke(made.grant_id, PERSON)
            believed.fill(open_now)
            asked = await w.execute_plan(erase(1))
            log = await store.read(asked.execution_id)
    finally:
        await store.close()
    assert asked.status == "suspended" and ledger.lines == []
    assert not any(isinstance(entry.event, ev.ToolCallIntended) for entry in log)


async def test_a_damaged_grant_is_named(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "planwarden.db"
    store = SqliteStore.open(path)
    try:
        async with warden(Ledger(), store=store) as w:
            made = await w.service.grants.make(request(5), PERSON)
            with sqlite3.connect(path) as connection:
                connection.execute("UPDATE grants SET arguments = '[1'")
            connection.close()
            with pytest.raises(StoreError, match=f"grant '{made.grant_id}' is damaged"):
                await w.service.grants.list()
    finally:
        await store.close()
