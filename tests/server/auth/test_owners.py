"""Several owners on one server: what belongs to another looks, and costs, as if it did not exist."""

from pathlib import Path

import anyio
import httpx2
import pytest
from mcp.types import RequestParamsMeta

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded, UnknownSuspension, UnknownThread
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.settings.policy import OAUTH_CHANNEL
from planwarden.tools.delegate.child import CHAIN
from tests.kit import Ledger, MemoryStore, Settings, confirm, decide, plan, requirement, start_as, tool_step, warden
from tests.server.mcp.http_support import HEADERS, LIST, bearing, client_of, serving, token_for
from tests.server.mcp.support import ERAS, Document, Era, approving, ids_of, ok, refused
from tests.support.fakes import WatchedStore

SCHEDULED = ("due", "changes", "expire_dead", "claim_many", "orphans")
"""What the scheduler asks the store, whoever calls meanwhile."""

NOWHERE = "0" * 32
ASKED = plan(tool_step("a", "calculator", {"expression": "6*7"}), confirm("b"))
APPROVE: Document = {"approved": True}


@requirement("access:owners")
@pytest.mark.parametrize("era", ERAS)
async def test_two_owners_of_one_server_see_nothing_of_each_other(tmp_path: Path, era: Era) -> None:
    settings = Settings(home=tmp_path)
    ann, bob = await token_for(settings, "ann"), await token_for(settings, "bob")
    async with (
        serving(settings) as url,
        client_of(url, ann, era, approving()) as hers,
        client_of(url, bob, era, approving()) as his,
    ):
        asked = await ok(hers, "execute_plan", plan=ASKED)
        ids = ids_of(asked)
        thread, suspension = ids["threadId"], ids["suspensionId"]
        started = await ok(his, "execute_plan", plan=ASKED)
        own, own_execution = ids_of(started), started["executionId"]
        both = {"threadId": thread, "suspensionId": suspension}
        answers: tuple[tuple[str, Document], ...]
        answers = ("resume_execution", {"decision": APPROVE}), ("submit_answer", {"content": {}})
        calls: list[tuple[str, Document, Document]] = [
            ("get_execution", {"threadId": thread}, {"threadId": NOWHERE}),
            ("list_suspensions", {"threadId": thread}, {"threadId": NOWHERE}),
            ("list_suspensions", {"cursor": suspension}, {"cursor": NOWHERE}),
            ("cancel_execution", {"threadId": thread}, {"threadId": NOWHERE}),
            ("execute_plan", {"threadId": thread, "plan": ASKED}, {"threadId": NOWHERE, "plan": ASKED}),
            ("run_goal", {"threadId": thread, "goal": "x"}, {"threadId": NOWHERE, "goal": "x"}),
            *(
                (name, {**own, **ids, **rest}, {**own, **dict.fromkeys(ids, NOWHERE), **rest})
                for name, rest in answers
                for ids in (both, {"suspensionId": suspension}, {"threadId": thread})
            ),
        ]
        for name, foreign, absent in calls:
            seen, unseen = await refused(his, name, **foreign), await refused(his, name, **absent)
            assert _blind(seen, foreign) == _blind(unseen, absent), name
        # Where a plan says that it comes from; the type knows the keys of the protocol only.
        coming = [
            await his.call_tool("execute_plan", {"plan": ASKED}, meta=RequestParamsMeta(**{CHAIN: [execution_id]}))  # pyright: ignore[reportArgumentType]
            for execution_id in (asked["executionId"], NOWHERE, own_execution)
        ]
        assert [answer.is_error for answer in coming] == [False, False, True]
        assert "comes back" in str(coming[2].structured_content)
        for found in (await ok(his, "list_suspensions"))["suspensions"]:
            if found["suspensionId"] != own["suspensionId"]:
                await ok(his, "cancel_execution", threadId=found["threadId"])
        page = await ok(his, "list_suspensions")
        assert [found["suspensionId"] for found in page["suspensions"]] == [own["suspensionId"]] and page["total"] == 1
        for uri in (f"planwarden://executions/{thread}", f"planwarden://executions/{NOWHERE}"):
            with pytest.raises(Exception, match="there is no thread"):
                await his.read_resource(uri)
        assert suspension not in str(await his.read_resource("planwarden://suspensions"))
        # Nothing of that changed anything, and the tools are everybody's.
        done = await ok(hers, "resume_execution", **ids, decision=APPROVE)
        assert done["status"] == "completed"
        assert await ok(his, "search_tools") == await ok(hers, "search_tools")


def _blind(error: Document, given: Document) -> str:
    text = str(error)
    for value in given.values():
        if isinstance(value, str) and len(value) == len(NOWHERE):
            text = text.replace(value, "ID")
    return text


