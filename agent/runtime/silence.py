"""For how long a process that lives but does not respond keeps its executions.

Nobody knows what such a process will do when it continues: a container that was paused may be about to send a call.
"""

import math

from planwarden.agent.core.decide import find_running_calls
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.store import Header
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.agent.runtime.known import MAX_IDLE
from planwarden.agent.runtime.scheduler import RENEW_S

SILENT_S = 60.0
"""Seconds after the end of its lease for which a process that lives, but does not respond, keeps an execution."""
UNLIMITED_S = 600.0
"""Stands in for the time limit of a call that has none, where an execution waits for a silent process."""


class SilentOwners:
    """The leases that ran out and were not renewed, as one process sees them.

    Only an owner that is still silent at a later look is replaced: after a sleep all leases may have run out.
    """

    def __init__(self, clock: Clock, tools: Toolbox) -> None:
        self._clock = clock
        self._tools = tools
        self._seen: dict[str, tuple[float, float]] = {}
        """When a lease ran out, and when that was first seen, by execution id."""

    def find_grace_s(self, header: Header, execution: ExecutionState) -> float:
        """Seconds after the end of its lease for which the owner keeps the execution; infinite at the first look."""
        return longest_call_s(execution, self._tools) if self._is_still_silent(header) else math.inf

    def forget(self, execution_id: str) -> None:
        """The execution has another owner now."""
        self._seen.pop(execution_id, None)

    def _is_still_silent(self, header: Header) -> bool:
        """True when the lease was seen to have run out `RENEW_S` ago, and was not renewed since."""
        now = self._clock.steady()
        if len(self._seen) > MAX_IDLE:
            self._seen.clear()
        leased_until, seen_at = self._seen.setdefault(header.execution_id, (header.leased_until, now))
        if leased_until != header.leased_until:
            self._seen[header.execution_id] = (header.leased_until, now)
            return False
        return now - seen_at >= RENEW_S


def longest_call_s(execution: ExecutionState, tools: Toolbox) -> float:
    """Seconds after which a silent owner of the execution cannot send an effect any more that it has begun."""
    longest = SILENT_S
    for call in find_running_calls(execution):
        definition = tools.get(call.tool_name)
        limit_s = None if definition is None else definition.timeout_s
        if call.effect == "effect":
            longest = max(longest, UNLIMITED_S if limit_s is None else limit_s)
    return longest
