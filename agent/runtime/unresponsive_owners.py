"""For how long a process that lives but does not respond keeps its executions.

Nobody knows what such a process will do when it continues: a container that was paused may be about to send a call.
"""

import math
from collections.abc import Collection

from planwarden.agent.core.control.decide import find_running_calls
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.store import Header
from planwarden.agent.ports.toolbox import Toolbox

RENEW_S = 5.0
"""Seconds after which a process renews its leases, and an owner that is still silent is replaced."""
LOOK_S = 2.5
"""Seconds after which a process looks for leases that others did not renew: soon enough that it sees each late one
`RENEW_S` before its end, wherever its looks fall."""
LATE_S = 8.0
"""A process that responds renews a lease of 15 s before it ends within so many seconds."""
SILENT_S = 60.0
"""Seconds after the end of its lease for which a process that lives, but does not respond, keeps a running effect."""
UNLIMITED_S = 600.0
"""The time limit of a call that has none of its own, where an execution waits for a silent process."""


class UnresponsiveOwners:
    """The leases that were not renewed in time, as one process sees them.

    Only an owner that is still silent at a later look is replaced: after a sleep all leases may have run out. The first
    look comes before the end of a lease that is late, so that the later one need not come long after it.
    """

    def __init__(self, clock: Clock, tools: Toolbox) -> None:
        self._clock = clock
        self._tools = tools
        self._seen: dict[str, tuple[float, float]] = {}
        """When a lease ends, and when it was first seen to be late, by execution id."""

    def retain(self, execution_ids: Collection[str]) -> None:
        """Forget all but these, whose leases are late."""
        self._seen = {name: grace for name, grace in self._seen.items() if name in execution_ids}

    def next_look(self, looked_at: float) -> float:
        """Steady seconds at which the first of those may be replaced that could not be at a look that began at
        `looked_at`; infinite when there is none."""
        times = (max(leased_until, seen_at + RENEW_S) for leased_until, seen_at in self._seen.values())
        return min((at for at in times if at > looked_at), default=math.inf)

    def find_grace_s(self, header: Header, execution: ExecutionState) -> float:
        """Return seconds after the end of its lease for which the owner keeps the execution; infinite at the first
        look."""
        return longest_call_s(execution, self._tools) if self.watch(header) else math.inf

    def forget(self, execution_id: str) -> None:
        """The execution has another owner now."""
        self._seen.pop(execution_id, None)

    def watch(self, header: Header) -> bool:
        """Look at a lease that is late: True when it was seen to be so `RENEW_S` ago, and was not renewed since."""
        now = self._clock.steady()
        leased_until, seen_at = self._seen.setdefault(header.execution_id, (header.leased_until, now))
        if leased_until != header.leased_until:
            self._seen[header.execution_id] = (header.leased_until, now)
            return False
        return now - seen_at >= RENEW_S


def longest_call_s(execution: ExecutionState, tools: Toolbox) -> float:
    """Return seconds after which a silent owner of the execution cannot send an effect any more that it has begun."""
    longest = 0.0
    for call in find_running_calls(execution):
        definition = tools.get(call.tool_name)
        limit_s = None if definition is None else definition.timeout_s
        if call.effect == "effect":
            longest = max(longest, SILENT_S, UNLIMITED_S if limit_s is None else limit_s)
    return longest
