"""The web tools over real sockets on 127.0.0.1: what they may reach, how much they read, what they return.

The servers speak just enough HTTP to misbehave on purpose. Names are resolved by a table, so nothing leaves the machine.
"""

import contextlib
import datetime
import gzip
import ipaddress
import json
import ssl
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter

from planwarden.agent.common.errors import ToolError, UsageError
from planwarden.agent.core.tool import CallContext
from planwarden.tools.base import Tool
from planwarden.tools.web.access import PUBLIC_WEB, AddressPolicy, IPAddress, WebAccess, WebLimits, special_range
from planwarden.tools.web.extract import web_extract_tool
from planwarden.tools.web.search import Provider, SearchEndpoint, search_endpoint_from_environment, web_search_tool

CONTEXT = CallContext(execution_id="e", step_id="s", call_id="c", idempotency_key="e:s:1")
LOOPBACK = ipaddress.ip_network("127.0.0.1/32")
KEY = "tvly-s3cret-k3y"

Handler = Callable[[ByteStream], Awaitable[None]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Received:
    """A request as the server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Site:
    """A running server and what it was asked."""

    port: int
    received: list[Received] = field(default_factory=list[Received])

    @property
    def access(self) -> WebAccess:
        """The default access plus this server, as an operator would allow it."""
        return WebAccess(policy=AddressPolicy(allowed_endpoints=frozenset({("127.0.0.1", self.port)})))

    def named(self, resolve: "NameTable") -> WebAccess:
        """Access in which 127.0.0.1 counts as public and names come from `resolve`."""
        policy = AddressPolicy(allowed_networks=(LOOPBACK,), ports=frozenset({self.port}))
        return WebAccess(policy=policy, resolve=resolve)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


class NameTable:
    """A resolver whose answers can change from one look-up to the next; the last one stays."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(steps) for name, steps in answers.items()}
        self.looked_up: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.looked_up.append(host)
        steps = self._answers.get(host)
        if not steps:
            raise OSError("name not known")
        return steps.pop(0) if len(steps) > 1 else steps[0]


@contextlib.asynccontextmanager
async def serving(routes: Mapping[str, bytes | Handler], tls: ssl.SSLContext | None = None) -> AsyncGenerator[Site]:
    """A server on 127.0.0.1 that answers each path, without its query, with raw bytes or by a handler."""

    async def answer(stream: ByteStream) -> None:
        # A client that leaves early is part of the tests.
        with contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead):
            async with stream:
                request = await receive(stream)
                site.received.append(request)
                answered = routes[request.path.partition("?")[0]]
                await (stream.send(answered) if isinstance(answered, bytes) else answered(stream))

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        site = Site(port=listener.extra(SocketAttribute.local_port))
        listening = listener if tls is None else TLSListener(listener, tls, standard_compatible=False)
        tasks.start_soon(listening.serve, answer)
        yield site
        tasks.cancel_scope.cancel()


async def receive(stream: ByteStream) -> Received:
    buffered = BufferedByteReceiveStream(stream)
    request_line, *lines = (await buffered.receive_until(b"\r\n\r\n", 65_536)).decode("latin-1").split("\r\n")
    method, path, _ = request_line.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await buffered.receive_exactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, body)


def reply(body: bytes | str = b"", status: int = 200, **headers: str) -> bytes:
    """A whole HTTP response; keyword `content_type="x"` becomes the header `content-type: x`."""
    content = body.encode() if isinstance(body, str) else body
    fields = {"content-type": "text/html", "content-length": str(len(content)), "connection": "close"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode() + content


def redirect(location: str, status: int = 302) -> bytes:
    return reply(status=status, location=location)


def json_reply(value: JsonValue) -> bytes:
    return reply(json.dumps(value), content_type="application/json")


def page(text: str, title: str = "A title") -> str:
    return f"<html><head><title>{title}</title></head><body><article><p>{text}</p></article></body></html>"


async def run(tool: Tool, **arguments: JsonValue) -> dict[str, JsonValue]:
    """The call's result, which must be an object that survives being written as JSON."""
    result = await tool.call(arguments, CONTEXT)
    return TypeAdapter(dict[str, JsonValue]).validate_json(json.dumps(result, allow_nan=False, ensure_ascii=False))


async def refusal(tool: Tool, **arguments: JsonValue) -> str:
    """The sentence of the `ToolError` that the call must raise."""
    with anyio.fail_after(15), pytest.raises(ToolError) as caught:
        await tool.call(arguments, CONTEXT)
    return caught.value.message


# --- Which addresses may be reached ---------------------------------------------------------------------------------


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
@pytest.mark.anyio
async def test_address_that_is_not_public_is_refused_in_every_notation(host: str) -> None:
    """ours"""
    assert "may not be reached" in await refusal(web_extract_tool(), url=f"http://{host}/latest/meta-data/")


@given(st.ip_addresses())
def test_address_that_the_standard_library_calls_not_global_is_special(address: IPAddress) -> None:
    """spec: the IANA special-purpose address registries, as Python knows them"""
    if not address.is_global or address.is_multicast:
        assert special_range(address) is not None


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.215.14", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00::1"]
)
def test_address_of_the_public_internet_is_not_special(address: str) -> None:
    """ours"""
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
@pytest.mark.anyio
async def test_url_that_is_no_public_web_address_is_refused(url: str, sentence: str) -> None:
    """ours"""
    message = await refusal(web_extract_tool(replace(PUBLIC_WEB, resolve=NameTable())), url=url)
    assert sentence in message
    assert "secret" not in message


