"""Each redirect is checked like the first request."""

import pytest

from planwarden.tools.web.access import AddressPolicy, WebAccess
from planwarden.tools.web.extract import web_extract_tool
from tests.tools.web.support import build_page, build_redirect, build_reply, call_tool, read_refusal, serve


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.anyio
async def test_redirect_is_followed_and_the_final_url_returned(status: int) -> None:
    async with serve(
        {"/old/": build_redirect("../new?x=1", status), "/new": build_reply(build_page("moved here"))}
    ) as site:
        result = await call_tool(web_extract_tool(site.access), url=site.url("/old/"))
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
    async with serve({"/": build_redirect(location)}) as site:
        access = WebAccess(policy=AddressPolicy(allowed_endpoints=frozenset({("127.0.0.1", site.port)})))
        assert sentence in await read_refusal(web_extract_tool(access), url=site.url())
    assert len(site.received) == 1


@pytest.mark.anyio
async def test_redirect_loop_ends_after_five_redirects() -> None:
    async with serve({"/a": build_redirect("/b"), "/b": build_redirect("/a")}) as site:
        assert "redirects more than 5 times" in await read_refusal(web_extract_tool(site.access), url=site.url("/a"))
    assert len(site.received) == 6


@pytest.mark.anyio
async def test_fifth_redirect_is_still_followed() -> None:
    routes = {f"/{number}": build_redirect(f"/{number + 1}") for number in range(5)}
    async with serve({**routes, "/5": build_reply(build_page("at last"))}) as site:
        assert (await call_tool(web_extract_tool(site.access), url=site.url("/0")))["text"] == "at last"
