"""The view of an execution: its status, its steps, its open suspensions, and what the caller should do next.

Built from the folded state; nothing here is stored. docs/reference/executions.md lists every field.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.core.prompts import summarize
from planwarden.agent.core.state import ExecutionState, StepState
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.server.views.observations import Observation
from planwarden.server.views.suspension import Suspension, build_suspension_view, format_instant, to_utc
from planwarden.server.views.tools import Error, ToolCall, build_tool_call

LISTED_CALLS = ("succeeded", "failed", "suspended", "rejected", "outcome_unknown")
"""Statuses of the calls that a step lists; a call that has not run yet is not listed."""
MAX_NAMED = 20
"""Steps that `nextAction` names."""


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
    """`pending`, `in_progress`, `suspended`, `completed`, `rejected`, `failed` or `skipped`."""
    validation_status: str | None
    """`passed` (proven), `failed`, `skipped` (no required tools), or null before validation."""
    tool_validation_mode: str
    """`strict` or `advisory`."""
    retries: int
    """Enforcement prompts that were sent."""
    result: JsonValue
    """The value of its only call, the list of its calls' values, or its text; null until it is completed."""
    error: Error | None
    """Why it failed or was rejected, or null."""
    actual_tool_calls: tuple[ToolCall, ...]
    """The calls that were made, in order."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What an execution used."""

    model_calls: int
    """Replies of a model, including those of the caller."""
    input_tokens: int
    """As counted by the provider."""
    output_tokens: int
    """As counted by the provider."""
    tool_calls: int
    """Calls of tools."""


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """The result of every tool that works on an execution."""

    thread_id: str
    """Names the thread in later calls."""
    execution_id: str
    """Names this execution of one plan."""
    status: str
    """`planned`, `running`, `suspended`, `completed`, `rejected`, `failed`, `incomplete` or `cancelled`."""
    goal: str | None
    """In the caller's words, or null."""
    output: str | None
    """The final text, or the engine's summary of what the log proves; null until it ends."""
    error: Error | None
    """Why it failed, or null."""
    steps: tuple[Step, ...]
    """In the order of the plan."""
    suspensions: tuple[Suspension, ...]
    """Open suspensions, for people and for the caller."""
    usage: Usage
    """Model replies, tokens and calls that it used."""
    warnings: tuple[str, ...] = ()
    """What was dropped from a model's plan; left out if nothing was."""
    observations: tuple[Observation, ...] | None = None
    """The public history; only with `observationsAfter`."""
    next_action: str = ""
    """One sentence: what the caller should do now."""
    awaiting: Literal["human", "caller"] | None = None
    """Who must act while it is suspended: `human` or `caller`."""
    extra: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """Keys that a channel adds to its own answers."""


def build_execution_view(
    state: ExecutionState,
    tools: Toolbox,
    observations: Sequence[Observation] | None = None,
    *,
    inbox: str | None = None,
) -> Execution:
    """Returns the public view of the folded state."""
    suspensions = tuple(
        build_suspension_view(state, found, tools, inbox=inbox)
        for found in state.open_suspensions
        if found.question.addressee != "clock"
    )
    return Execution(
        thread_id=state.thread_id,
        execution_id=state.execution_id,
        status="running" if state.status == "new" else state.status,
        goal=state.goal,
        output=_build_output(state),
        error=_build_error(state),
        steps=tuple(_build_step(found) for found in state.steps.values()),
        suspensions=suspensions,
        usage=Usage(
            model_calls=state.usage.model_calls,
            input_tokens=state.usage.input_tokens,
            output_tokens=state.usage.output_tokens,
            tool_calls=state.usage.tool_calls,
        ),
        warnings=state.warnings,
        observations=None if observations is None else tuple(observations),
        next_action=describe_next_action(state, suspensions),
        awaiting=_find_awaited(state, suspensions),
    )


