"""Who decided about a call or rejected a step, what a grant allows in advance, and what a completed step did not do.

A call may have several questions. The latest may be only the wait before the call's next attempt.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from itertools import chain

from planwarden.agent.approval.grants import VERSION_DIGITS
from planwarden.agent.core.binding.bindings import INPUTS, ITEM, ITEM_INDEX
from planwarden.agent.core.execution.events import MODEL_ASSURANCES
from planwarden.agent.core.execution.question import ArgumentEdit, Question
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState, SuspensionState
from planwarden.server.views.escaping import cut_text, escape_text, format_value, measure_text
from planwarden.server.views.status_words import WORDS

REASON_CHARS = 160
_ASSURANCES = {
    "human": "a person, ",
    "signed": "a person with a key, ",
    "second": "a second person, ",
    "claimed": "the calling model's claim, ",
    "caller": "the calling model, ",
    "timeout": "by itself, ",
}
_CHANNELS = {
    "inbox": "in the inbox",
    "terminal": "at the terminal",
    "terminal --yes": "with --yes at a terminal",
    "code": "with a code of the inbox",
    "elicitation": "in a form of the host",
    "tasks": "in a form of the host",
    "app": "in a view of the host",
    "mcp": "over MCP",
    "oauth": "after a login",
    "python": "in the program",
}


def describe_editor(edit: ArgumentEdit) -> str:
    """Return who edited arguments, and what proves it; without proof of a person, name the model or the client."""
    if edit.assurance in MODEL_ASSURANCES:
        return "the calling model"
    name = escape_text(edit.principal)
    who = f"the client of {name}" if edit.assurance == "client" else name
    return f"{who} ({describe_proof(edit.assurance, edit.channel)})"


def describe_proof(assurance: str, channel: str) -> str:
    """Return how a decision or an edit was made and what that proves, in words."""
    way = _CHANNELS.get(channel) or escape_text(channel)
    if assurance == "client":
        return f"{way}; not proven to be a person"
    return f"{_ASSURANCES.get(assurance, '')}{way}"


def name_decider(principal: str | None, assurance: str | None) -> str:
    """Return whose decision it was. A model that claims to decide for a person is not that person."""
    name = escape_text(principal or "somebody")
    return f"the calling model of {name}" if assurance == "claimed" else name


def find_decided(execution: ExecutionState, call: Call) -> SuspensionState | None:
    """Return the call's latest question that is not addressed to the clock; None if there is none."""
    names = chain([call.suspension_id or ""], reversed(call.consumed))
    suspensions = (execution.suspensions.get(name) for name in names)
    return next((item for item in suspensions if item is not None and item.question.addressee != "clock"), None)


def describe_decision(
    suspension: SuspensionState | None, *, is_left_out: bool = False, has_reason: bool = True
) -> str | None:
    """Return who decided, with assurance and channel, or that nobody did; None without a closed suspension.

    With `is_left_out`, a decision counts as a rejection, even if the same answer approved other rows.
    """
    if suspension is None or suspension.is_open:
        return None
    decision, words = suspension.decision, WORDS["question"]
    if suspension.status == "withdrawn" or decision is None:
        return words["withdrawn"].word
    if suspension.status == "timed_out":
        return f"{words['timed_out'].word}: {suspension.question.on_timeout}"
    verdict = words["approved" if decision.approved and not is_left_out else "rejected"].word
    who = name_decider(suspension.principal, suspension.assurance)
    # An approval's reason does not explain a row that was left out, and the reason of a claim is the model's own text.
    is_claim = suspension.assurance == "claimed"
    is_reason = has_reason and decision.reason and not is_claim and not (decision.approved and is_left_out)
    reason = f": {quote(decision.reason or '')}" if is_reason else quote_claim(suspension) if has_reason else ""
    return f"{verdict} by {who} ({suspension.assurance}, {escape_text(suspension.channel or '')}){reason}"


def quote_claim(suspension: SuspensionState) -> str:
    """Return a model's reason for rejecting, marked as its words, to add to a sentence; empty if it gave none."""
    return f"; the agent says (unverified): {quote(suspension.claim)}" if suspension.claim else ""


def describe_rejection(execution: ExecutionState) -> str:
    """Return who rejected the first rejected step, or the whole plan, and why; empty if nobody rejected either."""
    names = [state.rejected_by for state in execution.steps.values() if state.rejected_by is not None]
    suspension = next(iter([*map(execution.suspensions.get, names), *execution.find_suspensions("review")[-1:]]), None)
    return describe_decision(suspension, is_left_out=True) or ""


def describe_call_edit(question: Question, call_id: str) -> str:
    """Return who last edited the call's arguments after the question was asked; empty if nobody did."""
    edits = question.edits
    if question.rows:
        indexes = (index for index, row in enumerate(question.rows) if row.call_id == call_id)
        start = f"{next(indexes, '')}/"
        edits = tuple(edit for edit in edits if any(name.startswith(start) for name in edit.arguments))
    return f"edited by {describe_editor(edits[-1])}" if edits else ""


def describe_shortfall(state: StepState) -> str:
    """Return what a completed step did not do, such as `of 3 items 1 was left out`; empty if it did everything."""
    if state.status != "completed":
        return ""
    if state.items is None:
        return "without a tool that it needed" if state.validation == "failed" else ""
    items = map(state.list_item_calls, range(len(state.items)))
    rejected = sum(any(call.status == "rejected" for call in calls) for calls in items)
    parts = [(state.failed_items, "failed"), (rejected, "were left out" if rejected > 1 else "was left out")]
    summary = " and ".join(f"{count} {end}" for count, end in parts if count)
    return f"of {len(state.items)} items {summary}" if summary else ""


def describe_step_terms(tool_name: str, step_id: str, plan: str, version: str) -> tuple[str, str, str, str]:
    """Return what a grant for a step covers, escaped: tool, step, the plan's title or name, and part of its version."""
    return escape_text(tool_name), escape_text(step_id), escape_text(plan), f"version {version[:VERSION_DIGITS]}"


def name_owner(owner: str | None) -> str:
    """Return whose runs a grant covers, escaped."""
    return "everybody" if owner is None else escape_text(owner)


def describe_names(arguments: Collection[str], free: Sequence[str]) -> str:
    """Return which arguments a call may have: some with the grant's values, some with any value, and no others."""
    exact = "exactly these values" if arguments else ""
    some = f"any value of {', '.join(map(escape_text, free))}" if free else ""
    return f"{' and '.join(filter(None, (exact, some)))}, and no other argument" if exact or some else "no arguments"


def format_last_day(ends_at: datetime) -> str:
    """Return the day in UTC of the last moment before `ends_at`, such as `21 February 2027`."""
    last = ends_at - timedelta(seconds=1)
    return f"{last.day} {last:%B %Y}"


def describe_value_source(source: str) -> str:
    """Return where an argument's value comes from; `source` is `inputs`, `item`, `itemIndex`, or the id of a step."""
    if source == INPUTS:
        return "the run's inputs, which the one who starts it chooses"
    if source in (ITEM, ITEM_INDEX):
        return "the item of the loop"
    return f"step {escape_text(source)}"


def quote(text: str) -> str:
    """Return the text on one line, in quotes, and cut if it is long; nothing in the text can close the quotes."""
    line = format_value(" ".join(text.split()), None)
    return line if measure_text(line) <= REASON_CHARS else f'{cut_text(line, REASON_CHARS - 2)}…"'
