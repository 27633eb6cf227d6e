"""The page on which a person goes on from a finished execution with a changed plan, and sees before what that does.

A person edits the plan as text. Nothing starts before the page that says, step by step, what is kept, what runs again
and which effects stay: only that page holds the hash that starts it, and the hash covers everything that it shows.
"""

import hashlib
from collections.abc import Sequence
from secrets import token_urlsafe

import msgspec
from pydantic import JsonValue
from starlette.responses import Response
from starlette.routing import BaseRoute

from planwarden.agent.common.canonical import canonical_json, read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, UsageError
from planwarden.agent.core.plan import plan_to_json
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.core.takeover import UnaskedRepeat
from planwarden.server.api.retries import CheckedRetry, RetryRequest
from planwarden.server.inbox.answering import capitalize
from planwarden.server.inbox.forms import format_editable_json
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.pages.execution import find_execution, find_later
from planwarden.server.inbox.pages.plan_actions import build_requester, read_key
from planwarden.server.inbox.plan_changes import PlanChanges, build_plan_changes
from planwarden.server.inbox.plan_view import can_go_on
from planwarden.server.inbox.request import BadForm, InboxRequest, form_route, http_status, page_route
from planwarden.server.inbox.site import InboxSite
from planwarden.server.views.facts import escape_text
from planwarden.server.views.standing import build_title

MAX_TEXT_CHARS = 262_144
"""Of an edited plan, and of its inputs."""
MAX_CHOICES = 500
MAX_FAULTS = 50
FAULT_CHARS = 2_000
MAX_ID_CHARS = 64
WHAT_IS_LEFT = ""
"""The choice to run again nothing that is done; every other one is a step."""


