"""What `webExtract` may reach, by which name and address; what it reads of an answer; and every refusal of the rest."""

import gzip
import ipaddress
import ssl
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.errors import ToolError
from planwarden.tools.base import Tool
from planwarden.tools.web.access import (
    PUBLIC_WEB,
    AddressPolicy,
    IPAddress,
    WebAccess,
    WebLimits,
    WebReply,
    special_range,
)
from planwarden.tools.web.extract import EXTRACTIONS_AT_ONCE, web_extract_tool
from tests.support.issuer import make_certificate
from tests.tools.web import support

PATIENCE_S = 600.0
"""For an extraction on a busy machine."""


def build_tool(site: support.Site, **limits: float) -> Tool:
    patience_s = limits.pop("extraction_s", PATIENCE_S)
    return web_extract_tool(replace(site.access, limits=replace(WebLimits(), **limits)), extraction_s=patience_s)


async def extract(answer: bytes | support.Handler, **arguments: JsonValue) -> dict[str, JsonValue]:
    async with support.serve({"/": answer}) as site:
        return await support.call_tool(build_tool(site), url=site.url(), **arguments)


async def send_without_end(stream: ByteStream) -> None:
    """A page that never ends, as fast as it is read."""
    await stream.send(support.build_reply(content_length=""))
    while True:
        await stream.send(b"<p>more</p>" * 1_000)


async def drip(stream: ByteStream) -> None:
    """A page that never ends, one byte at a time."""
    await stream.send(support.build_reply(content_length=""))
    while True:
        await stream.send(b".")


async def stay_silent(stream: ByteStream) -> None:
    """A server that accepts the request and says nothing."""
    await anyio.sleep_forever()


def unread(content_type: str) -> support.Handler:
    async def answer(stream: ByteStream) -> None:
        # The body is never sent; a client that waited for it would run out of time.
        await stream.send(support.build_reply(content_type=content_type, content_length="1000"))
        await anyio.sleep_forever()

    return answer


