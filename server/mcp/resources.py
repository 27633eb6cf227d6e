"""Resources: each is a view that a tool returns, as JSON at an address, for hosts that let people or models read it.

The icon of the server, its tools and its prompts is here too.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Literal
from urllib.parse import unquote

from mcp.types import Annotations, Icon, Resource, ResourceTemplate
from pydantic import JsonValue

from planwarden.agent.common.artifact import JSON_TYPE
from planwarden.agent.common.errors import InvalidArguments, UnknownSuspension, UnknownTool
from planwarden.server.api.limits import MAX_PAGE
from planwarden.server.api.service import Service
from planwarden.server.mcp.results import LISTED_ROWS, MAX_STRUCTURED
from planwarden.server.views.encoding import to_short_json
from planwarden.server.views.execution import ask_for_person, find_awaited_person
from planwarden.server.views.tools import ToolPage, build_tool_line

TOOLS, SUSPENSIONS, EXECUTIONS = "planwarden://tools", "planwarden://suspensions", "planwarden://executions"
ARTIFACTS, PLANS = "planwarden://artifacts", "planwarden://plans"

_DRAWING = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#1f6f5f"/>'
    b'<path d="M9 17l5 5 9-11" fill="none" stroke="#fff" stroke-width="3"/></svg>'
)

ICONS = [
    Icon(src=f"data:image/svg+xml;base64,{b64encode(_DRAWING).decode()}", mime_type="image/svg+xml", sizes=["any"])
]
"""The icon that hosts may show for the server, its tools, prompts and resources. It has no script and no outside
address, and is readable on light and dark backgrounds."""

_MODELS = Annotations(audience=["assistant"], priority=0.3)
_BOTH = Annotations(audience=["user", "assistant"], priority=0.8)
"""Annotations without `lastModified`, so that listings stay the same and can be cached; times are in the content."""


def _resource(uri: str, title: str, description: str, readers: Annotations) -> Resource:
    name = uri.rpartition("/")[2]
    return Resource(
        uri=uri, name=name, title=title, description=description, mime_type=JSON_TYPE, icons=ICONS, annotations=readers
    )


def _template(uri: str, name: str, title: str, description: str, readers: Annotations) -> ResourceTemplate:
    return ResourceTemplate(
        uri_template=uri,
        name=name,
        title=title,
        description=description,
        mime_type=JSON_TYPE,
        icons=ICONS,
        annotations=readers,
    )


RESOURCES = (
    _resource(TOOLS, "Tools for plans", "One line per tool.", _MODELS),
    _resource(SUSPENSIONS, "Open questions", "The questions that wait for people or the caller, oldest first.", _BOTH),
    _resource(PLANS, "Saved plans", "What run_plan takes: each plan with its inputs.", _BOTH),
)
_PIECE = "One piece, as text or base64, from byte `offset` (default 0) on; nextOffset is where the next piece begins."
_NEWEST = "The newest of the thread, with all observations."
_ANSWERED = "Only while the question is open; afterwards, its execution shows it."
TEMPLATES = (
    _template(f"{TOOLS}/{{name}}", "tool", "A tool's schema", "The whole definition.", _MODELS),
    _template(f"{EXECUTIONS}/{{thread_id}}", "execution", "An execution", _NEWEST, _BOTH),
    _template(f"{SUSPENSIONS}/{{suspension_id}}", "suspension", "An open question", _ANSWERED, _BOTH),
    _template(f"{ARTIFACTS}/{{thread_id}}/{{artifact_id}}{{?offset}}", "artifact", "A large result", _PIECE, _MODELS),
)

PIECE_BYTES = 128 * 1024
"""The most bytes of an artifact that one read returns: as text if they are ASCII JSON, else in base64."""

ResourceKind = Literal["tools", "tool", "execution", "suspensions", "suspension", "plans", "artifact"]
_LISTS: Mapping[str, ResourceKind] = {TOOLS: "tools", SUSPENSIONS: "suspensions", PLANS: "plans"}
_SINGLE: Mapping[str, ResourceKind] = {TOOLS: "tool", EXECUTIONS: "execution", SUSPENSIONS: "suspension"}


def find_resource(uri: str) -> tuple[ResourceKind, str] | None:
    """Return the kind of resource and the name in its address; None if the address is not one of planwarden's."""
    if uri in _LISTS:
        return _LISTS[uri], ""
    if uri.startswith(f"{ARTIFACTS}/"):
        return "artifact", uri.removeprefix(f"{ARTIFACTS}/")
    prefix, _, name = uri.rpartition("/")
    return (_SINGLE[prefix], unquote(name)) if prefix in _SINGLE and name else None


async def read(service: Service, kind: ResourceKind, name: str, principal: str) -> JsonValue:
    """Return the content of the resource. Raises `PlanwardenError` if the principal has no such resource."""
    match kind:
        case "tools":
            lines = tuple(build_tool_line(tool) for tool in service.tools.definitions() if not tool.is_gated)
            return to_short_json(ToolPage(tools=lines, total=len(lines), next_cursor=None), lists=True)
        case "tool":
            tools = (await service.get_tool_schemas([name], principal=principal)).tools
            if not tools:
                raise UnknownTool(f"there is no tool {name[:128]!r}; {TOOLS} lists them")
            return to_short_json(tools[0])
        case "execution":
            view = await service.get_execution(name, observations_after=0, principal=principal)
            # The client may have no way to ask a person, so the next action says where a person can answer.
            waiting = find_awaited_person(view)
            return to_short_json(view if waiting is None else ask_for_person(view, waiting), lists=True)
        case "suspensions":
            page = await service.list_suspensions(
                limit=MAX_PAGE, principal=principal, max_rows=LISTED_ROWS, max_bytes=MAX_STRUCTURED
            )
            return to_short_json(page, lists=True)
        case "suspension":
            return await _read_suspension(service, name, principal)
        case "plans":
            # The operator's plans are the same for every principal.
            return {"plans": [to_short_json(plan) for plan in await service.plans()]}
        case "artifact":
            return await _read_artifact(service, name, principal)


async def _read_artifact(service: Service, name: str, principal: str) -> JsonValue:
    path, _, query = name.partition("?")
    thread_id, _, artifact_id = map(unquote, path.partition("/"))
    offset = query.removeprefix("offset=") if query else "0"
    if (query and not query.startswith("offset=")) or not (offset.isascii() and offset.isdigit() and len(offset) <= 12):
        raise InvalidArguments(f"{query[:80]!r} is not offset=N, where N is a nextOffset")
    artifact, start = await service.read_artifact(thread_id, artifact_id, principal=principal), int(offset)
    data = artifact.data[start : start + PIECE_BYTES]
    end = start + len(data)
    # In ASCII each byte is a character.
    is_text = artifact.media_type == JSON_TYPE and data.isascii()
    content: dict[str, JsonValue] = {"text": data.decode("ascii")} if is_text else {"base64": b64encode(data).decode()}
    return {
        "artifactId": artifact.artifact_id,
        "mediaType": artifact.media_type,
        "sizeBytes": len(artifact.data),
        "offset": start,
        "nextOffset": end if end < len(artifact.data) else None,
        **content,
    }


async def _read_suspension(service: Service, name: str, principal: str) -> JsonValue:
    """Return the open question with this id. Other ids raise the same error, and foreign ids as fast as unknown ids."""
    row = await service.store.find_suspension(name)
    if row is not None and row.principal == principal:
        view, is_open = await service.read_question(row.thread_id, name, principal=principal)
        if is_open:
            return to_short_json(view)
    raise UnknownSuspension(f"there is no open question {name[:64]!r}; {SUSPENSIONS} lists them")
