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
    "keys:laws": Requirement(
        "storage.keys", "First key by itself, further ones by a known one; counts only grow; revoked keys are dead."
    ),
    "signed:bound": Requirement(
        "approvals, assurance signed", "A signature counts for one revision of one question, at our place, by a person."
    ),
    "signed:nonce": Requirement(
        "approvals, assurance signed", "A challenge is signed once, by the session that asked, within five minutes."
    ),
    "signed:keys": Requirement(
        "approvals, assurance signed", "Only a living key of the person signs, and a session alone does not make one."
    ),
    "signed:page": Requirement(
        "approvals, assurance signed", "A critical call runs once after a signature on its page, edits signed as kept."
    ),
    "signed:place": Requirement(
        "approvals, assurance signed", "Links lead to where keys can be used, and only where every address is ours."
    ),
    "signed:audit": Requirement(
        "approvals, assurance signed", "Signatures are verified again; a decision that says signed has one."
    ),
    "approval:quorum": Requirement("approvals, assurance second", "n of m different people, each counted once."),
    "approval:grants": Requirement(
        "approvals, standing grants",
        "A grant lets through exactly the pinned tool, the named values, so often, until then.",
    ),
    "approval:stale": Requirement(
        "approvals, law 6", "What changed since it was shown is asked again with the new digest; never run."
    ),
    "approval:tampered": Requirement(
        "approvals, must hold", "A stored question that is not what its digest says is never run."
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
    "inbox:code-once": Requirement("approvals, inbox", "A code opens one session, once; a used one is refused."),
    "inbox:code-expires": Requirement("approvals, inbox", "A code expires within minutes."),
    "inbox:lockout": Requirement(
        "approvals, must hold", "Guessed codes are refused, and after a few no typed code counts."
    ),
    "inbox:hashed": Requirement("approvals, inbox", "Codes and sessions are stored as hashes only."),
    "inbox:shared": Requirement("approvals, inbox", "Sessions hold in every process of the home."),
    "inbox:session-needed": Requirement("approvals, inbox", "Without a session nothing is shown and nothing taken."),
    "inbox:session-ends": Requirement("approvals, inbox", "Sessions expire and can be ended, one or all."),
    "inbox:passphrase": Requirement("approvals, inbox", "A configured passphrase is asked for besides the code."),
    "inbox:audited": Requirement(
        "approvals, inbox", "Codes, refusals and sessions stand in the audit, without secrets."
    ),
    "inbox:cross-site": Requirement(
        "approvals, must hold", "A change that another site asked for, or an `Origin: null`, is refused with 403."
    ),
    "inbox:get-changes-nothing": Requirement("approvals, must hold", "Looking at an address decides nothing: 403."),
    "inbox:csrf": Requirement("approvals, must hold", "A form without this session's token is refused with 403."),
    "inbox:headers": Requirement(
        "approvals, what the person sees", "Every answer has the strict policy; no page is framed or holds script."
    ),
    "inbox:hosts": Requirement("approvals, inbox", "Only the inbox's own names are answered."),
    "inbox:bounded": Requirement("issue, bad input", "Bodies and forms are bounded."),
    "inbox:cookie": Requirement("approvals, what the person sees", "HttpOnly, SameSite=Strict, Secure over https."),
    "inbox:facts-first": Requirement(
        "approvals, what the person sees", "Tool, arguments, origins and risk from the stored bytes, then the agent."
    ),
    "inbox:hostile": Requirement("approvals, must hold", "Hostile text stays text, escaped and capped, on every page."),
    "inbox:all-threads": Requirement("issue, inbox", "Open questions to people of all threads and owners are listed."),
    "inbox:unknown": Requirement("issue, bad input", "Absent ids and ids that are not for people look the same."),
    "inbox:paged": Requirement("issue, bad input", "A page takes a bounded number of store calls, whatever waits."),
    "inbox:live": Requirement("issue, inbox", "New questions and decisions appear by themselves."),
    "inbox:decides-once": Requirement("approvals, law 3", "A decision on a page is recorded once, with who and what."),
    "inbox:edited-seen": Requirement(
        "approvals, law 5", "Edited arguments are decided after their difference was shown."
    ),
    "inbox:stale": Requirement(
        "issue, bad input", "A revised question is shown as it is now; a decided one says by whom and when."
    ),
    "inbox:together": Requirement("issue, inbox", "Several are decided from a table of every call, each by itself."),
    "inbox:worth": Requirement("approvals, assurance", "Who does not suffice is told; a quorum gathers on the page."),
    "inbox:grants": Requirement("approvals, risk", "Grants are made from a question, shown, and ended."),
    "inbox:any-process": Requirement("issue, inbox", "A decision counts in whichever process of the home it is made."),
    "inbox:opens-when-needed": Requirement("issue, inbox", "Nothing listens and no browser opens before it is needed."),
    "inbox:terminal-only": Requirement("approvals, assurance", "A code goes to a terminal, never into a pipe or MCP."),
    "inbox:no-script": Requirement("issue, bad input", "Everything can be decided without script."),
    "inbox:keyboard": Requirement("issue, inbox", "Keys move the focus; approve is never what Enter presses unasked."),
    "inbox:phone": Requirement("issue, inbox", "Pages fit a phone, light and dark, with labels and enough contrast."),
}
