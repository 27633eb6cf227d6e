"""Where the inbox of a home is: one port at `localhost`, whichever process serves there, and however that ends."""

import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp.client.stdio import StdioServerParameters

from planwarden.server.inbox import inbox_port as place_module
from planwarden.server.inbox.inbox_port import InboxPort, open_sockets, pair_socket
from planwarden.server.inbox.sessions import InboxAccess
from planwarden.server.inbox.site import InboxSite
from planwarden.server.settings.tables import InboxTable, SettingsTables
from planwarden.server.signatures.signature import can_use_keys_of
from planwarden.storage.location import StoreLocation, read_location
from tests.kit import Client, Settings, SqliteStore, ok, requirement
from tests.server.cli.support import ERASE, Cli, make_home, start_on_terminal
from tests.server.inbox.support import Person, read
from tests.support.forking import forked_command_line
from tests.support.network import take_port

AGAIN_S = 0.05
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL and no SIGSTOP")


@pytest.fixture(autouse=True)
def usual_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The places of this process are not where those of other tests are."""
    monkeypatch.setattr(place_module, "PORT", take_port())
    monkeypatch.setattr(place_module, "NEXT_PORTS", [take_port() for _ in range(20)])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return _make_home(tmp_path / "home")


def _make_home(folder: Path) -> Path:
    """A home with a port of its own: inboxes of other tests take the usual one as soon as it is free."""
    made = Cli(make_home(folder))
    made.add_settings(f'[approvals]\nopen_inbox = "never"\n[inbox]\nport = {take_port()}')
    return made.home


def _server(home: Path) -> StdioServerParameters:
    command, *words = forked_command_line("--home", str(home), "serve")
    return StdioServerParameters(command=command, args=words)


def _find_pid(home: Path) -> int:
    record = InboxPort(Settings(home=home)).read()
    assert record is not None
    return record.pid


async def _make_link(home: Path, inbox: str) -> str:
    store = SqliteStore.open(home / "planwarden.db")
    codes = await InboxAccess(store).make_codes("ann", "terminal")
    await store.close()
    return f"{inbox}/pair?code={codes.link}"


async def _ask(client: Client) -> dict[str, Any]:
    """A question that needs a person, once it says where the inbox is."""
    asked = await ok(client, "execute_plan", plan={"todoList": [ERASE]})
    while True:
        listed = await ok(client, "list_suspensions", threadId=asked["threadId"])
        [question] = listed["suspensions"]
        if question["howToAnswer"].get("inboxUrl") is not None:
            return question
        await anyio.sleep(AGAIN_S)


async def _wait_for_answer(person: Person, url: str) -> httpx2.Response:
    while True:
        try:
            return await person.client.get(url)
        except httpx2.HTTPError:
            await anyio.sleep(AGAIN_S)


@pytest.mark.slow
@needs_signals
@requirement("inbox:one-place")
async def test_of_processes_that_start_at_once_one_serves_and_a_tab_goes_on_when_it_is_killed(home: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def ask(client: Client) -> None:
        asked.append(await _ask(client))

    with anyio.fail_after(120):
        async with Client(_server(home)) as one, Client(_server(home)) as two, Person() as person:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, one)
                tasks.start_soon(ask, two)
            url, other = [question["howToAnswer"]["inboxUrl"] for question in asked]
            [inbox] = {address.rpartition("/suspensions")[0] for address in (url, other)}
            origin = inbox.removesuffix("/inbox")
            health, led = [await person.client.get(f"{origin}{path}") for path in ("/healthz", "")]
            assert (health.text, led.status_code, led.headers["location"]) == ("ok\n", 303, "/inbox")
            assert (await person.press(await _make_link(home, inbox), "/pair")).status == 303
            assert "2 waiting for a decision" in (await person.open(inbox)).said
            form = (await person.open(url)).form("/decision")
            killed = _find_pid(home)
            os.kill(killed, signal.SIGKILL)
            again = read(await _wait_for_answer(person, url))
            assert again.status == 200 and _find_pid(home) != killed
            fields = {**{name: value[0] for name, value in form.fields.items()}, "decision": "reject"}
            answer = await person.client.post(f"{origin}{form.action}", data=fields, headers={"origin": origin})
            assert answer.status_code == 303
            assert "rejected by ann" in (await person.open(url)).words
            assert (await person.press(other, "/decision", decision="approve")).status == 303


@pytest.mark.slow
@needs_signals
@requirement("inbox:one-place")
async def test_while_the_process_that_serves_does_not_answer_a_terminal_still_lets_a_person_in(home: Path) -> None:
    silent = InboxPort(Settings(home=home))
    listening = silent.take()
    assert listening is not None
    with anyio.fail_after(120):
        terminal, link = await anyio.to_thread.run_sync(_read_link_at_terminal, home)
        try:
            inbox = link.partition("/pair")[0]
            assert inbox != silent.url
            async with Person() as person:
                assert (await person.press(link, "/pair")).status == 303
                assert (await person.open(inbox)).status == 200
        finally:
            terminal.process.send_signal(signal.SIGINT)
            await anyio.to_thread.run_sync(terminal.finish)
            terminal.close()
    silent.leave()


def _read_link_at_terminal(home: Path) -> Any:
    terminal = start_on_terminal(Cli(home), "inbox", "--no-open", columns=200)
    terminal.expect("does not answer; is its process stopped?")
    terminal.expect("Good for one browser")
    text = "".join(line.strip() for line in terminal.text.splitlines())
    return terminal, text[text.index("browser:") + len("browser:") :].partition("or open")[0]


@requirement("inbox:one-place")
def test_one_of_a_home_has_the_place_and_the_next_one_gets_the_same(home: Path) -> None:
    first, second = InboxPort(Settings(home=home)), InboxPort(Settings(home=home))
    assert not first.is_known
    listening = first.take()
    assert listening is not None and first.url == f"{listening.base_url}/inbox" and first.is_known
    url = first.url
    assert second.take() is None and second.url == url
    first.leave()
    assert second.take() is not None and second.url == url
    second.leave()
    assert oct((home / "inbox.json").stat().st_mode)[-3:] == "600"


@requirement("inbox:cookie")
def test_the_cookie_is_one_for_all_homes_and_users_of_a_database_and_another_for_its_namesake(tmp_path: Path) -> None:
    same = (
        "postgresql://ann:x@a/p",
        "postgresql://bob@a/p",
        "postgres://A:5432/p",
        "postgresql:///p?host=a",
        "postgresql://z/p?host=a&port=5432",
        "postgresql://a:/?dbname=p",
        "postgresql://p@a",
    )
    others = (
        "postgresql://ann:x@b/p",
        "postgresql://a:5433/p",
        "postgresql:///p?host=c",
        "postgresql:///p?host=/run/A",
        "postgresql:///p?host=/run/a",
        "postgresql://a,b:5433/p",
        "postgresql://[::1]:5433/p",
    )
    names: list[str] = []
    for index, url in enumerate((*same, *others)):
        settings = Settings(home=tmp_path / str(index), given_store=read_location(url))
        names.append(InboxSite(service=lambda: pytest.fail("unused"), settings=settings).cookie_name)
    assert len({*names[: len(same)]}) == 1 and len({*names}) == 1 + len(others)


@requirement("inbox:one-place")
def test_another_home_and_another_store_have_places_of_their_own(tmp_path: Path) -> None:
    settings = [
        Settings(home=_make_home(tmp_path / "one")),
        Settings(home=_make_home(tmp_path / "two")),
        Settings(home=tmp_path / "two", given_store=StoreLocation(path=tmp_path / "other.db")),
        *(Settings(home=tmp_path / "two", given_store=StoreLocation(url=f"postgresql://{host}/p")) for host in "ab"),
    ]
    places = [InboxPort(found) for found in settings]
    taken = [place.take() for place in places]
    ports = [listening.port for listening in taken if listening is not None]
    assert len(set(ports)) == 5
    for place in places:
        place.leave()
    # The first one is not there: the others still do not take its port.
    for place, port in list(zip(places, ports, strict=True))[1:]:
        listening = place.take()
        assert listening is not None and listening.port == port
        place.leave()


@requirement("inbox:one-place")
def test_a_port_that_another_program_took_is_named_and_the_new_one_stays(
    home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_sockets()) as foreign:
        asked = Settings(home=home, tables=SettingsTables(inbox=InboxTable(port=foreign.port)))
        place = InboxPort(asked)
        with caplog.at_level(logging.WARNING):
            other = place.take()
        assert other is not None and other.port != foreign.port
        [said] = [record.getMessage() for record in caplog.records]
        assert f"port {foreign.port} is not free" in said and other.base_url in said
        port = other.port
        place.leave()
    # Without the wish of the settings it stays where it was, also if the port is free again.
    stays = InboxPort(Settings(home=home))
    listening = stays.take()
    assert listening is not None and listening.port == port
    stays.leave()
    # A program that takes the port while nobody serves: first it could be one of ours that is ending.
    with closing(socket.create_server(("127.0.0.1", port))):
        assert stays.take() is None and stays.url is None
        monkeypatch.setattr(place_module, "PATIENCE_S", 0.0)
        moved = stays.take()
        assert moved is not None and moved.port != port
        stays.leave()


@requirement("inbox:one-place")
def test_a_memory_that_is_damaged_or_leads_to_another_machine_is_no_memory(home: Path) -> None:
    elsewhere = b'{"port":80,"host":"evil.example","pid":1}'
    for content in (b"", b"{", b'{"port":0,"host":"localhost","pid":1}', elsewhere, b"[" * 5_000, b"\xff"):
        (home / "inbox.json").write_bytes(content)
        place = InboxPort(Settings(home=home))
        assert place.read() is None and place.take() is not None and place.read() is not None
        place.leave()


def test_without_a_lock_in_the_home_the_inbox_is_at_any_port(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = InboxPort(Settings(home=tmp_path / "file" / "home"))
    assert place.take() is not None and place.url is not None
    place.leave()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        assert error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@requirement("signed:place")
@needs_ipv6
def test_a_free_port_is_taken_at_both_addresses_of_localhost(stack: ExitStack) -> None:
    found = open_sockets()
    stack.callback(found.close)
    assert [listener.getsockname()[0] for listener in found.sockets] == ["127.0.0.1", "::1"]
    assert found.origin == found.base_url == f"http://localhost:{found.port}"
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        with pytest.raises(OSError, match="in use"):
            socket.create_server((host, found.port), family=family)
    assert found.host_headers == tuple(f"{name}:{found.port}" for name in ("127.0.0.1", "localhost", "[::1]"))


@requirement("signed:place")
@needs_ipv6
@pytest.mark.parametrize(("ours", "theirs"), [("127.0.0.1", "::1"), ("::1", "127.0.0.1")])
def test_where_another_has_the_other_address_the_name_is_not_used(stack: ExitStack, ours: str, theirs: str) -> None:
    families = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
    port = take_port()
    stack.enter_context(socket.create_server((theirs, port), family=families[theirs]))
    found = pair_socket(socket.create_server((ours, port), family=families[ours]))
    stack.callback(found.close)
    assert not found.has_all_addresses and found.origin is None and len(found.sockets) == 1
    assert found.base_url == f"http://127.0.0.1:{found.port}"


@requirement("signed:place")
def test_keys_of_a_host_are_used_on_its_secure_pages_only() -> None:
    host = "plan.example.com"
    assert all(can_use_keys_of(f"{scheme}://localhost:1", "localhost") for scheme in ("http", "https"))
    assert can_use_keys_of(f"https://{host}", host)
    for origin in (f"http://{host}", f"https://{host}.evil.example", "http://127.0.0.1:1", "nonsense"):
        assert not can_use_keys_of(origin, host) and not can_use_keys_of(origin, "localhost")
