"""Tokens: what stores keep of them, and that at the door, once there was one, every request needs one at once."""

from pathlib import Path

import anyio
import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, BearerAuthBackend
from mcp.types import JSONRPCError
from msgspec.structs import replace
from starlette.datastructures import Headers
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from planwarden.agent.common.errors import InvalidArguments, StoreError, UsageError
from planwarden.server.auth import admission
from planwarden.server.auth.caller import TokenCheck, VerifiedToken, identify_bearer
from planwarden.server.transports.http import serve_http
from planwarden.storage.location import read_location
from planwarden.storage.opening import open_store
from planwarden.storage.sealing import make_secret_key
from planwarden.storage.tokens import DAY_S, PREFIX, TokenStore, hash_token
from tests.kit import Client, ManualClock, Settings, confirm, plan, requirement
from tests.server.mcp.http_support import HEADERS, LIST, bearing, client_of, revoke, serving, token_for
from tests.server.mcp.support import Document, ok
from tests.storage.suite import BackEnd

ASKED = plan(confirm("b"))


@requirement("access:refused")
async def test_once_there_was_a_token_every_request_needs_one(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    good, gone = await token_for(settings, "ann"), await token_for(settings, "bob")
    person = await token_for(settings, "eve", role="approver")
    await revoke(settings, "bob")
    async with serving(settings) as url, httpx2.AsyncClient(headers=HEADERS) as http:
        answers: list[tuple[int, str]] = []
        wrong = [bearing(text) for text in (gone, person, good[:-1], "a.b.c", "\u00e9" * 20)]
        for given in (*wrong, {}, {"authorization": f"Basic {good}"}, {"authorization": "Bearer"}):
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


@pytest.mark.parametrize("is_open", [True, False])
async def test_while_the_store_fails_a_request_is_told_so_as_an_error_of_the_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    monkeypatch.setattr("planwarden.server.auth.caller.LOOK_S", 0.0)
    async with open_store(Settings(home=tmp_path).store) as store:
        check = TokenCheck(TokenStore(store), store.clock, is_open=is_open)
    # The store is closed now.
    app = AuthenticationMiddleware(PlainTextResponse("let in"), backend=BearerAuthBackend(check))
    transport = httpx2.ASGITransport(app=admission.AdmissionMiddleware(app, check, "/mcp"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        answer = await http.post("/mcp", headers=bearing(f"{PREFIX}x"))
    assert answer.status_code == 503
    # No request is read before its token is checked, so the answer cannot name its id.
    told = JSONRPCError.model_validate_json(answer.text)
    assert (told.id, told.error.message) == (None, "storage_error: the store failed; try again later")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers look for new and ended tokens all the time."""
    monkeypatch.setattr("planwarden.server.auth.caller.LOOK_S", 0.0)
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


@requirement("access:brake")
async def test_an_address_that_keeps_guessing_must_wait_but_right_tokens_pass(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    good, unseen = await token_for(settings, "ann"), await token_for(settings, "bob")
    async with serving(settings) as url, httpx2.AsyncClient(headers=HEADERS) as http:
        async with client_of(url, good, "auto") as client:
            statuses = [
                (await http.post(url, json=LIST, headers=bearing(f"pwt_{number}"))).status_code
                for number in range(admission.FAILURES + 3)
            ]
            assert statuses == [401] * admission.FAILURES + [429] * 3
            slowed = await http.post(url, json=LIST, headers=bearing("pwt_x"))
            assert 0 < int(slowed.headers["retry-after"]) <= admission.WINDOW_S + 1
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

    brake = admission.FailedTokenLimiter(app, clock, "/mcp")

    async def asked(token: str, address: str = "10.0.0.1", path: str = "/mcp") -> int:
        found: list[int] = []

        async def send(message: Message) -> None:
            found.extend([message["status"]] if "status" in message else [])

        headers = [(b"authorization", token.encode())]
        scope: Document = {"type": "http", "path": path, "client": (address, 1), "headers": headers}
        await brake(scope, Request(scope).receive, send)
        return found[0]

    assert [await asked(f"bad{n}") for n in range(admission.FAILURES + 1)] == [401] * admission.FAILURES + [429]
    assert len(caplog.messages) == admission.FAILURES and all(
        "10.0.0.1" in line and "bad" not in line for line in caplog.messages
    )
    assert await asked("bad", "10.0.0.2") == 401
    # A path that asks for no token does not slow anybody down.
    assert await asked("bad", path="/inbox") == 401 and await asked("good") == 200 and await asked("bad") == 429
    clock.advance(admission.WINDOW_S)
    assert await asked("bad") == 401
    assert [await asked("bad") for _ in range(admission.FAILURES)][-1] == 429
    for number in range(admission.MAX_ADDRESSES - 1):
        await asked("bad", f"10.1.{number // 256}.{number % 256}")
    assert await asked("bad", "10.0.0.1") == 429
    await asked("bad", "10.2.0.0")
    assert await asked("bad", "10.0.0.1") == 401


def _written(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("planwarden.db*"))


@requirement("access:tokens")
async def test_a_token_is_found_by_its_secret_alone_in_another_process_too(back_end: BackEnd, tmp_path: Path) -> None:
    tokens = TokenStore(back_end.connect())
    secret, row = await tokens.make("ann@example.org", days=2)
    assert secret.startswith(PREFIX) and len(secret) >= len(PREFIX) + 43
    others = TokenStore(back_end.connect())
    assert await others.find(hash_token(secret)) == row == (await others.all())[0]
    assert await others.find_valid(secret, role="caller") == row
    for wrong in (secret[:-1], secret + "a", secret.removeprefix(PREFIX), row.token_id, hash_token(secret), ""):
        assert await others.find_valid(wrong, role="caller") is None
    assert secret.removeprefix(PREFIX).encode() not in _written(tmp_path)


@requirement("access:tokens")
async def test_every_change_of_the_tokens_is_a_row_of_the_audit_and_a_name_ends_all_of_its(back_end: BackEnd) -> None:
    store = back_end.connect()
    tokens = TokenStore(store)
    secret, row = await tokens.make("bob", role="approver", days=1)
    await tokens.revoke("bob")
    await tokens.revoke("bob")
    rows = await store.audit_rows()
    assert [found.entry.kind for found in rows] == ["token_added", "token_revoked"]
    expected = {"tokenId": row.token_id, "principal": "bob", "role": "approver", "expiresAt": row.expires_at}
    assert all(found.entry.facts == expected for found in rows)
    assert secret not in str(rows) and hash_token(secret) not in str(rows)
    for _ in range(2):
        await tokens.make("ann")
    assert [found.principal for found in await tokens.revoke("ann")] == ["ann", "ann"]


@requirement("access:tokens")
async def test_an_expired_or_revoked_token_and_one_of_another_role_is_refused(back_end: BackEnd) -> None:
    tokens, clock = TokenStore(back_end.connect()), back_end.clock
    short, _ = await tokens.make("ann", days=1)
    endless, row = await tokens.make("ann")
    person, _ = await tokens.make("bob", role="approver")
    check = TokenCheck(tokens, clock)
    assert await check.verify_token(short) and await check.verify_token(endless)
    assert await check.verify_token(person) is None
    assert await tokens.find_valid(person, role="approver")
    clock.advance(DAY_S)
    assert await check.verify_token(short) is None and await check.verify_token(endless)
    assert await tokens.revoke(row.token_id) == (replace(row, revoked_at=clock.now()),)
    assert await check.verify_token(endless) is None


async def test_an_id_and_a_secret_are_taken_once_and_names_and_days_are_bounded(back_end: BackEnd) -> None:
    tokens = TokenStore(back_end.connect())
    _, row = await tokens.make("ann")
    for other in (replace(row, secret_hash="0" * 64), replace(row, token_id="other")):
        with pytest.raises(StoreError, match="already"):
            await tokens.add(other)
    # A name that could be mistaken for another is none, and days are bounded.
    for name in ("", "a b", "a#b", "https://idp#ann", "x" * 65, "-a", "ann\n", "\u202eann"):
        with pytest.raises(InvalidArguments, match="name"):
            await tokens.make(name)
    for days in (0, -1, 10_000):
        with pytest.raises(InvalidArguments, match="--days"):
            await tokens.make("ann", days=days)
    assert await tokens.all() == (row,)


@requirement("access:closes")
async def test_an_open_server_and_its_streams_notice_within_ten_seconds_that_tokens_changed(back_end: BackEnd) -> None:
    tokens, clock = TokenStore(back_end.connect()), back_end.clock
    check = TokenCheck(tokens, clock, is_open=True)
    assert await check.is_open()
    await tokens.make("ann")
    clock.advance(10 - admission.WATCH_S)
    assert not await check.is_open() and await check.has_ended(check.pass_key)
