"""Logins with servers that lie, delay or want too much: nothing is lost or leaked, and the reason is shown."""

import gzip
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp.shared.auth import OAuthToken
from starlette.responses import JSONResponse, Response

from planwarden.agent.common.errors import StoreError, ToolError
from planwarden.server.cli.commands.login import find_login, log_in_with_browser
from planwarden.server.settings.catalogue import build_command_prefix
from planwarden.server.settings.configuration import find_home
from planwarden.storage.secret_files import SecretFiles
from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.connection import ConnectionTiming
from planwarden.tools.downstream.login import issuer
from planwarden.tools.downstream.login.issuer import AccessError, IssuerRequests, check_address, is_local
from planwarden.tools.downstream.login.tokens import LoginTokenStorage, redirect_port
from planwarden.tools.downstream.login.transport import LoginTransport
from planwarden.tools.downstream.servers import DownstreamServers
from planwarden.tools.registry import Registry
from tests.requirements import requirement
from tests.server.cli.support import Cli, start_on_terminal
from tests.support.doubles.login_server import LoginServer, login_server
from tests.support.loop_time import pass_time
from tests.tools.downstream.support import Place, read_error, run_call, wait_until
from tests.tools.downstream.test_login import expire, find_stored, load_home, log_in

pytestmark = [pytest.mark.anyio, requirement("downstream:login")]
METADATA = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
RESOURCE = "/.well-known/oauth-protected-resource/mcp"
CLIENT = '[servers.d.login]\nclient_id = "ours"\nclient_secret_env = "KEY"\n'


def read_config(place: Place) -> ServerConfig:
    return load_home(place).downstream.configs[0]


async def fail_login(place: Place, server: LoginServer) -> str:
    """Returns the error that the person reads when the login fails."""
    with pytest.raises(ToolError) as caught:
        await log_in(place, server.visit)
    assert "-secret-" not in caught.value.message and caught.value.__cause__ is None
    return caught.value.message


@pytest.mark.parametrize("iss", ["https://honest.example", ""])
async def test_an_answer_from_another_authorization_server_is_refused(
    place: Place, server: LoginServer, iss: str
) -> None:
    server.overrides["/authorize"] = {"iss": iss}
    assert "iss" in await fail_login(place, server)
    assert server.request_counts["/token"] == 0 and (await find_stored(place).load()).tokens is None


async def test_a_server_that_names_another_resource_than_itself_gets_no_login(
    place: Place, server: LoginServer
) -> None:
    server.overrides[RESOURCE] = {"resource": "https://bank.example/mcp"}
    assert "does not match" in await fail_login(place, server)
    assert server.request_counts["/authorize"] == 0


@pytest.mark.parametrize("methods", [None, [], ["plain"], ["s256"]], ids=str)
@pytest.mark.parametrize("is_openid", [False, True], ids=["oauth", "openid"])
async def test_an_authorization_server_without_pkce_by_s256_gets_no_login(
    place: Place, server: LoginServer, methods: list[str] | None, is_openid: bool
) -> None:
    if is_openid:
        server.broken[METADATA] = Response(status_code=404)
    server.overrides[OPENID if is_openid else METADATA] = {"code_challenge_methods_supported": methods}
    assert "S256" in await fail_login(place, server)
    assert server.request_counts["/authorize"] == 0 and server.request_counts["/register"] == 0


async def test_an_openid_provider_with_pkce_by_s256_gets_a_login(place: Place, server: LoginServer) -> None:
    server.broken[METADATA] = Response(status_code=404)
    server.overrides[OPENID] = {"code_challenge_methods_supported": ["plain", "S256"]}
    await log_in(place, server.visit)
    assert server.request_counts["/authorize"] == 1


async def test_an_authorization_server_that_publishes_no_metadata_gets_no_login(
    place: Place, server: LoginServer
) -> None:
    server.broken |= {METADATA: Response(status_code=404), OPENID: Response(status_code=404)}
    assert "S256" in await fail_login(place, server)
    assert server.request_counts["/authorize"] == 0 and server.request_counts["/register"] == 0


async def test_a_server_of_the_first_revision_without_any_document_gets_a_login(
    place: Place, server: LoginServer
) -> None:
    server.broken |= {path: Response(status_code=404) for path in (RESOURCE, METADATA, OPENID)}
    await log_in(place, server.visit)
    assert server.request_counts["/authorize"] == 1


async def test_text_of_the_authorization_server_cannot_control_the_terminal(place: Place, server: LoginServer) -> None:
    server.says_no = True
    server.overrides["/authorize"] = {"error_description": "no\x1b[2J\x1b]0;x\x07\r\nplanwarden: Logged in\u202e"}
    said = await fail_login(place, server)
    assert said.isprintable() and "\u202e" not in said and "said no: no" in said