@given(st.text(max_size=60), st.sampled_from(["", "http://", "https://", "http://[", "http://a.test/", "http://a@"]))
def test_any_text_as_url_is_refused_with_a_sentence_or_ends_at_the_resolver(text: str, prefix: str) -> None:
    """ours"""
    tool = web_extract_tool(replace(PUBLIC_WEB, resolve=NameTable()))

    async def call() -> None:
        await tool.call({"url": prefix + text}, CONTEXT)

    with pytest.raises(ToolError):
        anyio.run(call)


@pytest.mark.anyio
async def test_name_that_resolves_to_loopback_is_refused_before_any_connection() -> None:
    """ours"""
    async with serving({"/": reply(page("inside"))}) as site:
        access = WebAccess(
            policy=AddressPolicy(ports=frozenset({site.port})), resolve=NameTable(a_test=[["127.0.0.1"]])
        )
        message = await refusal(web_extract_tool(access), url=site.url(host="a.test"))
    assert message == "'a.test' is at an address that may not be reached (loopback); use a public host"
    assert site.received == []


@pytest.mark.anyio
async def test_name_with_one_private_address_among_public_ones_is_refused() -> None:
    """ours"""
    async with serving({"/": reply(page("inside"))}) as site:
        access = site.named(NameTable(a_test=[["127.0.0.1", "10.0.0.1"]]))
        assert "(private)" in await refusal(web_extract_tool(access), url=site.url(host="a.test"))
    assert site.received == []


@pytest.mark.anyio
async def test_connection_goes_to_the_address_that_was_checked_when_the_name_changes_its_answer() -> None:
    """ours: DNS rebinding between check and connect"""
    names = NameTable(a_test=[["127.0.0.1"], ["169.254.169.254"]])
    async with serving({"/": reply(page("public page"))}) as site:
        result = await run(web_extract_tool(site.named(names)), url=site.url(host="a.test"))
    assert result["text"] == "public page"
    assert names.looked_up == ["a.test"]
    assert site.received[0].headers["host"] == f"a.test:{site.port}"


@pytest.mark.anyio
async def test_every_new_connection_checks_the_name_again() -> None:
    """ours: DNS rebinding between two hops of a redirect"""
    names = NameTable(a_test=[["127.0.0.1"], ["169.254.169.254"]])
    async with serving({"/": redirect("/again"), "/again": reply(page("inside"))}) as site:
        assert "(link-local)" in await refusal(web_extract_tool(site.named(names)), url=site.url(host="a.test"))
    assert [request.path for request in site.received] == ["/"]


@pytest.mark.anyio
async def test_next_address_is_tried_when_the_first_does_not_answer() -> None:
    """ours"""
    async with serving({"/": reply(page("second address"))}) as site:
        access = site.named(NameTable(a_test=[["::1", "127.0.0.1"]]))
        policy = replace(access.policy, allowed_networks=(LOOPBACK, ipaddress.ip_network("::1/128")))
        result = await run(web_extract_tool(replace(access, policy=policy)), url=site.url(host="a.test"))
    assert result["text"] == "second address"


@pytest.mark.anyio
async def test_allowed_endpoint_opens_neither_another_port_nor_another_name_of_the_same_host() -> None:
    """ours"""
    async with serving({"/": reply(page("allowed"))}) as site, serving({}) as neighbour:
        tool = web_extract_tool(replace(site.access, resolve=NameTable(a_test=[["127.0.0.1"]])))
        assert (await run(tool, url=site.url()))["text"] == "allowed"
        assert f"port {neighbour.port}" in await refusal(tool, url=neighbour.url())
        assert "may not be reached" in await refusal(tool, url=site.url(host="a.test"))
    assert neighbour.received == []


@pytest.mark.anyio
async def test_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """ours"""
    async with serving({"/": reply(page("direct"))}) as site, serving({}) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url())
        assert (await run(web_extract_tool(site.access), url=site.url()))["text"] == "direct"
    assert proxy.received == []


# --- TLS ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificate:
    server: ssl.SSLContext
    trusting: ssl.SSLContext
    asked_names: list[str]
    """Server names that clients asked for (SNI)."""


