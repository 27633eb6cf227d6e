"""Who owns an execution, as far as one process knows: the states, what leads from one to another, what each allows.

    unowned ──acquired──> owned ──released──> unowned
    unowned | owned ──commit_unknown──> in_doubt ──released | acquired──> unowned | owned
    unowned | owned | in_doubt ──ceded──> lost ──jobs_ended──> foreign
    unproven ──acquired | denied──> owned | foreign
    foreign | unproven ──advanced──> unowned

The store decides: it refuses an append with an outdated lease, whatever this process believes. This module says what
the process may try. Only these events change a state; an event that a state does not list is refused.
"""

import math
from typing import Literal

import msgspec

from planwarden.agent.ports.store import Lease

State = Literal["unowned", "owned", "foreign", "unproven", "in_doubt", "lost"]
"""`unowned`: nobody is known to own it. `owned`: this process does. `foreign`: another process does. `unproven`:
another process did a moment ago. `in_doubt`: a commit of this process has no answer. `lost`: another process owns it or
will, and jobs that were started here still run."""
OwnershipEvent = Literal["acquired", "released", "denied", "ceded", "advanced", "jobs_ended", "commit_unknown"]
"""`acquired`: the store says that this process owns it. `released`: this process does not own it, or need not any more.
`denied`: this process cannot own it for now. `ceded`: another process owns it, or this one gave it up after an error.
`advanced`: others appended to the log. `jobs_ended`: the last job here ended. `commit_unknown`: see `in_doubt`."""

CERTAIN_S = 1.0
"""For this many seconds after its last renewal, a lease is trusted without asking the store. Nobody may declare its
owner dead sooner: an owner that was only paused would then make calls that another process has already settled."""

TRANSITIONS: dict[State, dict[OwnershipEvent, State]] = {
    "unowned": {
        "acquired": "owned",
        "released": "unowned",
        "denied": "unowned",
        "ceded": "lost",
        "advanced": "unowned",
        "commit_unknown": "in_doubt",
    },
    "owned": {
        "acquired": "owned",
        "released": "unowned",
        "ceded": "lost",
        "advanced": "owned",
        "commit_unknown": "in_doubt",
    },
    "in_doubt": {"acquired": "owned", "released": "unowned", "ceded": "lost"},
    "lost": {"ceded": "lost", "advanced": "lost", "jobs_ended": "foreign"},
    # The owner may have given the execution up in its last append. If so, the execution must continue here, because
    # no other process would act on a command that starts it.
    "foreign": {"ceded": "foreign", "advanced": "unowned"},
    "unproven": {"acquired": "owned", "denied": "foreign", "ceded": "foreign", "advanced": "unowned"},
}


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may do."""

    appends: Literal["everything", "commands", "nothing"]
    """With `commands`, the outcomes of jobs are appended as late reports."""
    starts_jobs: bool = False
    """Whether this process decides and performs what follows from the facts, once it has the lease."""
    acquires: bool = False
    """Whether an append also takes the lease."""
    cancels_jobs: bool = False
    """Whether jobs that run must stop."""
    tries_again: bool = False
    """Whether to retry if the store fails, even with nothing to record: perhaps nobody else continues the execution."""


RIGHTS: dict[State, Rights] = {
    "unowned": Rights(appends="everything", starts_jobs=True, acquires=True),
    "owned": Rights(appends="everything", starts_jobs=True, tries_again=True),
    "in_doubt": Rights(appends="nothing", tries_again=True),
    "lost": Rights(appends="commands", cancels_jobs=True),
    "foreign": Rights(appends="commands"),
    "unproven": Rights(appends="commands", tries_again=True),
}


class IllegalOwnershipEvent(Exception):
    """An event that cannot happen in this state: a bug in planwarden."""


class Ownership:
    """The ownership of one execution; changed by `apply` and `settle` only."""

    def __init__(self, lease: Lease | None = None, *, seems_foreign: bool = False) -> None:
        """With `seems_foreign` another process owned the execution a moment ago."""
        self.state: State = "unproven" if seems_foreign else "unowned" if lease is None else "owned"
        self.lease = lease
        """None unless the execution is owned, or may still be."""
        self.is_predecessor_gone = lease is None or not lease.is_from_silent
        """Whether the previous owner ended or gave the execution up; False when that process is only silent."""
        self._confirmed_at = -math.inf

    @property
    def rights(self) -> Rights:
        return RIGHTS[self.state]

    @property
    def is_elsewhere(self) -> bool:
        """Whether another process owns the execution, or seems to, so that only commands are recorded here."""
        return self.rights.appends == "commands"

    def apply(self, event: OwnershipEvent) -> None:
        """Move to the next state. Raises `IllegalOwnershipEvent` and changes nothing if the table lists none."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise IllegalOwnershipEvent(f"{event} cannot happen to an execution that is {self.state}")
        if self.is_elsewhere and following == "unowned":
            self.is_predecessor_gone = True
        self.state = following
        if following not in ("owned", "in_doubt"):
            self.lease = None

    def settle(self, lease: Lease | None, confirmed_at: float = -math.inf) -> None:
        """Accept what the store says: the lease that this process has, or None if it has no lease.

        `confirmed_at` is a time, on the steady clock, at which this was certainly true.
        """
        self.apply("released" if lease is None else "acquired")
        self.lease = lease
        self._confirmed_at = confirmed_at

    def is_certain(self, now: float) -> bool:
        """Return whether the lease was confirmed so recently that nobody can have taken it. `now` is a time on the
        steady clock."""
        return self.lease is not None and now - self._confirmed_at < CERTAIN_S

    def confirm(self, confirmed_at: float) -> None:
        """Remember that the store confirmed the lease at this time on the steady clock."""
        self._confirmed_at = confirmed_at
