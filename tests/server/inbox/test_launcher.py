"""Opening the inbox: by the server when a question needs a person, beside /mcp over HTTP, and from a terminal."""

import json
import re
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.to_thread
import pytest

import planwarden
from planwarden.server.inbox.launcher import open_page, with_launcher
from planwarden.server.inbox.sessions import InboxAccess
from planwarden.server.settings.tables import ApprovalsTable, SettingsTables
from planwarden.server.views.encoding import to_json
from planwarden.storage.sessions import RunningInboxes
from planwarden.storage.sqlite.store import SqliteStore
from tests.kit import Client, Ledger, Settings, confirm, load_settings, ok, plan, requirement, tool_step, warden
from tests.server.cli.support import ERASE, Cli, PtyTerminal, make_home, start_on_terminal
from tests.server.inbox.support import Person
from tests.server.mcp.http_support import serving

DESKTOP = {"DISPLAY": ":0"}
DANGER = tool_step("e", "erase", {"ids": [1]})


@asynccontextmanager
async def _launch(
    ledger: Ledger, environment: Mapping[str, str] = DESKTOP, *, opens_inbox: bool = True
) -> AsyncGenerator[tuple[planwarden.Warden, list[str], anyio.Event]]:
    """A warden with a launcher, the pages that it opened in the browser, and an event that is set at the first."""
    opened: list[str] = []
    called = anyio.Event()

    def opener(url: str) -> bool:
        opened.append(url)
        anyio.from_thread.run_sync(called.set)
        return True

    with TemporaryDirectory() as home, anyio.fail_after(60):
        tables = SettingsTables(approvals=ApprovalsTable(open_inbox="auto" if opens_inbox else "never"))
        settings = Settings(home=Path(home), environment=environment, tables=tables)
        async with warden(ledger) as made, with_launcher(settings, made.service, opener=opener):
            yield made, opened, called


def _read_address(execution: planwarden.Execution) -> str:
    address = execution.suspensions[0].how_to_answer.inbox_url
    assert address is not None
    return address


@requirement("inbox:opens-when-needed")
async def test_the_inbox_listens_when_a_person_is_needed_and_not_before() -> None:
    ledger = Ledger()
    async with _launch(ledger) as (made, opened, called), Person() as person:
        done = await made.execute_plan(plan(tool_step("n", "note", {"text": "x"})))
        assert done.status == "completed" and made.service.inbox_url is None
        thinking = await made.run_goal("think", wait_seconds=60)
        assert thinking.suspensions[0].how_to_answer.inbox_url is None and made.service.inbox_url is None
        asked = await made.execute_plan(plan(DANGER))
        address = _read_address(asked)
        assert re.fullmatch(r"http://localhost:\d+/inbox/suspensions/[0-9a-f]{32}", address)
        await called.wait()
        assert (await person.approve(address, opened[0])).status == 303
        assert ledger.lines[-1] == "erase [1]"
        secret = opened[0].split("code=")[1].split("&")[0]
        views = [asked, await made.get_execution(asked.thread_id, observations_after=0)]
        assert secret not in json.dumps([to_json(view) for view in views])


@requirement("inbox:opens-when-needed")
async def test_the_browser_is_opened_once_for_a_question_that_takes_a_person_and_not_for_a_form() -> None:
    async with _launch(Ledger()) as (made, opened, called):
        asked = await made.execute_plan(plan(confirm("c")))
        assert _read_address(asked) and opened == []
        made.service.show_in_browser(asked.suspensions[0].suspension_id)
        await called.wait()
        made.service.show_in_browser(asked.suspensions[0].suspension_id)
        await made.execute_plan(plan(DANGER))
        assert len(opened) == 1 and f"suspensions%2F{asked.suspensions[0].suspension_id}" in opened[0]


@pytest.mark.parametrize(("environment", "opens"), [({}, True), (DESKTOP, False), ({**DESKTOP, "SSH_TTY": "x"}, True)])
async def test_no_browser_opens_without_a_display_or_against_the_settings(
    environment: Mapping[str, str], opens: bool
) -> None:
    async with _launch(Ledger(), environment, opens_inbox=opens) as (made, opened, _), Person() as person:
        asked = await made.execute_plan(plan(DANGER))
        made.service.show_in_browser(asked.suspensions[0].suspension_id)
        assert (await person.open(_read_address(asked))).status == 303
        assert opened == []


@pytest.mark.skipif(sys.platform == "win32", reason="the browser of this test is a shell script")
def test_the_browser_gets_the_address_and_writes_nothing_to_our_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho noise\necho "$1" > {seen}.part\nmv {seen}.part {seen}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    assert open_page("http://127.0.0.1:1/inbox/pair?code=x&next=y")
    assert seen.read_text() == "http://127.0.0.1:1/inbox/pair?code=x&next=y\n"
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = Cli(make_home(tmp_path / "home"))
    made.add_settings('[approvals]\nopen_inbox = "never"')
    return made.home


async def _make_code(home: Path, name: str = "ann") -> str:
    """The secret part of a link, made by another process of the home as `planwarden inbox` makes it."""
    store = SqliteStore.open(home / "planwarden.db")
    codes = await InboxAccess(store).make_codes(name, "terminal")
    await store.close()
    return codes.link