def certificate_for(name: str, directory: Path) -> Certificate:
    """A self-signed certificate for `name`, a server that shows it, and a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = directory / "chain.pem"
    chain.write_bytes(private + certificate)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(chain)
    asked_names: list[str] = []
    server.sni_callback = lambda _socket, asked, _context: asked_names.append(asked)
    return Certificate(server, ssl.create_default_context(cadata=certificate.decode()), asked_names)


@pytest.mark.anyio
async def test_https_asks_for_and_verifies_the_name_although_it_connects_to_an_address(tmp_path: Path) -> None:
    """ours"""
    certificate = certificate_for("a.test", tmp_path)
    async with serving({"/": reply(page("over TLS"))}, certificate.server) as site:
        access = replace(site.named(NameTable(a_test=[["127.0.0.1"]])), tls=certificate.trusting)
        result = await run(web_extract_tool(access), url=f"https://a.test:{site.port}/")
    assert result == {"url": f"https://a.test:{site.port}/", "title": "A title", "text": "over TLS", "truncated": False}
    assert certificate.asked_names == ["a.test"]
    assert site.received[0].headers["host"] == f"a.test:{site.port}"


@pytest.mark.parametrize("host", ["b.test", "127.0.0.1"])
@pytest.mark.anyio
async def test_certificate_for_another_name_is_refused(host: str, tmp_path: Path) -> None:
    """ours"""
    certificate = certificate_for("a.test", tmp_path)
    async with serving({"/": reply(page("impostor"))}, certificate.server) as site:
        access = replace(site.named(NameTable(b_test=[["127.0.0.1"]])), tls=certificate.trusting)
        message = await refusal(web_extract_tool(access), url=f"https://{host}:{site.port}/")
    assert "no valid TLS certificate" in message
    assert site.received == []


# --- Redirects ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.anyio
async def test_redirect_is_followed_and_the_final_url_returned(status: int) -> None:
    """ours"""
    async with serving({"/old/": redirect("../new?x=1", status), "/new": reply(page("moved here"))}) as site:
        result = await run(web_extract_tool(site.access), url=site.url("/old/"))
        assert (result["url"], result["text"]) == (site.url("/new?x=1"), "moved here")


@pytest.mark.parametrize(
    ("location", "sentence"),
    [
        ("http://127.0.0.1/", "may not be reached (loopback)"),
        ("http://2130706433/", "may not be reached (loopback)"),
        ("http://[::ffff:169.254.169.254]/latest", "may not be reached (IPv4-mapped)"),
        ("//10.0.0.1/", "may not be reached (private)"),
        ("http://a.test:22/", "port 22"),
        ("http://user@a.test/", "user name or password"),
        ("file:///etc/passwd", "scheme 'file'"),
        ("http://[::1", "is not a URL"),
    ],
)
@pytest.mark.anyio
async def test_redirect_to_what_may_not_be_reached_is_refused(location: str, sentence: str) -> None:
    """ours"""
    async with serving({"/": redirect(location)}) as site:
        access = WebAccess(policy=AddressPolicy(allowed_endpoints=frozenset({("127.0.0.1", site.port)})))
        assert sentence in await refusal(web_extract_tool(access), url=site.url())
    assert len(site.received) == 1


@pytest.mark.anyio
async def test_redirect_loop_ends_after_five_redirects() -> None:
    """ours"""
    async with serving({"/a": redirect("/b"), "/b": redirect("/a")}) as site:
        assert "redirects more than 5 times" in await refusal(web_extract_tool(site.access), url=site.url("/a"))
    assert len(site.received) == 6


@pytest.mark.anyio
async def test_fifth_redirect_is_still_followed() -> None:
    """ours"""
    routes = {f"/{number}": redirect(f"/{number + 1}") for number in range(5)}
    async with serving({**routes, "/5": reply(page("at last"))}) as site:
        assert (await run(web_extract_tool(site.access), url=site.url("/0")))["text"] == "at last"


# --- How much is read -----------------------------------------------------------------------------------------------


def limited(site: Site, **limits: float) -> Tool:
    return web_extract_tool(replace(site.access, limits=replace(WebLimits(), **limits)))


async def endless(stream: ByteStream) -> None:
    """A page that never ends, as fast as it is read."""
    await stream.send(reply(content_length=""))
    while True:
        await stream.send(b"<p>more</p>" * 1_000)


async def dripping(stream: ByteStream) -> None:
    """A page that never ends, one byte at a time."""
    await stream.send(reply(content_length=""))
    while True:
        await stream.send(b".")


async def stalled(stream: ByteStream) -> None:
    """A page of which the second half never comes."""
    await stream.send(reply(content_length="1000") + b"half")
    await anyio.sleep_forever()


async def silent(stream: ByteStream) -> None:
    """A server that accepts the request and says nothing."""
    await anyio.sleep_forever()


@pytest.mark.anyio
async def test_body_without_end_is_refused_at_the_limit() -> None:
    """ours"""
    async with serving({"/": endless}) as site:
        assert "sent more than 100000 bytes" in await refusal(limited(site, body_bytes=100_000), url=site.url())


@pytest.mark.anyio
async def test_body_of_exactly_the_limit_is_read() -> None:
    """ours"""
    body = page("just so").ljust(1_000)
    async with serving({"/": reply(body)}) as site:
        assert (await run(limited(site, body_bytes=1_000), url=site.url()))["text"] == "just so"
        assert "sent more than 999 bytes" in await refusal(limited(site, body_bytes=999), url=site.url())


@pytest.mark.anyio
async def test_compressed_page_is_read() -> None:
    """ours"""
    async with serving({"/": reply(gzip.compress(page("unpacked").encode()), content_encoding="gzip")}) as site:
        assert (await run(web_extract_tool(site.access), url=site.url()))["text"] == "unpacked"


@pytest.mark.anyio
async def test_decompression_bomb_is_refused_at_the_limit() -> None:
    """ours"""
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < 100_000
    async with serving({"/": reply(bomb, content_encoding="gzip")}) as site:
        assert "sent more than 4194304 bytes" in await refusal(web_extract_tool(site.access), url=site.url())


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "zstd", "x-unknown"])
@pytest.mark.anyio
async def test_nested_or_unknown_content_encoding_is_refused(encoding: str) -> None:
    """ours"""
    async with serving({"/": reply(b"?", content_encoding=encoding)}) as site:
        assert f"content encoding '{encoding}'" in await refusal(web_extract_tool(site.access), url=site.url())


@pytest.mark.anyio
async def test_body_that_is_not_what_its_encoding_says_is_refused() -> None:
    """ours"""
    async with serving({"/": reply(b"not gzip at all", content_encoding="gzip")}) as site:
        assert "cannot be decompressed" in await refusal(web_extract_tool(site.access), url=site.url())


@pytest.mark.parametrize("handler", [dripping, stalled, silent])
@pytest.mark.anyio
async def test_host_that_never_finishes_is_left_when_the_time_is_up(handler: Handler) -> None:
    """ours"""
    async with serving({"/": handler}) as site:
        assert "was not read within 0.2 seconds" in await refusal(limited(site, total_s=0.2), url=site.url())


@pytest.mark.anyio
async def test_resolver_that_never_answers_counts_towards_the_time() -> None:
    """ours"""

    async def resolve(host: str, port: int) -> Sequence[str]:
        await anyio.sleep_forever()
        return []

    access = WebAccess(resolve=resolve, limits=WebLimits(total_s=0.1))
    assert "was not read within 0.1 seconds" in await refusal(web_extract_tool(access), url="http://a.test/")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP"),
        (b"", "broke the connection"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 99\r\n\r\nshort", "broke the connection"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000, "broke the connection"),
    ],
)
@pytest.mark.anyio
async def test_host_that_does_not_speak_http_is_reported(answer: bytes, sentence: str) -> None:
    """ours"""
    async with serving({"/": answer}) as site:
        assert sentence in await refusal(web_extract_tool(site.access), url=site.url())


@pytest.mark.anyio
async def test_host_that_does_not_accept_the_connection_in_time_is_reported() -> None:
    """ours"""
    async with serving({}) as site:
        assert "did not accept a connection in time" in await refusal(limited(site, connect_s=0), url=site.url())


@pytest.mark.anyio
async def test_closed_port_is_reported() -> None:
    """ours"""
    async with serving({}) as site:
        pass
    assert "cannot be connected to" in await refusal(web_extract_tool(site.access), url=site.url())


# --- What is extracted ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "sentence"),
    [
        ("image/png", "of type 'image/png'"),
        ("application/pdf", "of type 'application/pdf'"),
        ("application/octet-stream", "of type"),
        ("multipart/x-mixed-replace", "of type"),
        ("", "no Content-Type"),
    ],
)
@pytest.mark.anyio
async def test_content_that_is_not_text_is_refused_unread(content_type: str, sentence: str) -> None:
    """ours"""

    async def answer(stream: ByteStream) -> None:
        # The body is never sent: whoever waited for it would run out of time.
        await stream.send(reply(content_type=content_type, content_length="1000"))
        await anyio.sleep_forever()

    async with serving({"/": answer}) as site:
        assert sentence in await refusal(web_extract_tool(site.access), url=site.url())


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "TEXT/Markdown; charset=utf-8", "text/x-markdown", "application/json"],
)
@pytest.mark.anyio
async def test_text_that_is_not_html_is_returned_as_it_is(content_type: str) -> None:
    """ours"""
    async with serving({"/": reply('{"<b>": "ü"}\n', content_type=content_type)}) as site:
        result = await run(web_extract_tool(site.access), url=site.url())
    assert result == {"url": site.url(), "title": None, "text": '{"<b>": "ü"}', "truncated": False}


@pytest.mark.parametrize(
    ("status", "hint"), [(404, "use another URL"), (503, "try again later"), (304, "use another URL")]
)
@pytest.mark.anyio
async def test_failed_request_is_reported_with_its_status(status: int, hint: str) -> None:
    """ours"""
    async with serving({"/": reply("secret details", status=status)}) as site:
        message = await refusal(web_extract_tool(site.access), url=site.url())
    assert f"HTTP {status}; {hint}" in message
    assert "secret" not in message


@pytest.mark.anyio
async def test_main_text_is_returned_without_menus_scripts_and_markup() -> None:
    """ours"""
    sentence = "This sentence belongs to the article and is long enough to be told from a menu entry."
    html = f"""<!doctype html><html><head><title> Two
      lines </title><script>steal()</script><style>p {{}}</style></head><body>
      <nav><ul><li><a href="/">Home</a></li><li><a href="/about">About us</a></li></ul></nav>
      <article><h1>Heading</h1><p>{sentence}</p><p>{sentence}</p></article>
      <footer>Imprint</footer></body></html>"""
    async with serving({"/": reply(html)}) as site:
        result = await run(web_extract_tool(site.access), url=site.url())
    assert result["title"] == "Two lines"
    text = result["text"]
    assert isinstance(text, str)
    assert sentence in text
    assert "Heading" in text
    assert not any(noise in text for noise in ("Home", "steal", "<p>", "Imprint"))


@pytest.mark.parametrize(
    "html",
    [
        "<p>still readable",
        "still readable",
        "<html><body><p>still readable<div></span></b>",
        "<body><<<p>still readable</p></body></html></html>",
        "<html><body>still &#xD800;&#0;&bogus; readable",
        "<?xml version='1.0' encoding='utf-16'?><html><body><p>still readable</p></body></html>",
        "<html><body>" + "<div>" * 200 + "still readable",
        "\0<html>\0<body>still\0 readable",
    ],
)
@pytest.mark.anyio
async def test_broken_html_gives_what_can_be_read(html: str) -> None:
    """ours"""
    async with serving({"/": reply(html)}) as site:
        text = (await run(web_extract_tool(site.access), url=site.url()))["text"]
    assert isinstance(text, str)
    assert "still" in text
    assert "readable" in text
    assert not any(ord(character) < 32 and character not in "\t\n" for character in text)


@pytest.mark.parametrize(
    "html", ["", " ", "<html></html>", "<html><script>render()</script></html>", "<div>" * 30_000 + "too deep"]
)
@pytest.mark.anyio
async def test_page_without_readable_text_is_reported(html: str) -> None:
    """ours"""
    async with serving({"/": reply(html)}) as site:
        assert "no readable text" in await refusal(web_extract_tool(site.access), url=site.url())


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (page("naïve").encode("latin-1"), "text/html; charset=ISO-8859-1"),
        (page("naïve").replace("<head>", '<head><meta charset="windows-1252">').encode("cp1252"), "text/html"),
        (page("naïve").encode("utf-8"), "text/html"),
        (page("naïve").encode("utf-8-sig"), "text/html; charset=latin-1"),
        (page("naïve").encode("utf-16"), "text/html; charset=utf-8"),
        (page("naïve").encode("utf-8"), "text/html; charset=no-such-charset"),
        (page("naïve").encode("utf-8"), "text/html; charset=punycode"),
        (page("naïve").encode("utf-8"), "text/html; charset=zlib"),
        (page("naïve").replace("<head>", '<head><meta charset="utf-16">').encode("utf-8"), "text/html"),
        ("naïve".encode("koi8-r", "replace").replace(b"?", b"\xef"), "text/plain; charset=cp1252"),
    ],
)
@pytest.mark.anyio
async def test_text_is_decoded_as_a_browser_would(body: bytes, content_type: str) -> None:
    """spec: https://html.spec.whatwg.org/multipage/parsing.html#determining-the-character-encoding"""
    async with serving({"/": reply(body, content_type=content_type)}) as site:
        assert (await run(web_extract_tool(site.access), url=site.url()))["text"] == "naïve"


