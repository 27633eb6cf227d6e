"""Several owners on one server: what belongs to another looks, and costs, as if it did not exist."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import InvalidArguments, StoreError, UnknownSuspension, UnknownThread, UsageError
from planwarden.agent.core.requester import Requester
from planwarden.server.auth.caller import VerifiedToken, identify_bearer
from planwarden.server.auth.failures import FAILURES, MAX_ADDRESSES, WINDOW_S, FailedTokenLimiter
from planwarden.server.auth.proof import OAUTH_CHANNEL
from planwarden.server.settings.configuration import Settings
from planwarden.server.transports.http import serve_http
from planwarden.storage.clock import ManualClock
from planwarden.storage.location import read_location
from planwarden.storage.memory.store import MemoryStore
from planwarden.storage.opening import open_store
from planwarden.storage.sealing import make_secret_key
from tests.requirements import requirement
from tests.server.mcp.http_support import HEADERS, LIST, bearing, client_of, revoke, serving, token_for
from tests.server.mcp.support import ERAS, Document, Era, approving, ids_of, ok, refused
from tests.support.fakes import StoreCall, WatchedStore
from tests.support.wardens import Ledger, confirm, plan, tool_step, warden

pytestmark = pytest.mark.anyio

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
        own = ids_of(await ok(his, "execute_plan", plan=ASKED))
        answers: list[tuple[str, Document]] = [
            ("resume_execution", {"decision": APPROVE}),
            ("resume_execution", {"decision": {"approved": False}}),
            ("submit_answer", {"content": {}}),
        ]
        calls: list[tuple[str, Document, Document]] = [
            ("get_execution", {"threadId": thread}, {"threadId": NOWHERE}),
            ("list_suspensions", {"threadId": thread}, {"threadId": NOWHERE}),
            ("list_suspensions", {"cursor": suspension}, {"cursor": NOWHERE}),
            ("cancel_execution", {"threadId": thread}, {"threadId": NOWHERE}),
            ("execute_plan", {"threadId": thread}, {"threadId": NOWHERE}),
            ("execute_plan", {"threadId": thread, "plan": ASKED}, {"threadId": NOWHERE, "plan": ASKED}),
            ("run_goal", {"threadId": thread, "goal": "x"}, {"threadId": NOWHERE, "goal": "x"}),
            *(
                (name, {**found, **rest}, {**lost, **rest})
                for name, rest in answers
                for found, lost in (
                    ({"threadId": thread, "suspensionId": suspension}, {"threadId": NOWHERE, "suspensionId": NOWHERE}),
                    ({**own, "suspensionId": suspension}, {**own, "suspensionId": NOWHERE}),
                    ({**own, "threadId": thread}, {**own, "threadId": NOWHERE}),
                )
            ),
        ]
        for name, foreign, absent in calls:
            seen, unseen = await refused(his, name, **foreign), await refused(his, name, **absent)
            assert _blind(seen, foreign) == _blind(unseen, absent), name
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
    """The error with the ids of the call replaced."""
    text = str(error)
    for value in given.values():
        if isinstance(value, str) and len(value) == len(NOWHERE):
            text = text.replace(value, "ID")
    return text


@requirement("access:owners")
@pytest.mark.parametrize("is_cached", [True, False], ids=["cached", "cold"])
async def test_a_foreign_id_costs_the_same_queries_as_an_absent_one(is_cached: bool) -> None:
    kept = MemoryStore()
    watched = WatchedStore(kept, _nothing)
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
                lambda: service.execute_plan(thread_id=thread, requester=Requester("bob")),
                lambda: service.run_goal("x", thread_id=thread, requester=Requester("bob")),
                lambda: service.suspensions.view(thread, found, principal="bob"),
                lambda: service.suspensions.view_awaiting(thread, found, principal="bob"),
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


async def _nothing(moment: StoreCall) -> None:
    """Counts the calls."""


@requirement("access:sessions")
async def test_a_session_of_the_older_protocol_serves_only_who_opened_it(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ann, bob = await token_for(settings, "ann"), await token_for(settings, "bob")
    again = await token_for(settings, "ann")
    hello: Document = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
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


@requirement("access:refused")
async def test_once_there_was_a_token_every_request_needs_one(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    good, gone = await token_for(settings, "ann"), await token_for(settings, "bob")
    person = await token_for(settings, "eve", role="approver")
    await revoke(settings, "bob")
    async with serving(settings) as url, httpx2.AsyncClient(headers=HEADERS) as http:
        answers: list[tuple[int, str]] = []
        headers: Sequence[dict[str, str]] = (
            {},
            bearing(gone),
            bearing(person),
            bearing(good[:-1]),
            bearing("a.b.c"),
            bearing("\u00e9" * 20),
            {"authorization": f"Basic {good}"},
            {"authorization": "Bearer"},
        )
        for given in headers:
            encoded = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
            response = await http.post(url, json=LIST, headers=encoded)
            answers.append((response.status_code, response.text))
        assert set(answers) == {(401, answers[0][1])} and "resource_metadata" not in answers[0][1]
        async with client_of(url, good, "auto") as client:
            await ok(client, "search_tools")
        await revoke(settings, "ann")
        assert (await http.post(url, json=LIST, headers=bearing(good))).status_code == 401
    # Taking the last token away does not open the server: it refuses to start.
    with pytest.raises(UsageError, match="token add"):
        await serve_http(settings, port=0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers look for new and ended tokens all the time."""
    monkeypatch.setattr("planwarden.server.auth.tokens.LOOK_S", 0.0)
    monkeypatch.setattr("planwarden.server.auth.admission.WATCH_S", 0.01)


