"""Logins with servers that lie, delay or want too much: nothing is lost or leaked, and the reason is shown."""

import gzip
import json
import logging
import shutil
import socket
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.shared.auth import OAuthToken
from starlette.responses import JSONResponse, Response

from planwarden.agent.common.errors import StoreError, ToolError, UsageError
from planwarden.server.cli.commands.login import find_login, log_in_with_browser
from planwarden.storage.secret_files import SecretFiles
from planwarden.tools.downstream import connection
from planwarden.tools.downstream.login import issuer
from planwarden.tools.downstream.login.issuer import AccessError, IssuerRequests, check_address, is_local
from planwarden.tools.downstream.login.tokens import LoginTokenStorage, StoredLogin, redirect_port
from planwarden.tools.downstream.login.transport import LoginTransport
from planwarden.tools.downstream.servers import DownstreamServers
from planwarden.tools.registry import Registry
from tests.requirements import requirement
from tests.support.doubles.login_server import LoginServer, login_server
from tests.support.loop_time import pass_time
from tests.tools.downstream.support import Place, read_error, run_call, wait_until
from tests.tools.downstream.test_login import expire, find_stored, load_home, log_in

pytestmark = requirement("downstream:login")
METADATA = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
RESOURCE = "/.well-known/oauth-protected-resource/mcp"
CLIENT = '[servers.d.login]\nclient_id = "ours"\nclient_secret_env = "KEY"\n'


async def fail_login(place: Place, server: LoginServer) -> str:
    with pytest.raises(ToolError) as caught:
        await log_in(place, server.visit)
    assert "-secret-" not in caught.value.message and caught.value.__cause__ is None
    return caught.value.message


