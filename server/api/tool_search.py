"""Searches the catalogue of tools."""

from planwarden.agent.ports.toolbox import Toolbox
from planwarden.server.api.limits import MAX_QUERY_CHARS, check_limit, check_text, parse_offset
from planwarden.server.views.tools import ToolPage, build_tool_line


def search_tools(tools: Toolbox, query: str | None = None, *, limit: int = 20, cursor: str | None = None) -> ToolPage:
    """Return lines of the catalogue, best matches first; without a query all lines by name.

    Raises:
        InvalidArguments: the limit or the cursor is not usable.
        LimitExceeded: the query is too long.
    """
    check_limit(limit)
    if query is not None:
        check_text(query, "query", MAX_QUERY_CHARS, may_be_empty=True)
    matches = tools.search(query or "", len(tools.definitions()))
    start = parse_offset(cursor, len(matches))
    following = start + limit
    return ToolPage(
        tools=tuple(map(build_tool_line, matches[start:following])),
        total=len(matches),
        next_cursor=str(following) if following < len(matches) else None,
    )