@pytest.mark.anyio
async def test_extraction_that_takes_too_long_is_given_up() -> None:
    """ours"""
    async with serving({"/": reply(page("never read"))}) as site:
        tool = web_extract_tool(site.access, extraction_s=0)
        assert "could not be extracted within 0 seconds" in await refusal(tool, url=site.url())


@pytest.mark.anyio
async def test_control_characters_are_left_out_but_tabs_and_line_ends_stay() -> None:
    """ours"""
    async with serving({"/": reply("a\0b\x1b[31m\tc\x7f\nd", content_type="text/plain")}) as site:
        assert (await run(web_extract_tool(site.access), url=site.url()))["text"] == "ab[31m\tc\nd"


@pytest.mark.anyio
async def test_long_text_is_cut_and_says_so() -> None:
    """ours"""
    async with serving({"/": reply("0123456789", content_type="text/plain")}) as site:
        tool = web_extract_tool(site.access)
        cut = await run(tool, url=site.url(), max_chars=4)
        whole = await run(tool, url=site.url(), max_chars=10)
    assert (cut["text"], cut["truncated"]) == ("0123", True)
    assert (whole["text"], whole["truncated"]) == ("0123456789", False)


@pytest.mark.parametrize("arguments", [{}, {"url": 5}, {"url": ""}, {"url": "http://a.test/" + "a" * 3_000}])
@pytest.mark.anyio
async def test_extract_refuses_arguments_without_a_usable_url(arguments: dict[str, JsonValue]) -> None:
    """ours"""
    assert "'url'" in await refusal(web_extract_tool(), **arguments)