BOMB = gzip.compress(bytes(50_000_000), 1)
LATE, BROKEN, EMPTY = "was not read within 0.2 seconds", "broke the connection", "no readable text"
FAULTS: list[tuple[bytes | support.Handler, str, dict[str, float]]] = [
    # Too much, or for too long.
    (send_without_end, "sent more than 100000 bytes", {"body_bytes": 100_000}),
    (support.build_reply(support.build_page("just so").ljust(1_000)), "sent more than 999 bytes", {"body_bytes": 999}),
    (support.build_reply(BOMB, content_encoding="gzip"), "sent more than 4194304 bytes", {}),
    *((handler, LATE, {"total_s": 0.2}) for handler in (drip, support.stall, stay_silent)),
    (b"", "did not accept a connection in time", {"connect_s": 0}),
    (support.build_reply(support.build_page("x")), "could not be extracted within 0 seconds", {"extraction_s": 0}),
    # Not what it says it is.
    *(
        (support.build_reply(b"?", content_encoding=name), f"content encoding '{name}'", {})
        for name in ("gzip, gzip", "br", "zstd", "x-unknown")
    ),
    (support.build_reply(b"not gzip at all", content_encoding="gzip"), "cannot be decompressed", {}),
    (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP", {}),
    (b"", BROKEN, {}),
    (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 99\r\n\r\nshort", BROKEN, {}),
    (b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000, BROKEN, {}),
    # Not a page with text.
    *(
        (unread(kind), f"of type '{kind}'", {})
        for kind in ("image/png", "application/pdf", "multipart/x-mixed-replace")
    ),
    (unread(""), "no Content-Type", {}),
    (support.build_reply("secret details", status=404), "HTTP 404; use another URL", {}),
    (support.build_reply("secret details", status=503), "HTTP 503; try again later", {}),
    (support.build_reply("secret details", status=304), "HTTP 304; use another URL", {}),
    *(
        (support.build_reply(html), EMPTY, {})
        for html in ("", " ", "<html></html>", "<html><script>render()</script></html>")
    ),
    (support.build_reply("<div>" * 30_000 + "too deep"), EMPTY, {}),
    (support.build_reply("<b>a</b> " * 120_000), "more than 1000000 characters of HTML", {}),
    # Each redirect is checked like the first request.
    (support.build_redirect("http://127.0.0.1/"), "may not be reached (loopback)", {}),
    (support.build_redirect("//10.0.0.1/"), "may not be reached (private)", {}),
    (support.build_redirect("file:///etc/passwd"), "scheme 'file'", {}),
    (support.build_redirect("/"), "redirects more than 5 times", {}),
]


@pytest.mark.parametrize(("answer", "sentence", "limits"), FAULTS)
async def test_an_answer_that_cannot_be_read_is_refused_with_a_reason(
    answer: bytes | support.Handler, sentence: str, limits: dict[str, float]
) -> None:
    async with support.serve({"/": answer}) as site:
        message = await support.read_refusal(build_tool(site, **limits), url=site.url())
    assert sentence in message and "secret" not in message
    assert len(site.received) == (6 if "5 times" in sentence else 0 if "accept" in sentence else 1)


async def test_a_host_that_does_not_listen_or_a_resolver_that_never_answers_is_reported() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        await anyio.sleep_forever()
        return []

    async with support.serve({}) as site:
        pass
    assert "cannot be connected to" in await support.read_refusal(build_tool(site), url=site.url())
    access = WebAccess(resolve=resolve, limits=WebLimits(total_s=0.2))
    assert LATE in await support.read_refusal(web_extract_tool(access), url="http://a.test/")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_five_redirects_are_followed_and_the_final_url_is_returned(status: int) -> None:
    routes = {f"/{number}/": support.build_redirect(f"../{number + 1}/", status) for number in range(4)}
    routes |= {
        "/4/": support.build_redirect("../new?x=1", status),
        "/new": support.build_reply(support.build_page("moved here")),
    }
    async with support.serve(routes) as site:
        result = await support.call_tool(build_tool(site), url=site.url("/0/"))
        assert (result["url"], result["text"]) == (site.url("/new?x=1"), "moved here")


NAIVE = support.build_page("naïve")
READ: list[tuple[bytes, str]] = [
    (NAIVE.encode("latin-1"), "text/html; charset=ISO-8859-1"),
    (NAIVE.replace("<head>", '<head><meta charset="windows-1252">').encode("cp1252"), "text/html"),
    (NAIVE.encode("utf-8"), "text/html"),
    (NAIVE.encode("utf-8-sig"), "text/html; charset=latin-1"),
    (NAIVE.encode("utf-16"), "text/html; charset=utf-8"),
    *((NAIVE.encode("utf-8"), f"text/html; charset={name}") for name in ("no-such-charset", "punycode", "zlib")),
    (NAIVE.replace("<head>", '<head><meta charset="utf-16">').encode("utf-8"), "text/html"),
    (b"na\xefve", "text/plain; charset=cp1252"),
]


@pytest.mark.parametrize(("body", "content_type"), READ)
async def test_text_is_decoded_as_a_browser_would(body: bytes, content_type: str) -> None:
    assert (await extract(support.build_reply(body, content_type=content_type)))["text"] == "naïve"


async def test_a_thread_counts_until_it_ends_though_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_end = list[int](), threading.Event()

    def extract_slowly(reply: WebReply) -> tuple[str | None, str]:
        began.append(len(reply.body))
        may_end.wait()
        raise ValueError("of no interest to anyone any more")

    monkeypatch.setattr("planwarden.tools.web.extract.extract_text", extract_slowly)
    async with support.serve({"/": support.build_reply(support.build_page("x"))}) as site:
        tool = build_tool(site, extraction_s=0.01)
        try:
            for _ in range(EXTRACTIONS_AT_ONCE):
                assert "could not be extracted" in await support.read_refusal(tool, url=site.url())
            with anyio.move_on_after(0.1) as waiting:
                await support.call_tool(tool, url=site.url())
            assert waiting.cancelled_caught and len(began) == EXTRACTIONS_AT_ONCE
        finally:
            may_end.set()
        with suppress(ToolError, ValueError):
            await support.call_tool(tool, url=site.url())
        assert len(began) == EXTRACTIONS_AT_ONCE + 1


async def test_a_compressed_page_and_one_of_exactly_the_limit_are_read() -> None:
    packed = gzip.compress(support.build_page("unpacked").encode())
    assert (await extract(support.build_reply(packed, content_encoding="gzip")))["text"] == "unpacked"
    async with support.serve({"/": support.build_reply(support.build_page("just so").ljust(1_000))}) as site:
        assert (await support.call_tool(build_tool(site, body_bytes=1_000), url=site.url()))["text"] == "just so"


async def test_main_text_is_returned_without_menus_scripts_and_markup() -> None:
    sentence = "This sentence belongs to the article and is long enough to be told from a menu entry."
    html = f"""<!doctype html><html><head><title> Two
      lines </title><script>steal()</script><style>p {{}}</style></head><body>
      <nav><ul><li><a href="/">Home</a></li><li><a href="/about">About us</a></li></ul></nav>
      <article><h1>Heading</h1><p>{sentence}</p><p>{sentence}</p></article>
      <footer>Imprint</footer></body></html>"""
    result = await extract(support.build_reply(html))
    text = str(result["text"])
    assert result["title"] == "Two lines" and sentence in text and "Heading" in text
    assert not any(noise in text for noise in ("Home", "steal", "<p>", "Imprint"))


async def test_control_characters_are_removed_and_long_text_is_cut_and_says_so() -> None:
    plain = support.build_reply("a\0b\x1b[31m\tc\x7f\nd", content_type="text/plain")
    assert (await extract(plain))["text"] == "ab[31m\tc\nd"
    for limit, expected in ((4, ("ab[3", True)), (4.0, ("ab[3", True)), (11, ("ab[31m\tc\nd", False))):
        cut = await extract(plain, max_chars=limit)
        assert (cut["text"], cut["truncated"]) == expected


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        *((wrong, "url") for wrong in ({}, {"url": 5}, {"url": ""}, {"url": "http://a.test/" + "a" * 3_000})),
        *(({"url": "http://a.test/", "max_chars": wrong}, "max_chars") for wrong in (0, -1, 1_000_000, True, "5")),
    ],
)
async def test_arguments_out_of_range_are_refused(arguments: dict[str, JsonValue], name: str) -> None:
    assert name in await support.read_refusal(web_extract_tool(), **arguments)


