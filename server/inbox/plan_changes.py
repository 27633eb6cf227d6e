"""What a changed plan would do with the run that it goes on from: step by step, and which effects stay as they are."""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Literal

import msgspec
from pydantic import JsonValue

from planwarden.agent.core import events as ev
from planwarden.agent.core.plan import PlanStep, plan_to_json, step_to_json
from planwarden.agent.core.state import ExecutionState, StepState
from planwarden.server.api.retries import CheckedRetry
from planwarden.server.inbox.plan_review import ORDER
from planwarden.server.inbox.value_view import ArgumentChange, find_changes
from planwarden.server.views.facts import cut_text, escape_text

MAX_ROWS = 300
TEXT_CHARS = 300
MAX_TOOLS = 10
"""Tools of one step whose effects are named."""

StepFate = Literal["kept", "continued", "repeated", "pending", "new", "removed"]
_COUNTED: dict[StepFate, tuple[str, str]] = {
    "kept": ("is done and not repeated", "are done and not repeated"),
    "continued": ("goes on after what is done", "go on after what is done"),
    "repeated": ("runs again", "run again"),
    "pending": ("has still to run", "have still to run"),
    "new": ("is new", "are new"),
    "removed": ("is removed", "are removed"),
}
_WORDS: dict[StepFate, str] = {
    "kept": "done, not repeated",
    "repeated": "runs again",
    "new": "new",
    "removed": "removed",
}
_PENDING = {
    "pending": "has not run yet",
    "failed": "failed, runs again",
    "rejected": "was rejected, asks again",
    "skipped": "was skipped, is looked at again",
}


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one step."""

    step_id: str
    description: str
    fate: StepFate
    words: str
    """Its fate in words."""
    notes: tuple[str, ...]
    """What stays done although the step runs again or is gone, and what a person is asked first."""
    changes: tuple[ArgumentChange, ...]
    """The parts of the step that differ."""

    @property
    def is_quiet(self) -> bool:
        return self.fate in ("kept", "pending") and not self.notes and not self.changes


class PlanChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the run."""

    summary: str
    steps: tuple[StepChange, ...]
    """In plan order, then those that the new plan does not have."""
    left_out: int
    """Steps that are not listed; of a long plan first those of which there is nothing to say."""
    inputs: tuple[ArgumentChange, ...]
    rest: tuple[ArgumentChange, ...]
    """What else the plan says."""


def build_plan_changes(checked: CheckedRetry, taken: ev.StepsTakenOver) -> PlanChanges:
    """Returns what becomes of the run that `checked` goes on from; `taken` is what it takes over."""
    source, plan = checked.source, checked.plan
    before = {} if source.plan is None else {step.step_id: step for step in source.plan.steps}
    after = {step.step_id: step for step in plan.steps}
    removed = [step for step_id, step in before.items() if step_id not in after]
    steps = [
        *(_build_change(source, before.get(step.step_id), step, taken) for step in plan.steps),
        *(_build_change(source, step, None, taken) for step in removed),
    ]
    shown = steps if len(steps) <= MAX_ROWS else [step for step in steps if not step.is_quiet][:MAX_ROWS]
    was: dict[str, JsonValue] = {} if source.plan is None else plan_to_json(source.plan)
    becomes = plan_to_json(plan)
    was["todoList"], becomes["todoList"] = [name for name in before if name in after], [n for n in after if n in before]
    return PlanChanges(
        summary=_summarize(steps),
        steps=tuple(shown),
        left_out=len(steps) - len(shown),
        inputs=find_changes(source.inputs, checked.inputs),
        rest=find_changes(*({ORDER if key == "todoList" else key: of[key] for key in of} for of in (was, becomes))),
    )


def _build_change(
    source: ExecutionState, before: PlanStep | None, after: PlanStep | None, taken: ev.StepsTakenOver
) -> StepChange:
    """One of the two steps is None where only the other plan has it."""
    step = after or before
    assert step is not None
    known = source.steps.get(step.step_id)
    found = next((found for found in taken.steps if after is not None and found.step_id == step.step_id), None)
    fate = _find_fate(known, found, is_removed=after is None)
    return StepChange(
        step_id=escape_text(step.step_id),
        description=_cut(step.description if step.description != step.step_id else ""),
        fate=fate,
        words=_describe_fate(fate, known, found),
        notes=tuple(_list_notes(source, step.step_id, fate, known, found)),
        changes=() if before is None or after is None else find_changes(_map_parts(before), _map_parts(after)),
    )