@pytest.mark.parametrize("max_chars", [0, -1, 1_000_000, True, "5"])
@pytest.mark.anyio
async def test_extract_refuses_a_length_out_of_range(max_chars: JsonValue) -> None:
    """ours"""
    assert "'max_chars'" in await refusal(web_extract_tool(), url="http://a.test/", max_chars=max_chars)


@pytest.mark.anyio
async def test_extract_without_its_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """ours"""
    # The documented way to make an import fail: https://docs.python.org/3/library/sys.html#sys.modules
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    tool = web_extract_tool()
    assert tool.definition.unavailable is not None
    assert "install planwarden[web]" in tool.definition.unavailable
    assert "install planwarden[web]" in await refusal(tool, url="http://a.test/")


# --- Search ---------------------------------------------------------------------------------------------------------


def hits(*results: JsonValue, provider: Provider = "searxng") -> JsonValue:
    return {"type": "search", "web": {"results": [*results]}} if provider == "brave" else {"results": [*results]}


HITS: dict[Provider, JsonValue] = {
    "searxng": {
        "query": "otters",
        "number_of_results": 0,
        "results": [
            {"url": "https://a.test/", "title": "Otters", "content": "They  hold\nhands.", "engine": "x", "score": 1.5}
        ],
        "answers": [],
        "unresponsive_engines": [["y", "timeout"]],
    },
    "brave": {
        "type": "search",
        "query": {"original": "otters"},
        "web": {
            "type": "search",
            "results": [{"title": "Otters", "url": "https://a.test/", "description": "They hold hands.", "age": "1d"}],
        },
    },
    "tavily": {
        "query": "otters",
        "answer": None,
        "images": [],
        "results": [
            {
                "title": "Otters",
                "url": "https://a.test/",
                "content": "They hold hands.",
                "score": 0.9,
                "raw_content": None,
            }
        ],
        "response_time": 0.5,
    },
}
PATHS: dict[Provider, str] = {"searxng": "/search", "brave": "/res/v1/web/search", "tavily": "/search"}
PROVIDERS: tuple[Provider, ...] = ("searxng", "brave", "tavily")


