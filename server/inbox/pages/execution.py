"""The page of one execution: its graph, its steps with what they did, what a person can do, and its log."""

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.store import Header
from planwarden.server.inbox.plan_view import build_plan_view
from planwarden.server.inbox.request import InboxRequest, NotFound, PageRoutes, Values
from planwarden.server.views.card import AGENT_CHARS, format_host
from planwarden.server.views.decisions import describe_proof
from planwarden.server.views.escaping import escape_text, format_value
from planwarden.server.views.graph.plan_graph import PlanGraph, build_graph
from planwarden.server.views.graph.svg import draw_for_page
from planwarden.server.views.instants import to_utc
from planwarden.server.views.lineage import SAVED_PLAN, list_lineage_facts
from planwarden.server.views.observations import Observation, build_observations
from planwarden.server.views.status_words import WORDS, Words

MAX_ENTRIES = 500
MAX_RELATIVES = 20
DETAIL_CHARS = 200


_HIDDEN_DATA = frozenset({"suspensionId", "callId", "addressee"})
"""Fields that a person does not need, or finds behind the link."""

_OF_THE_CLOCK = {"AGENT_SUSPENDED": "wait", "SUSPENSION_TIMEOUT": "the time has passed"}
"""What entries about a wait are called; nobody was asked."""


ROUTES = PageRoutes()


@ROUTES.page("/executions/{execution_id}")
async def show_execution(request: InboxRequest) -> Response:
    execution = await find_execution(request)

    async def build() -> Values:
        return await _build_values(request, execution)

    return await request.render_live("execution.html", "_execution.html", str(execution.version), build)


@ROUTES.page("/executions/{execution_id}/artifacts/{artifact_id}")
async def download_artifact(request: InboxRequest) -> Response:
    """Return the bytes of a large result, as a file: a browser must not run what a tool returned."""
    execution = await find_execution(request)
    artifact_id = request.path("artifact_id")
    return _send_file((await request.service.read_artifact(execution.thread_id, artifact_id, principal=None)).data)


@ROUTES.page("/executions/{execution_id}/calls/{call_id}")
async def download_call(request: InboxRequest) -> Response:
    """Return what a call was given and what it returned, as a JSON file."""
    execution = await find_execution(request)
    try:
        call = execution.call(request.path("call_id"))
    except IllegalTransition:
        raise NotFound("this execution has no such call") from None
    return _send_file(msgspec.json.encode({"arguments": call.arguments, "result": call.value}))


def _send_file(data: bytes) -> Response:
    headers = {"Content-Disposition": 'attachment; filename="result.txt"'}
    return Response(data, media_type="application/octet-stream", headers=headers)


async def find_execution(request: InboxRequest) -> ExecutionState:
    """Return the execution of the address. Raises `NotFound`."""
    execution_id = request.path("execution_id")
    if await request.service.store.header(execution_id) is None:
        raise NotFound("no execution has this id")
    return await request.service.find(execution_id)


async def find_later(request: InboxRequest, execution: ExecutionState) -> str | None:
    """Return the id of the thread's newest run, if that is another one."""
    newest = (await request.service.store.thread(execution.thread_id))[-1].execution_id
    return None if newest == execution.execution_id else newest


async def _build_values(request: InboxRequest, execution: ExecutionState) -> Values:
    """Return the values of the page without its token."""
    store = request.service.store
    headers = await store.thread(execution.thread_id)
    people = {s for s, item in execution.suspensions.items() if item.question.addressee == "human"}
    recorded = await store.read(execution.execution_id)
    entries = [_build_timeline_entry(observation, people) for observation in build_observations(recorded, execution)]
    graph = PlanGraph(rows=(), links=()) if execution.plan is None else build_graph(execution.plan, execution)
    is_newest = headers[-1].execution_id == execution.execution_id
    return {
        "execution": execution,
        "summary": graph.summary,
        "view": build_plan_view(execution, graph, is_newest=is_newest, people=people),
        "graph": Markup(draw_for_page(graph)) if graph.rows else "",
        "owner": escape_text(execution.principal),
        "host": format_host(execution.host or ""),
        "output": escape_text((execution.synthesis or "")[:AGENT_CHARS]),
        "entries": entries[-MAX_ENTRIES:],
        "left_out": max(0, len(entries) - MAX_ENTRIES),
        "waiting": [s.question.suspension_id for s in execution.open_suspensions if s.question.addressee == "human"],
        "relatives": _list_relatives(headers, execution),
        # The saved plan is among the facts.
        "lineage": [fact for fact in list_lineage_facts(execution) if fact.name != SAVED_PLAN],
        "key": request.new_key(),
        "is_shared": request.site.is_shared,
    }


def _list_relatives(headers: Sequence[Header], execution: ExecutionState) -> list[tuple[str, str, datetime, str]]:
    """Return the other executions of the thread: ids, statuses, last changes, and how each is related to this one."""
    relation, relatives = "", list[tuple[str, str, datetime, str]]()
    for header in headers:
        if header.execution_id == execution.execution_id:
            relation = "later"
            continue
        is_source = header.execution_id == execution.retry_of
        words = "this run goes on from it" if is_source else relation
        relatives.append((header.execution_id, header.status, to_utc(header.updated_at), words))
    return relatives[-MAX_RELATIVES:]


def _build_timeline_entry(observation: Observation, people: Collection[str]) -> Values:
    """Return one line of the log. `people` holds the ids of questions to people; only these questions have a page."""
    data = dict(observation.data)
    who, assurance, channel = (data.pop(name, None) for name in ("principal", "assurance", "channel"))
    details = [
        (name, value) for name, value in data.items() if name not in _HIDDEN_DATA and value not in (None, [], "")
    ]
    if isinstance(assurance, str) and isinstance(channel, str):
        details.append(("by", f"{who or data.get('endorsedBy') or 'nobody'} ({describe_proof(assurance, channel)})"))
    question = observation.data.get("suspensionId")
    is_wait = observation.data.get("kind") == "wait" and observation.type in _OF_THE_CLOCK
    words = WORDS["event"].get(observation.type, Words(observation.type.replace("_", " ").lower(), "none"))
    if is_wait:
        words = Words(_OF_THE_CLOCK[observation.type], "none")
        details = [(name, value) for name, value in details if name == "toolName"]
    tone = words.tone
    if observation.data.get("approved") is not None:
        tone = WORDS["question"]["approved" if observation.data["approved"] is True else "rejected"].tone
    return {
        "at": observation.at,
        "kind": words.word,
        "step": escape_text(observation.step_id or ""),
        "details": [(escape_text(name), _format_detail(value)) for name, value in details],
        "tone": tone,
        "question": question if isinstance(question, str) and question in people else None,
    }


def _format_detail(value: object) -> str:
    text = escape_text(value) if isinstance(value, str) else format_value(value)  # pyright: ignore[reportArgumentType]
    return text if len(text) <= DETAIL_CHARS else text[:DETAIL_CHARS] + "..."
