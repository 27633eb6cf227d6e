"""The view of an execution: its status, its steps, its open suspensions, and what the caller should do next.

Built from the folded state; nothing here is stored. docs/reference/executions.md lists every field.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec
from msgspec.structs import replace

from planwarden.agent.common.artifact import is_stand_in
from planwarden.agent.common.errors import InvalidArguments, ModelError
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.binding.bindings import WHEN
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState, Usage
from planwarden.agent.core.execution.synopsis import describe_edits, list_shown_steps
from planwarden.agent.core.execution.thread_effects import describe_older
from planwarden.agent.core.plan.plan import PlanStep
from planwarden.agent.core.prompt_results import join
from planwarden.agent.core.prompts import find_final_text, summarize
from planwarden.agent.ports.toolbox import Definitions
from planwarden.server.views.decisions import describe_decision
from planwarden.server.views.escaping import name_some
from planwarden.server.views.forecast import Forecast
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.server.views.observations import Observation
from planwarden.server.views.status_text import (
    MAX_NAMED,
    RETRYABLE_STATUSES,
    advise_after_rejection,
    describe_lost_patience,
    describe_next_attempt,
    describe_state,
    describe_what_is_proven,
)
from planwarden.server.views.suspension import Program, Suspension, build_suspension_view, name_program
from planwarden.server.views.tools import (
    PAGE_ITEMS,
    Error,
    LoopItem,
    LoopItems,
    ToolCall,
    build_error,
    build_tool_call,
    count_items,
    list_items,
)

LISTED_STATUSES = ("succeeded", "failed", "suspended", "rejected", "outcome_unknown", "rehearsed")
"""Statuses of the calls that a step lists; a call that is only proposed or decided, or that runs, is not listed."""
MAX_LOOP_CALLS = 50


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the plan and its state."""

    id: str
    """As in the plan."""
    description: str
    """As in the plan."""
    step_type: str
    """`tool` or `reasoning`."""
    required_tools: tuple[str, ...]
    """Tools that must have a successful call in the log."""
    dependencies: tuple[str, ...]
    """Steps that must end before it starts."""
    status: str
    """`pending`, `in_progress`, `suspended`, `completed`, `rejected`, `failed`, `skipped` or `rehearsed`."""
    validation_status: str | None
    """`passed` (proven), `failed`, `skipped` (no required tools, or a loop without items), or null before
    validation."""
    tool_validation_mode: str
    """`strict` or `advisory`."""
    retries: int
    """Enforcement prompts that were sent."""
    result: JsonValue
    """The value of its only call, the list of its calls' values, or its text; null until it is completed. For a loop,
    the results of the first 100 items; `stepId` and `itemsFrom` get all of them page by page."""
    error: Error | None
    """Why it failed or was rejected, or null."""
    actual_tool_calls: tuple[ToolCall, ...]
    """The calls that were made, in order; for a loop at most 50, preferably those that did not succeed."""
    items: LoopItems | None = None
    """How far along a loop is, once it has begun; left out otherwise."""
    item_results: tuple[LoopItem, ...] = ()
    """The outcomes of a loop's items, when the call names a `stepId`; left out otherwise."""
    taken_from: str | None = None
    """The execution whose log proves the step, if a retry took the step over; left out otherwise."""
    skipped_because: str | None = None
    """The step whose result was missing, or `when`; left out if this step was not skipped."""
    skipped_reason: str | None = None
    """If `when` skipped it: which condition did not hold, and why; left out otherwise."""
    revision_refused: str | None = None
    """Why the last attempt of this step's model to revise the plan was refused; left out otherwise."""
    plan_step: PlanStep | None = None
    """All that the plan says about the step; never in JSON."""


class SavedPlanRun(msgspec.Struct, frozen=True, kw_only=True):
    """Which saved plan an execution runs."""

    name: str
    """The name of the plan when the execution was created."""
    version: str
    """Digest of the content that runs; the file may have changed since."""
    changed: Literal[True] | None = None
    """True if a model or a review has changed the plan of this run since; left out otherwise."""


class EarlierEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A call with an effect, made by an earlier execution of the thread."""

    tool_name: str
    """The tool."""
    arguments: str
    """The beginning of its arguments, as JSON."""
    step_id: str
    """Its step in the earlier plan."""
    at: datetime
    """When it was made."""
    is_unknown: Literal[True] | None = None
    """True if nobody knows whether it happened; left out otherwise."""


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """The result of every tool that works on an execution."""

    thread_id: str
    """Names the thread in later calls."""
    execution_id: str
    """Names this execution of one plan."""
    status: str
    """`planned`, `running`, `suspended`, `completed`, `rejected`, `failed`, `incomplete`, `cancelled`, `rehearsed`."""
    goal: str | None
    """In the caller's words, or null."""
    output: str | None
    """The final text, with a sentence of the engine before it unless the execution completed. Without a final text, the
    engine's summary of what the log proves. Null until the execution ends."""
    error: Error | None
    """Why it failed or was given up, or null."""
    steps: tuple[Step, ...]
    """In the order of the plan."""
    suspensions: tuple[Suspension, ...]
    """Open suspensions, for people and for the caller."""
    usage: Usage
    """Model replies, tokens and calls that the execution used."""
    saved_plan: SavedPlanRun | None = None
    """The saved plan that it runs, with its version; left out for every other plan."""
    warnings: tuple[str, ...] = ()
    """Where the plan may not mean what it says, and what was dropped from a model's plan; left out if there is none."""
    observations: tuple[Observation, ...] | None = None
    """The public history; only with `observationsAfter`."""
    next_action: str = ""
    """What the caller should do now, how far a finished run is proven, and what others changed in its calls."""
    retry_of: str | None = None
    """The earlier execution of the thread that this one continues; left out if this one began anew."""
    done_before: tuple[EarlierEffect, ...] = ()
    """The newest 20 effects of the thread's earlier executions, if this one ended early; left out if there are none."""
    is_rehearsal: bool | None = None
    """True if it only rehearses its plan; left out otherwise."""
    forecast: Forecast | None = None
    """While it is `planned`: whom the plan will ask, and what only the run will know; left out if empty."""
    awaiting: Literal["human", "caller"] | None = None
    """Who must act while it is suspended: `human` or `caller`."""
    extra: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """Keys that a channel adds to its own answers."""


def build_execution_view(
    state: ExecutionState,
    tools: Definitions | None,
    observations: Sequence[Observation] | None = None,
    *,
    inbox: str | None = None,
    program: Program = name_program,
) -> Execution:
    """Return the public view of the folded state; the arguments are as for `build_suspension_view`."""
    saved = state.saved_plan
    suspensions = tuple(
        build_suspension_view(state, suspension, tools, inbox=inbox, program=program)
        for suspension in state.open_suspensions
        if suspension.question.addressee != "clock"
    )
    return copy_fields(
        Execution,
        state,
        status="running" if state.status == "new" else state.status,
        output=_build_output(state),
        error=_build_error(state),
        steps=tuple(_build_step(state, step) for step in list_shown_steps(state)),
        suspensions=suspensions,
        saved_plan=saved and SavedPlanRun(name=saved.name, version=saved.digest, changed=state.is_revised or None),
        observations=None if observations is None else tuple(observations),
        next_action=" ".join(filter(None, (_describe_next(state, suspensions), describe_edits(state)))),
        # What the next execution must not repeat, if this one ended early.
        done_before=tuple(
            copy_fields(
                EarlierEffect,
                effect,
                arguments=effect.summary,
                at=to_utc(effect.at),
                is_unknown=effect.is_unknown or None,
            )
            for effect in state.thread_effects[-MAX_NAMED:]
            if state.status in RETRYABLE_STATUSES
        ),
        is_rehearsal=state.options.rehearse or None,
        awaiting=_find_awaited(state, suspensions),
    )