@pytest.mark.parametrize(
    ("path", "answer", "why"),
    [
        ("/token", JSONResponse({"refresh_token": "refresh-secret-0"}), "no usable token"),
        ("/token", JSONResponse({"error": "invalid_grant", "note": "code-secret-0"}, 400), "400 (invalid_grant)"),
        ("/token", JSONResponse({"access_token": "access-secret-\n"}), "no usable token"),
        ("/token", JSONResponse({"access_token": "access-secret-\u1234"}), "no usable token"),
        ("/token", Response('{"access_token": "access-secret-0", "expires_in": 1' + "0" * 400 + "}"), "OverflowError"),
        ("/register", JSONResponse({"client_secret": "client-secret-0"}, 201), "does not register planwarden"),
        ("/register", JSONResponse({"error": "invalid_redirect_uri"}, 400), "400 (invalid_redirect_uri)"),
    ],
)
async def test_a_strange_answer_fails_the_login_and_is_not_quoted(
    place: Place, server: LoginServer, path: str, answer: Response, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.broken[path] = answer
    assert why in await fail_login(place, server)
    assert "-secret-" not in caplog.text
    assert (await find_stored(place).load()).tokens is None


@pytest.mark.parametrize("path", [RESOURCE, METADATA, "/token"])
@pytest.mark.parametrize("is_packed", [True, False])
async def test_an_endless_answer_is_cut_off(place: Place, server: LoginServer, path: str, is_packed: bool) -> None:
    body = b"[" + b" " * 50_000_000
    packed = {"content-encoding": "gzip"} if is_packed else {}
    server.broken[path] = Response(gzip.compress(body) if is_packed else body, headers=packed)
    assert f"larger than {issuer.MAX_ANSWER_BYTES} bytes" in await fail_login(place, server)


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


@pytest.mark.parametrize(
    ("path", "why"),
    [("/authorize#fragment", "not valid OAuth"), ("/authorize?state=mine", "not valid OAuth")],
)
async def test_an_address_from_which_the_browser_cannot_return_is_not_opened(
    place: Place, server: LoginServer, path: str, why: str
) -> None:
    server.overrides[METADATA] = {"authorization_endpoint": server.root + path}
    assert why in await fail_login(place, server)


async def test_the_query_of_the_endpoints_address_is_kept(place: Place, server: LoginServer) -> None:
    server.overrides[METADATA] = {"authorization_endpoint": f"{server.root}/authorize?tenant=x"}
    urls: list[str] = []

    async def visit(url: str) -> None:
        urls.append(url)
        await server.visit(url)

    assert await log_in(place, visit)
    assert httpx2.URL(urls[0]).params["tenant"] == "x" and urls[0].count("?") == 1


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.2/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://0.0.0.0/",
        "https://localhost./",
        "https://x.localhost/",
    ],
)
def test_an_address_of_this_machine_is_recognised_in_every_notation(url: str) -> None:
    assert is_local(url)
    with pytest.raises(AccessError):
        check_address(url, "https://a.example/mcp")


@pytest.mark.parametrize("host", ["169.254.169.254", "10.1.2.3", "[fd00::1]", "[::ffff:10.0.0.1]"])
def test_a_public_server_cannot_send_the_browser_to_a_private_address(host: str) -> None:
    with pytest.raises(AccessError, match="not at a public https address"):
        check_address(f"https://{host}/authorize", "https://a.example/mcp")


@pytest.mark.parametrize(
    ("server_at", "issuer_at", "why"),
    [
        ("93.184.216.34", "10.1.2.3", "private"),
        ("93.184.216.34", "127.0.0.1", "loopback"),
        ("93.184.216.34", "169.254.169.254", "link-local"),
        ("10.0.0.1", "169.254.169.254", "link-local"),
        ("10.0.0.1", "127.0.0.1", "loopback"),
    ],
)
async def test_a_name_that_resolves_to_a_private_address_is_refused(server_at: str, issuer_at: str, why: str) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return [server_at if host == "a.example" else issuer_at]

    async with httpx2.AsyncHTTPTransport() as inner:
        own = IssuerRequests(inner, "https://a.example/mcp", resolve=resolve).client()
        with anyio.fail_after(60), pytest.raises(AccessError, match=why):
            await own.get("https://login.example/token")


