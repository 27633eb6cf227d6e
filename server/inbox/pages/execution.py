"""The page of one execution: its graph, its steps with what they did, what a person can do with it now, and its log."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import islice

import msgspec
from markupsafe import Markup
from msgspec.structs import asdict
from pydantic import JsonValue
from starlette.responses import Response

from planwarden.agent.core.execution.state import Call, ExecutionState, StepState, SuspensionState
from planwarden.agent.core.execution.synopsis import list_shown_steps
from planwarden.agent.core.plan.plan import list_step_tools
from planwarden.agent.ports.store import Header
from planwarden.server.inbox.request import InboxRequest, NotFound, PageRoutes, Values
from planwarden.server.views.card import format_host
from planwarden.server.views.decisions import describe_call_edit, describe_decision, describe_proof, find_decided
from planwarden.server.views.escaping import GOAL_CHARS, ValueView, escape_text, format_once, format_value, shorten_text
from planwarden.server.views.instants import to_utc
from planwarden.server.views.observations import Observation, build_observations
from planwarden.server.views.plan_graph import MAX_ROWS, GraphRow, PlanGraph, build_graph
from planwarden.server.views.status_text import (
    RETRYABLE_STATUSES,
    SAVED_PLAN,
    build_title,
    describe_progress,
    describe_state,
    list_lineage_facts,
)
from planwarden.server.views.status_words import SIGNS, WORDS, Words
from planwarden.server.views.svg import draw_for_page

MAX_ENTRIES = 500
MAX_RELATIVES = 20
DETAIL_CHARS = 200
MAX_VALUE_BYTES = 8_000
"""The most bytes of arguments, or of a result, that the page shows; a person can download larger ones as a file."""
MAX_PAGE_BYTES = 400_000
"""The limit for all values on the page together."""
MAX_POINTS = 5
MAX_CALLS = 50
"""The most calls of one step that the page shows; calls that did not succeed come first."""
_CAN_STOP: frozenset[str] = frozenset({"running", "suspended", "planned", "incomplete"})

_HIDDEN_DATA = frozenset({"suspensionId", "callId", "addressee"})
"""Fields of a log entry that a person does not need, or finds behind the entry's link."""

_OF_THE_CLOCK = {"AGENT_SUSPENDED": "wait", "SUSPENSION_TIMEOUT": "the time has passed"}
"""The words for log entries about a step that only waits, and therefore asks nobody."""

ROUTES = PageRoutes()


@ROUTES.page("/executions/{execution_id}")
async def show_execution(request: InboxRequest) -> Response:
    execution = await find_execution(request)
    build = partial(build_values, request, execution)
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
    call = execution.find_call(request.path("call_id"))
    if call is None:
        raise NotFound("this execution has no such call")
    return _send_file(msgspec.json.encode({"arguments": call.arguments, "result": call.value}))


def _send_file(data: bytes) -> Response:
    headers = {"Content-Disposition": 'attachment; filename="result.txt"'}
    return Response(data, media_type="application/octet-stream", headers=headers)


async def find_execution(request: InboxRequest) -> ExecutionState:
    """Return the execution that the address names. Raises `NotFound` if there is none."""
    execution_id = request.path("execution_id")
    if await request.service.store.header(execution_id) is None:
        raise NotFound("no execution has this id")
    return await request.service.find(execution_id)


async def find_later(request: InboxRequest, execution: ExecutionState) -> str | None:
    """Return the id of the thread's newest execution; None if that is this execution."""
    newest = (await request.service.store.thread(execution.thread_id))[-1].execution_id
    return None if newest == execution.execution_id else newest


async def build_values(request: InboxRequest, execution: ExecutionState) -> Values:
    """Return the values of the page without its token."""
    store = request.service.store
    headers = await store.thread(execution.thread_id)
    people = {key for key, item in execution.suspensions.items() if item.question.addressee == "human"}
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
        "entries": entries[-MAX_ENTRIES:],
        "left_out": max(0, len(entries) - MAX_ENTRIES),
        "waiting": [s.question.suspension_id for s in execution.open_suspensions if s.question.addressee == "human"],
        "relatives": _list_relatives(headers, execution),
        # The saved plan is already among the facts.
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


def _format_detail(value: JsonValue) -> str:
    return shorten_text(value, DETAIL_CHARS) if isinstance(value, str) else format_value(value, DETAIL_CHARS)


class _ValueBudget:
    """How many bytes of values the page can still show."""

    def __init__(self) -> None:
        self._left = MAX_PAGE_BYTES

    def show(self, value: JsonValue, limit: int = MAX_VALUE_BYTES) -> ValueView | None:
        """Return the value; None when it has more than `limit` bytes, or the page is full."""
        if self._left <= 0:
            return None
        size = len(msgspec.json.encode(value))
        if size > min(limit, self._left):
            return None
        self._left -= size
        return ValueView(value)

    def show_text(self, text: str | None, limit: int = MAX_VALUE_BYTES) -> ValueView | None:
        """Return what a model wrote, its beginning if it is too large, or `…` if the page is full; None for no text."""
        if not text:
            return None
        return self.show(text, limit) or self.show(f"{text[: limit // 8]} …", limit) or ValueView("…")


