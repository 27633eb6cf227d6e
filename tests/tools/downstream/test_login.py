"""Downstream servers that want a login: a person logs in once, plans use it, and its secrets stay in one file."""

import io
import json
import logging
import re
import stat
import sys
from pathlib import Path

import anyio
import httpx2
import pytest

from planwarden.agent.common.errors import ToolError, UsageError
from planwarden.server.api.home import Home
from planwarden.server.cli.commands import login as commands_login
from planwarden.server.cli.commands.login import OpenUrl, find_login, log_in_with_browser
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.storage.location import StoreLocation
from planwarden.storage.opening import open_store
from planwarden.storage.secret_files import SecretFiles
from planwarden.tools.downstream.config import LoginLocation
from planwarden.tools.downstream.login.tokens import StoredLogin
from tests.requirements import requirement
from tests.server.cli.support import Cli, start_on_terminal
from tests.server.cli.support import PtyTerminal as Pty
from tests.support.doubles.hostile_http import http_double
from tests.support.doubles.login_server import LoginServer
from tests.tools.downstream.support import Place, read_error, run_call

pytestmark = requirement("downstream:login")


def load_home(place: Place) -> Home:
    context = Home.load(place.home, environment=place.environment)
    context.downstream.secrets = SecretFiles(place.home)
    return context


def find_stored(place: Place) -> LoginLocation:
    return find_login(load_home(place).downstream, "d")


async def log_in(place: Place, opens: OpenUrl) -> bool:
    with anyio.fail_after(60):
        return await log_in_with_browser(find_stored(place), opens)


async def expire(place: Place) -> None:
    stored = find_stored(place)
    await (await StoredLogin.load(stored)).model_copy(update={"expires_at": 1.0}).save(stored)


async def test_a_plan_says_which_command_to_run_and_starts_no_login_itself(place: Place, server: LoginServer) -> None:
    async with place.warden() as warden:
        with pytest.raises(UsageError, match="d_note"):
            await run_call(warden, "d_note")
        [health] = warden.downstream.health()
        assert f"it wants a login: run `planwarden --home {place.home} login d`" in str(health.reason)
    assert server.request_counts == {} and len(server.seen) == 1


