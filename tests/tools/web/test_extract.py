"""What `webExtract` reads of an answer, how much and for how long, and every refusal of what it does not read."""

import gzip
import sys
from collections.abc import Sequence

import anyio
import pytest
from anyio.abc import ByteStream
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.tools.base import Tool
from planwarden.tools.web.access import WebAccess, WebLimits
from planwarden.tools.web.extract import web_extract_tool
from planwarden.tools.web.search import web_search_tool
from tests.tools.web.support import (
    Handler,
    Site,
    build_page,
    build_redirect,
    build_reply,
    call_tool,
    read_refusal,
    serve,
    stall,
)

pytestmark = pytest.mark.anyio
PATIENCE_S = 600.0
"""For an extraction on a busy machine."""


def build_tool(site: Site, **limits: float) -> Tool:
    patience_s = limits.pop("extraction_s", PATIENCE_S)
    return web_extract_tool(replace(site.access, limits=replace(WebLimits(), **limits)), extraction_s=patience_s)


async def extract(answer: bytes | Handler, **arguments: JsonValue) -> dict[str, JsonValue]:
    async with serve({"/": answer}) as site:
        return await call_tool(build_tool(site), url=site.url(), **arguments)


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


def unread(content_type: str) -> Handler:
    async def answer(stream: ByteStream) -> None:
        # The body is never sent; a client that waited for it would run out of time.
        await stream.send(build_reply(content_type=content_type, content_length="1000"))
        await anyio.sleep_forever()

    return answer


BOMB = gzip.compress(bytes(50_000_000))
LATE, BROKEN, EMPTY = "was not read within 0.2 seconds", "broke the connection", "no readable text"
FAULTS: list[tuple[bytes | Handler, str, dict[str, float]]] = [
    # Too much, or for too long.
    (send_without_end, "sent more than 100000 bytes", {"body_bytes": 100_000}),
    (build_reply(build_page("just so").ljust(1_000)), "sent more than 999 bytes", {"body_bytes": 999}),
    (build_reply(BOMB, content_encoding="gzip"), "sent more than 4194304 bytes", {}),
    *((handler, LATE, {"total_s": 0.2}) for handler in (drip, stall, stay_silent)),
    (b"", "did not accept a connection in time", {"connect_s": 0}),
    (build_reply(build_page("x")), "could not be extracted within 0 seconds", {"extraction_s": 0}),
    # Not what it says it is.
    *(
        (build_reply(b"?", content_encoding=name), f"content encoding '{name}'", {})
        for name in ("gzip, gzip", "br", "zstd", "x-unknown")
    ),
    (build_reply(b"not gzip at all", content_encoding="gzip"), "cannot be decompressed", {}),
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
    (build_reply("secret details", status=404), "HTTP 404; use another URL", {}),
    (build_reply("secret details", status=503), "HTTP 503; try again later", {}),
    (build_reply("secret details", status=304), "HTTP 304; use another URL", {}),
    *((build_reply(html), EMPTY, {}) for html in ("", " ", "<html></html>", "<html><script>render()</script></html>")),
    (build_reply("<div>" * 30_000 + "too deep"), EMPTY, {}),
    # Each redirect is checked like the first request.
    (build_redirect("http://127.0.0.1/"), "may not be reached (loopback)", {}),
    (build_redirect("http://2130706433/"), "may not be reached (loopback)", {}),
    (build_redirect("http://[::ffff:169.254.169.254]/latest"), "may not be reached (IPv4-mapped)", {}),
    (build_redirect("//10.0.0.1/"), "may not be reached (private)", {}),
    (build_redirect("http://a.test:22/"), "port 22", {}),
    (build_redirect("http://user@a.test/"), "user name or password", {}),
    (build_redirect("file:///etc/passwd"), "scheme 'file'", {}),
    (build_redirect("http://[::1"), "is not a URL", {}),
    (build_redirect("/"), "redirects more than 5 times", {}),
]


@pytest.mark.parametrize(("answer", "sentence", "limits"), FAULTS)
async def test_an_answer_that_cannot_be_read_is_refused_with_a_reason(
    answer: bytes | Handler, sentence: str, limits: dict[str, float]
) -> None:
    async with serve({"/": answer}) as site:
        message = await read_refusal(build_tool(site, **limits), url=site.url())
    assert sentence in message and "secret" not in message
    assert len(site.received) == (6 if "5 times" in sentence else 0 if "accept" in sentence else 1)


