"""Processes on several machines, one PostgreSQL: each secret that one of them stores, the others use.

Each machine is a home of its own here; only the store and its key are the same.
"""

import base64
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp.client.stdio import StdioServerParameters

import planwarden
from planwarden.agent.common.errors import UsageError
from planwarden.server.cli.commands.login import find_login, forget, log_in_with_browser
from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.passphrase import InboxPassphrase
from planwarden.server.inbox.site import InboxSite
from planwarden.server.settings.secrets import open_secrets
from planwarden.storage.sealing import make_secret_key
from tests.kit import Client, Home, Settings, confirm, load_settings, plan, requirement
from tests.server.cli.support import Cli, clean_environment, make_home, start_on_terminal, step
from tests.server.inbox.support import HOST, ORIGIN, Browser
from tests.server.mcp.support import approve_elsewhere, approving, ok
from tests.support.doubles.login_server import LoginServer, login_server
from tests.support.forking import forked_command_line
from tests.tools.downstream.support import read_error, run_call

pytestmark = pytest.mark.postgres
KEY = base64.b64encode(bytes(range(32))).decode()
ON_TERMINALS = pytest.mark.skipif(sys.platform == "win32", reason="terminals of the tests are POSIX pseudo-terminals")


@dataclass(frozen=True)
class Machine:
    """A home of its own, with the address and the key of the store that it shares."""

    home: Path
    url: str
    key: str = KEY

    @property
    def environment(self) -> dict[str, str]:
        return {"PLANWARDEN_STORE": self.url, **({"PLANWARDEN_SECRET_KEY": self.key} if self.key else {})}

    @property
    def settings(self) -> Settings:
        return load_settings(home=self.home, environment=self.environment)

    @property
    def cli(self) -> Cli:
        return Cli(self.home)

    def serve(self) -> StdioServerParameters:
        command, *words = forked_command_line("--home", str(self.home), "serve")
        return StdioServerParameters(command=command, args=words, env=clean_environment(self.environment))

    @asynccontextmanager
    async def warden(self) -> AsyncGenerator[planwarden.Warden]:
        with anyio.fail_after(60):
            async with planwarden.Warden(settings=self.settings) as made:
                yield made

    @asynccontextmanager
    async def browser(self) -> AsyncGenerator[Browser]:
        """A browser at the inbox of this machine."""
        async with self.warden() as made:
            site = InboxSite(service=lambda: made.service, settings=self.settings)
            transport = httpx2.ASGITransport(build_inbox_app(site, lambda: {HOST}))
            yield Browser(httpx2.AsyncClient(transport=transport, base_url=ORIGIN), site)


@pytest.fixture
def one(tmp_path: Path, url: str) -> Machine:
    return Machine(make_home(tmp_path / "one"), url)


@pytest.fixture
def other(tmp_path: Path, url: str) -> Machine:
    return Machine(make_home(tmp_path / "other"), url)


@pytest.mark.slow
@requirement("secrets:shared")
async def test_a_form_that_one_process_sealed_is_answered_through_another(one: Machine, other: Machine) -> None:
    with anyio.fail_after(120):
        async with (
            Client(one.serve(), elicitation_callback=approving()) as first,
            Client(other.serve(), elicitation_callback=approving()) as second,
        ):
            asked = await ok(first, "execute_plan", plan=plan(confirm("b")))
            assert (await approve_elsewhere(asked, first, second))["status"] == "completed"
    assert not [*one.home.glob("request-state*"), *other.home.glob("request-state*")]


@pytest.mark.slow
@requirement("secrets:key")
async def test_a_server_without_the_stores_key_refuses_to_start_in_one_sentence(one: Machine, other: Machine) -> None:
    with pytest.raises(UsageError, match="planwarden key new-secret"):
        async with Machine(one.home, one.url, key="").warden():
            pass
    async with one.warden():
        pass
    for key, said in (
        ("", "PLANWARDEN_SECRET_KEY is not set"),
        (make_secret_key(), "PLANWARDEN_SECRET_KEY is not the key of this store"),
        ("no key", "PLANWARDEN_SECRET_KEY is not 32 bytes in base64"),
    ):
        machine = Machine(other.home, other.url, key)
        serve = partial(machine.cli.spawn, "serve", env=machine.environment)
        refused = await anyio.to_thread.run_sync(serve)
        assert (refused.code, refused.out) == (2, ""), refused
        [line] = refused.err.splitlines()
        assert line.startswith(f"planwarden: {said}")