class _Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What a person wrote."""

    text: str
    inputs_text: str
    from_step: str


class _Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """The draft as JSON, as far as it is."""

    plan: dict[str, JsonValue] | None
    inputs: dict[str, JsonValue] | None
    faults: tuple[str, ...]

    @property
    def step_ids(self) -> list[str]:
        listed = (self.plan or {}).get("todoList", (self.plan or {}).get("steps"))
        ids = [step.get("id") for step in listed if isinstance(step, dict)] if isinstance(listed, list) else []
        return [name for name in ids if isinstance(name, str) and 0 < len(name) <= MAX_ID_CHARS]


def build_changed_plan_routes(site: InboxSite) -> Sequence[BaseRoute]:
    where = f"{INBOX_PATH}/executions/{{execution_id}}/plan"
    return (page_route(site, where, show_plan), form_route(site, f"{where}/run", run_changed_plan))


async def show_plan(request: InboxRequest) -> Response:
    execution = await _find_source(request)
    draft = _begin(execution)
    if len(draft.text) > MAX_TEXT_CHARS:
        raise InvalidArguments(
            f"this plan is too long to be edited here; `planwarden retry {execution.thread_id} --plan FILE` takes it"
        )
    if (later := await find_later(request, execution)) is not None:
        return _render_form(request, execution, draft, later=later)
    return _render_form(request, execution, draft)


async def run_changed_plan(request: InboxRequest) -> Response:
    """Show what the changed plan would do, or start it; the same form sent twice starts one."""
    verdict = request.form_value("decision")
    if verdict not in ("check", "edit", "run"):
        raise BadForm
    execution = await _find_source(request)
    draft = _Draft(
        text=request.form_value("plan"),
        inputs_text=request.form_value("inputs"),
        from_step=request.form_value("from"),
    )
    if verdict == "edit":
        return _render_form(request, execution, draft)
    if verdict == "run":
        known = await request.service.engine.store.find_start(execution.principal, read_key(request))
        if known is not None:
            return request.redirect(f"/executions/{known.execution_id}")
    if (later := await find_later(request, execution)) is not None:
        return _render_form(request, execution, draft, later=later, status=409)
    parsed = _parse(draft)
    try:
        asked, checked, changes = await _check(request, execution, draft, parsed)
        seen = _hash(asked, checked)
        if verdict != "run" or request.form_value("seen") != seen:
            return _render_changes(request, draft, checked, changes, seen, is_news=verdict == "run")
        view = await request.service.retry(
            execution.thread_id,
            from_step=asked.from_step,
            inputs=asked.inputs,
            plan=asked.plan,
            key=read_key(request),
            wait_seconds=0,
            requester=asked.requester,
        )
    except UsageError as error:
        # Somebody may have gone on from it meanwhile.
        later = await find_later(request, execution)
        faults = [] if later else _list_problems(error)
        return _render_form(request, execution, draft, faults=faults, later=later, status=http_status(error))
    return request.redirect(f"/executions/{view.execution_id}")


async def _find_source(request: InboxRequest) -> ExecutionState:
    """Raises `InvalidArguments` where nothing can go on with another plan."""
    execution = await find_execution(request, request.http.path_params["execution_id"])
    if not can_go_on(execution):
        why = f"it is {execution.status}" if execution.plan is not None else "it has no plan"
        raise InvalidArguments(f"this run cannot go on with a changed plan: {why}")
    return execution


def _begin(execution: ExecutionState) -> _Draft:
    plan = execution.plan
    return _Draft(
        text="" if plan is None else format_editable_json(plan_to_json(plan)),
        inputs_text="" if plan is None or plan.inputs is None else format_editable_json(dict(execution.inputs)),
        from_step=WHAT_IS_LEFT,
    )


def _parse(draft: _Draft) -> _Parsed:
    plan, plan_fault = _read_object("plan", draft.text)
    inputs, inputs_fault = _read_object("inputs", draft.inputs_text) if draft.inputs_text.strip() else (None, "")
    return _Parsed(plan=plan, inputs=inputs, faults=tuple(filter(None, (plan_fault, inputs_fault))))


def _read_object(name: str, text: str) -> tuple[dict[str, JsonValue] | None, str]:
    """The object that the text is, or why it is none."""
    if len(text) > MAX_TEXT_CHARS:
        return None, f"the text of the {name} has {len(text):,} characters, the limit is {MAX_TEXT_CHARS:,}"
    try:
        value = read_json(text)
    except PlanwardenError as error:
        return None, f"the text of the {name} is {error.message}"
    return (value, "") if isinstance(value, dict) else (None, f"the text of the {name} is no JSON object")


async def _check(
    request: InboxRequest, execution: ExecutionState, draft: _Draft, parsed: _Parsed
) -> tuple[RetryRequest, CheckedRetry, PlanChanges]:
    """What it would start and do. Raises `UsageError` with every reason against it."""
    _refuse(parsed.faults)
    is_over = execution.status == "completed" and draft.from_step == WHAT_IS_LEFT
    new = [name for name in parsed.step_ids if name not in execution.steps]
    # What is left of a run that is done begins with its first new step; a plan without a step is refused for that.
    first = next(iter(new or parsed.step_ids), "none")
    asked = RetryRequest(
        from_step=first if is_over else draft.from_step or None,
        inputs=parsed.inputs,
        plan=parsed.plan,
        requester=build_requester(request, execution),
    )
    checked = await request.service.build_retry_starter().check(execution.thread_id, asked)
    _refuse([*(fault for error in checked.faults for fault in _list_problems(error)), *map(_describe, checked.unasked)])
    assert checked.taken is not None
    changes = build_plan_changes(checked, checked.taken)
    again = [step.step_id for step in changes.steps if step.fate == "repeated"]
    if is_over and not new:
        _refuse(["every step of this plan is done; choose the step from which it runs again"])
    if is_over and again:
        named = ", ".join(again[:10])
        _refuse([f"these steps are done, and come after a new one: {named}; choose the step from which it runs again"])
    return asked, checked, changes


def _refuse(faults: Sequence[str]) -> None:
    """Raises `InvalidArguments` with the faults, if there are any."""
    if faults:
        raise InvalidArguments(faults[0], details={"problems": list[JsonValue](faults)})


def _list_problems(error: UsageError) -> list[str]:
    listed = error.details.get("problems")
    problems = [str(found) for found in listed] if isinstance(listed, list) else []
    # Unknown tools are no problem of a step; the message names them first.
    said = error.message.partition("; besides, ")[0] if "unknownTools" in error.details or not problems else None
    return problems if said is None else [said, *problems]


def _describe(found: UnaskedRepeat) -> str:
    step_id = found.step_id
    if found.reason == "unknown":
        return (
            f"nobody knows whether call {found.call_ids[0]} of step {step_id} happened. Leave that step as it was and "
            "run what is left: a person is asked first"
        )
    reason = "is another one in this plan" if found.reason == "another" else "takes inputs that are different now"
    return f"step {step_id} is done, and {reason}. Leave it as it was, or run again from it, or from a step before it"


def _format_fault(fault: str) -> str:
    """The fault as a sentence; one that begins with a place such as `todoList[0]` stays as it is."""
    shown = escape_text(fault[:FAULT_CHARS])
    return capitalize(shown) if shown.partition(" ")[0].isalpha() else shown


def _hash(asked: RetryRequest, checked: CheckedRetry) -> str:
    """Covers everything that the page of the changes shows."""
    shown: JsonValue = [
        checked.source.execution_id,
        checked.source.version,
        asked.from_step,
        dict(checked.inputs),
        plan_to_json(checked.plan),
    ]
    return hashlib.sha256(canonical_json(shown).encode()).hexdigest()


def _render_form(
    request: InboxRequest,
    execution: ExecutionState,
    draft: _Draft,
    *,
    faults: Sequence[str] = (),
    later: str | None = None,
    status: int = 200,
) -> Response:
    """`later` is the run that has gone on from this one, so that this one cannot."""
    parsed = _parse(draft)
    steps = list(dict.fromkeys([*parsed.step_ids, *execution.steps]))[:MAX_CHOICES]
    takes_inputs = bool(draft.inputs_text) or (parsed.plan or {}).get("inputs") is not None
    return request.render_page(
        "changed_plan.html",
        status=status,
        execution=execution,
        title=build_title(execution),
        draft=draft,
        faults=[_format_fault(fault) for fault in faults[:MAX_FAULTS]],
        more_faults=max(0, len(faults) - MAX_FAULTS),
        later=later,
        choices=[
            (WHAT_IS_LEFT, "what is left"),
            *((step, f"again from step {escape_text(step)} on") for step in steps),
        ],
        takes_inputs=takes_inputs or (execution.plan is not None and execution.plan.inputs is not None),
    )


def _render_changes(
    request: InboxRequest,
    draft: _Draft,
    checked: CheckedRetry,
    changes: PlanChanges,
    seen: str,
    *,
    is_news: bool,
) -> Response:
    """`is_news` says that the person saw something else before."""
    return request.render_page(
        "plan_changes.html",
        status=409 if is_news else 200,
        execution=checked.source,
        title=build_title(checked.source),
        draft=draft,
        changes=changes,
        warnings=[escape_text(warning) for warning in checked.warnings],
        seen=seen,
        key=token_urlsafe(12),
        is_news=is_news,
    )