def build_plan_view(execution: ExecutionState, graph: PlanGraph, *, is_newest: bool, people: Collection[str]) -> Values:
    """Return what the page shows of an execution. Only the newest execution of a thread can be retried or forked.

    `people` holds the ids of questions to people.
    """
    plan, is_finished = execution.plan, execution.is_finished
    begun = [state.step.step_id for state in execution.steps.values() if state.has_begun]
    can_continue = is_newest and plan is not None and execution.status in (*RETRYABLE_STATUSES, "completed")
    can_retry = can_continue and is_finished and execution.status != "completed"
    can_fork = can_continue and bool(begun)
    budget = _ValueBudget()
    states = {state.step.step_id: state for state in list_shown_steps(execution)}
    # The final text comes first, so that it is shown even if the page is full. No other page or file has it whole.
    output = budget.show_text(execution.synthesis, MAX_PAGE_BYTES)
    steps = [_build_step(execution, states[row.key], row, people, budget) for row in graph.rows]
    points = ((number, step["step_id"], step["state"]) for number, step in enumerate(steps, 1) if step["is_open"])
    return {
        "title": build_title(execution),
        "state": describe_state(execution),
        "tone": WORDS["execution"][execution.status].tone,
        "progress": describe_progress(execution),
        "facts": list(_list_facts(execution)),
        "steps": steps,
        "left_out": graph.left_out,
        "output": output,
        # The first steps that failed, were rejected or wait: the number in `steps`, the id and the state of each.
        "points": list(islice(points, MAX_POINTS)),
        "can_cancel": execution.status in _CAN_STOP and not execution.cancel_requested,
        "can_retry": can_retry,
        # Whether a retry asks about the host's call again.
        "asks_again": execution.options.is_literal,
        "can_fork": can_fork,
        "can_change": (can_retry or can_fork) and plan is not None and plan.inputs is not None,
        # Whether the plan of the execution can be rehearsed and kept.
        "can_repeat": is_finished and plan is not None and not execution.earlier,
        "fork_steps": begun[:MAX_ROWS],
    }


def _list_facts(execution: ExecutionState) -> Iterator[tuple[str, str]]:
    """Yield facts about the execution, such as what it used, as labels and values."""
    usage, saved = execution.usage, execution.saved_plan
    yield "Calls of tools", f"{usage.tool_calls}"
    if usage.model_calls:
        yield "Replies of a model", f"{usage.model_calls}"
    if usage.input_tokens or usage.output_tokens:
        yield "Tokens in and out", f"{usage.input_tokens:,} and {usage.output_tokens:,}"
    yield "Time that it ran", f"{execution.active_s:.1f} s"
    if saved is not None:
        yield "Saved plan", f"{escape_text(saved.name)}, version {saved.digest[:12]}"


def _build_step(
    execution: ExecutionState, state: StepState, row: GraphRow, people: Collection[str], budget: _ValueBudget
) -> Values:
    """Return one step: its summary, and what it did, which the page shows when a person opens the summary."""
    calls = [call for call in state.calls if call.status != "proposed" or call.arguments is not None]
    calls.sort(key=lambda call: call.status == "succeeded")
    listed = [_build_call(execution, call, people, budget) for call in calls[:MAX_CALLS]]
    answer = state.turns[-1].content if state.turns else None
    # The note of the row says why a step was skipped.
    fault = "" if state.status == "skipped" else state.error_message or ""
    notes = () if fault else (row.after, row.note)
    return {
        **asdict(row),
        "sign": SIGNS[row.mark].text,
        "note": " · ".join(text for text in notes if text),
        "error": shorten_text(fault, GOAL_CHARS),
        "proof": _describe_proof(state),
        "calls": listed,
        "left_out": len(calls) - len(listed),
        # What a model wrote for this step.
        "text": budget.show_text(answer),
        "is_open": state.status in ("failed", "rejected", "suspended"),
    }


def _describe_proof(state: StepState) -> str:
    promised = ", ".join(map(escape_text, state.step.required_tools or list_step_tools(state.step)))
    if state.validation == "passed":
        return f"Proven by the log: {promised} ran."
    if state.validation == "failed":
        return f"Not proven: the log does not have every promised call of {promised}."
    return ""


def _build_call(execution: ExecutionState, call: Call, people: Collection[str], budget: _ValueBudget) -> Values:
    """Return one call of a step. A value is None if it is unknown or, as `is_cut` says, too large for the page."""
    never_ran = execution.is_finished and call.status in ("proposed", "suspended", "decided")
    ruling, words = find_decided(execution, call), WORDS["item"]["skipped" if never_ran else call.status]
    arguments = None if call.arguments is None else budget.show(dict(call.arguments))
    # If the result is an artifact, this is the short value in its place.
    result = budget.show(call.value) if call.status == "succeeded" else None
    return {
        "tool": escape_text(call.tool_name),
        "state": words.word,
        "tone": words.tone,
        "call_id": call.call_id,
        "arguments": arguments,
        "result": result,
        "is_cut": (arguments is None and call.arguments is not None) or (result is None and call.status == "succeeded"),
        "error": shorten_text(call.error_message or call.last_failure or "", GOAL_CHARS),
        "artifact": call.artifact,
        "question": ruling.question.suspension_id if ruling and ruling.question.suspension_id in people else None,
        "decided": _describe_decided(call, ruling),
        "at": None if call.intended_at is None else to_utc(call.intended_at),
        "attempts": call.attempts,
        "rule": _describe_rule(call),
        "once": "" if call.once is None else format_once(call.once.values),
    }


def _describe_decided(call: Call, suspension: SuspensionState | None) -> str:
    decided = describe_decision(suspension, is_left_out=call.status == "rejected")
    edit = describe_call_edit(suspension.question, call.call_id) if suspension is not None else ""
    return ", ".join(text for text in (decided, edit) if text)


def _describe_rule(call: Call) -> str:
    if call.rule is None or call.error_code == "denied":
        return ""
    matched = f" ({', '.join(map(escape_text, call.rule.matched))})" if call.rule.matched else ""
    return f"Allowed by rule {call.rule.number}: {escape_text(call.rule.words)}{matched}"
