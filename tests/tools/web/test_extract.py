"""What `webExtract` reads out of a page."""

import sys

import anyio
import pytest
from anyio.abc import ByteStream
from pydantic import JsonValue

from planwarden.tools.web.extract import web_extract_tool
from tests.tools.web.support import build_page, build_reply, call_tool, read_refusal, serve

PATIENCE_S = 600.0
"""For an extraction on a busy machine."""


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
    async def answer(stream: ByteStream) -> None:
        # The body is never sent; a client that waited for it would run out of time.
        await stream.send(build_reply(content_type=content_type, content_length="1000"))
        await anyio.sleep_forever()

    async with serve({"/": answer}) as site:
        assert sentence in await read_refusal(web_extract_tool(site.access, extraction_s=PATIENCE_S), url=site.url())


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "TEXT/Markdown; charset=utf-8", "text/x-markdown", "application/json"],
)
@pytest.mark.anyio
async def test_text_that_is_not_html_is_returned_unchanged(content_type: str) -> None:
    async with serve({"/": build_reply('{"<b>": "ü"}\n', content_type=content_type)}) as site:
        result = await call_tool(web_extract_tool(site.access, extraction_s=PATIENCE_S), url=site.url())
    assert result == {"url": site.url(), "title": None, "text": '{"<b>": "ü"}', "truncated": False}


@pytest.mark.parametrize(
    ("status", "hint"), [(404, "use another URL"), (503, "try again later"), (304, "use another URL")]
)
@pytest.mark.anyio
async def test_failed_request_is_reported_with_its_status(status: int, hint: str) -> None:
    async with serve({"/": build_reply("secret details", status=status)}) as site:
        message = await read_refusal(web_extract_tool(site.access, extraction_s=PATIENCE_S), url=site.url())
    assert f"HTTP {status}; {hint}" in message
    assert "secret" not in message


@pytest.mark.anyio
async def test_main_text_is_returned_without_menus_scripts_and_markup() -> None:
    sentence = "This sentence belongs to the article and is long enough to be told from a menu entry."
    html = f"""<!doctype html><html><head><title> Two
      lines </title><script>steal()</script><style>p {{}}</style></head><body>
      <nav><ul><li><a href="/">Home</a></li><li><a href="/about">About us</a></li></ul></nav>
      <article><h1>Heading</h1><p>{sentence}</p><p>{sentence}</p></article>
      <footer>Imprint</footer></body></html>"""
    async with serve({"/": build_reply(html)}) as site:
        result = await call_tool(web_extract_tool(site.access, extraction_s=PATIENCE_S), url=site.url())
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
async def test_broken_html_returns_what_can_be_read(html: str) -> None:
    async with serve({"/": build_reply(html)}) as site:
        text = (await call_tool(web_extract_tool(site.access, extraction_s=PATIENCE_S), url=site.url()))["text"]
    assert isinstance(text, str)
    assert "still" in text
    assert "readable" in text
    assert not any(ord(character) < 32 and character not in "\t\n" for character in text)


@pytest.mark.parametrize(
    "html", ["", " ", "<html></html>", "<html><script>render()</script></html>", "<div>" * 30_000 + "too deep"]
)
@pytest.mark.anyio
async def test_page_without_readable_text_is_reported(html: str) -> None:
    async with serve({"/": build_reply(html)}) as site:
        assert "no readable text" in await read_refusal(
            web_extract_tool(site.access, extraction_s=PATIENCE_S), url=site.url()
        )


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (build_page("naïve").encode("latin-1"), "text/html; charset=ISO-8859-1"),
        (build_page("naïve").replace("<head>", '<head><meta charset="windows-1252">').encode("cp1252"), "text/html"),
        (build_page("naïve").encode("utf-8"), "text/html"),
        (build_page("naïve").encode("utf-8-sig"), "text/html; charset=latin-1"),
        (build_page("naïve").encode("utf-16"), "text/html; charset=utf-8"),
        (build_page("naïve").encode("utf-8"), "text/html; charset=no-such-charset"),
        (build_page("naïve").encode("utf-8"), "text/html; charset=punycode"),
        (build_page("naïve").encode("utf-8"), "text/html; charset=zlib"),
        (build_page("naïve").replace("<head>", '<head><meta charset="utf-16">').encode("utf-8"), "text/html"),
        ("naïve".encode("koi8-r", "replace").replace(b"?", b"\xef"), "text/plain; charset=cp1252"),
    ],
)
@pytest.mark.anyio
async def test_text_is_decoded_as_a_browser_would(body: bytes, content_type: str) -> None:
    async with serve({"/": build_reply(body, content_type=content_type)}) as site:
        assert (await call_tool(web_extract_tool(site.access, extraction_s=PATIENCE_S), url=site.url()))[
            "text"
        ] == "naïve"


@pytest.mark.anyio
async def test_extraction_that_takes_too_long_is_abandoned() -> None:
    async with serve({"/": build_reply(build_page("never read"))}) as site:
        tool = web_extract_tool(site.access, extraction_s=0)
        assert "could not be extracted within 0 seconds" in await read_refusal(tool, url=site.url())


@pytest.mark.anyio
async def test_control_characters_are_removed_except_tabs_and_line_ends() -> None:
    async with serve({"/": build_reply("a\0b\x1b[31m\tc\x7f\nd", content_type="text/plain")}) as site:
        assert (await call_tool(web_extract_tool(site.access, extraction_s=PATIENCE_S), url=site.url()))[
            "text"
        ] == "ab[31m\tc\nd"


@pytest.mark.anyio
async def test_long_text_is_cut_and_says_so() -> None:
    async with serve({"/": build_reply("0123456789", content_type="text/plain")}) as site:
        tool = web_extract_tool(site.access, extraction_s=PATIENCE_S)
        cut = await call_tool(tool, url=site.url(), max_chars=4)
        whole = await call_tool(tool, url=site.url(), max_chars=10)
    assert (cut["text"], cut["truncated"]) == ("0123", True)
    assert (whole["text"], whole["truncated"]) == ("0123456789", False)


@pytest.mark.parametrize("arguments", [{}, {"url": 5}, {"url": ""}, {"url": "http://a.test/" + "a" * 3_000}])
@pytest.mark.anyio
async def test_extract_refuses_arguments_without_a_usable_url(arguments: dict[str, JsonValue]) -> None:
    assert "'url'" in await read_refusal(web_extract_tool(), **arguments)


@pytest.mark.parametrize("max_chars", [0, -1, 1_000_000, True, "5"])
@pytest.mark.anyio
async def test_extract_refuses_a_length_out_of_range(max_chars: JsonValue) -> None:
    assert "'max_chars'" in await read_refusal(web_extract_tool(), url="http://a.test/", max_chars=max_chars)


@pytest.mark.anyio
async def test_extract_without_its_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The documented way to make an import fail: https://docs.python.org/3/library/sys.html#sys.modules
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    tool = web_extract_tool()
    assert tool.definition.unavailable is not None
    assert "install planwarden[web]" in tool.definition.unavailable
    assert "install planwarden[web]" in await read_refusal(tool, url="http://a.test/")
