"""The search service that the environment names."""

import pytest

from planwarden.agent.common.errors import UsageError
from planwarden.tools.web.search import web_search_tool
from planwarden.tools.web.search_service import SearchEndpoint, search_endpoint_from_environment
from tests.tools.web.support import KEY


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
    with pytest.raises(UsageError) as caught:
        search_endpoint_from_environment({"PLANWARDEN_SEARCH": configured, "PLANWARDEN_SEARCH_KEY": key})
    assert sentence in caught.value.message
    assert "PLANWARDEN_SEARCH" in caught.value.message
    assert "pass@" not in caught.value.message
    assert KEY not in caught.value.message


def test_search_key_appears_in_no_repr() -> None:
    endpoint = SearchEndpoint(provider="tavily", base_url="https://api.tavily.com", api_key=KEY)
    assert KEY not in repr(endpoint)
    assert KEY not in repr(web_search_tool(endpoint))