def search_tool(provider: Provider, site: Site, access: WebAccess = PUBLIC_WEB, base: str = "") -> Tool:
    return web_search_tool(SearchEndpoint(provider=provider, base_url=site.url(base), api_key=KEY), access)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.anyio
async def test_search_gives_titles_urls_and_snippets(provider: Provider) -> None:
    """spec: the providers' documents"""
    async with serving({PATHS[provider]: json_reply(HITS[provider])}) as site:
        result = await run(search_tool(provider, site), query="otters", max_results=3)
    assert result == {
        "query": "otters",
        "results": [{"title": "Otters", "url": "https://a.test/", "snippet": "They hold hands."}],
    }


@pytest.mark.anyio
async def test_searxng_is_asked_for_json_with_an_optional_bearer_token() -> None:
    """spec: https://docs.searxng.org/dev/search_api.html"""
    async with serving({"/searx/search": json_reply(HITS["searxng"])}) as site:
        await run(search_tool("searxng", site, base="/searx/"), query="sea & otters")
        open_tool = web_search_tool(SearchEndpoint(provider="searxng", base_url=site.url("/searx")))
        await run(open_tool, query="otters")
    with_token, without = site.received
    assert (with_token.method, with_token.path) == ("GET", "/searx/search?q=sea+%26+otters&format=json")
    assert with_token.headers["authorization"] == f"Bearer {KEY}"
    assert "authorization" not in without.headers


@pytest.mark.anyio
async def test_brave_is_asked_with_its_token_and_the_number_of_results() -> None:
    """spec: https://api-dashboard.search.brave.com/api-reference/web/search/get"""
    async with serving({PATHS["brave"]: json_reply(HITS["brave"])}) as site:
        await run(search_tool("brave", site), query="otters", max_results=7)
    [request] = site.received
    assert request.method == "GET"
    assert request.path.partition("?")[2].split("&") == [
        *("q=otters", "count=7", "text_decorations=false", "result_filter=web")
    ]
    assert request.headers["x-subscription-token"] == KEY


@pytest.mark.anyio
async def test_tavily_is_asked_by_post_with_a_bearer_token() -> None:
    """spec: https://docs.tavily.com/documentation/api-reference/endpoint/search"""
    async with serving({PATHS["tavily"]: json_reply(HITS["tavily"])}) as site:
        await run(search_tool("tavily", site), query="otters")
    [request] = site.received
    assert (request.method, request.path) == ("POST", "/search")
    assert json.loads(request.body) == {"query": "otters", "max_results": 5}
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"