async def test_without_its_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The documented way to make an import fail: https://docs.python.org/3/library/sys.html#sys.modules
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    tool = web_extract_tool()
    for sentence in (tool.definition.unavailable or "", await support.read_refusal(tool, url="http://a.test/")):
        assert "install planwarden[web]" in sentence


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.255.255.254", "2130706433", "017700000001", "0x7f000001", "0x7f.1", "127.1"),
        *("localhost", "LOCALHOST", "0.0.0.0", "0", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254"),
        *("100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.88.99.1", "198.18.0.1", "203.0.113.9"),
        *("224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("[::1]", "[0:0:0:0:0:0:0:1]", "[::]", "[::127.0.0.1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
        *("[::ffff:0:127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::a00:1]", "[2002:7f00:1::]", "[2001:0:1::1]"),
        *("[2001:db8::1]", "[100::1]", "[fc00::1]", "[fd00:ec2::254]", "[fe80::1]", "[fec0::1]", "[ff02::1]"),
    ],
)
async def test_address_that_is_not_public_is_refused_in_every_notation(host: str) -> None:
    assert "may not be reached" in await support.read_refusal(
        web_extract_tool(), url=f"http://{host}/latest/meta-data/"
    )


@given(st.ip_addresses())
def test_address_that_the_standard_library_calls_not_global_is_special(address: IPAddress) -> None:
    if not address.is_global or address.is_multicast:
        assert special_range(address) is not None


def test_address_of_the_public_internet_is_not_special() -> None:
    for address in ("1.1.1.1", "93.184.215.14", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00::1"):
        assert special_range(ipaddress.ip_address(address)) is None


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://example.org/", "scheme 'ftp'"),
        ("file:///etc/passwd", "scheme 'file'"),
        ("http://user:secret@example.org/", "user name or password"),
        ("http://example.org@127.0.0.1/", "user name or password"),
        ("http://example.org:22/", "port 22"),
        ("https://example.org:99999/", "port 99999"),
        ("http://0177.0.0.1/", "is not a URL"),
        ("http://exa mple.org\n/", "is not a URL"),
        ("http://example.org/\ud800", "is not Unicode"),
        ("http://nowhere.invalid/", "was not found"),
    ],
)
async def test_url_that_is_not_a_public_web_address_is_refused(url: str, sentence: str) -> None:
    message = await support.read_refusal(web_extract_tool(replace(PUBLIC_WEB, resolve=support.NameTable())), url=url)
    assert sentence in message
    assert "secret" not in message


