"""OAuth access tokens: what is accepted, what is refused, and what it costs the issuer."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import httpx2
import jwt
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from planwarden.server.auth import oauth
from planwarden.server.auth.caller import VerifiedToken
from planwarden.server.auth.oauth import COOL_DOWN_S, FRESH_S, MAX_DOCUMENT_BYTES, MAX_KEYS, STALE_S, IssuerCheck
from planwarden.server.auth.settings import HttpSettings
from tests.kit import Client, ManualClock, Settings, confirm, plan, requirement
from tests.server.mcp.http_support import HEADERS, LIST, bearing, client_of, serving, token_for
from tests.server.mcp.support import ids_of, ok, refused
from tests.support.issuer import AUDIENCE, Issuer, join_token, make_key, split_token

ALGORITHMS = ["RS256", "RS512", "PS256", "ES256", "ES384", "EdDSA"]


def _check(issuer: Issuer, clock: ManualClock | None = None, **settings: Any) -> IssuerCheck:
    made = HttpSettings(issuer=issuer.url, audience=AUDIENCE, **settings)
    return IssuerCheck(made, AUDIENCE, clock or ManualClock(), issuer.client())


@requirement("oauth:verified")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_the_principal_of_a_token_is_issuer_and_subject(algorithm: str) -> None:
    issuer = Issuer(algorithm=algorithm)
    found = await _check(issuer).verify_token(issuer.token())
    assert isinstance(found, VerifiedToken)
    assert (found.principal, found.subject, found.oauth_client) == (f"{issuer.url}#ann", "ann", "app")
    assert found.scopes == ["plan:run", "other"] and found.claims == {"iss": issuer.url} and found.token == ""


REFUSED: tuple[dict[str, Any], ...] = (
    {"iss": "https://idp.example.com"},
    {"iss": "https://idp.example.com/tenant/"},
    {"iss": None},
    {"aud": "https://other.example.com/mcp"},
    {"aud": None},
    {"aud": []},
    {"sub": None},
    {"sub": ""},
    {"sub": "ann\nbob"},
    {"sub": "ann\u202e"},
    {"sub": "x" * 300},
    {"exp": None},
    {"exp": -100},
    {"nbf": 1000},
    {"exp": "soon"},
    {"typ": "dpop+jwt"},
    {"key_id": "unknown"},
)


@requirement("oauth:verified")
async def test_a_token_for_another_audience_or_time_is_refused() -> None:
    issuer = Issuer()
    check = _check(issuer)
    for claims in REFUSED:
        now = int(time.time())
        moved: dict[str, Any] = {name: now + at if isinstance(at, int) else at for name, at in claims.items()}
        assert await check.verify_token(issuer.token(**moved)) is None, claims
    assert await check.verify_token(issuer.token()) is not None


@requirement("oauth:verified")
async def test_a_token_that_chooses_its_own_algorithm_or_key_is_refused() -> None:
    issuer = Issuer()
    header, claims, signature = split_token(issuer.token())
    public = make_key("RS256").public_key()
    assert public is not None
    check = _check(issuer)
    assert await check.verify_token(join_token(header, claims, signature)) is None, (
        "another encoding, another signature"
    )
    other = jwt.encode(claims, make_key("RS256", "attacker"), algorithm="RS256", headers={"kid": "k1"})
    brought = jwt.encode(
        claims,
        make_key("RS256", "attacker"),
        algorithm="RS256",
        headers={"kid": "k1", "jwk": issuer.jwk("attacker"), "jku": "https://evil.example/keys"},
    )
    shared = jwt.encode(claims, b"x" * 64, algorithm="HS256", headers={"kid": "k1"})
    unsigned = jwt.encode(claims, "", algorithm="none", headers={"kid": "k1"})
    weak = jwt.encode(claims, make_key("RS256"), algorithm="RS384", headers={"kid": "k1"})
    issuer.keys = [issuer.jwk(alg="RS256")]
    fresh = _check(issuer)
    for token in (other, brought, shared, unsigned, weak, unsigned.rstrip("."), "a.b.c", "...", "", "x" * 20_000):
        assert await fresh.verify_token(token) is None, token
    elevated = join_token(header, {**claims, "sub": "root"}, signature)
    assert await fresh.verify_token(elevated) is None
    assert await fresh.verify_token(issuer.token()) is not None
    assert "/evil" not in str(issuer.request_counts)


@requirement("oauth:verified")
async def test_a_token_with_parts_of_any_type_is_refused_and_raises_nothing() -> None:
    issuer = Issuer()
    check = _check(issuer)
    header, claims, signature = split_token(issuer.token())
    odd: tuple[object, ...] = ({}, [], {"a": 1}, None, 7, "", "a\udfffb")
    for name, value in product(("alg", "typ", "kid", "crit", "iss", "aud", "exp", "sub", "scope"), odd):
        token = join_token({**header, name: value}, {**claims, name: value}, signature)
        assert await check.verify_token(token) is None, (name, value)


async def test_scopes_and_client_are_read_as_issuers_write_them() -> None:
    issuer = Issuer()
    check = _check(issuer)
    listed = await check.verify_token(issuer.token(scope=None, scp=["plan:run", 7], client_id=None, azp="portal"))
    assert isinstance(listed, VerifiedToken)
    assert (listed.scopes, listed.oauth_client) == (["plan:run"], "portal")
    bare = await check.verify_token(issuer.token(scope=None, client_id=None))
    assert isinstance(bare, VerifiedToken)
    assert (bare.scopes, bare.oauth_client) == ([], None)
    several = await check.verify_token(issuer.token(aud=["other", AUDIENCE]))
    assert several is not None


@requirement("oauth:keys")
async def test_keys_are_fetched_once_and_invented_key_ids_cost_one_request_each_half_minute() -> None:
    issuer, clock = Issuer(), ManualClock()
    check = _check(issuer, clock)
    for _ in range(50):
        assert await check.verify_token(issuer.token()) is not None
        assert await check.verify_token(issuer.token(key_id="made-up")) is None
    assert issuer.request_counts == {issuer.metadata_at: 1, "/keys": 1}
    clock.advance(COOL_DOWN_S)
    for number in range(50):
        assert await check.verify_token(issuer.token(key_id=f"new-{number % 3}")) is None
    assert issuer.request_counts["/keys"] == 2
    # A key that was really added is found.
    issuer.keys = [issuer.jwk(), issuer.jwk("new-0")]
    clock.advance(COOL_DOWN_S)
    assert await check.verify_token(issuer.token(key_id="new-0")) is not None


@requirement("oauth:keys")
async def test_a_token_with_a_fresh_key_does_not_wait_for_the_keys_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "FETCH_S", 600.0)
    issuer, clock = Issuer(), ManualClock()
    asked, may_answer = anyio.Event(), anyio.Event()

    async def respond(request: httpx2.Request) -> httpx2.Response:
        if issuer.request_counts["/keys"]:
            asked.set()
            await may_answer.wait()
        return issuer.respond(request)

    settings = HttpSettings(issuer=issuer.url, audience=AUDIENCE)
    check = IssuerCheck(settings, AUDIENCE, clock, httpx2.AsyncClient(transport=httpx2.MockTransport(respond)))
    assert await check.verify_token(issuer.token()) is not None
    clock.advance(COOL_DOWN_S)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(check.verify_token, issuer.token(key_id="made-up"))
        with anyio.fail_after(60):
            await asked.wait()
            assert await check.verify_token(issuer.token()) is not None
        may_answer.set()


@requirement("oauth:keys")
async def test_a_clock_that_is_set_back_does_not_keep_new_keys_away() -> None:
    issuer, clock = Issuer(), ManualClock()
    check = _check(issuer, clock)
    assert await check.verify_token(issuer.token()) is not None
    issuer.keys = [issuer.jwk("new")]
    clock.advance(COOL_DOWN_S)
    clock.jump(-STALE_S)
    assert await check.verify_token(issuer.token(key_id="new")) is not None


@requirement("oauth:keys")
async def test_known_keys_are_used_for_a_day_without_the_issuer_and_a_withdrawn_one_no_more() -> None:
    issuer, clock = Issuer(), ManualClock()
    check = _check(issuer, clock)
    assert await check.verify_token(issuer.token()) is not None
    issuer.answer = httpx2.Response(503)
    clock.advance(FRESH_S + 1)
    assert await check.verify_token(issuer.token()) is not None
    clock.advance(STALE_S)
    assert await check.verify_token(issuer.token()) is None
    issuer.answer = None
    clock.advance(COOL_DOWN_S)
    old = issuer.token()
    assert await check.verify_token(old) is not None
    issuer.keys = [issuer.jwk("k2")]
    clock.advance(FRESH_S + 1)
    assert await check.verify_token(old) is None


@requirement("oauth:keys")
@pytest.mark.parametrize(
    "issuer",
    [
        Issuer(says_issuer="https://evil.example"),
        Issuer(jwks_uri="http://idp.example.com/keys"),
        Issuer(jwks_uri="file:///etc/passwd"),
        Issuer(answer=httpx2.Response(302, headers={"location": "https://evil.example/"})),
        Issuer(answer=httpx2.Response(200, content=b"[" * 100_000)),
        Issuer(answer=httpx2.Response(200, content=b'{"x": "' + b"x" * MAX_DOCUMENT_BYTES + b'"}')),
        Issuer(answer=httpx2.Response(200, json=[])),
        Issuer(keys=[{"kty": "oct", "kid": "k1", "k": "c2VjcmV0"}]),
        Issuer(keys=[{"kty": "RSA", "kid": "k1", "n": "!", "e": "AQAB"}]),
        Issuer(keys=[{"kid": "k1"}] * (MAX_KEYS + 1)),
        Issuer(keys=[Issuer().jwk(use="enc")]),
        Issuer(keys=[Issuer().jwk(), Issuer().jwk()]),
    ],
    ids=["issuer", "http", "file", "redirect", "nested", "large", "list", "shared", "broken", "many", "enc", "twice"],
)
async def test_a_malformed_answer_of_the_issuer_is_not_used(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    token = issuer.token()
    assert await _check(issuer).verify_token(token) is None
    assert token not in caplog.text


async def test_metadata_is_also_read_at_the_openid_address_unless_the_keys_are_configured() -> None:
    issuer = Issuer(metadata_at="/tenant/.well-known/openid-configuration")
    assert await _check(issuer).verify_token(issuer.token()) is not None
    named = Issuer(metadata_at="/nowhere")
    assert await _check(named, jwks_url="https://idp.example.com/keys").verify_token(named.token()) is not None
    assert named.request_counts == {"/keys": 1}
    # A key without an id serves tokens without one.
    issuer = Issuer(algorithm="ES256")
    issuer.keys = [issuer.jwk(None)]
    assert await _check(issuer).verify_token(issuer.token(key_id=None)) is not None
    issuer.keys = [issuer.jwk(None), Issuer(algorithm="ES256").jwk("other")]
    assert await _check(issuer).verify_token(issuer.token(key_id=None)) is None


@asynccontextmanager
async def _issuing() -> AsyncGenerator[Issuer]:
    issuer = Issuer()

    async def respond(request: Request) -> Response:
        found = issuer.respond(httpx2.Request("GET", f"{issuer.url}{request.url.path}".replace("/tenant/", "/", 1)))
        return Response(found.content, found.status_code, media_type="application/json")

    app = Starlette(routes=[Route("/{path:path}", respond)])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        with anyio.fail_after(60):
            while not server.started:
                await anyio.lowlevel.checkpoint()
        port = server.servers[0].sockets[0].getsockname()[1]
        issuer.url = f"http://127.0.0.1:{port}"
        issuer.metadata_at = "/.well-known/oauth-authorization-server"
        yield issuer
        server.should_exit = True


@requirement("oauth:verified", "access:owners")
async def test_people_of_the_issuer_and_owners_of_tokens_share_a_server(tmp_path: Path) -> None:
    async with _issuing() as issuer:
        http = HttpSettings(issuer=issuer.url, audience=AUDIENCE, required_scopes=("plan:run",))
        settings = Settings(home=tmp_path, http=http)
        own = await token_for(settings, "ann")
        async with (
            serving(settings) as url,
            client_of(url, issuer.token(), "auto") as ann,
            client_of(url, issuer.token(sub="bob"), "auto") as bob,
            client_of(url, own, "auto") as token_ann,
        ):
            asked = await ok(ann, "execute_plan", plan=plan(confirm("b")))
            for other in (bob, token_ann):
                error = await refused(other, "get_execution", threadId=ids_of(asked)["threadId"])
                assert error["code"] == "unknown_thread"
                assert (await ok(other, "list_suspensions"))["total"] == 0
            page = await ok(ann, "list_suspensions")
            assert page["total"] == 1


@requirement("oauth:metadata")
async def test_a_client_without_a_token_is_told_where_to_get_one(tmp_path: Path) -> None:
    async with _issuing() as issuer:
        http = HttpSettings(issuer=issuer.url, public_url="https://plan.example.com", required_scopes=("plan:run",))
        async with serving(Settings(home=tmp_path, http=http)) as url, httpx2.AsyncClient(headers=HEADERS) as client:
            with pytest.raises(BaseExceptionGroup):
                async with Client(url):
                    raise AssertionError
            response = await client.post(url, json=LIST)
            where = "https://plan.example.com/.well-known/oauth-protected-resource/mcp"
            assert (
                response.status_code == 401 and f'resource_metadata="{where}"' in response.headers["www-authenticate"]
            )
            root = url.removesuffix("/mcp")
            metadata = await client.get(
                f"{root}/.well-known/oauth-protected-resource/mcp", headers={"origin": "https://inspector.example"}
            )
            assert metadata.json()["resource"] == AUDIENCE
            # Clients compare this with the `issuer` of its metadata, character by character.
            assert metadata.json()["authorization_servers"] == [issuer.url]
            assert metadata.json()["scopes_supported"] == ["plan:run"]
            poor = await client.post(url, json=LIST, headers=bearing(issuer.token(scope="other")))
            assert poor.status_code == 403 and "plan:run" in poor.text
            good = await client.post(url, json=LIST, headers=bearing(issuer.token()))
            assert good.status_code not in (401, 403)