async def test_after_the_login_plans_run_and_its_secrets_are_in_one_file_only(
    place: Place, server: LoginServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert await log_in(place, server.visit)
    location = StoreLocation(path=place.home / "planwarden.db")
    async with open_store(location) as store, place.warden(store) as warden:
        execution = await run_call(warden, "d_note")
        assert execution.status == "completed" and execution.steps[0].result == "noted"
    holders = [path for path in place.home.rglob("*") if path.is_file() and b"-secret-" in path.read_bytes()]
    assert [path.suffix for path in holders] == [".login"]
    assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(holders[0].parent.stat().st_mode) == 0o700
    assert not any("-secret-" in record.getMessage() for record in caplog.records)
    assert "-secret-" not in repr(execution)


async def test_an_expired_token_is_refreshed_once_by_whichever_process_until_the_login_is_deleted(
    place: Place, server: LoginServer
) -> None:
    await log_in(place, server.visit)
    await expire(place)
    async with place.warden() as one, place.warden() as other, anyio.create_task_group() as tasks:
        for warden in (one, one, other, other):
            tasks.start_soon(run_call, warden, "d_note")
    assert server.request_counts["/token"] == 2 and server.request_counts["/authorize"] == 1
    async with place.warden() as warden:
        assert (await run_call(warden, "d_note")).status == "completed"
    assert server.request_counts["/token"] == 2 and server.seen[-1].startswith("Bearer access-secret-")
    home = load_home(place)
    assert await anyio.to_thread.run_sync(commands_login.forget, home, "d")
    assert not await anyio.to_thread.run_sync(commands_login.forget, home, "d")
    assert not [path for path in place.home.rglob("*") if path.suffix == ".login"]


async def test_a_refused_token_is_refreshed_or_a_person_must_log_in_again(place: Place, server: LoginServer) -> None:
    await log_in(place, server.visit)
    async with place.warden() as warden:
        assert (await run_call(warden, "d_note")).status == "completed"
        server.valid.clear()
        assert (await run_call(warden, "d_note")).status == "completed"
        server.valid.clear()
        server.refreshing.clear()
        assert f"run `planwarden --home {place.home} login d`" in read_error(await run_call(warden, "d_note"))
        assert server.request_counts["/authorize"] == 1
        await log_in(place, server.visit)
        assert (await run_call(warden, "d_note")).status == "completed"


async def test_a_refused_login_leaves_the_earlier_one_and_its_words_cannot_control_the_terminal(
    place: Place, server: LoginServer
) -> None:
    await log_in(place, server.visit)
    before = await StoredLogin.load(find_stored(place))
    server.says_no = True
    with pytest.raises(ToolError, match="said no: access_denied"):
        await log_in(place, server.visit)
    server.overrides["/authorize"] = {"error_description": "no\x1b[2J\x1b]0;x\x07\r\nplanwarden: Logged in\u202e"}
    with pytest.raises(ToolError, match="said no: no") as refused:
        await log_in(place, server.visit)
    assert refused.value.message.isprintable() and "\u202e" not in refused.value.message
    assert (await StoredLogin.load(find_stored(place))) == before


async def test_only_the_answer_to_this_login_counts(place: Place, server: LoginServer) -> None:
    statuses: list[int] = []

    async def visit(url: str) -> None:
        back = httpx2.URL(url).params["redirect_uri"]
        async with httpx2.AsyncClient() as stranger:
            for state in ("", "?code=theirs", "?code=theirs&state=guess"):
                statuses.append((await stranger.get(back + state)).status_code)
        await server.visit(url)

    assert await log_in(place, visit)
    assert statuses == [400, 400, 400] and server.request_counts["/token"] == 1


async def test_the_token_goes_to_no_other_address(place: Place, server: LoginServer) -> None:
    await log_in(place, server.visit)
    place.settings = '[tools."d_good"]\nrisk = "read"\n'
    async with http_double() as other:
        place.configure({"d": {"url": other.url}})
        async with place.warden() as warden:
            assert (await run_call(warden, "d_good")).status == "completed"
        assert not any("authorization" in headers for headers in other.headers)


async def test_the_next_login_requests_further_rights_beside_the_old_ones(place: Place, server: LoginServer) -> None:
    server.wants_more = True
    await log_in(place, server.visit)
    async with place.warden() as warden:
        said = read_error(await run_call(warden, "d_note"))
        assert f"wants further rights: run `planwarden --home {place.home} login d`" in said
        await log_in(place, server.visit)
        assert (await run_call(warden, "d_note")).status == "completed"
    assert [set(scope.split()) for scope in server.scopes] == [{"read"}, {"read", "write"}]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pty on Windows")
async def test_the_command_shows_the_whole_address_and_waits_for_the_browser(place: Place, server: LoginServer) -> None:
    def shown() -> tuple[Pty, str]:
        cli = Cli(place.home, None)
        terminal = start_on_terminal(cli, "login", "d", "--no-open")
        terminal.expect("&code_challenge_method=S256")
        terminal.expect("\n")
        [url] = re.findall(r"http://127\.0\.0\.1:\d+/authorize\S+", terminal.text)
        return terminal, url

    terminal, url = await anyio.to_thread.run_sync(shown)
    try:
        await server.visit(url)
        assert await anyio.to_thread.run_sync(terminal.finish) == 0
    finally:
        terminal.close()
    assert "Logged in; plans can use server d now." in terminal.text
    async with place.warden() as warden:
        assert (await run_call(warden, "d_note")).status == "completed"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x", "there is no server 'x'; configured: 'd', 'local', 'keyed', 'plain'"),
        ("local", "a program of this machine"),
        ("keyed", "Authorization header under headers"),
        ("plain", "in the clear"),
        ("d", "in a terminal"),
    ],
)
def test_the_command_says_why_a_server_takes_no_login(tmp_path: Path, name: str, why: str) -> None:
    url = "https://tracker.example.com/mcp"
    entries = {
        "d": {"url": url},
        "local": {"command": "x"},
        "keyed": {"url": url, "headers": {"authorization": "x"}},
        "plain": {"url": "http://tracker.example.com/mcp"},
    }
    (tmp_path / "planwarden.json").write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    home = Home.load(tmp_path, environment={})
    with pytest.raises(UsageError, match=why):
        commands_login.login(home, Terminal(io.StringIO(), io.StringIO()), name, opens_browser=True)
