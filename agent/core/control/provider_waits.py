"""How long an execution waits for a provider that does not answer: a minute, then twice as long each time.

It waits longer if the provider asks for that (https://httpwg.org/specs/rfc9110.html#field.retry-after), within limits.
The log has all these facts, so any process can continue the wait, even after a restart.
"""

import math

from planwarden.agent.core.execution.state import ExecutionState, ModelOutage

FIRST_WAIT_S = 60.0
LONGEST_WAIT_S = 1_800.0
LONGEST_ASKED_S = 21_600.0
"""The longest wait that a provider can ask for; a larger number may mean milliseconds, or be hostile."""
_DOUBLINGS = 5


def bound_asked_s(asked_s: float | None) -> float | None:
    """Return the seconds that a provider asks to wait, within limits; None if it asks for no positive number."""
    return None if asked_s is None or math.isnan(asked_s) or asked_s <= 0 else min(asked_s, LONGEST_ASKED_S)


def find_wait_s(outage: ModelOutage, patience_s: float) -> float | None:
    """Return the seconds from the last failure to the next attempt; None when the patience is used up.

    The wait is never shorter than the provider asked for, unless the patience ends first; then comes one last attempt.
    """
    left_s = outage.since + patience_s - outage.failed_at
    if left_s <= 0:
        return None
    doubled_s = FIRST_WAIT_S * 2 ** min(outage.attempts - 1, _DOUBLINGS)
    return min(max(min(doubled_s, LONGEST_WAIT_S), bound_asked_s(outage.asked_s) or 0.0), left_s)


def list_outages(execution: ExecutionState) -> list[ModelOutage]:
    """Return the outages that have not ended: first that of the execution's own prompt, then those of its steps."""
    own = [] if execution.outage is None else [execution.outage]
    return [*own, *(state.outage for state in execution.steps.values() if state.outage is not None)]


def has_given_up(execution: ExecutionState) -> bool:
    """Return whether a prompt has waited for its provider as long as it may."""
    patience_s = execution.options.model_patience_s
    return any(
        outage.suspension_id is None and find_wait_s(outage, patience_s) is None for outage in list_outages(execution)
    )