@dataclass
class Lie:
    """What a server answers, by path, and what the person reads."""

    why: str
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Fields that replace its own; `{root}` is its address."""
    broken: dict[str, Response] = field(default_factory=dict[str, Response])
    unasked: tuple[str, ...] = ("/token",)
    """It gets no request for these."""


def answer(path: str, response: Response, why: str) -> Lie:
    return Lie(why, broken={path: response}, unasked=())


def without_pkce(path: str, methods: list[str] | None) -> Lie:
    broken = {METADATA: MISSING} if path == OPENID else {}
    return Lie("S256", {path: {"code_challenge_methods_supported": methods}}, broken, ("/authorize", "/register"))


def redirecting(address: str, why: str, name: str = "authorization_endpoint") -> Lie:
    return Lie(why, {METADATA: {name: address}})


MISSING = Response(status_code=404)
ENDLESS = b"[" + b" " * 50_000_000
OVERFLOW = Response('{"access_token": "access-secret-0", "expires_in": 1' + "0" * 400 + "}")
TOO_LARGE = f"larger than {issuer.MAX_ANSWER_BYTES} bytes"
LIES = [
    *(Lie("iss", {"/authorize": {"iss": name}}) for name in ("https://honest.example", "")),
    Lie("does not match", {RESOURCE: {"resource": "https://bank.example/mcp"}}, unasked=("/authorize",)),
    *(without_pkce(path, methods) for path in (METADATA, OPENID) for methods in (None, [], ["plain"], ["s256"])),
    Lie("S256", broken={METADATA: MISSING, OPENID: MISSING}, unasked=("/authorize", "/register")),
    redirecting("{root}/authorize#fragment", "not valid OAuth"),
    redirecting("{root}/authorize?state=mine", "not valid OAuth"),
    redirecting("http://login.example/token", "public https address: http://login.example/token", "token_endpoint"),
    answer("/token", JSONResponse({"refresh_token": "refresh-secret-0"}), "no usable token"),
    answer("/token", JSONResponse({"error": "invalid_grant", "note": "code-secret-0"}, 400), "400 (invalid_grant)"),
    answer("/token", JSONResponse({"access_token": "access-secret-\n"}), "no usable token"),
    answer("/token", OVERFLOW, "OverflowError"),
    answer("/register", JSONResponse({"client_secret": "client-secret-0"}, 201), "does not register planwarden"),
    answer("/register", JSONResponse({"error": "invalid_redirect_uri"}, 400), "400 (invalid_redirect_uri)"),
    *(answer(path, Response(ENDLESS), TOO_LARGE) for path in (RESOURCE, METADATA, "/token")),
    answer("/token", Response(gzip.compress(ENDLESS), headers={"content-encoding": "gzip"}), TOO_LARGE),
]


@pytest.mark.parametrize("lie", LIES)
async def test_a_server_that_lies_gets_no_login_and_is_not_quoted(
    place: Place, server: LoginServer, lie: Lie, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for path, fields in lie.overrides.items():
        filled = {k: v.replace("{root}", server.root) if isinstance(v, str) else v for k, v in fields.items()}
        server.overrides[path] = filled
    server.broken |= lie.broken
    assert lie.why in await fail_login(place, server)
    assert [server.request_counts[path] for path in lie.unasked] == [0] * len(lie.unasked)
    assert "-secret-" not in caplog.text and (await StoredLogin.load(find_stored(place))).tokens is None


@pytest.mark.parametrize(
    ("overrides", "missing"),
    [
        ({OPENID: {"code_challenge_methods_supported": ["plain", "S256"]}}, [METADATA]),
        # A server of the first revision has none of these documents.
        ({}, [RESOURCE, METADATA, OPENID]),
        ({METADATA: {"authorization_endpoint": "{root}/authorize?tenant=x"}}, []),
    ],
)
async def test_every_form_of_metadata_with_pkce_gets_a_login(
    place: Place, server: LoginServer, overrides: dict[str, dict[str, Any]], missing: list[str]
) -> None:
    urls: list[httpx2.URL] = []

    async def visit(url: str) -> None:
        urls.append(httpx2.URL(url))
        await server.visit(url)

    if METADATA in overrides:
        overrides = {METADATA: {"authorization_endpoint": f"{server.root}/authorize?tenant=x"}}
    server.overrides |= overrides
    server.broken |= dict.fromkeys(missing, MISSING)
    assert await log_in(place, visit) and server.request_counts["/authorize"] == 1
    assert (urls[0].params.get("tenant") == "x") == (METADATA in overrides) and str(urls[0]).count("?") == 1


async def test_a_slow_drip_ends_in_time(place: Place, server: LoginServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer, "TIMEOUT_S", 30.0)

    class Dripping(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(200):
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
                pass_time(0.5)
                await anyio.sleep(0.01)

    server.broken[METADATA] = Dripping()
    assert "did not answer within 30 s" in await fail_login(place, server)


HERE, THERE = "http://127.0.0.1:1/mcp", "https://a.example/mcp"


@pytest.mark.parametrize(
    ("server_url", "url", "is_allowed"),
    [
        (THERE, "https://b.example/token", True),
        (HERE, "http://localhost:2/token", True),
        (HERE, "https://b.example/token", True),
        *((THERE, f"http://{host}/token", False) for host in ("b.example", "127.0.0.1:8000")),
        *((THERE, f"https://{host}/", False) for host in ("localhost", "localhost.", "x.localhost", "127.0.0.2")),
        *((THERE, f"https://{host}/", False) for host in ("[::1]", "[::ffff:127.0.0.1]", "0.0.0.0")),
        *((THERE, f"https://{host}/", False) for host in ("169.254.169.254", "10.1.2.3", "[fd00::1]")),
        *((THERE, url, False) for url in ("https://[::ffff:10.0.0.1]/", "file:///etc/passwd")),
    ],
)
def test_a_public_server_cannot_send_requests_to_this_machine_or_network(
    server_url: str, url: str, is_allowed: bool
) -> None:
    with nullcontext() if is_allowed else pytest.raises(AccessError):
        check_address(url, server_url)
    assert is_local(url) == any(name in url for name in ("localhost", "127.0.0", "[::1]", "0.0.0.0"))


@pytest.mark.parametrize(
    ("server_at", "issuer_at", "why"),
    [
        ("93.184.216.34", "10.1.2.3", "private"),
        ("93.184.216.34", "127.0.0.1", "loopback"),
        ("10.0.0.1", "169.254.169.254", "link-local"),
        ("10.0.0.1", "127.0.0.1", "loopback"),
        # A server in a private network may have its authorization server there.
        ("10.0.0.1", "10.255.255.1", None),
        ("fe80::1%2", "10.255.255.1", None),
    ],
)
async def test_a_name_that_resolves_to_an_address_of_this_machine_or_network_is_refused(
    server_at: str, issuer_at: str, why: str | None
) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return [server_at if host == "a.example" else issuer_at]

    async with httpx2.AsyncHTTPTransport() as inner:
        own = IssuerRequests(inner, THERE, resolve=resolve)
        if why is None:
            access = await own.build_access(httpx2.URL("https://login.example/token"))
            assert access.policy.check_addresses("login.example", 443, [issuer_at])
            return
        with anyio.fail_after(60), pytest.raises(AccessError, match=why):
            await own.client().get("https://login.example/token")


async def test_the_client_secret_goes_to_its_own_authorization_server_only(place: Place, server: LoginServer) -> None:
    place.settings = CLIENT
    place.configure({"d": {"url": server.url}})
    with pytest.raises(UsageError, match="environment variable 'KEY' is not set"):
        await log_in(place, server.visit)
    place.environment["KEY"] = "s"
    assert await log_in(place, server.visit)
    assert server.request_counts["/register"] == 0 and (await StoredLogin.load(find_stored(place))).client is None
    async with login_server() as other:
        server.overrides[RESOURCE] = {"authorization_servers": [other.root]}
        said = await fail_login(place, other)
        assert f"belongs to {server.root}" in said and "--forget" in said
        assert other.request_counts["/authorize"] == other.request_counts["/token"] == 0
        place.settings = f'{CLIENT}issuer = "{other.root}"\n'
        place.configure({"d": {"url": server.url}})
        assert await log_in(place, other.visit)
    # A configured issuer counts from the first login.
    server.overrides.clear()
    tokens = server.request_counts["/token"]
    place.settings = f'{CLIENT}issuer = "https://login.example"\n'
    place.configure({"d": {"url": server.url}})
    assert "belongs to https://login.example" in await fail_login(place, server)
    assert server.request_counts["/token"] == tokens


async def test_storing_wanted_rights_keeps_the_token_of_another_process_and_returns_no_deleted_login(
    place: Place, server: LoginServer
) -> None:
    await log_in(place, server.visit)
    stored = find_stored(place)
    one = LoginTokenStorage(stored, await StoredLogin.load(stored))
    renewed = OAuthToken(access_token="renewed", refresh_token="renewed too")
    await (await StoredLogin.load(stored)).model_copy(update={"tokens": renewed}).save(stored)
    await one.save_challenge("Bearer")
    found = await StoredLogin.load(stored)
    assert found.challenge == "Bearer" and found.tokens == renewed
    left = place.home / "downstream" / f".{next(place.home.rglob('*.login')).name}.left.tmp"
    left.write_text("x", encoding="utf-8")
    await stored.forget()
    await one.save_challenge("Bearer")
    assert not [*place.home.rglob("*.login")] and not [*place.home.rglob("*.tmp")]


async def test_a_failing_authorization_server_ends_no_login(place: Place, server: LoginServer) -> None:
    await log_in(place, server.visit)
    async with place.warden() as warden:
        assert (await run_call(warden, "d_note")).status == "completed"
        busy = '{"error": "temporarily_unavailable"}'
        # A network that wants a login of its own sends pages and redirects.
        page = "<h1>Welcome</h1>"
        failures = ((429, busy), (500, busy), (503, "[" * 50_000), (200, page), (302, ""), (403, page), (407, page))
        for status, body in failures:
            await expire(place)
            server.broken["/token"] = Response(body, status)
            said = read_error(await run_call(warden, "d_note"))
            assert f"HTTP status {status}" in said and "try again later" in said and "planwarden login" not in said
            server.broken.clear()
            assert (await run_call(warden, "d_note")).status == "completed"
    assert server.request_counts["/authorize"] == 1


async def test_a_redirect_to_another_address_gets_no_token(place: Place, server: LoginServer) -> None:
    await log_in(place, server.visit)
    seen: list[httpx2.Request] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, request=request)

    transport = LoginTransport(httpx2.MockTransport(answer), find_stored(place))
    for url in (server.url, "http://127.0.0.1:9/mcp", server.url.replace("http://", "https://")):
        await transport.handle_async_request(httpx2.Request("POST", url))
    await transport.aclose()
    assert ["authorization" in request.headers for request in seen] == [True, False, False]


async def test_a_running_process_notices_a_new_login(
    place: Place, server: LoginServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the login the next start would come after a minute.
    monkeypatch.setattr(connection, "FIRST_PAUSE_S", 60.0)
    monkeypatch.setattr(connection, "LOGIN_POLL_S", 0.01)
    with anyio.fail_after(60):
        downstream = DownstreamServers(load_home(place).downstream.configs[:1], Registry(()), home=place.home)
        downstream.secrets = SecretFiles(place.home)
        async with downstream:
            await downstream.start_all()
            assert downstream.health()[0].health == "down"
            await log_in(place, server.visit)
            await wait_until(lambda: downstream.health()[0].health == "ready")


async def test_a_port_that_the_operator_sets_must_be_free(place: Place, server: LoginServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place.settings = f"[servers.d.login]\nredirect_port = {port}\n"
        place.configure({"d": {"url": server.url}})
        with pytest.raises(ToolError, match=rf"cannot listen on port {port} \(redirect_port\)"):
            await log_in(place, server.visit)
    assert server.seen == []


async def test_the_servers_registration_answer_cannot_choose_the_port(place: Place, server: LoginServer) -> None:
    for uri in ("https://x.example/callback", "http://10.0.0.1:8/callback", "http://127.0.0.1:8/x"):
        server.overrides["/register"] = {"redirect_uris": [uri]}
        await log_in(place, server.visit)
        assert redirect_port(await StoredLogin.load(find_stored(place))) is None
        await find_stored(place).forget()
    # A client whose secret expired is registered again.
    server.overrides["/register"] = {"client_secret": "client-secret-1", "client_secret_expires_at": 1}
    for _ in range(2):
        await log_in(place, server.visit)
    assert server.request_counts["/register"] == 5


class FullDisk(SecretFiles):
    async def replace(self, name: str, value: bytes) -> None:
        raise StoreError("cannot write: No space left on device")


async def test_a_login_that_cannot_be_kept_or_read_opens_no_browser_and_says_so(
    place: Place, server: LoginServer
) -> None:
    downstream = load_home(place).downstream
    downstream.secrets = FullDisk(place.home)
    with pytest.raises(ToolError, match="the login to server 'd' failed: cannot write: No space left"):
        await log_in_with_browser(find_login(downstream, "d"), server.visit)
    server.request_counts.clear()
    shutil.rmtree(place.home / "downstream", ignore_errors=True)
    (place.home / "downstream").write_text("in the way", encoding="utf-8")
    with pytest.raises(StoreError, match=r"cannot read .*: Not a directory"):
        await log_in(place, server.visit)
    assert server.request_counts == {}


async def test_a_file_that_is_not_a_login_is_ignored_and_a_symbolic_link_is_replaced_without_its_target(
    place: Place, server: LoginServer, tmp_path: Path
) -> None:
    await log_in(place, server.visit)
    [path] = place.home.rglob("*.login")
    other = tmp_path / "other"
    path.rename(other)
    before = other.read_bytes()
    path.symlink_to(other)
    assert await log_in(place, server.visit)
    assert not path.is_symlink() and other.read_bytes() == before
    for text in ("", "{", '{"form": 9}', json.dumps({"server_url": server.url, "tokens": {"access_token": 1}})):
        path.write_text(text, encoding="utf-8")
        assert (await StoredLogin.load(find_stored(place))).tokens is None
    assert await log_in(place, server.visit)
