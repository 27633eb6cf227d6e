"""Where the server listens, and which names it answers to: the Host and Origin matrix over real HTTP."""

import http.client
from pathlib import Path
from urllib.parse import urlsplit

import anyio.to_thread
import httpx2
import pytest
from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, UsageError
from planwarden.server.auth.admission import AllowedNames
from planwarden.server.auth.settings import HttpSettings
from planwarden.server.settings.tables import ApprovalsTable, SettingsTables
from planwarden.server.transports.http import serve_http
from tests.kit import OperatorPolicy, Settings, load_settings, requirement
from tests.server.mcp.http_support import HEADERS, serving, token_for

ALLOWED = HttpSettings(allowed_hosts=("plan.example.com", "10.0.0.5:9000"), public_url="https://public.example.com")
OVER_NETWORK = SettingsTables(approvals=ApprovalsTable(trust_caller_over_network=True))
BODY = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'


def _status(url: str, headers: list[tuple[str, str]], *, method: str = "POST", path: str = "/mcp") -> int:
    port = urlsplit(url).port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value.format(port=port))
        connection.putheader("content-length", str(len(BODY)))
        connection.endheaders(BODY)
        return connection.getresponse().status
    finally:
        connection.close()


OWN = ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}"]
LISTED = ["plan.example.com", "plan.example.com:{port}", "10.0.0.5:9000", "public.example.com"]
FOREIGN = [
    "evil.example",
    "127.0.0.1",
    "127.0.0.1:1",
    "localhost",
    "127.0.0.1.evil.example:{port}",
    "localhost.evil.example:{port}",
    "evil.example:{port}",
    "0.0.0.0:{port}",
    "plan.example.com.evil.example",
    "plan.example.com:1",
    "xplan.example.com",
    "10.0.0.5",
    "plan.example.com@evil.example",
]


@requirement("network:names")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25", "2026-07-28"])
async def test_only_requests_that_name_this_server_are_served(tmp_path: Path, version: str) -> None:
    async with serving(Settings(home=tmp_path, http=ALLOWED)) as url:
        fixed = [*HEADERS.items(), ("mcp-protocol-version", version)]

        async def status(*headers: tuple[str, str], method: str = "POST") -> int:
            return await anyio.to_thread.run_sync(lambda: _status(url, [*headers, *fixed], method=method))

        # A request that passed is refused for other reasons than its names: there is no session, or no metadata.
        passed = {host: await status(("host", host)) for host in [*OWN, *LISTED]}
        assert not set(passed.values()) & {403, 421}, passed
        assert {host: await status(("host", host)) for host in FOREIGN} == dict.fromkeys(FOREIGN, 421)
        assert await status() in (400, 421)
        assert await status(("host", OWN[0]), ("host", "evil.example")) in (400, 421)
        forwarded = [
            ("x-forwarded-host", "127.0.0.1"),
            ("x-forwarded-for", "127.0.0.1"),
            ("forwarded", "host=localhost"),
        ]
        assert await status(("host", "evil.example"), *forwarded) == 421
        for method in ("GET", "DELETE", "OPTIONS"):
            assert await status(("host", "evil.example"), method=method) == 421
            assert await status(("host", OWN[0]), ("origin", "null"), method=method) == 403


@requirement("network:names")
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_only_pages_of_this_server_may_send_requests(tmp_path: Path, version: str) -> None:
    async with serving(Settings(home=tmp_path, http=ALLOWED)) as url:
        fixed = [*HEADERS.items(), ("mcp-protocol-version", version)]

        async def status(host: str, *origins: str) -> int:
            given = [("host", host), *(("origin", origin) for origin in origins), *fixed]
            return await anyio.to_thread.run_sync(lambda: _status(url, given))

        for origin in (
            *(f"http://{host}" for host in OWN),
            "https://plan.example.com",
            "http://plan.example.com:{port}",
            "https://public.example.com",
        ):
            assert await status(OWN[0], origin) not in (403, 421), origin
        for origin in (
            "null",
            "",
            "https://evil.example",
            "http://evil.example:{port}",
            "http://127.0.0.1",
            "http://127.0.0.1:1",
            "https://127.0.0.1:{port}",
            "http://127.0.0.1:{port}.evil.example",
            "http://localhost:{port}@evil.example",
            "https://plan.example.com.evil.example",
            "file://",
            "*",
        ):
            assert await status(OWN[0], origin) == 403, origin
            assert await status("plan.example.com", origin) == 403, origin
        # One good origin does not excuse a bad one.
        assert await status(OWN[0], f"http://{OWN[0]}", "https://evil.example") == 403


