"""Completions of the arguments of prompts and of resource addresses.

Thread ids and suspension ids are the caller's own, newest first. Tool names are those of the catalogue. An input of a
saved plan is completed with the values that its schema lists. Any other argument gets neither completions nor an error.

Source: https://modelcontextprotocol.io/specification/2026-07-28/server/utilities/completion.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from mcp.types import CompleteRequestParams, CompleteResult, Completion, PromptReference

from planwarden.agent.common.canonical import canonical_json
from planwarden.server.api.limits import MAX_PAGE
from planwarden.server.api.service import Service
from planwarden.server.mcp.lazy_service import ServiceContext, translate_errors
from planwarden.server.mcp.prompts import PROMPTS
from planwarden.server.mcp.resources import TEMPLATES
from planwarden.server.plans.plan_file import SavedPlan
from planwarden.server.views.fields import build_fields

MAX_VALUES = 100
"""The most values of one answer that the protocol allows."""
MAX_EXECUTIONS = 1_000
"""The most executions that are searched for threads, the newest first."""

Source = Callable[[Service, str], Awaitable[Iterable[str]]]


async def complete(
    context: ServiceContext, params: CompleteRequestParams, plans: Sequence[SavedPlan]
) -> CompleteResult:
    """Serve `completion/complete`."""
    candidates, source = _list_choices(params, plans), _find_source(params)
    if source is not None:
        lazy_service = context.lifespan_context
        with translate_errors():
            candidates = await source(await lazy_service.service(), lazy_service.principal())
    values = [value for value in dict.fromkeys(candidates) if value.startswith(params.argument.value)]
    return CompleteResult(
        completion=Completion(values=values[:MAX_VALUES], total=len(values), has_more=len(values) > MAX_VALUES)
    )


def _find_source(params: CompleteRequestParams) -> Source | None:
    """Return the source of the argument's completions; None for an argument that has none."""
    ref, name = params.ref, params.argument.name
    if isinstance(ref, PromptReference):
        prompt = next((prompt for prompt in PROMPTS if prompt.name == ref.name), None)
        has_argument = prompt is not None and any(argument.name == name for argument in prompt.arguments or ())
    else:
        has_argument = f"{{{name}}}" in ref.uri and any(template.uri_template == ref.uri for template in TEMPLATES)
    return _SOURCES.get(name) if has_argument else None


def _list_choices(params: CompleteRequestParams, plans: Sequence[SavedPlan]) -> Iterable[str]:
    """Return the values that a plan's schema lists for the argument."""
    forms = (plan.inputs for plan in plans if isinstance(params.ref, PromptReference) and plan.name == params.ref.name)
    fields = (field for field in build_fields(next(forms, None)) if field.name == params.argument.name)
    listed = next((field.schema.get("enum") for field in fields), None)
    values = listed if isinstance(listed, list) else []
    return [value if isinstance(value, str) else canonical_json(value) for value in values]


async def _list_thread_ids(service: Service, principal: str) -> Iterable[str]:
    return [header.thread_id for header in await service.store.executions(principal, MAX_EXECUTIONS)]


async def _list_suspension_ids(service: Service, principal: str) -> Iterable[str]:
    """Return the ids of open suspensions only, newest first."""
    page = await service.store.suspensions(principal=principal, limit=MAX_PAGE)
    return [row.suspension_id for row in sorted(page.rows, key=lambda row: row.created_at, reverse=True)]


async def _list_tool_names(service: Service, principal: str) -> Iterable[str]:
    return sorted(definition.name for definition in service.tools.definitions())


_SOURCES: Mapping[str, Source] = {
    "thread_id": _list_thread_ids,
    "suspension_id": _list_suspension_ids,
    "name": _list_tool_names,
}
