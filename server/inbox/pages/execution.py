"""The page of one execution: its steps and its timeline."""

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute

from planwarden.agent.core.state import ExecutionState
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.request import InboxRequest, NotFound, page_route
from planwarden.server.inbox.site import InboxSite
from planwarden.server.views.facts import escape_text, format_value
from planwarden.server.views.observations import Observation, build_observations
from planwarden.server.views.voices import AGENT_CHARS, GOAL_CHARS, describe_proof, format_host

MAX_ENTRIES = 500
DETAIL_CHARS = 200


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One observation."""

    sequence: int
    at: datetime
    kind: str
    step: str
    details: tuple[tuple[str, str], ...]
    tone: str
    question: str | None
    """The id of the question that the entry is about."""


class StepSummary(msgspec.Struct, frozen=True, kw_only=True):
    step_id: str
    description: str
    status: str
    tools: tuple[str, ...]
    error: str


_HIDDEN_DATA = frozenset({"suspensionId", "callId", "addressee"})
"""Fields that a person does not need, or finds behind the link."""

_NAMES = {
    "AGENT_SUSPENDED": "question",
    "AGENT_RESUMED": "answer",
    "SUSPENSION_TIMEOUT": "nobody answered in time",
    "EXECUTION_COMPLETED": "plan completed",
    "EXECUTION_FAILED": "plan failed",
    "EXECUTION_REJECTED": "plan ended by a rejection",
    "EXECUTION_CANCELLED": "plan cancelled",
}
"""The kinds of entries whose own names say little to a person."""

_TONES = {
    "AGENT_SUSPENDED": "warn",
    "SUSPENSION_TIMEOUT": "bad",
    "STEP_FAILED": "bad",
    "STEP_REJECTED": "bad",
    "EXECUTION_FAILED": "bad",
    "EXECUTION_REJECTED": "bad",
    "VALIDATION_FAILED": "warn",
    "STEP_COMPLETED": "good",
    "EXECUTION_COMPLETED": "good",
}


def build_execution_routes(site: InboxSite) -> Sequence[BaseRoute]:
    where = f"{INBOX_PATH}/executions/{{execution_id}}"
    return (page_route(site, where, show_execution), page_route(site, f"{where}/timeline", show_timeline))


async def show_execution(request: InboxRequest) -> Response:
    return await _render_execution(request, "execution.html")


async def show_timeline(request: InboxRequest) -> Response:
    """The part of the page that changes; 204 if the page already shows the current version."""
    return await _render_execution(request, "_execution.html", seen=request.http.query_params.get("seen"))


async def _render_execution(request: InboxRequest, template: str, seen: str | None = None) -> Response:
    execution_id = request.http.path_params["execution_id"]
    header = await request.service.engine.store.header(execution_id)
    if header is None:
        raise NotFound("no execution has this id")
    execution = await request.service.engine.find(execution_id)
    if seen == str(execution.version):
        return Response(status_code=204)
    recorded = await request.service.engine.store.read(execution_id)
    people = {s for s, item in execution.suspensions.items() if item.question.addressee == "human"}
    entries = [_build_timeline_entry(found, people) for found in build_observations(recorded, execution)]
    return request.render_page(
        template,
        execution=execution,
        owner=escape_text(execution.principal),
        host=format_host(execution.host or ""),
        goal=escape_text((execution.goal or "")[:GOAL_CHARS]),
        output=escape_text((execution.synthesis or "")[:AGENT_CHARS]),
        steps=_summarize_steps(execution),
        entries=entries[-MAX_ENTRIES:],
        left_out=max(0, len(entries) - MAX_ENTRIES),
        waiting=[s.question.suspension_id for s in execution.open_suspensions if s.question.addressee == "human"],
        seen=str(execution.version),
    )


def _build_timeline_entry(found: Observation, people: Collection[str]) -> TimelineEntry:
    """`people` holds the ids of questions to people; only these questions have a page."""
    data = dict(found.data)
    who, assurance, channel = (data.pop(name, None) for name in ("principal", "assurance", "channel"))
    details = [
        (name, value) for name, value in data.items() if name not in _HIDDEN_DATA and value not in (None, [], "")
    ]
    if isinstance(assurance, str) and isinstance(channel, str):
        details.append(("by", f"{who or data.get('endorsedBy') or 'nobody'} ({describe_proof(assurance, channel)})"))
    question = found.data.get("suspensionId")
    tone = _TONES.get(found.type, "plain")
    if found.data.get("approved") is not None:
        tone = "good" if found.data["approved"] is True else "bad"
    return TimelineEntry(
        sequence=found.sequence,
        at=found.at,
        kind=_NAMES.get(found.type) or found.type.replace("_", " ").lower(),
        step=escape_text(found.step_id or ""),
        details=tuple((escape_text(name), _format_detail(value)) for name, value in details),
        tone=tone,
        question=question if isinstance(question, str) and question in people else None,
    )


def _format_detail(value: object) -> str:
    text = escape_text(value) if isinstance(value, str) else format_value(value)  # pyright: ignore[reportArgumentType]
    return text if len(text) <= DETAIL_CHARS else text[:DETAIL_CHARS] + "..."


def _summarize_steps(execution: ExecutionState) -> list[StepSummary]:
    return [
        StepSummary(
            step_id=escape_text(state.step.step_id),
            description=escape_text(state.step.description[:GOAL_CHARS]),
            status=state.status.replace("_", " "),
            tools=tuple(map(escape_text, state.step.required_tools)),
            error=escape_text((state.error_message or "")[:GOAL_CHARS]),
        )
        for state in execution.steps.values()
    ]
