"""What an execution really did, for the one who tells a user of it: what is proven, and what others decided."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Literal

import msgspec

from planwarden.agent.common.struct import copy_fields
from planwarden.agent.core.execution.state import ExecutionState, StepState
from planwarden.server.views.escaping import name_some
from planwarden.server.views.instants import to_utc

MAX_NAMED = 20
"""Steps that one sentence names."""
PROVEN = "Done; every required tool call is proven by the log."


class EarlierEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A call with an effect that an earlier execution of the thread made."""

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


def list_earlier_effects(state: ExecutionState) -> Iterator[EarlierEffect]:
    """Yield what must not be repeated, when an execution ended early and another one may follow."""
    if state.status in ("failed", "rejected", "cancelled", "incomplete"):
        for effect in state.thread_effects[-MAX_NAMED:]:
            yield copy_fields(
                EarlierEffect,
                effect,
                arguments=effect.summary,
                at=to_utc(effect.at),
                is_unknown=effect.is_unknown or None,
            )


def describe_proof(state: ExecutionState) -> str:
    """Return how far the log proves what a completed execution did, in sentences."""
    steps = state.steps.values()
    promising = [step for step in steps if step.step.required_tools]
    exceptions = list(_describe_exceptions(promising, steps))
    proven = sum(1 for step in promising if step.status == "completed" and step.validation == "passed")
    silent = sum(1 for step in steps if not step.step.required_tools and step.status == "completed")
    sentences = ["Done." if exceptions or not proven else PROVEN, *exceptions]
    if exceptions and proven:
        sentences.append("The log proves every required tool call of the others.")
    if silent:
        sentences.append(f"{silent} {'step' if silent == 1 else 'steps'} promised no tool.")
    return " ".join(sentences)


def _describe_exceptions(promising: Iterable[StepState], steps: Iterable[StepState]) -> Iterator[str]:
    """Yield a sentence for each way in which steps did not make the calls that they promised, or did nothing."""
    promising_steps, every = list(promising), list(steps)
    ways = {
        "is advisory and ended without all of its required calls": [
            state for state in promising_steps if state.status == "completed" and state.validation == "failed"
        ],
        "had no items, so it called nothing": [
            state for state in promising_steps if state.status == "completed" and state.validation == "skipped"
        ],
        "left out items that were rejected": [
            state for state in promising_steps if state.items and any(call.status == "rejected" for call in state.calls)
        ],
        "was skipped": [state for state in every if state.status == "skipped"],
        "was rejected": [state for state in every if state.status == "rejected"],
    }
    for way, states in ways.items():
        if states:
            step_names = name_some([repr(state.step.step_id) for state in states], MAX_NAMED)
            yield f"{'Step' if len(states) == 1 else 'Each of steps'} {step_names} {way}."


def advise_after_rejection(state: ExecutionState) -> str:
    """Return who rejected part of the execution, and what the caller should do now."""
    closed = [item for item in state.suspensions.values() if item.decision and not item.decision.approved]
    if any(item.assurance not in ("claimed", "caller", "timeout", None) for item in closed):
        return "A person rejected part of it; do not try the same again. Tell the user what was and was not done."
    if any(item.status == "timed_out" for item in closed):
        return (
            "A question was not answered in time, so its part was not done; no person rejected it. Tell the user what "
            "was and was not done; retry_execution asks again."
        )
    return "You rejected part of it; no person did. Tell the user what was and was not done, and that you rejected it."