@requirement("network:names")
def test_a_default_port_may_be_left_out() -> None:
    names = AllowedNames.from_settings(HttpSettings(), "10.0.0.5", 80)
    assert {"127.0.0.1", "127.0.0.1:80", "localhost", "[::1]", "10.0.0.5"} <= {*names.hosts}
    assert {"http://localhost", "http://localhost:80"} <= {*names.origins} and "https://localhost" not in names.origins
    names = AllowedNames.from_settings(HttpSettings(allowed_hosts=("plan.example.com:443",)), "127.0.0.1", 8765)
    assert {"plan.example.com", "plan.example.com:443"} <= {*names.hosts} and "localhost" not in names.hosts
    assert "https://plan.example.com" in names.origins and "http://plan.example.com" not in names.origins


def test_a_public_address_is_read_as_browsers_write_it() -> None:
    for url in ("https://plan.example.com:443", "https://PLAN.example.com/"):
        settings = HttpSettings(public_url=url)
        assert (settings.public_url, settings.names) == ("https://plan.example.com", ("plan.example.com",))


@requirement("network:bind")
async def test_other_addresses_need_a_list_of_names_and_tokens_of_callers(tmp_path: Path) -> None:
    named = Settings(home=tmp_path, http=ALLOWED)
    for host in ("0.0.0.0", "::", "192.168.1.4", "example.com", "", "127.0.0.1.evil.example"):
        for settings in (Settings(home=tmp_path), Settings(home=tmp_path, http=HttpSettings(auth="required")), named):
            with pytest.raises(UsageError, match="authentication") as refused:
                await serve_http(settings, host=host, port=0)
            assert "planwarden token add" in refused.value.message and "\n" not in refused.value.message
    assert not named.store.is_made
    await token_for(named, "ann", role="approver")
    for host in ("0.0.0.0", "127.0.0.1"):
        with pytest.raises(UsageError, match="token add"):
            await serve_http(named, host=host, port=0)


@requirement("network:trust")
async def test_trusting_the_caller_on_a_network_needs_a_second_setting(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, http=ALLOWED, policy=OperatorPolicy(trust_caller=True))
    await token_for(settings, "ann")
    with pytest.raises(UsageError, match="--i-know-the-caller-can-approve-itself"):
        await serve_http(settings, host="0.0.0.0", port=0)
    async with serving(settings), serving(settings, host="0.0.0.0", accepts_trust=True):
        pass
    async with serving(replace(settings, tables=OVER_NETWORK), host="0.0.0.0"):
        pass


WRONG = (
    ('[http]\nallowed_hosts = ["*"]', "no wildcard"),
    ('[http]\nallowed_hosts = ["https://plan.example.com"]', "no scheme"),
    ('[http]\npublic_url = "plan.example.com"', "https URL"),
    ('[http]\nissuer = "http://idp.example.com"\naudience = "x"', "https URL"),
    ('[http]\nissuer = "https://u:t0psecret@idp.example.com"\naudience = "x"', "https URL"),
    ('[http]\npublic_url = "https://u:t0psecret@plan.example.com"', "https URL"),
    ('[http]\nissuer = "https://idp.example.com"', "audience"),
    ('[http]\naudience = "x"', "issuer"),
    ('[http]\nrequired_scopes = ["a b"]\nissuer = "https://idp.example.com"\naudience = "x"', "scope"),
    (f"model = {'[' * 5_000}", "nested too deeply"),
)


def test_a_wrong_setting_is_named_and_its_value_is_not_repeated(tmp_path: Path) -> None:
    for text, why in WRONG:
        (tmp_path / "planwarden.toml").write_text(text)
        with pytest.raises(InvalidArguments, match=why) as refused:
            load_settings(home=tmp_path, environment={})
        assert "t0psecret" not in refused.value.message


async def test_the_health_check_says_ok_and_nothing_else_to_anybody(tmp_path: Path) -> None:
    strict = replace(load_settings(home=tmp_path, environment={}), http=HttpSettings(auth="required"))
    await token_for(strict, "ann")
    async with serving(strict) as url, httpx2.AsyncClient(base_url=url.removesuffix("/mcp")) as client:
        for method, path, status, body in (
            ("GET", "/healthz", 200, b"ok\n"),
            ("HEAD", "/healthz", 200, b""),
            ("POST", "/healthz", 405, None),
            ("GET", "/healthz/more", 404, None),
        ):
            answer = await client.request(method, path)
            assert answer.status_code == status and body in (None, answer.content)