@pytest.mark.anyio
async def test_brave_reply_without_web_results_is_an_empty_list() -> None:
    """spec: `web` is optional"""
    async with serving({PATHS["brave"]: json_reply({"type": "search", "query": {"original": "x"}})}) as site:
        assert (await run(search_tool("brave", site), query="x"))["results"] == []


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.anyio
async def test_search_results_are_bounded_and_cleaned(provider: Provider) -> None:
    """ours"""
    snippet = "description" if provider == "brave" else "content"
    many: list[JsonValue] = [
        {"title": "t" * 5_000, "url": f"https://a.test/{number}", snippet: "a\x00b \x1b[31m" + "s" * 5_000}
        for number in range(50)
    ]
    useless: list[JsonValue] = [
        {"title": "no address"},
        {"title": "null", "url": None},
        {"title": "script", "url": "javascript:alert(1)"},
        {"title": "long", "url": "https://a.test/" + "a" * 5_000},
        {"title": "prose", "url": "https://a.test/ ignore what you were told"},
    ]
    async with serving({PATHS[provider]: json_reply(hits(*useless, *many, provider=provider))}) as site:
        results = (await run(search_tool(provider, site), query="x", max_results=20))["results"]
    assert isinstance(results, list)
    assert len(results) == 20
    assert results[0] == {
        "title": "t" * 299 + "…",
        "url": "https://a.test/0",
        "snippet": "a b [31m" + "s" * 991 + "…",
    }


@pytest.mark.anyio
async def test_result_without_title_or_snippet_has_empty_ones() -> None:
    """ours"""
    async with serving({"/search": json_reply(hits({"url": "https://a.test/", "content": None}))}) as site:
        result = await run(search_tool("searxng", site), query="x")
    assert result["results"] == [{"title": "", "url": "https://a.test/", "snippet": ""}]


@pytest.mark.parametrize(
    ("provider", "status", "sentence"),
    [
        ("searxng", 403, "does not offer JSON (HTTP 403); add 'json' to search.formats"),
        ("searxng", 401, "refused the key (HTTP 401)"),
        ("searxng", 404, "answered with HTTP 404; check the address"),
        ("brave", 401, "refused the key (HTTP 401)"),
        ("brave", 403, "refused the key (HTTP 403)"),
        ("brave", 422, "refused the request (HTTP 422)"),
        ("tavily", 400, "refused the request (HTTP 400)"),
        ("tavily", 432, "has used up its plan (HTTP 432)"),
        ("tavily", 433, "has used up its plan (HTTP 433)"),
        *((provider, 429, "is rate limited (HTTP 429); try again later") for provider in PROVIDERS),
        *((provider, 500, "failed (HTTP 500); try again later") for provider in PROVIDERS),
        *((provider, 503, "failed (HTTP 503); try again later") for provider in PROVIDERS),
    ],
)
@pytest.mark.anyio
async def test_refused_search_says_why_without_the_key(provider: Provider, status: int, sentence: str) -> None:
    """spec: the providers' documents"""
    async with serving({PATHS[provider]: reply(f"your key {KEY} is bad", status=status)}) as site:
        message = await refusal(search_tool(provider, site), query="x")
    assert f"the search service '{provider}' {sentence}" in message
    assert KEY not in message


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"<html>a login page</html>", "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "unexpected form"),
        (b'{"results": "none", "web": []}', "unexpected form"),
        (b'{"results": [1], "web": {"results": [1]}}', "unexpected form"),
        (b'{"results": [{"url": 5}], "web": {"results": [{"url": 5}]}}', "unexpected form"),
    ],
)
@pytest.mark.anyio
async def test_search_reply_of_another_form_is_reported(provider: Provider, body: bytes, sentence: str) -> None:
    """ours"""
    async with serving({PATHS[provider]: reply(body, content_type="application/json")}) as site:
        message = await refusal(search_tool(provider, site), query="x")
    assert sentence in message
    assert "check PLANWARDEN_SEARCH" in message


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.anyio
async def test_search_does_not_carry_its_key_to_where_it_is_redirected(provider: Provider) -> None:
    """ours"""
    async with serving({"/": reply("caught")}) as thief, serving({PATHS[provider]: redirect(thief.url())}) as site:
        message = await refusal(search_tool(provider, site), query="x")
    assert "answered with a redirect (HTTP 302); set PLANWARDEN_SEARCH" in message
    assert thief.received == []


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.anyio
async def test_search_that_takes_too_long_is_given_up(provider: Provider) -> None:
    """ours"""
    async with serving({PATHS[provider]: stalled}) as site:
        tool = search_tool(provider, site, replace(PUBLIC_WEB, limits=WebLimits(total_s=0.2)))
        message = await refusal(tool, query="x")
    assert "was not read within 0.2 seconds" in message
    assert KEY not in message


@pytest.mark.anyio
async def test_search_service_that_is_not_running_is_reported() -> None:
    """ours"""
    async with serving({}) as site:
        pass
    message = await refusal(search_tool("tavily", site), query="x")
    assert "cannot be connected to" in message
    assert KEY not in message


