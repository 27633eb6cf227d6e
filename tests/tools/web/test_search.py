"""What `webSearch` sends to each service, and what it makes of the answers."""

import json

import pytest
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.tools.base import Tool
from planwarden.tools.web.access import PUBLIC_WEB, WebAccess, WebLimits
from planwarden.tools.web.search import web_search_tool
from planwarden.tools.web.search_service import Provider, SearchEndpoint
from tests.tools.web.support import (
    KEY,
    Site,
    build_json_reply,
    build_redirect,
    build_reply,
    call_tool,
    read_refusal,
    serve,
    stall,
)


def build_hits(*results: JsonValue, provider: Provider = "searxng") -> JsonValue:
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


def build_search_tool(provider: Provider, site: Site, access: WebAccess = PUBLIC_WEB, base: str = "") -> Tool:
    return web_search_tool(SearchEndpoint(provider=provider, base_url=site.url(base), api_key=KEY), access)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.anyio
async def test_search_returns_titles_urls_and_snippets(provider: Provider) -> None:
    async with serve({PATHS[provider]: build_json_reply(HITS[provider])}) as site:
        result = await call_tool(build_search_tool(provider, site), query="otters", max_results=3)
    assert result == {
        "query": "otters",
        "results": [{"title": "Otters", "url": "https://a.test/", "snippet": "They hold hands."}],
    }


@pytest.mark.anyio
async def test_searxng_is_asked_for_json_with_an_optional_bearer_token() -> None:
    async with serve({"/searx/search": build_json_reply(HITS["searxng"])}) as site:
        await call_tool(build_search_tool("searxng", site, base="/searx/"), query="sea & otters")
        open_tool = web_search_tool(SearchEndpoint(provider="searxng", base_url=site.url("/searx")))
        await call_tool(open_tool, query="otters")
    with_token, without = site.received
    assert (with_token.method, with_token.path) == ("GET", "/searx/search?q=sea+%26+otters&format=json")
    assert with_token.headers["authorization"] == f"Bearer {KEY}"
    assert "authorization" not in without.headers


@pytest.mark.anyio
async def test_brave_is_asked_with_its_token_and_the_number_of_results() -> None:
    async with serve({PATHS["brave"]: build_json_reply(HITS["brave"])}) as site:
        await call_tool(build_search_tool("brave", site), query="otters", max_results=7)
    [request] = site.received
    assert request.method == "GET"
    assert request.path.partition("?")[2].split("&") == [
        *("q=otters", "count=7", "text_decorations=false", "result_filter=web")
    ]
    assert request.headers["x-subscription-token"] == KEY


@pytest.mark.anyio
async def test_tavily_is_asked_by_post_with_a_bearer_token() -> None:
    async with serve({PATHS["tavily"]: build_json_reply(HITS["tavily"])}) as site:
        await call_tool(build_search_tool("tavily", site), query="otters")
    [request] = site.received
    assert (request.method, request.path) == ("POST", "/search")
    assert json.loads(request.body) == {"query": "otters", "max_results": 5}
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"


@pytest.mark.anyio
async def test_brave_reply_without_web_results_is_an_empty_list() -> None:
    async with serve({PATHS["brave"]: build_json_reply({"type": "search", "query": {"original": "x"}})}) as site:
        assert (await call_tool(build_search_tool("brave", site), query="x"))["results"] == []


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.anyio
async def test_search_results_are_bounded_and_cleaned(provider: Provider) -> None:
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
    async with serve({PATHS[provider]: build_json_reply(build_hits(*useless, *many, provider=provider))}) as site:
        results = (await call_tool(build_search_tool(provider, site), query="x", max_results=20))["results"]
    assert isinstance(results, list)
    assert len(results) == 20
    assert results[0] == {
        "title": "t" * 299 + "…",
        "url": "https://a.test/0",
        "snippet": "a b [31m" + "s" * 991 + "…",
    }


@pytest.mark.anyio
async def test_result_without_title_or_snippet_has_empty_ones() -> None:
    async with serve({"/search": build_json_reply(build_hits({"url": "https://a.test/", "content": None}))}) as site:
        result = await call_tool(build_search_tool("searxng", site), query="x")
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
    async with serve({PATHS[provider]: build_reply(f"your key {KEY} is bad", status=status)}) as site:
        message = await read_refusal(build_search_tool(provider, site), query="x")
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
    async with serve({PATHS[provider]: build_reply(body, content_type="application/json")}) as site:
        message = await read_refusal(build_search_tool(provider, site), query="x")
    assert sentence in message
    assert "check PLANWARDEN_SEARCH" in message


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.anyio
async def test_search_does_not_carry_its_key_to_where_it_is_redirected(provider: Provider) -> None:
    async with (
        serve({"/": build_reply("caught")}) as thief,
        serve({PATHS[provider]: build_redirect(thief.url())}) as site,
    ):
        message = await read_refusal(build_search_tool(provider, site), query="x")
    assert "answered with a redirect (HTTP 302); set PLANWARDEN_SEARCH" in message
    assert thief.received == []


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.anyio
async def test_search_that_takes_too_long_is_abandoned(provider: Provider) -> None:
    async with serve({PATHS[provider]: stall}) as site:
        tool = build_search_tool(provider, site, replace(PUBLIC_WEB, limits=WebLimits(total_s=0.2)))
        message = await read_refusal(tool, query="x")
    assert "was not read within 0.2 seconds" in message
    assert KEY not in message


@pytest.mark.anyio
async def test_search_service_that_is_not_running_is_reported() -> None:
    async with serve({}) as site:
        pass
    message = await read_refusal(build_search_tool("tavily", site), query="x")
    assert "cannot be connected to" in message
    assert KEY not in message


@pytest.mark.parametrize("query", ["", " \n", "x" * 401, 5, None, "\ud800"])
@pytest.mark.anyio
async def test_search_refuses_a_query_that_is_not_a_text_of_bounded_length(query: JsonValue) -> None:
    async with serve({}) as site:
        assert "'query'" in await read_refusal(build_search_tool("tavily", site), query=query)
    assert site.received == []


@pytest.mark.parametrize("max_results", [0, 21, True, "5", None])
@pytest.mark.anyio
async def test_search_refuses_a_number_of_results_out_of_range(max_results: JsonValue) -> None:
    async with serve({}) as site:
        assert "'max_results'" in await read_refusal(
            build_search_tool("tavily", site), query="x", max_results=max_results
        )


@pytest.mark.anyio
async def test_search_without_a_service_says_how_to_configure_one() -> None:
    tool = web_search_tool(None)
    for sentence in (tool.definition.unavailable or "", await read_refusal(tool, query="x")):
        assert "PLANWARDEN_SEARCH to searxng:https://your-searxng-host, brave or tavily" in sentence
        assert "PLANWARDEN_SEARCH_KEY" in sentence