async def test_a_server_in_a_private_network_may_have_its_authorization_server_there() -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["10.0.0.1" if host == "a.example" else "10.255.255.1"]

    async with httpx2.AsyncHTTPTransport() as inner:
        own = IssuerRequests(inner, "https://a.example/mcp", resolve=resolve)
        access = await own.build_access(httpx2.URL("https://login.example/token"))
        assert access.policy.check_addresses("login.example", 443, ["10.255.255.1"])
    assert asked == ["a.example"]


async def test_the_secret_of_the_operators_client_goes_to_its_own_authorization_server_only(
    place: Place, server: LoginServer
) -> None:
    place.environment["KEY"] = "s"
    place.settings = CLIENT
    place.configure({"d": {"url": server.url}})
    assert await log_in(place, server.visit)
    async with login_server() as other:
        server.overrides[RESOURCE] = {"authorization_servers": [other.root]}
        said = await fail_login(place, other)
        assert f"belongs to {server.root}" in said and "--forget" in said
        assert other.request_counts["/authorize"] == other.request_counts["/token"] == 0
        place.settings = f'{CLIENT}issuer = "{other.root}"\n'
        place.configure({"d": {"url": server.url}})
        assert await log_in(place, other.visit)


async def test_a_configured_issuer_counts_from_the_first_login(place: Place, server: LoginServer) -> None:
    place.environment["KEY"] = "s"
    place.settings = f'{CLIENT}issuer = "https://login.example"\n'
    place.configure({"d": {"url": server.url}})
    assert "belongs to https://login.example" in await fail_login(place, server)
    assert server.request_counts["/token"] == 0


async def test_two_processes_refresh_one_token_once(place: Place, server: LoginServer) -> None:
    await log_in(place, server.visit)
    async with place.warden() as one, place.warden() as other:
        for warden in (one, other):
            assert (await run_call(warden, "d_note")).status == "completed"
        server.valid.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_call, one, "d_note")
            tasks.start_soon(run_call, other, "d_note")
        for warden in (one, other):
            assert (await run_call(warden, "d_note")).status == "completed"
    assert server.request_counts["/token"] == 2


async def test_storing_wanted_rights_keeps_the_token_that_another_process_got(
    place: Place, server: LoginServer
) -> None:
    await log_in(place, server.visit)
    stored = find_stored(place)
    one = LoginTokenStorage(stored, await stored.load(), read_config(place))
    renewed = OAuthToken(access_token="renewed", refresh_token="renewed too")
    await stored.save((await stored.load()).model_copy(update={"tokens": renewed}))
    await one.save_challenge("Bearer")
    found = await stored.load()
    assert found.challenge == "Bearer" and found.tokens == renewed


async def test_a_deleted_login_does_not_return(place: Place, server: LoginServer) -> None:
    await log_in(place, server.visit)
    one = LoginTokenStorage(find_stored(place), await find_stored(place).load(), read_config(place))
    (place.home / "downstream" / f".{next(place.home.rglob('*.login')).stem}.left.tmp").write_text(
        "x", encoding="utf-8"
    )
    await find_stored(place).forget()
    await one.save_challenge("Bearer")
    assert not [*place.home.rglob("*.login")] and not [*place.home.rglob("*.tmp")]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_failing_authorization_server_ends_no_login(place: Place, server: LoginServer, status: int) -> None:
    await log_in(place, server.visit)
    async with place.warden() as warden:
        assert (await run_call(warden, "d_note")).status == "completed"
        await expire(place)
        server.broken["/token"] = JSONResponse({"error": "temporarily_unavailable"}, status)
        said = read_error(await run_call(warden, "d_note"))
        assert f"HTTP status {status}" in said and "try again later" in said and "planwarden login" not in said
        server.broken.clear()
        assert (await run_call(warden, "d_note")).status == "completed"
    assert server.request_counts["/authorize"] == 1


@pytest.mark.parametrize("lasts_s", [None, 0, -5])
async def test_a_token_without_expiry_is_used_until_it_is_refused(
    place: Place, server: LoginServer, lasts_s: int | None
) -> None:
    server.overrides["/token"] = {"expires_in": lasts_s}
    await log_in(place, server.visit)
    async with place.warden() as warden:
        assert (await run_call(warden, "d_note")).status == "completed"
        assert server.request_counts["/token"] == 1
        server.valid.clear()
        assert (await run_call(warden, "d_note")).status == "completed"
        assert server.request_counts["/token"] == 2


async def test_a_redirect_to_another_address_gets_no_token(place: Place, server: LoginServer) -> None:
    await log_in(place, server.visit)
    seen: list[httpx2.Request] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, request=request)

    transport = LoginTransport(httpx2.MockTransport(answer), read_config(place), find_stored(place))
    for url in (server.url, "http://127.0.0.1:9/mcp", server.url.replace("http://", "https://")):
        await transport.handle_async_request(httpx2.Request("POST", url))
    await transport.aclose()
    assert ["authorization" in request.headers for request in seen] == [True, False, False]