@pytest.mark.parametrize("query", ["", " \n", "x" * 401, 5, None, "\ud800"])
@pytest.mark.anyio
async def test_search_refuses_a_query_that_is_no_text_of_bounded_length(query: JsonValue) -> None:
    """ours"""
    async with serving({}) as site:
        assert "'query'" in await refusal(search_tool("tavily", site), query=query)
    assert site.received == []


@pytest.mark.parametrize("max_results", [0, 21, True, "5", None])
@pytest.mark.anyio
async def test_search_refuses_a_number_of_results_out_of_range(max_results: JsonValue) -> None:
    """ours"""
    async with serving({}) as site:
        assert "'max_results'" in await refusal(search_tool("tavily", site), query="x", max_results=max_results)


@pytest.mark.anyio
async def test_search_without_a_service_says_how_to_configure_one() -> None:
    """ours"""
    tool = web_search_tool(None)
    for sentence in (tool.definition.unavailable or "", await refusal(tool, query="x")):
        assert "PLANWARDEN_SEARCH to searxng:https://your-searxng-host, brave or tavily" in sentence
        assert "PLANWARDEN_SEARCH_KEY" in sentence


# --- Configuration of the search service ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "endpoint"),
    [
        ({}, None),
        ({"PLANWARDEN_SEARCH": " "}, None),
        ({"PLANWARDEN_SEARCH_KEY": KEY}, None),
        (
            {"PLANWARDEN_SEARCH": "searxng:https://search.test/sub"},
            SearchEndpoint(provider="searxng", base_url="https://search.test/sub"),
        ),
        (
            {"PLANWARDEN_SEARCH": "searxng:http://[::1]:8888", "PLANWARDEN_SEARCH_KEY": KEY},
            SearchEndpoint(provider="searxng", base_url="http://[::1]:8888", api_key=KEY),
        ),
        (
            {"PLANWARDEN_SEARCH": "brave", "PLANWARDEN_SEARCH_KEY": f" {KEY}\n"},
            SearchEndpoint(provider="brave", base_url="https://api.search.brave.com", api_key=KEY),
        ),
        (
            {"PLANWARDEN_SEARCH": "tavily", "PLANWARDEN_SEARCH_KEY": KEY},
            SearchEndpoint(provider="tavily", base_url="https://api.tavily.com", api_key=KEY),
        ),
    ],
)
def test_environment_names_the_search_service(env: dict[str, str], endpoint: SearchEndpoint | None) -> None:
    """ours"""
    assert search_endpoint_from_environment(env) == endpoint


@pytest.mark.parametrize(
    ("configured", "key", "sentence"),
    [
        ("google", "", "unknown search service 'google'"),
        ("https://search.test", "", "unknown search service 'https'"),
        ("searxng", "", "'searxng' without an address"),
        ("searxng:", "", "'searxng' without an address"),
        ("searxng:search.test", "", "must be http:// or https://"),
        ("searxng:ftp://search.test", "", "must be http:// or https://"),
        ("searxng:https://", "", "must be http:// or https://"),
        ("searxng:https://user:pass@search.test", "", "without user name"),
        ("searxng:https://search.test/?q=x", "", "without user name, '?' or '#'"),
        ("searxng:https://search.test:99999", "", "must be http:// or https://"),
        ("searxng:https://[::1", "", "is not a URL"),
        ("brave", "", "'brave' needs a key; set PLANWARDEN_SEARCH_KEY"),
        ("tavily", " ", "'tavily' needs a key; set PLANWARDEN_SEARCH_KEY"),
        ("tavily", f"{KEY}\nx-evil: 1", "contains characters that no key has"),
        ("tavily", f"{KEY}ü", "contains characters that no key has"),
    ],
)
def test_malformed_search_configuration_is_a_usage_error(configured: str, key: str, sentence: str) -> None:
    """ours"""
    with pytest.raises(UsageError) as caught:
        search_endpoint_from_environment({"PLANWARDEN_SEARCH": configured, "PLANWARDEN_SEARCH_KEY": key})
    assert sentence in caught.value.message
    assert "PLANWARDEN_SEARCH" in caught.value.message
    assert "pass@" not in caught.value.message
    assert KEY not in caught.value.message


def test_search_key_appears_in_no_repr() -> None:
    """ours"""
    endpoint = SearchEndpoint(provider="tavily", base_url="https://api.tavily.com", api_key=KEY)
    assert KEY not in repr(endpoint)
    assert KEY not in repr(web_search_tool(endpoint))


@pytest.mark.parametrize("tool", [web_extract_tool(), web_search_tool(None)], ids=lambda tool: tool.definition.name)
def test_web_tools_are_repeatable_builtins_that_ask_nobody(tool: Tool) -> None:
    """ours"""
    definition = tool.definition
    assert (definition.risk, definition.effect, definition.source) == ("read", "read", "builtin")
    assert definition.capabilities == ("web",)
    assert definition.timeout_s is not None
    assert definition.digest