@requirement("inbox:any-process")
async def test_over_http_the_inbox_is_beside_the_protocol(home: Path) -> None:
    async with serving(load_settings(home=home, environment={})) as url, Client(url) as client, Person() as person:
        base = url.removesuffix("/mcp").replace("127.0.0.1", "localhost")
        asked = await ok(client, "execute_plan", plan={"todoList": [ERASE]})
        address = asked["suspensions"][0]["howToAnswer"]["inboxUrl"]
        assert address.startswith(f"{base}/inbox/suspensions/")
        assert await _list_inboxes(home) == (f"{base}/inbox",)
        refused = await person.client.get(f"{base}/inbox", headers={"host": "evil.example"})
        assert refused.status_code == 421
        assert (await person.approve(address, f"{base}/inbox/pair?code={await _make_code(home)}")).status == 303
        assert (await ok(client, "get_execution", threadId=asked["threadId"]))["status"] == "completed"
    assert await _list_inboxes(home) == ()


async def _list_inboxes(home: Path) -> tuple[str, ...]:
    store = SqliteStore.open(home / "planwarden.db")
    inboxes = await RunningInboxes(store).list_urls()
    await store.close()
    return inboxes


@requirement("inbox:terminal-only")
def test_without_a_terminal_there_is_no_code(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(home, capsys)
    for words in (("inbox",), ("inbox", "--no-open"), ("inbox", "--as", "bob"), ("inbox", "--json")):
        said = cli.main(*words)
        assert said.code == 2 and "code" in said.err and "pair?" not in said.out + said.err
    assert "set-passphrase" not in cli.main("inbox", "--set-passphrase").out
    assert not (home / "planwarden.db").exists()


def _read_link_and_code(terminal: PtyTerminal) -> tuple[str, str]:
    terminal.expect("Good for one browser")
    text = "".join(line.strip() for line in terminal.text.splitlines())
    link = re.search(r"http://\S+?/inbox/pair\?code=[\w-]{43}", text)
    code = re.search(r"type the code\s*(\w{4}-\w{4}-\w{4})", text)
    assert link is not None and code is not None, terminal.text
    return link[0], code[1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="terminals of the tests are POSIX pseudo-terminals")
@requirement("inbox:terminal-only")
async def test_the_terminal_lets_a_person_in_and_serves_the_inbox_until_it_is_interrupted(home: Path) -> None:
    cli = Cli(home)
    suspension_id = await anyio.to_thread.run_sync(_suspend, cli)
    terminal = start_on_terminal(cli, "inbox", "--no-open", "--as", "bob", columns=200)
    try:
        link, code = await anyio.to_thread.run_sync(_read_link_and_code, terminal)
        base = link.partition("/pair")[0]
        with anyio.fail_after(60):
            async with Person() as person:
                assert (await person.press(f"{base}/pair", "/pair", code=code.lower())).status == 303
                answer = await person.press(f"{base}/suspensions/{suspension_id}", "/decision", decision="approve")
                assert answer.status == 303
                page = await person.open(f"{base}/suspensions/{suspension_id}")
                assert "approved by bob" in page.words and cli.ledger == ["erase [1, 2] none"]
                other = await anyio.to_thread.run_sync(open_second_terminal, cli)
                assert other.startswith(f"{base}/pair?code=")
        terminal.process.send_signal(2)
        assert await anyio.to_thread.run_sync(terminal.finish) == 130
    finally:
        terminal.close()
    assert json.loads(cli.spawn("inbox", "--end-sessions", "--json").out) == {"sessionsEnded": 1}


def open_second_terminal(cli: Cli) -> str:
    """A second terminal is led to the inbox that runs, and ends."""
    terminal = start_on_terminal(cli, "inbox", "--no-open", columns=200)
    try:
        link, _ = _read_link_and_code(terminal)
        assert terminal.finish() == 0
        return link
    finally:
        terminal.close()


def _suspend(cli: Cli) -> str:
    said = cli.spawn("run", cli.write("plan.json", {"todoList": [ERASE]}), "--json")
    assert said.code == 3, said
    return str(said.json["suspensions"][0]["suspensionId"])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="terminals of the tests are POSIX pseudo-terminals")
@requirement("inbox:passphrase")
def test_a_passphrase_is_set_at_the_terminal_and_only_where_a_file_is_named(home: Path) -> None:
    cli = Cli(home)
    missing = start_on_terminal(cli, "inbox", "--set-passphrase")
    missing.expect("passphrase_file")
    assert missing.finish() == 2
    missing.close()
    cli.add_settings('[inbox]\npassphrase_file = "inbox.passphrase"')
    for second, code in (("something else", 2), ("correct horse", 0)):
        terminal = start_on_terminal(cli, "inbox", "--set-passphrase")
        terminal.expect("Passphrase:")
        terminal.type("correct horse")
        terminal.expect("Once more:")
        terminal.type(second)
        assert terminal.finish() == code and "horse" not in terminal.text
        terminal.close()
    assert (home / "inbox.passphrase").read_text().startswith("scrypt:")