def describe_next_action(state: ExecutionState, suspensions: Iterable[Suspension]) -> str:
    """Returns one sentence: what the caller should do now."""
    pending = tuple(suspensions)
    if state.status == "planned":
        return "Show the plan; execute_plan with this threadId (and no plan) runs it, cancel_execution drops it."
    if state.status in ("running", "new"):
        return "Still running; call get_execution with this threadId to look again."
    if state.status == "suspended":
        mine = [found for found in pending if found.addressee == "caller"]
        if mine:
            return "Answer with submit_answer." if len(mine) == 1 else "Answer each question to you with submit_answer."
        if pending:
            which = ", ".join(found.suspension_id for found in pending[:5])
            return (
                f"A person must decide {which}: call resume_execution to have them asked, or tell them to run "
                f"`planwarden approve {pending[0].suspension_id}`; do not decide for them."
            )
        deadlines = [f.question.expires_at for f in state.open_suspensions if f.question.expires_at is not None]
        until = to_utc(min(deadlines)).isoformat(timespec="seconds") if deadlines else "later"
        return f"Waiting until {until}; call get_execution then."
    if state.status == "completed":
        return "Done; every required tool call is proven by the log."
    if state.status == "rejected":
        return (
            "A person rejected part of it; do not try the same again. Tell the user what was and was not done."
            + _describe_done(state)
        )
    if state.status == "incomplete":
        return (
            f"The budget of {state.exhausted} is used up; execute_plan with this threadId and larger budgets continues."
        )
    if state.status == "cancelled":
        return f"Cancelled; nothing more will run.{_describe_done(state)}"
    done = _describe_done(state)
    rest = "; send only what is left" if done else ""
    return f"Failed; read error and steps, correct the plan, and run it on the same thread{rest}.{done}"


def _describe_done(state: ExecutionState) -> str:
    """Returns what a later plan must not repeat and how it takes the results, as sentences; empty if nothing is."""
    done = _list_completed(state)
    calls = [
        f"{call.call_id} ({call.tool_name})"
        for found in state.steps.values()
        for call in found.calls
        if found.status != "completed" and call.status == "succeeded"
    ]
    sentences = ""
    if done:
        taken = json.dumps({"$from": done[0]})
        sentences += (
            f" Completed, do not repeat: {_join_some(done)}; a later plan on this thread takes their results: {taken}."
        )
    if calls:
        sentences += f" Done in steps that did not complete: {_join_some(calls)}."
    return sentences


def _list_completed(state: ExecutionState) -> list[str]:
    """Returns the completed steps, and those of earlier executions from which the plan takes values."""
    completed = (step_id for step_id, found in state.steps.items() if found.status == "completed")
    return list(dict.fromkeys([*completed, *(taken.step_id for taken in state.earlier)]))


def _join_some(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def ask_for_person(view: Execution, suspension_id: str) -> Execution:
    """Returns the view with the sentence that the caller passes on to the person who must decide."""
    found = next((suspension for suspension in view.suspensions if suspension.suspension_id == suspension_id), None)
    ways = [f"to run `planwarden approve {suspension_id}`"]
    if found is not None and found.how_to_answer.inbox_url is not None:
        ways.insert(0, f"to open {found.how_to_answer.inbox_url}")
    until = ""
    if found is not None and found.expires_at is not None:
        until = f" It ends at {format_instant(found.expires_at)}: {found.on_timeout}."
    return replace(
        view,
        awaiting="human",
        next_action=f"{_describe_deciders(found)}; do not retry. Ask them {' or '.join(ways)}.{until} "
        "Then call get_execution.",
    )


def _describe_deciders(suspension: Suspension | None) -> str:
    if suspension is not None and suspension.quorum > 1:
        return f"{suspension.quorum} different people must decide ({len(suspension.endorsements)} did)"
    if suspension is not None and suspension.needs == "second":
        return "A person other than the owner must decide"
    if suspension is not None and suspension.needs == "signed":
        return "A person must decide with a signature, or a person other than the owner"
    return "A person must decide"


def _find_awaited(state: ExecutionState, suspensions: Iterable[Suspension]) -> Literal["human", "caller"] | None:
    if state.status != "suspended":
        return None
    addressees = {found.addressee for found in suspensions}
    return "caller" if "caller" in addressees else "human" if "human" in addressees else None


def _build_output(state: ExecutionState) -> str | None:
    """Returns the final text, or the engine's summary of what the log proves; None until the execution ends."""
    if not state.is_finished:
        return None
    return state.synthesis or summarize(state) or None


def _build_error(state: ExecutionState) -> Error | None:
    if state.error_code is None:
        return None
    message, done = state.error_message or state.error_code, _list_completed(state)
    if done:
        message += f"; completed, not to be repeated: {_join_some(done)}"
    return Error(code=state.error_code, message=message)


def _build_step(found: StepState) -> Step:
    step = found.step
    return Step(
        id=step.step_id,
        description=step.description,
        step_type=step.step_type,
        required_tools=step.required_tools,
        dependencies=step.dependencies,
        status=found.status,
        validation_status=found.validation,
        tool_validation_mode=step.tool_validation_mode,
        retries=found.retries,
        result=found.result if found.status == "completed" else None,
        error=None
        if found.error_code is None
        else Error(code=found.error_code, message=found.error_message or found.error_code),
        actual_tool_calls=tuple(build_tool_call(call) for call in found.calls if call.status in LISTED_CALLS),
    )