@requirement("secrets:key")
def test_a_command_that_needs_no_secret_needs_no_key(one: Machine) -> None:
    keyless = Machine(one.home, one.url, key="").environment
    document = one.cli.write(
        "plan.json", {"steps": [step("a", "find", {"topic": "x"}), step("b", "erase", {"ids": [1]})]}
    )
    assert one.cli.spawn("run", document, env=keyless).code == 3
    for words in (("token", "add", "ann"), ("inbox", "--end-sessions"), ("prune", "--yes")):
        assert one.cli.spawn(*words, env=keyless).code == 0, words


@ON_TERMINALS
@requirement("inbox:passphrase")
async def test_a_passphrase_that_is_set_on_one_machine_is_asked_for_on_the_other(one: Machine, other: Machine) -> None:
    async with other.browser() as browser:
        assert "passphrase" not in (await browser.open("/inbox/pair")).form("/pair").fields
        await anyio.to_thread.run_sync(_set_passphrase, one)
        assert not (one.home / "inbox.passphrase").exists()
        assert browser.site is not None
        code = (await browser.site.access().make_codes("ann", "terminal")).link
        form = (await browser.open(f"/inbox/pair?code={code}")).form("/pair")
        refused = await browser.submit(form, passphrase="battery")
        assert refused.status == 422 and "passphrase is wrong" in refused.words
        assert (await browser.submit(refused.form("/pair"), passphrase="correct horse")).status == 303
        by_code = one.cli.spawn("approve", "s", "--code", "c", "--digest", "d", env=one.environment)
        assert by_code.code == 2 and "asks for a passphrase" in by_code.err
        forgotten = one.cli.spawn("inbox", "--forget-passphrase", env=one.environment)
        assert forgotten.code == 0, forgotten
        browser.client.cookies.clear()
        assert "passphrase" not in (await browser.open("/inbox/pair?code=x")).form("/pair").fields


def _set_passphrase(machine: Machine) -> None:
    terminal = start_on_terminal(machine.cli, "inbox", "--set-passphrase", env=machine.environment)
    for prompt in ("Passphrase:", "Once more:"):
        terminal.expect(prompt)
        terminal.type("correct horse")
    assert terminal.finish() == 0 and "horse" not in terminal.text, terminal.text
    terminal.close()


@requirement("inbox:passphrase")
async def test_a_setting_makes_sure_that_there_is_a_passphrase(one: Machine) -> None:
    with (one.home / "planwarden.toml").open("a") as file:
        file.write('[inbox]\npassphrase_file = "inbox.passphrase"\n')
    async with open_secrets(one.settings) as secrets:
        passphrase = InboxPassphrase(one.settings, secrets)
        assert await passphrase.is_asked()
        with pytest.raises(UsageError, match=r"'inbox\.passphrase' of the store does not exist"):
            await passphrase.read()
        with pytest.raises(UsageError, match="remove passphrase_file"):
            await passphrase.forget()
        await passphrase.replace("correct horse")
        found = await passphrase.read()
    assert found is not None and found.matches("correct horse") and not found.matches("battery")


@pytest.fixture
async def server(one: Machine, other: Machine) -> AsyncGenerator[LoginServer]:
    """A downstream server that wants a login, configured on both machines."""
    async with login_server() as double:
        for machine in (one, other):
            (machine.home / "planwarden.json").write_text(json.dumps({"mcpServers": {"d": {"url": double.url}}}))
            machine.cli.set_risk("d_note", "read")
        yield double


async def _log_in(machine: Machine, server: LoginServer) -> None:
    context = Home.load(machine.home, environment=machine.environment)
    async with open_secrets(context.settings) as context.downstream.secrets:
        assert await log_in_with_browser(find_login(context.downstream, "d"), server.visit)


@requirement("downstream:login")
async def test_a_login_on_one_machine_is_used_refreshed_and_forgotten_on_all(
    one: Machine, other: Machine, server: LoginServer
) -> None:
    await _log_in(one, server)
    assert not [*one.home.rglob("*.login"), *other.home.rglob("*.login")]
    async with one.warden() as first, other.warden() as second:
        for warden in (first, second):
            assert (await run_call(warden, "d_note")).status == "completed"
        refreshed = server.request_counts["/token"]
        server.valid.clear()
        async with anyio.create_task_group() as tasks:
            # One of them refreshes the token; a refresh token that is used twice would end the login.
            tasks.start_soon(run_call, first, "d_note")
            tasks.start_soon(run_call, second, "d_note")
        for warden in (first, second):
            assert (await run_call(warden, "d_note")).status == "completed"
        assert server.request_counts["/token"] == refreshed + 1
        context = Home.load(other.home, environment=other.environment)
        assert await anyio.to_thread.run_sync(forget, context, "d")
        assert "planwarden --home" in read_error(await run_call(first, "d_note"))
    assert not await anyio.to_thread.run_sync(forget, context, "d")
