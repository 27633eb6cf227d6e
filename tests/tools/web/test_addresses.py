"""Which addresses a web tool may reach, and that it verifies the name of whoever answers there."""

import ipaddress
import ssl
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from planwarden.agent.common.errors import ToolError
from planwarden.tools.web.access import PUBLIC_WEB, AddressPolicy, IPAddress, WebAccess, special_range
from planwarden.tools.web.extract import web_extract_tool
from tests.support.certificates import make_certificate
from tests.tools.web.support import (
    CONTEXT,
    LOOPBACK,
    NameTable,
    build_page,
    build_redirect,
    build_reply,
    call_tool,
    read_refusal,
    serve,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.255.255.254", "2130706433", "017700000001", "0x7f000001", "0x7f.1", "127.1"),
        *(
            "localhost",
            "LOCALHOST",
            "0.0.0.0",
            "0",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
        ),
        *("100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.88.99.1", "198.18.0.1", "203.0.113.9"),
        *("224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("[::1]", "[0:0:0:0:0:0:0:1]", "[::]", "[::127.0.0.1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
        *("[::ffff:0:127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::a00:1]", "[2002:7f00:1::]", "[2001:0:1::1]"),
        *("[2001:db8::1]", "[100::1]", "[fc00::1]", "[fd00:ec2::254]", "[fe80::1]", "[fec0::1]", "[ff02::1]"),
    ],
)
async def test_address_that_is_not_public_is_refused_in_every_notation(host: str) -> None:
    assert "may not be reached" in await read_refusal(web_extract_tool(), url=f"http://{host}/latest/meta-data/")


@given(st.ip_addresses())
def test_address_that_the_standard_library_calls_not_global_is_special(address: IPAddress) -> None:
    if not address.is_global or address.is_multicast:
        assert special_range(address) is not None


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.215.14", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00::1"]
)
def test_address_of_the_public_internet_is_not_special(address: str) -> None:
    assert special_range(ipaddress.ip_address(address)) is None


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://example.org/", "scheme 'ftp'"),
        ("file:///etc/passwd", "scheme 'file'"),
        ("gopher://127.0.0.1:25/", "scheme 'gopher'"),
        ("javascript:alert(1)", "scheme 'javascript'"),
        ("example.org/page", "scheme ''"),
        ("http:///path", "no host"),
        ("http://user:secret@example.org/", "user name or password"),
        ("http://example.org@127.0.0.1/", "user name or password"),
        ("http://example.org:22/", "port 22"),
        ("http://example.org:0/", "port 0"),
        ("https://example.org:99999/", "port 99999"),
        ("http://0177.0.0.1/", "is not a URL"),
        ("http://[::1/", "is not a URL"),
        ("http://exa mple.org\n/", "is not a URL"),
        ("http://example.org/\ud800", "is not a URL"),
        ("http://nowhere.invalid/", "was not found"),
    ],
)
async def test_url_that_is_not_a_public_web_address_is_refused(url: str, sentence: str) -> None:
    message = await read_refusal(web_extract_tool(replace(PUBLIC_WEB, resolve=NameTable())), url=url)
    assert sentence in message
    assert "secret" not in message


@given(st.text(max_size=60), st.sampled_from(["", "http://", "https://", "http://[", "http://a.test/", "http://a@"]))
def test_any_text_as_url_is_refused_with_a_sentence_or_ends_at_the_resolver(text: str, prefix: str) -> None:
    tool = web_extract_tool(replace(PUBLIC_WEB, resolve=NameTable()))

    async def call() -> None:
        await tool.call({"url": prefix + text}, CONTEXT)

    with pytest.raises(ToolError):
        anyio.run(call)


async def test_name_that_resolves_to_loopback_is_refused_before_any_connection() -> None:
    async with serve({"/": build_reply(build_page("inside"))}) as site:
        access = WebAccess(
            policy=AddressPolicy(ports=frozenset({site.port})), resolve=NameTable(a_test=[["127.0.0.1"]])
        )
        message = await read_refusal(web_extract_tool(access), url=site.url(host="a.test"))
    assert message == "'a.test' is at an address that may not be reached (loopback); use a public host"
    assert site.received == []


