"""The actions that `decide` returns.

An event, such as the start or the end of a step, follows from the log and only has to be recorded. `BeginStep`
judges the conditions of a step and looks up the items of its loop. `DispatchCall` passes one call to the dispatcher.
`AskModel` sends a prompt to the model. `WaitForModel` waits before a prompt is sent again. `RevisePlan` checks the
model's patch of the plan. `AskReview` asks a person to approve the plan.
"""

import msgspec

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call


class BeginStep(msgspec.Struct, frozen=True, gc=False):
    step_id: str


class DispatchCall(msgspec.Struct, frozen=True, gc=False):
    call: Call


class AskModel(msgspec.Struct, frozen=True, gc=False):
    purpose: ev.Purpose
    step_id: str | None = None


class WaitForModel(msgspec.Struct, frozen=True, gc=False):
    """Wait before the prompt is sent again, because its provider failed or was out of reach."""

    step_id: str | None
    """The step whose prompt is sent again; None for a plan or synthesis prompt."""
    attempt: int
    """The number of the attempt after the wait; 2 after the first failure."""
    until: float
    """When the wait ends, in Unix seconds."""


class AskReview(msgspec.Struct, frozen=True, gc=False):
    """Ask a person whether the plan may start, or may go on after a model revised it."""


class RevisePlan(msgspec.Struct, frozen=True, gc=False):
    """Check a model's patch of the plan, and accept or refuse it."""

    step_id: str
    patch: JsonValue


Order = BeginStep | DispatchCall | AskModel | WaitForModel | AskReview | RevisePlan
Action = Order | ev.Event
