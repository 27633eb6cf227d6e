"""What planwarden guarantees, one entry per guarantee: where it comes from, and what must be observable.

A test names the entries it checks with `@requirement("...")`. `tests/test_requirements.py` enforces both directions: no
entry without a test, no marker without an entry. Sources are documents in this repository and their laws.
"""

from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Requirement:
    source: str
    behaviour: str


def requirement(*names: str) -> pytest.MarkDecorator:
    """Marks a test as checking the entries `names` of `REQUIREMENTS`."""
    return pytest.mark.requirement(*names)


REQUIREMENTS: dict[str, Requirement] = {
    "store:round-trip": Requirement(
        "ports.Store", "Events come back in order, without gaps, equal to what was written."
    ),
    "store:atomic": Requirement("ports.Store", "A call that raised changed nothing: neither log, nor rows, nor lease."),
    "store:version": Requirement(
        "ports.Store", "A writer with an old version gets VersionConflict; nothing is merged."
    ),
    "store:fence": Requirement("ports.Store", "A writer whose lease was taken over gets LeaseLost, for ever."),
    "store:takeover": Requirement(
        "design, durability", "A lease that ran out, or whose process is dead, can be taken; a valid one cannot."
    ),
    "store:guard": Requirement(
        "approvals, law 3", "An answer is stored only while the question is pending, in that revision, at that time."
    ),
    "store:grants": Requirement(
        "approvals, standing grants",
        "A use of a grant is counted with the intent it lets through, never more than it says.",
    ),
    "store:audit": Requirement(
        "ports.Store", "The audit grows in the transaction of what it tells, chained, and outlives pruning."
    ),
    "audit:names-the-row": Requirement(
        "issue: audit", "An edited, removed or reordered row of the audit is named by verification."
    ),
    "approval:critical": Requirement(
        "approvals, risk", "A critical call runs only after a signature or after people other than its owner said so."
    ),
    "approval:quorum": Requirement("approvals, assurance second", "n of m different people, each counted once."),
    "approval:grants": Requirement(
        "approvals, standing grants",
        "A grant lets through exactly the pinned tool, the named values, so often, until then.",
    ),
    "approval:stale": Requirement(
        "approvals, law 6", "What changed since it was shown is asked again with the new digest; never run."
    ),
    "store:one-winner": Requirement("approvals, law 3", "Of racing answers to one question exactly one is stored."),
    "store:thread-busy": Requirement("ports.Store", "At most one unfinished execution per thread."),
    "store:paging": Requirement("ports.Store", "Open questions page oldest first; an unknown cursor is refused."),
    "store:deadlines": Requirement(
        "ports.Store", "Deadlines that passed are found, earliest first, by the store's clock."
    ),
    "store:orphans": Requirement("design, durability", "Running executions that nobody valid owns are found."),
    "store:prune": Requirement("issue, runner and store", "Pruning deletes finished, old executions and nothing else."),
    "store:reopen": Requirement("design, durability", "What was acknowledged is there after the file is opened again."),
    "store:cancelled-caller": Requirement("design, durability", "A cancelled caller leaves no transaction open."),
    "store:group-commit": Requirement(
        "design, durability", "Waiting writes share one transaction; one bad one hurts nobody."
    ),
    "store:model": Requirement("style, 34", "Random use of every store agrees with a model made of dictionaries."),
    "sqlite:modes": Requirement("design, durability", "Files are 0600 in a folder of 0700 before SQLite opens them."),
    "sqlite:refused-untouched": Requirement(
        "design, durability", "A newer schema, somebody else's file, a network file system: refused, no byte changed."
    ),
    "sqlite:damage": Requirement(
        "design, durability", "A damaged file is a StoreError, never a wrong answer, and is not rewritten."
    ),
    "sqlite:gap": Requirement("design, durability", "A log with a missing transaction is a StoreError."),
    "sqlite:full": Requirement("design, durability", "A full disk is a StoreError; nothing stored before is lost."),
    "sqlite:read-only": Requirement("design, durability", "A read-only file or folder is a StoreError."),
    "sqlite:backup": Requirement("issue, runner and store", "A backup taken while others write is consistent."),
    "sqlite:migrate": Requirement("design, durability", "An empty file is brought to the newest schema, once."),
    "state:total": Requirement(
        "style, 34", "apply never reaches an undeclared state; an illegal event changes nothing."
    ),
    "state:fold": Requirement(
        "design, laws", "The fold of the stored log is the state that was kept while it was written."
    ),
    "codec:round-trip": Requirement(
        "style, 34", "Every event decodes to what was encoded; what does not fit is StoreError."
    ),
    "codec:golden": Requirement("style, 34", "Every released stored form decodes, and encodes to itself."),
    "canonical:one-text": Requirement(
        "agent.canonical", "Equal values have one text; its size is known without error."
    ),
    "plan:ends": Requirement("design, laws 1 and 4", "Any plan ends, or is suspended with an open question."),
    "plan:order": Requirement(
        "design, laws", "No step runs before what it depends on; nothing runs behind a rejected gate."
    ),
    "crash:every-call": Requirement(
        "style, 35", "A crash at any store call: no effect twice, nothing acknowledged lost, same outcome, never stuck."
    ),
    "crash:control": Requirement("issue, tests", "The same check fails on an engine with a planted bug."),
    "crash:sigkill": Requirement(
        "issue, figures", "kill -9 again and again: no effect twice, none acknowledged lost, none stuck."
    ),
    "crash:one-word": Requirement(
        "approvals, law 3", "An answer releases one dispatch; a call that was lost needs a new word, not the old one."
    ),
    "crash:disk": Requirement(
        "design, durability", "When the disk is full an outcome is kept, and stored when there is space again."
    ),
    "race:decision": Requirement(
        "approvals, must hold",
        "Approve, reject and time-out from 16 tasks in 2 processes: one winner, one effect at most.",
    ),
    "engine:two-processes": Requirement(
        "design, durability",
        "An answer or a cancellation recorded by another process reaches the owner while it works.",
    ),
    "engine:fenced": Requirement("design, durability", "A result of an owner that was taken over is not recorded."),
    "engine:shutdown": Requirement(
        "design, durability", "A call cut off by shutdown is asked about, never repeated by itself."
    ),
    "engine:inflight": Requirement(
        "design, laws", "A call whose result waits to be stored is not taken for a lost one."
    ),
    "engine:foreign-values": Requirement(
        "issue, bad input", "What cannot be stored is refused, or recorded as a failure; no execution is stuck over it."
    ),
    "engine:one-bad-row": Requirement(
        "design, durability", "One damaged execution does not stop the clockwork for others."
    ),
    "tasks:lifecycle": Requirement(
        "SEP-2663", "A call becomes a task at once; its statuses, times and end are those of the execution."
    ),
    "tasks:caller": Requirement(
        "design, three kinds of model", "What would ask the calling model is an ordinary result, never a task."
    ),
    "tasks:input": Requirement(
        "approvals, assurance",
        "A question answered through a task is worth client; what needs more is not asked there.",
    ),
    "tasks:replay": Requirement(
        "SEP-2663", "A key means one question and one answer; repeated, late and superseded answers change nothing."
    ),
    "tasks:durable": Requirement("design, durability", "Restarts, lost clients and other processes lose no task."),
    "tasks:cancel": Requirement("SEP-2663", "Cancelling and completing race to one end, which never changes."),
    "tasks:owner": Requirement("SEP-2663", "Unknown and foreign tasks are one error, and nobody is told of them."),
    "tasks:undeclared": Requirement(
        "SEP-2663", "Clients and revisions without the extension get ordinary results and the specified errors."
    ),
    "tasks:notified": Requirement("SEP-2663", "A listener is told each task as tasks/get gives it, up to its end."),
    "subscriptions:updates": Requirement(
        "issue, resources", "Subscribers of both eras hear of every change of executions and open questions."
    ),
    "subscriptions:bounded": Requirement(
        "issue, resources", "A slow listener's queue is no longer than its subscription; it misses no last state."
    ),
    "subscriptions:owner": Requirement("issue, resources", "Subscribers hear of their own principal's only."),
}
