"""What search services answer. It comes from strangers, so pydantic checks it; the first search imports this."""

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from planwarden.agent.common.errors import ToolError
from planwarden.tools.web.search_service import Provider


class SearchHit(BaseModel):
    model_config = ConfigDict(defer_build=True)
    title: str | None = None
    url: str | None = None
    snippet: str | None = Field(default=None, validation_alias=AliasChoices("content", "description"))


class _Hits(BaseModel):
    """What SearXNG and Tavily answer, and Brave under `web`."""

    model_config = ConfigDict(defer_build=True)
    results: list[SearchHit]


class _BraveReply(BaseModel):
    model_config = ConfigDict(defer_build=True)
    web: _Hits | None = None
    """Absent when nothing was found."""


def read_hits(provider: Provider, body: bytes) -> list[SearchHit]:
    """Returns what the service found, best first. Raises `ToolError` for anything but JSON of the expected form."""
    try:
        if provider == "brave":
            web = _BraveReply.model_validate_json(body).web
            return [] if web is None else web.results
        return _Hits.model_validate_json(body).results
    except ValidationError as error:
        # The error repeats what was received, so only its kind is reported.
        is_json = all(problem["type"] != "json_invalid" for problem in error.errors(include_input=False))
        trouble = "JSON of an unexpected form" if is_json else "something that is not JSON"
        raise ToolError(f"the search service {provider!r} answered with {trouble}; check PLANWARDEN_SEARCH") from None