@given(st.text(max_size=60), st.sampled_from(["", "http://", "https://", "http://[", "http://a.test/", "http://a@"]))
def test_any_text_as_url_is_refused_with_a_sentence_or_ends_at_the_resolver(text: str, prefix: str) -> None:
    tool = web_extract_tool(replace(PUBLIC_WEB, resolve=support.NameTable()))

    async def call() -> None:
        await tool.call({"url": prefix + text}, support.CONTEXT)

    with pytest.raises(ToolError):
        anyio.run(call)


@pytest.mark.parametrize(
    ("addresses", "is_loopback_public", "why"),
    [(["127.0.0.1"], False, "(loopback)"), (["127.0.0.1", "10.0.0.1"], True, "(private)")],
)
async def test_name_with_one_address_that_is_not_public_is_refused_before_any_connection(
    addresses: list[str], is_loopback_public: bool, why: str
) -> None:
    names = support.NameTable(a_test=[addresses])
    async with support.serve({"/": support.build_reply(support.build_page("inside"))}) as site:
        closed = WebAccess(policy=AddressPolicy(ports=frozenset({site.port})), resolve=names)
        access = site.named(names) if is_loopback_public else closed
        message = await support.read_refusal(web_extract_tool(access), url=site.url(host="a.test"))
    assert message == f"'a.test' is at an address that may not be reached {why}; use a public host"
    assert site.received == []


async def test_connection_goes_to_the_address_that_was_checked_when_the_name_changes_its_answer() -> None:
    names = support.NameTable(a_test=[["127.0.0.1"], ["169.254.169.254"]])
    async with support.serve({"/": support.build_reply(support.build_page("public page"))}) as site:
        result = await support.call_tool(web_extract_tool(site.named(names)), url=site.url(host="a.test"))
    assert result["text"] == "public page"
    assert names.looked_up == ["a.test"]
    assert site.received[0].headers["host"] == f"a.test:{site.port}"


async def test_every_new_connection_checks_the_name_again() -> None:
    names = support.NameTable(a_test=[["127.0.0.1"], ["169.254.169.254"]])
    async with support.serve(
        {"/": support.build_redirect("/again"), "/again": support.build_reply(support.build_page("inside"))}
    ) as site:
        assert "(link-local)" in await support.read_refusal(
            web_extract_tool(site.named(names)), url=site.url(host="a.test")
        )
    assert [request.path for request in site.received] == ["/"]


async def test_allowed_endpoint_opens_neither_another_port_nor_another_name_of_the_same_host() -> None:
    async with (
        support.serve({"/": support.build_reply(support.build_page("allowed"))}) as site,
        support.serve({}) as neighbour,
    ):
        tool = web_extract_tool(replace(site.access, resolve=support.NameTable(a_test=[["127.0.0.1"]])))
        assert (await support.call_tool(tool, url=site.url()))["text"] == "allowed"
        assert f"port {neighbour.port}" in await support.read_refusal(tool, url=neighbour.url())
        assert "may not be reached" in await support.read_refusal(tool, url=site.url(host="a.test"))
    assert neighbour.received == []


async def test_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        support.serve({"/": support.build_reply(support.build_page("direct"))}) as site,
        support.serve({}) as proxy,
    ):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url())
        assert (await support.call_tool(web_extract_tool(site.access), url=site.url()))["text"] == "direct"
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
    async with support.serve({"/": support.build_reply(support.build_page("over TLS"))}, server) as site:
        access = replace(site.named(support.NameTable(a_test=[["127.0.0.1"]], b_test=[["127.0.0.1"]])), tls=trusting)
        result = await support.call_tool(web_extract_tool(access), url=f"https://a.test:{site.port}/")
        assert (result["text"], asked_names) == ("over TLS", ["a.test"])
        assert site.received.pop().headers["host"] == f"a.test:{site.port}"
        for host in ("b.test", "127.0.0.1"):
            message = await support.read_refusal(web_extract_tool(access), url=f"https://{host}:{site.port}/")
            assert "no valid TLS certificate" in message
    assert site.received == []