_PLANNED = "Show the plan; execute_plan with this threadId (and no plan) runs it, cancel_execution drops it."
_RUNNING = "Still running; call get_execution with this threadId to look again."


def _describe_next(state: ExecutionState, pending: Sequence[Suspension]) -> str:
    match state.status:
        case "planned" | "new" | "running":
            return _PLANNED if state.status == "planned" else _RUNNING
        case "completed":
            return describe_what_is_proven(state) + _describe_stored(state)
        case "rehearsed":
            return f"{describe_rehearsal(state)} execute_plan with this threadId (and no plan) runs it."
        case "suspended":
            return _describe_waiting(state, pending)
        case "rejected":
            return advise_after_rejection(state) + _describe_done(state)
        case "cancelled":
            return f"Cancelled; nothing more will run unless retry_execution goes on.{_describe_done(state)}"
        case "incomplete":
            if lost := describe_lost_patience(state):
                return f"Given up: {lost}. When the provider answers again, execute_plan with this threadId continues."
            budget = state.exhausted
            return f"The budget of {budget} is used up; execute_plan with this threadId and larger budgets continues."
        case "failed":
            ids = _describe_done(state)
            rest = " with only what is left" if ids else ""
            return (
                "Failed; read error and steps. retry_execution goes on after what is completed; send it the whole "
                f"plan, corrected, if need be. Or run another plan on the same thread{rest}.{ids}"
            )


def _describe_waiting(state: ExecutionState, pending: Sequence[Suspension]) -> str:
    mine = [item for item in pending if item.addressee == "caller"]
    if mine and mine[0].kind == "synthesis" and any(item.status == "failed" for item in state.steps.values()):
        return "Answer with submit_answer; its result says how to correct what failed."
    if mine:
        return "Answer with submit_answer." if len(mine) == 1 else "Answer each question to you with submit_answer."
    outage = describe_next_attempt(state)
    if pending:
        which = ", ".join(item.suspension_id for item in pending[:5])
        return (
            f"A person must decide {which}: call resume_execution to have them asked, or tell them to run "
            f"`{pending[0].how_to_answer.command}`; do not decide for them."
            + (f" Another step {outage}." if outage else "")
        )
    if outage is not None:
        return f"It {outage}. Call get_execution then."
    deadlines = [f.question.expires_at for f in state.open_suspensions if f.question.expires_at is not None]
    until = format_instant(to_utc(min(deadlines))) if deadlines else "later"
    return f"Waiting until {until}; call get_execution then."


def describe_rehearsal(state: ExecutionState) -> str:
    """Return what a rehearsal found, in sentences."""
    steps = state.steps.values()
    rehearsed = [call.rehearsed for step in steps for call in step.calls if call.rehearsed is not None]
    asks = sum(1 for call in rehearsed if call.asks is not None and call.asks != "wait")
    sentences = [
        f"Rehearsed: nothing was changed. Calls not made: {len(rehearsed)}; {asks} of them would ask a person."
    ]
    skipped = [step for step in steps if step.status == "skipped"]
    if ruled_out := [step.step.step_id for step in skipped if step.skipped_by == WHEN]:
        sentences.append(f"Skipped, because their conditions do not hold: {name_some(ruled_out, MAX_NAMED)}.")
    if unknown := [f"{step.step.step_id} (after {step.skipped_by})" for step in skipped if step.skipped_by != WHEN]:
        sentences.append(f"Skipped, because only a real run has the results: {name_some(unknown, MAX_NAMED)}.")
    if failed := [step.step.step_id for step in steps if step.status == "failed"]:
        sentences.append(f"Failed already now: {name_some(failed, MAX_NAMED)}; correct the plan.")
    return " ".join(sentences)