async def test_a_host_that_does_not_listen_or_a_resolver_that_never_answers_is_reported() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        await anyio.sleep_forever()
        return []

    async with serve({}) as site:
        pass
    assert "cannot be connected to" in await read_refusal(build_tool(site), url=site.url())
    access = WebAccess(resolve=resolve, limits=WebLimits(total_s=0.2))
    assert LATE in await read_refusal(web_extract_tool(access), url="http://a.test/")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_five_redirects_are_followed_and_the_final_url_is_returned(status: int) -> None:
    routes = {f"/{number}/": build_redirect(f"../{number + 1}/", status) for number in range(4)}
    routes |= {"/4/": build_redirect("../new?x=1", status), "/new": build_reply(build_page("moved here"))}
    async with serve(routes) as site:
        result = await call_tool(build_tool(site), url=site.url("/0/"))
        assert (result["url"], result["text"]) == (site.url("/new?x=1"), "moved here")


NAIVE = build_page("naïve")
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
    assert (await extract(build_reply(body, content_type=content_type)))["text"] == "naïve"


async def test_a_compressed_page_and_one_of_exactly_the_limit_are_read() -> None:
    packed = gzip.compress(build_page("unpacked").encode())
    assert (await extract(build_reply(packed, content_encoding="gzip")))["text"] == "unpacked"
    async with serve({"/": build_reply(build_page("just so").ljust(1_000))}) as site:
        assert (await call_tool(build_tool(site, body_bytes=1_000), url=site.url()))["text"] == "just so"


@pytest.mark.parametrize("kind", ["text/plain", "TEXT/Markdown; charset=utf-8", "text/x-markdown", "application/json"])
async def test_text_that_is_not_html_is_returned_unchanged(kind: str) -> None:
    result = await extract(build_reply('{"<b>": "ü"}\n', content_type=kind))
    assert (result["title"], result["text"], result["truncated"]) == (None, '{"<b>": "ü"}', False)


async def test_main_text_is_returned_without_menus_scripts_and_markup() -> None:
    sentence = "This sentence belongs to the article and is long enough to be told from a menu entry."
    html = f"""<!doctype html><html><head><title> Two
      lines </title><script>steal()</script><style>p {{}}</style></head><body>
      <nav><ul><li><a href="/">Home</a></li><li><a href="/about">About us</a></li></ul></nav>
      <article><h1>Heading</h1><p>{sentence}</p><p>{sentence}</p></article>
      <footer>Imprint</footer></body></html>"""
    result = await extract(build_reply(html))
    text = str(result["text"])
    assert result["title"] == "Two lines" and sentence in text and "Heading" in text
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
async def test_broken_html_returns_what_can_be_read(html: str) -> None:
    text = str((await extract(build_reply(html)))["text"])
    assert "still" in text and "readable" in text
    assert not any(ord(character) < 32 and character not in "\t\n" for character in text)


async def test_control_characters_are_removed_and_long_text_is_cut_and_says_so() -> None:
    plain = build_reply("a\0b\x1b[31m\tc\x7f\nd", content_type="text/plain")
    assert (await extract(plain))["text"] == "ab[31m\tc\nd"
    for limit, expected in ((4, ("ab[3", True)), (11, ("ab[31m\tc\nd", False))):
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
    assert f"'{name}'" in await read_refusal(web_extract_tool(), **arguments)


async def test_without_its_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The documented way to make an import fail: https://docs.python.org/3/library/sys.html#sys.modules
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    tool = web_extract_tool()
    for sentence in (tool.definition.unavailable or "", await read_refusal(tool, url="http://a.test/")):
        assert "install planwarden[web]" in sentence


@pytest.mark.parametrize("tool", [web_extract_tool(), web_search_tool(None)], ids=lambda tool: tool.definition.name)
def test_web_tools_only_read_and_say_that_they_reach_the_web(tool: Tool) -> None:
    definition = tool.definition
    assert (definition.risk, definition.effect, definition.capabilities) == ("read", "read", ("web",))
    assert definition.timeout_s is not None