def _find_fate(known: StepState | None, found: ev.TakenStep | None, *, is_removed: bool) -> StepFate:
    if is_removed:
        return "removed"
    if known is None:
        return "new"
    if found is not None:
        return "kept" if found.is_completed else "continued"
    has_result = any(call.status == "succeeded" for call in known.calls)
    return "repeated" if known.status == "completed" or has_result else "pending"


def _describe_fate(fate: StepFate, known: StepState | None, found: ev.TakenStep | None) -> str:
    if fate == "pending" and known is not None:
        return _PENDING.get(known.status, "was not finished, runs again")
    if fate == "continued" and found is not None:
        done = sum(call.unknown is None for call in found.calls)
        return f"goes on: {done} call{'' if done == 1 else 's'} done, not repeated" if done else "goes on"
    return _WORDS[fate]


def _list_notes(
    source: ExecutionState, step_id: str, fate: StepFate, known: StepState | None, found: ev.TakenStep | None
) -> Iterator[str]:
    """Yields what a person should know before the step runs again, goes on or is gone."""
    if fate in ("kept", "new") or known is None:
        return
    taken = () if found is None else found.calls
    asked = {call.tool_name for call in taken if call.unknown is not None}
    for tool in sorted(asked)[:MAX_TOOLS]:
        yield f"A person is asked first whether {_cut(tool)} happened."
    done = _count_effects(source, known, {call.origin for call in taken})
    for tool, times in list(done.items())[:MAX_TOOLS]:
        often = "" if times == 1 else f" {times} times"
        again = " and this step may do it again" if fate != "removed" else ""
        yield f"{_cut(tool)} was done{often}; that is not undone{again}."
    if len(done) > MAX_TOOLS:
        yield f"So were calls of {len(done) - MAX_TOOLS} more tools."
    for run in source.again:
        if run.step_id == step_id:
            yield f"It also ran in execution {escape_text(run.execution_id)}; what it did there is not undone."
    unknown = sorted({call.tool_name for call in known.calls if call.status == "outcome_unknown"} - asked)
    for tool in unknown[:MAX_TOOLS]:
        yield f"Nobody knows whether {_cut(tool)} happened, and without its step nobody is asked."


def _count_effects(source: ExecutionState, known: StepState, taken: Collection[str]) -> Counter[str]:
    """Returns how often each tool had an effect in the step, without the calls that are taken over."""
    made = [
        call.tool_name
        for call in known.calls
        if call.status == "succeeded"
        and call.effect != "read"
        and not call.is_confirmation
        and (call.origin or f"{source.execution_id}:{call.call_id}") not in taken
    ]
    before = () if known.kept is None else known.kept.calls
    kept = [
        call.tool_name
        for call in before
        if call.unknown is None and call.effect != "read" and not call.is_confirmation and call.origin not in taken
    ]
    return Counter([*made, *kept])


def _map_parts(step: PlanStep) -> dict[str, JsonValue]:
    """What the step says, with each argument of each call on its own."""
    parts = {key: value for key, value in step_to_json(step).items() if key != "toolCalls"}
    for number, call in enumerate(step.tool_calls, 1):
        which = f" {number}" if len(step.tool_calls) > 1 else ""
        parts[f"tool{which}"] = call.tool_name
        parts |= {f"argument{which} {name}": value for name, value in call.arguments.items()}
    return parts


def _summarize(steps: Collection[StepChange]) -> str:
    counts = Counter(step.fate for step in steps)
    parts = [f"{counts[fate]} {words[counts[fate] != 1]}" for fate, words in _COUNTED.items() if counts[fate]]
    said = ", ".join(parts)
    number, _, rest = said.partition(" ")
    return f"{number} step{'' if number == '1' else 's'} {rest}."


def _cut(text: str) -> str:
    return cut_text(escape_text(text[:TEXT_CHARS]), TEXT_CHARS)