@requirement("access:closes")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["one file", "two machines"])
async def test_a_server_without_tokens_closes_when_the_first_one_is_made(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    one = two = Settings(home=tmp_path / "one")
    if kind == "two machines":
        location, key = read_location(request.getfixturevalue("url")), {"PLANWARDEN_SECRET_KEY": make_secret_key()}
        one = Settings(home=one.home, given_store=location, environment=key)
        two = Settings(home=tmp_path / "two", given_store=location, environment=key)
    with anyio.fail_after(60):
        async with serving(one) as first, serving(two) as second, httpx2.AsyncClient(headers=HEADERS) as http:
            for url in (first, second):
                async with Client(url) as client:
                    await ok(client, "search_tools")
                # A client that sends one before there is any is let in like the others.
                async with client_of(url, "pwt_x", "auto") as client:
                    await ok(client, "search_tools")
            secret = await token_for(one, "ann")
            for url in (first, second):
                assert (await http.post(url, json=LIST)).status_code == 401
                assert (await http.post(url, json=LIST, headers=bearing("pwt_x"))).status_code == 401
                async with client_of(url, secret, "auto") as client:
                    await ok(client, "search_tools")
            await revoke(two, "ann")
            for url in (first, second):
                for headers in ({}, bearing(secret)):
                    assert (await http.post(url, json=LIST, headers=headers)).status_code == 401


@requirement("access:closes")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("has_token", [True, False])
async def test_a_stream_ends_when_its_token_is_revoked_or_the_server_closes(tmp_path: Path, has_token: bool) -> None:
    settings = Settings(home=tmp_path)
    given = bearing(await token_for(settings, "ann")) if has_token else {}
    async with (
        serving(settings) as url,
        httpx2.AsyncClient(headers=given, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
        client.listen(resource_subscriptions=["planwarden://suspensions"]) as stream,
    ):
        running = await ok(client, "execute_plan", plan=ASKED)
        await (revoke(settings, "ann") if has_token else token_for(settings, "ann"))
        with anyio.fail_after(60), pytest.raises(SubscriptionLost):
            async for _ in stream:
                pass
    # What it had started is where it was.
    async with open_store(settings.store) as store:
        header = await store.header(running["executionId"])
    assert header is not None and header.status == "suspended"


async def test_a_request_without_its_verified_token_is_not_the_operators() -> None:
    with pytest.raises(StoreError, match="no verified token"):
        identify_bearer()
    user = AuthenticatedUser(VerifiedToken.create("ann", scopes=(), expires_at=None, client_id="app"))
    reset = auth_context_var.set(user)
    try:
        assert (identify_bearer().principal, identify_bearer().client_id) == ("ann", "app")
    finally:
        auth_context_var.reset(reset)


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
        asked = await w.service.execute_plan(
            plan(tool_step("a", "erase", {"ids": [1]})), requester=Requester("ann", client_id=started_by)
        )
        authority = Authority(assurance="human", channel=channel, principal="ann", client_id=decided_by)
        done = await w.service.answer(
            asked.thread_id, asked.suspensions[0].suspension_id, Decision(approved=True), authority, principal="ann"
        )
        assert (done.status, ledger.lines) == (("completed", ["erase [1]"]) if counts else ("suspended", []))


async def test_the_client_that_runs_a_plan_of_another_client_is_recorded_too() -> None:
    async with warden(Ledger()) as w:
        made = await w.service.run_goal("x", requester=Requester("ann", client_id="planner"), plan_only=True)
        [question] = made.suspensions
        answer: Document = {"todoList": [{"id": "a", "description": "b", "stepType": "reasoning"}]}
        await w.submit_answer(made.thread_id, question.suspension_id, answer, principal="ann")
        await w.service.execute_plan(thread_id=made.thread_id, requester=Requester("ann", client_id="runner"))
        execution = await w.service.load_newest(made.thread_id, "ann")
        assert execution.client_ids == {"planner", "runner"}


@requirement("access:brake")
async def test_an_address_that_keeps_guessing_must_wait_but_right_tokens_pass(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    good, unseen = await token_for(settings, "ann"), await token_for(settings, "bob")
    async with serving(settings) as url, httpx2.AsyncClient(headers=HEADERS) as http:
        async with client_of(url, good, "auto") as client:
            statuses = [
                (await http.post(url, json=LIST, headers=bearing(f"pwt_{number}"))).status_code
                for number in range(FAILURES + 3)
            ]
            assert statuses == [401] * FAILURES + [429] * 3
            slowed = await http.post(url, json=LIST, headers=bearing("pwt_x"))
            assert 0 < int(slowed.headers["retry-after"]) <= WINDOW_S + 1
            assert slowed.json()["error"] == "rate_limited" and "www-authenticate" not in slowed.headers
            async with client_of(url, unseen, "auto") as other:
                await ok(other, "search_tools")
            await ok(client, "search_tools")
        # Asking without any token is not a guess.
        assert (await http.post(url, json=LIST)).status_code == 401


@requirement("access:brake")
async def test_the_limit_ends_in_time_and_drops_the_oldest_address(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        status = 200 if Headers(scope=scope)["authorization"].startswith("good") else 401
        await send({"type": "http.response.start", "status": status, "headers": []})

    brake = FailedTokenLimiter(app, clock, "/mcp")

    async def asked(token: str, address: str = "10.0.0.1", path: str = "/mcp") -> int:
        found: list[int] = []

        async def send(message: Message) -> None:
            found.extend([message["status"]] if "status" in message else [])

        async def receive() -> Message:
            raise AssertionError

        scope: Document = {"type": "http", "path": path, "client": (address, 1)}
        scope["headers"] = [(b"authorization", token.encode())]
        await brake(scope, receive, send)
        return found[0]

    assert [await asked(f"bad{n}") for n in range(FAILURES + 1)] == [401] * FAILURES + [429]
    assert len(caplog.messages) == FAILURES and all(
        "10.0.0.1" in line and "bad" not in line for line in caplog.messages
    )
    assert await asked("bad", "10.0.0.2") == 401
    # A path that asks for no token does not slow anybody down.
    assert await asked("bad", path="/inbox") == 401 and await asked("good") == 200 and await asked("bad") == 429
    clock.advance(WINDOW_S)
    assert await asked("bad") == 401
    for number in range(MAX_ADDRESSES + 10):
        await asked("bad", f"10.1.{number // 256}.{number % 256}")
    assert brake.size == MAX_ADDRESSES


async def test_a_server_without_tokens_serves_the_operator_on_loopback_only(tmp_path: Path) -> None:
    async with serving(Settings(home=tmp_path)) as url, Client(url) as client:
        asked = await ok(client, "execute_plan", plan=ASKED)
        assert asked["status"] == "suspended"