def _describe_stored(state: ExecutionState) -> str:
    """Return a sentence on how to use results that an answer shows only in part; empty if there are none."""
    ids = [step_id for step_id, step in state.steps.items() if is_stand_in(step.result)]
    if not ids:
        return ""
    names, example = name_some(ids, MAX_NAMED), f'{{"$from": {json.dumps(ids[0])}, "pointer": ...}}'
    return f" Too large to show: {names}. {example} in a later plan on this thread takes values of it."


def _describe_done(state: ExecutionState) -> str:
    """Return sentences on what a later plan must not repeat and how it takes the results; empty if nothing was done."""
    sentences = ""
    if ids := _list_completed(state):
        names, example = name_some(ids, MAX_NAMED), json.dumps({"$from": ids[0]})
        sentences += f" Completed, do not repeat: {names}; a later plan on this thread takes their results: {example}."
    calls = [
        f"{call.call_id} ({call.tool_name})"
        for step in state.steps.values()
        for call in step.calls
        if not _is_complete(step) and call.status == "succeeded"
    ]
    if calls:
        sentences += f" Done in steps that did not fully complete: {name_some(calls, MAX_NAMED)}."
    if state.thread_effects:
        effects = state.thread_effects
        more = f", and {describe_older(effects, MAX_NAMED)}" if len(effects) > MAX_NAMED else ""
        sentences += f" Completed by earlier plans of this thread, do not repeat: see doneBefore{more}."
    return sentences


def _list_completed(state: ExecutionState) -> list[str]:
    """Return the completed steps, and those of earlier executions from which the plan takes values."""
    completed = (step_id for step_id, step in state.steps.items() if _is_complete(step))
    return list(dict.fromkeys([*completed, *(result.step_id for result in state.earlier)]))


def _is_complete(step: StepState) -> bool:
    """Return whether the step did everything that it promised; an advisory step may complete without that."""
    return step.status == "completed" and step.validation != "failed" and not step.failed_items


def ask_for_person(view: Execution, suspension_id: str) -> Execution:
    """Return the view with a next action that asks a person; unchanged if no open question to a person has that id."""
    item = next((suspension for suspension in view.suspensions if suspension.suspension_id == suspension_id), None)
    if item is None or item.addressee != "human":
        return view
    until = "" if item.expires_at is None else f" It ends at {format_instant(item.expires_at)}: {item.on_timeout}."
    return replace(
        view,
        awaiting="human",
        next_action=f"{_describe_deciders(item)}; do not retry. Ask them {name_ways(item)}.{until} "
        "Then call get_execution, again later while the question is open.",
    )


def find_awaited_person(view: Execution) -> str | None:
    """Return the id of the first question to a person; None if nobody is awaited, or the caller is."""
    questions = view.suspensions if view.awaiting == "human" else ()
    return next((item.suspension_id for item in questions if item.addressee == "human"), None)


def name_ways(suspension: Suspension) -> str:
    """Return what a person has to do to decide, as the end of a sentence."""
    url, command = suspension.how_to_answer.inbox_url, suspension.how_to_answer.command
    return f"{'' if url is None else f'to open {url} or '}to run `{command}`"


def _describe_deciders(suspension: Suspension) -> str:
    if suspension.quorum > 1:
        return f"{suspension.quorum} different people must decide ({len(suspension.endorsements)} did)"
    if suspension.needs == "second":
        return "A person other than the owner must decide"
    if suspension.needs == "signed":
        return "A person must decide with a signature, or a person other than the owner"
    if suspension.kind == "input":
        return "A person must fill in the form"
    return "A person must decide"


def _find_awaited(state: ExecutionState, suspensions: Iterable[Suspension]) -> Literal["human", "caller"] | None:
    if state.status != "suspended":
        return None
    addressees = {suspension.addressee for suspension in suspensions}
    return "caller" if "caller" in addressees else "human" if "human" in addressees else None


