"""How much of an answer is read, and for how long."""

import gzip
from collections.abc import Sequence

import anyio
import pytest
from anyio.abc import ByteStream
from msgspec.structs import replace

from planwarden.tools.base import Tool
from planwarden.tools.web.access import WebAccess, WebLimits
from planwarden.tools.web.extract import web_extract_tool
from tests.tools.web.support import Handler, Site, build_page, build_reply, call_tool, read_refusal, serve, stall


def build_limited_tool(site: Site, **limits: float) -> Tool:
    return web_extract_tool(replace(site.access, limits=replace(WebLimits(), **limits)))


async def send_without_end(stream: ByteStream) -> None:
    """A page that never ends, as fast as it is read."""
    await stream.send(build_reply(content_length=""))
    while True:
        await stream.send(b"<p>more</p>" * 1_000)


async def drip(stream: ByteStream) -> None:
    """A page that never ends, one byte at a time."""
    await stream.send(build_reply(content_length=""))
    while True:
        await stream.send(b".")


async def stay_silent(stream: ByteStream) -> None:
    """A server that accepts the request and says nothing."""
    await anyio.sleep_forever()


@pytest.mark.anyio
async def test_body_without_end_is_refused_at_the_limit() -> None:
    async with serve({"/": send_without_end}) as site:
        assert "sent more than 100000 bytes" in await read_refusal(
            build_limited_tool(site, body_bytes=100_000), url=site.url()
        )


@pytest.mark.anyio
async def test_body_of_exactly_the_limit_is_read() -> None:
    body = build_page("just so").ljust(1_000)
    async with serve({"/": build_reply(body)}) as site:
        assert (await call_tool(build_limited_tool(site, body_bytes=1_000), url=site.url()))["text"] == "just so"
        assert "sent more than 999 bytes" in await read_refusal(
            build_limited_tool(site, body_bytes=999), url=site.url()
        )


@pytest.mark.anyio
async def test_compressed_page_is_read() -> None:
    async with serve(
        {"/": build_reply(gzip.compress(build_page("unpacked").encode()), content_encoding="gzip")}
    ) as site:
        assert (await call_tool(web_extract_tool(site.access), url=site.url()))["text"] == "unpacked"


@pytest.mark.anyio
async def test_decompression_bomb_is_refused_at_the_limit() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < 100_000
    async with serve({"/": build_reply(bomb, content_encoding="gzip")}) as site:
        assert "sent more than 4194304 bytes" in await read_refusal(web_extract_tool(site.access), url=site.url())


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "zstd", "x-unknown"])
@pytest.mark.anyio
async def test_nested_or_unknown_content_encoding_is_refused(encoding: str) -> None:
    async with serve({"/": build_reply(b"?", content_encoding=encoding)}) as site:
        assert f"content encoding '{encoding}'" in await read_refusal(web_extract_tool(site.access), url=site.url())


@pytest.mark.anyio
async def test_body_that_is_not_what_its_encoding_says_is_refused() -> None:
    async with serve({"/": build_reply(b"not gzip at all", content_encoding="gzip")}) as site:
        assert "cannot be decompressed" in await read_refusal(web_extract_tool(site.access), url=site.url())


@pytest.mark.parametrize("handler", [drip, stall, stay_silent])
@pytest.mark.anyio
async def test_host_that_never_finishes_is_abandoned_after_the_time_limit(handler: Handler) -> None:
    async with serve({"/": handler}) as site:
        assert "was not read within 0.2 seconds" in await read_refusal(
            build_limited_tool(site, total_s=0.2), url=site.url()
        )


@pytest.mark.anyio
async def test_resolver_that_never_answers_counts_towards_the_time() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        await anyio.sleep_forever()
        return []

    access = WebAccess(resolve=resolve, limits=WebLimits(total_s=0.1))
    assert "was not read within 0.1 seconds" in await read_refusal(web_extract_tool(access), url="http://a.test/")


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
    async with serve({"/": answer}) as site:
        assert sentence in await read_refusal(web_extract_tool(site.access), url=site.url())


@pytest.mark.anyio
async def test_host_that_does_not_accept_the_connection_in_time_is_reported() -> None:
    async with serve({}) as site:
        assert "did not accept a connection in time" in await read_refusal(
            build_limited_tool(site, connect_s=0), url=site.url()
        )


@pytest.mark.anyio
async def test_closed_port_is_reported() -> None:
    async with serve({}) as site:
        pass
    assert "cannot be connected to" in await read_refusal(web_extract_tool(site.access), url=site.url())
