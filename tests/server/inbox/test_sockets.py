"""Where the inbox listens: at `localhost`, when every address behind that name is ours."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import httpx2
import pytest

import planwarden
from planwarden.server.inbox.launcher import with_launcher
from planwarden.server.inbox.sockets import open_sockets, pair_socket
from planwarden.server.signatures.signature import can_use_keys_of
from planwarden.server.transports.http import serve_http
from planwarden.storage.sqlite.store import SqliteStore
from tests.kit import Client, Ledger, Settings, confirm, ok, plan, requirement
from tests.server.signatures.support import WIPE, wipe
from tests.support.ports import take_port


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
def test_where_somebody_else_has_the_other_address_the_name_is_not_used(
    stack: ExitStack, ours: str, theirs: str
) -> None:
    families = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
    port = take_port()
    stack.enter_context(socket.create_server((theirs, port), family=families[theirs]))
    found = pair_socket(socket.create_server((ours, port), family=families[ours]))
    stack.callback(found.close)
    assert not found.has_all_addresses and found.origin is None and len(found.sockets) == 1
    assert found.base_url == f"http://127.0.0.1:{found.port}"


@requirement("signed:place")
@pytest.mark.parametrize(
    ("origin", "host", "may"),
    [
        ("http://localhost:1", "localhost", True),
        ("https://localhost:1", "localhost", True),
        ("https://plan.example.com", "plan.example.com", True),
        ("http://plan.example.com", "plan.example.com", False),
        ("https://plan.example.com.evil.example", "plan.example.com", False),
        ("http://127.0.0.1:1", "localhost", False),
        ("nonsense", "localhost", False),
    ],
)
def test_keys_of_a_host_are_used_on_its_secure_pages_only(origin: str, host: str, may: bool) -> None:
    assert can_use_keys_of(origin, host) is may


@pytest.mark.anyio
@needs_ipv6
@requirement("signed:place")
async def test_the_door_of_a_server_without_a_port_opens_at_localhost(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, opens_inbox=False)
    store = SqliteStore.open(tmp_path / "planwarden.db")
    made = planwarden.Warden(settings=settings, tools=[wipe(Ledger())], store=store)
    with anyio.fail_after(60):
        async with made, with_launcher(settings, made.service), httpx2.AsyncClient() as client:
            asked = await made.execute_plan(plan(WIPE))
            url = asked.suspensions[0].how_to_answer.inbox_url
            assert url is not None and url.startswith("http://localhost:")
            pages = [url, url.replace("localhost", "127.0.0.1"), url.replace("localhost", "[::1]")]
            answers = [await client.get(page) for page in pages]
            assert [(answer.status_code, answer.headers["location"][:11]) for answer in answers] == [
                (303, "/inbox/pair")
            ] * 3
    await store.close()


@pytest.mark.anyio
@needs_ipv6
@requirement("signed:place")
async def test_over_http_the_inbox_is_not_at_localhost_if_somebody_else_has_half_of_it(
    tmp_path: Path, stack: ExitStack
) -> None:
    port = take_port()
    stack.enter_context(socket.create_server(("::1", port), family=socket.AF_INET6))
    ready, addresses = anyio.Event(), list[str]()

    def started(address: str) -> None:
        addresses.append(address)
        ready.set()

    async def serve() -> None:
        await serve_http(Settings(home=tmp_path), port=port, started=started)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks, httpx2.AsyncClient() as client:
            tasks.start_soon(serve)
            await ready.wait()
            base = addresses[0].removesuffix("/mcp")
            assert base.startswith("http://127.0.0.1:")
            async with Client(addresses[0]) as assistant:
                asked = await ok(assistant, "execute_plan", plan=plan(confirm("a")))
            url: str = asked["suspensions"][0]["howToAnswer"]["inboxUrl"]
            assert url.startswith(f"{base}/inbox/")
            assert (await client.get(f"{base}/inbox/pair")).status_code == 200
            tasks.cancel_scope.cancel()
