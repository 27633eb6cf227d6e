"""The search service that the operator configured for `webSearch`, read from the environment."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from planwarden.agent.common.errors import UsageError
from planwarden.agent.common.imports import LazyModule
from planwarden.tools.web.access import host_and_port

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = LazyModule("httpx2")

Provider = Literal["searxng", "brave", "tavily"]

SEARCH_VARIABLE = "PLANWARDEN_SEARCH"
"""The service behind `webSearch`: `searxng:URL`, `brave` or `tavily`; without it the tool is unavailable."""
KEY_VARIABLE = "PLANWARDEN_SEARCH_KEY"
"""The key for brave or tavily; to SearXNG it is sent as a bearer token."""

_DEFAULT_BASE_URLS: dict[Provider, str] = {
    "brave": "https://api.search.brave.com",
    "tavily": "https://api.tavily.com",
}
HOW_TO_CONFIGURE = (
    "set PLANWARDEN_SEARCH to searxng:https://your-searxng-host, brave or tavily, "
    "and for the last two PLANWARDEN_SEARCH_KEY to the API key"
)


class SearchEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A search service. Raises `UsageError` when key or address cannot be right."""

    provider: Provider
    base_url: str
    """Scheme, host and optional path, to which the path of the service's API is added."""
    api_key: str | None = None
    """Required by brave and tavily; sent to SearXNG as a bearer token, for a proxy in front of it."""

    def __repr__(self) -> str:
        return f"SearchEndpoint({self.provider}, {self.base_url!r})"

    def __post_init__(self) -> None:
        if self.api_key is None and self.provider != "searxng":
            raise UsageError(f"the search service {self.provider!r} needs a key; set PLANWARDEN_SEARCH_KEY")
        # The HTTP library would refuse other characters in a header, with an error that repeats them.
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise UsageError("the search key contains characters that no key has; check PLANWARDEN_SEARCH_KEY")
        try:
            url = httpx2.URL(self.base_url)
        except httpx2.InvalidURL as error:
            raise UsageError(f"the address of the search service is not a URL; {HOW_TO_CONFIGURE}") from error
        host, port = host_and_port(url)
        extras = url.userinfo or url.query or url.fragment
        if url.scheme not in ("http", "https") or not host or not 0 < port < 65_536 or extras:
            raise UsageError(
                "the address of the search service must be http:// or https:// with a host and an optional path, "
                f"without user name, '?' or '#'; {HOW_TO_CONFIGURE}"
            )


def search_endpoint_from_environment(env: Mapping[str, str]) -> SearchEndpoint | None:
    """Returns the service that `PLANWARDEN_SEARCH` names (`provider` or `provider:base_url`); None when it is not set.

    Raises:
        UsageError: the value is not valid, or the key in `PLANWARDEN_SEARCH_KEY` is missing.
    """
    configured = env.get(SEARCH_VARIABLE, "").strip()
    if not configured:
        return None
    name, _, base_url = configured.partition(":")
    provider = next((known for known in get_args(Provider) if known == name), None)
    if provider is None:
        raise UsageError(f"PLANWARDEN_SEARCH names the unknown search service {name[:40]!r}; {HOW_TO_CONFIGURE}")
    base_url = base_url or _DEFAULT_BASE_URLS.get(provider, "")
    if not base_url:
        raise UsageError(f"PLANWARDEN_SEARCH names {provider!r} without an address; {HOW_TO_CONFIGURE}")
    return SearchEndpoint(provider=provider, base_url=base_url, api_key=env.get(KEY_VARIABLE, "").strip() or None)