async def test_name_with_one_private_address_among_public_ones_is_refused() -> None:
    async with serve({"/": build_reply(build_page("inside"))}) as site:
        access = site.named(NameTable(a_test=[["127.0.0.1", "10.0.0.1"]]))
        assert "(private)" in await read_refusal(web_extract_tool(access), url=site.url(host="a.test"))
    assert site.received == []


async def test_connection_goes_to_the_address_that_was_checked_when_the_name_changes_its_answer() -> None:
    names = NameTable(a_test=[["127.0.0.1"], ["169.254.169.254"]])
    async with serve({"/": build_reply(build_page("public page"))}) as site:
        result = await call_tool(web_extract_tool(site.named(names)), url=site.url(host="a.test"))
    assert result["text"] == "public page"
    assert names.looked_up == ["a.test"]
    assert site.received[0].headers["host"] == f"a.test:{site.port}"


async def test_every_new_connection_checks_the_name_again() -> None:
    names = NameTable(a_test=[["127.0.0.1"], ["169.254.169.254"]])
    async with serve({"/": build_redirect("/again"), "/again": build_reply(build_page("inside"))}) as site:
        assert "(link-local)" in await read_refusal(web_extract_tool(site.named(names)), url=site.url(host="a.test"))
    assert [request.path for request in site.received] == ["/"]


async def test_next_address_is_tried_when_the_first_does_not_answer() -> None:
    async with serve({"/": build_reply(build_page("second address"))}) as site:
        access = site.named(NameTable(a_test=[["::1", "127.0.0.1"]]))
        policy = replace(access.policy, allowed_networks=(LOOPBACK, ipaddress.ip_network("::1/128")))
        result = await call_tool(web_extract_tool(replace(access, policy=policy)), url=site.url(host="a.test"))
    assert result["text"] == "second address"


async def test_allowed_endpoint_opens_neither_another_port_nor_another_name_of_the_same_host() -> None:
    async with serve({"/": build_reply(build_page("allowed"))}) as site, serve({}) as neighbour:
        tool = web_extract_tool(replace(site.access, resolve=NameTable(a_test=[["127.0.0.1"]])))
        assert (await call_tool(tool, url=site.url()))["text"] == "allowed"
        assert f"port {neighbour.port}" in await read_refusal(tool, url=neighbour.url())
        assert "may not be reached" in await read_refusal(tool, url=site.url(host="a.test"))
    assert neighbour.received == []


async def test_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve({"/": build_reply(build_page("direct"))}) as site, serve({}) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url())
        assert (await call_tool(web_extract_tool(site.access), url=site.url()))["text"] == "direct"
    assert proxy.received == []


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext, list[str]]:
    """A server that shows a certificate for a.test, a client that trusts it, and the names that clients asked for."""
    certificate, key = make_certificate("a.test")
    (tmp_path / "chain.pem").write_text(key + certificate)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "chain.pem")
    asked_names: list[str] = []
    server.sni_callback = lambda _socket, asked, _context: asked_names.append(asked)
    return server, ssl.create_default_context(cadata=certificate), asked_names


async def test_https_asks_for_and_verifies_the_name_although_it_connects_to_an_address(
    tls: tuple[ssl.SSLContext, ssl.SSLContext, list[str]],
) -> None:
    server, trusting, asked_names = tls
    async with serve({"/": build_reply(build_page("over TLS"))}, server) as site:
        access = replace(site.named(NameTable(a_test=[["127.0.0.1"]], b_test=[["127.0.0.1"]])), tls=trusting)
        result = await call_tool(web_extract_tool(access), url=f"https://a.test:{site.port}/")
        assert (result["text"], asked_names) == ("over TLS", ["a.test"])
        assert site.received.pop().headers["host"] == f"a.test:{site.port}"
        for host in ("b.test", "127.0.0.1"):
            message = await read_refusal(web_extract_tool(access), url=f"https://{host}:{site.port}/")
            assert "no valid TLS certificate" in message
    assert site.received == []