@requirement("access:owners")
@pytest.mark.parametrize("is_cached", [True, False], ids=["cached", "cold"])
async def test_a_foreign_id_costs_the_same_queries_as_an_absent_one(is_cached: bool) -> None:
    kept = MemoryStore()
    watched = WatchedStore(kept)
    async with warden(Ledger(), store=kept) as first:
        asked = await first.execute_plan(ASKED, principal="ann")
        mine = await first.execute_plan(ASKED, principal="bob")
    async with warden(Ledger(), store=watched) as w:
        for thread, owner in ((asked.thread_id, "ann"), (mine.thread_id, "bob")):
            if is_cached:
                await w.get_execution(thread, principal=owner)
        suspension = asked.suspensions[0].suspension_id
        service, authority = w.service, Authority(assurance="claimed", channel="mcp", principal="bob")

        async def probe(thread: str, found: str) -> list[list[str]]:
            calls = (
                lambda: service.get_execution(thread, principal="bob", observations_after=0),
                lambda: service.list_suspensions(thread_id=thread, principal="bob"),
                lambda: service.list_suspensions(cursor=found, principal="bob"),
                lambda: service.cancel_execution(thread, principal="bob"),
                lambda: service.execute_plan(None, StartOptions(requester=Requester("bob"), thread_id=thread)),
                lambda: service.run_goal("x", StartOptions(requester=Requester("bob"), thread_id=thread)),
                lambda: service.read_question(thread, found, principal="bob"),
                lambda: service.view_awaiting(thread, found, principal="bob"),
                lambda: service.answer(thread, found, Decision(approved=True), authority, principal="bob"),
                lambda: service.answer(mine.thread_id, found, Decision(approved=False), authority, principal="bob"),
            )
            costs: list[list[str]] = []
            for call in calls:
                before = len(watched.calls)
                with pytest.raises((UnknownThread, UnknownSuspension, InvalidArguments)):
                    await call()
                costs.append([name for name in watched.calls[before:] if name not in SCHEDULED])
            return costs

        foreign, absent = await probe(asked.thread_id, suspension), await probe(NOWHERE, NOWHERE)
        assert foreign == absent
        assert not any("read" in cost or "header" in cost for cost in foreign)
        chained: list[list[str]] = []
        # The first of three reads what a process reads once.
        for execution_id in (NOWHERE, asked.execution_id, NOWHERE):
            before = len(watched.calls)
            await start_as(service, plan(confirm("b")), Requester("bob", chain=(execution_id,)))
            chained.append([name for name in watched.calls[before:] if name not in SCHEDULED])
        assert chained[1] == chained[2]
        with pytest.raises(LimitExceeded):
            await start_as(service, ASKED, Requester("ann", chain=(asked.execution_id,)))


@requirement("access:sessions")
async def test_a_session_of_the_older_protocol_serves_only_who_opened_it(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ann, bob = await token_for(settings, "ann"), await token_for(settings, "bob")
    again = await token_for(settings, "ann")
    client = {"clientInfo": {"name": "test", "version": "1"}, "capabilities": {}}
    params: Document = {"protocolVersion": "2025-11-25", **client}
    hello: Document = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    async with serving(settings) as url, httpx2.AsyncClient(headers=HEADERS) as http:
        opened = await http.post(url, json=hello, headers=bearing(ann))
        session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}

        async def asked(headers: dict[str, str]) -> int:
            return (await http.post(url, json=LIST, headers={**session, **headers})).status_code

        assert await asked(bearing(ann)) == 200
        # A new token of the same owner goes on with it.
        assert await asked(bearing(again)) == 200
        assert await asked(bearing(bob)) == 404
        assert await asked({}) == 401
        gone = await http.delete(url, headers={**session, **bearing(bob)})
        assert gone.status_code == 404 and await asked(bearing(ann)) == 200


@requirement("access:owners")
async def test_concurrent_requests_are_each_served_for_their_own_owner(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    tokens = {name: await token_for(settings, name) for name in ("ann", "bob", "eve")}
    async with serving(settings) as url:
        seen: dict[str, set[str]] = {name: set() for name in tokens}

        async def work(name: str, era: Era) -> None:
            async with client_of(url, tokens[name], era) as client:
                for _ in range(3):
                    await ok(client, "execute_plan", plan=plan(confirm("b", name)))
                page = await ok(client, "list_suspensions", limit=100)
                seen[name] |= {found["message"] for found in page["suspensions"]}

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for name in tokens:
                    for era in ERAS:
                        tasks.start_soon(work, name, era)
        assert seen == {name: {name} for name in tokens}


@requirement("access:oauth-person")
@pytest.mark.parametrize(
    ("started_by", "decided_by", "channel", "counts"),
    [
        ("app", "app", OAUTH_CHANNEL, False),
        ("app", None, OAUTH_CHANNEL, False),
        (None, None, OAUTH_CHANNEL, False),
        ("app", "portal", OAUTH_CHANNEL, True),
        (None, "portal", OAUTH_CHANNEL, True),
        ("app", None, "terminal", True),
    ],
)
async def test_the_client_that_started_an_execution_cannot_vouch_for_its_person(
    started_by: str | None, decided_by: str | None, channel: str, counts: bool
) -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await start_as(
            w.service, plan(tool_step("a", "erase", {"ids": [1]})), Requester("ann", client_id=started_by)
        )
        authority = Authority(assurance="human", channel=channel, principal="ann", client_id=decided_by)
        done = await decide(w, asked, Decision(approved=True), authority, principal="ann")
        assert (done.status, ledger.lines) == (("completed", ["erase [1]"]) if counts else ("suspended", []))


async def test_the_client_that_runs_a_plan_of_another_client_is_recorded_too() -> None:
    async with warden(Ledger()) as w:
        start = StartOptions(requester=Requester("ann", client_id="planner"))
        made = await w.service.run_goal("x", start, plan_only=True)
        [question] = (await w.get_execution(made.thread_id, principal="ann")).suspensions
        answer: Document = {"todoList": [{"id": "a", "description": "b", "stepType": "reasoning"}]}
        await w.submit_answer(made.thread_id, question.suspension_id, answer, principal="ann")
        await start_as(w.service, None, Requester("ann", client_id="runner"), thread_id=made.thread_id)
        execution = await w.service.load_newest(made.thread_id, "ann")
        assert execution.client_ids == {"planner", "runner"}