def _build_output(state: ExecutionState) -> str | None:
    """Return the final text, or the engine's summary of what the log proves; None until the execution ends.

    A model may claim success in its text, whatever happened.
    """
    if not state.is_finished:
        return None
    if state.synthesis and state.status != "completed":
        return f"The plan {describe_state(state)}. A model wrote:\n\n{state.synthesis}"
    return state.synthesis or find_final_text(state) or join(summarize(state), describe_edits(state)) or None


def _build_error(state: ExecutionState) -> Error | None:
    if state.error_code is None:
        lost = describe_lost_patience(state)
        return None if lost is None else Error(code=ModelError.code, message=lost)
    message = state.error_message or state.error_code
    if ids := _list_completed(state):
        message += f"; completed, not to be repeated: {name_some(ids, MAX_NAMED)}"
    return Error(code=state.error_code, message=message)


def _build_step(execution: ExecutionState, state: StepState) -> Step:
    step, is_loop, is_completed = state.step, state.items is not None, state.status == "completed"
    result = state.result if is_completed else None
    if is_loop and isinstance(result, list):
        result = result[:PAGE_ITEMS]
    calls = [call for call in state.list_known_calls() if call.status in LISTED_STATUSES]
    return copy_fields(
        Step,
        step,
        id=step.step_id,
        status=state.status,
        validation_status=state.validation,
        retries=state.retries,
        result=result,
        error=build_error(state.error_code, state.error_message or _describe_rejection(execution, state)),
        actual_tool_calls=tuple(map(build_tool_call, pick_notable(calls, MAX_LOOP_CALLS) if is_loop else calls)),
        items=count_items(state, PAGE_ITEMS if is_completed else None) if is_loop else None,
        taken_from=state.taken_from,
        skipped_because=state.skipped_by,
        skipped_reason=state.error_message if state.status == "skipped" else None,
        revision_refused=state.revision_refused,
        plan_step=step,
    )


def _describe_rejection(execution: ExecutionState, state: StepState) -> str:
    """Return who rejected the step; the reason that a model gave is not the step's error."""
    suspension = execution.suspensions.get(state.rejected_by or "")
    return describe_decision(suspension, is_left_out=True, has_reason=False) or state.error_code or ""


def pick_notable(calls: Iterable[Call], limit: int) -> list[Call]:
    """Return at most `limit` calls of a loop in their order, preferably those that did not succeed."""
    selection = sorted(calls, key=lambda call: call.status == "succeeded")[:limit]
    return sorted(selection, key=lambda call: int(call.call_id.rpartition(":")[2]))


def show_step(view: Execution, state: ExecutionState, step_id: str, items_from: int | None, limit: int) -> Execution:
    """Return the view with that step alone; for a loop, with the results of at most `limit` items.

    Raises:
        InvalidArguments: there is no such step, or it has no such item.
    """
    step_state = state.steps.get(step_id)
    if step_state is None:
        step_names = ", ".join(map(repr, [*state.steps][:MAX_NAMED]))
        raise InvalidArguments(f"the plan has no step {step_id[:64]!r}; it has {step_names or 'none yet'}")
    [step] = [step for step in view.steps if step.id == step_id]
    if step_state.items is None:
        if items_from:
            raise InvalidArguments(f"step {step_id[:64]!r} has no items, or its loop has not begun")
        return replace(view, steps=(step,))
    first = items_from or 0
    if not 0 <= first < max(1, len(step_state.items)):
        raise InvalidArguments(
            f"step {step_id[:64]!r} has items at index 0 to {len(step_state.items) - 1}, and none at {first}"
        )
    page = list_items(step_state, first, limit)
    # The step's own list of calls would only repeat what the items say.
    counts = count_items(step_state, first + len(page))
    scoped = replace(step, result=None, actual_tool_calls=(), items=counts, item_results=page)
    return replace(view, steps=(scoped,))