async def test_a_running_process_notices_a_new_login(place: Place, server: LoginServer) -> None:
    # Without the login the next start would come after a minute.
    patient = ConnectionTiming(first_pause_s=60.0, login_poll_s=0.01)
    with anyio.fail_after(60):
        downstream = DownstreamServers([read_config(place)], Registry(()), home=place.home, timing=patient)
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
        with pytest.raises(ToolError, match=rf"port {port} \(redirect_port\) cannot be listened at"):
            await log_in(place, server.visit)
    assert server.seen == []


@pytest.mark.parametrize("uri", ["https://x.example/callback", "http://10.0.0.1:8/callback", "http://127.0.0.1:8/x"])
async def test_the_servers_registration_answer_cannot_choose_the_port(
    place: Place, server: LoginServer, uri: str
) -> None:
    server.overrides["/register"] = {"redirect_uris": [uri]}
    await log_in(place, server.visit)
    assert redirect_port(await find_stored(place).load()) is None
    assert await log_in(place, server.visit)


async def test_a_client_whose_secret_expired_is_registered_again(place: Place, server: LoginServer) -> None:
    server.overrides["/register"] = {"client_secret": "client-secret-1", "client_secret_expires_at": 1}
    await log_in(place, server.visit)
    await log_in(place, server.visit)
    assert server.request_counts["/register"] == 2


class FullDisk(SecretFiles):
    async def replace(self, name: str, value: bytes) -> None:
        raise StoreError("cannot write: No space left on device")


async def test_a_login_that_cannot_be_stored_says_so(place: Place, server: LoginServer) -> None:
    downstream = load_home(place).downstream
    downstream.secrets = FullDisk(place.home)
    with pytest.raises(ToolError, match="the login to server 'd' failed: cannot write: No space left"):
        await log_in_with_browser(*find_login(downstream, "d"), server.visit)


async def test_a_login_that_cannot_be_read_opens_no_browser(place: Place, server: LoginServer) -> None:
    (place.home / "downstream").write_text("in the way", encoding="utf-8")
    with pytest.raises(StoreError, match=r"cannot read .*: Not a directory"):
        await log_in(place, server.visit)
    assert server.request_counts == {}


async def test_a_file_that_is_not_a_login_is_ignored(place: Place, server: LoginServer) -> None:
    await log_in(place, server.visit)
    [path] = place.home.rglob("*.login")
    for text in ("", "{", '{"form": 9}', json.dumps({"server_url": server.url, "tokens": {"access_token": 1}})):
        path.write_text(text, encoding="utf-8")
        assert (await find_stored(place).load()).tokens is None
    assert await log_in(place, server.visit)


async def test_a_login_replaces_a_symbolic_link_and_not_its_target(
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


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pty on Windows")
async def test_an_interrupted_login_gives_the_terminal_back(place: Place, server: LoginServer) -> None:
    await log_in(place, server.visit)
    before = await find_stored(place).load()

    def given_up() -> tuple[int, str]:
        terminal = start_on_terminal(Cli(place.home, None), "login", "d", "--no-open")
        try:
            terminal.expect("&code_challenge_method=S256")
            os.kill(terminal.process.pid, signal.SIGINT)
            return terminal.finish(), terminal.text
        finally:
            terminal.close()

    code, shown = await anyio.to_thread.run_sync(given_up)
    assert code == 130 and "Traceback" not in shown and (await find_stored(place).load()) == before


async def test_two_concurrent_logins_both_succeed_and_leave_one(place: Place, server: LoginServer) -> None:
    await log_in(place, server.visit)
    ports: set[str] = set()
    both = anyio.Event()

    async def visit(url: str) -> None:
        ports.add(httpx2.URL(url).params["redirect_uri"])
        if len(ports) == 2:
            both.set()
        await both.wait()
        await server.visit(url)

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(log_in, place, visit)
    async with place.warden() as warden:
        assert (await run_call(warden, "d_note")).status == "completed"


def test_the_login_command_names_a_home_that_is_not_the_default(tmp_path: Path) -> None:
    usual = find_home(None, {})
    assert build_command_prefix(usual, usual / "planwarden.json") == ("planwarden",)
    other = tmp_path / "other.json"
    assert build_command_prefix(tmp_path, other) == ("planwarden", "--home", str(tmp_path), "--mcp-config", str(other))
