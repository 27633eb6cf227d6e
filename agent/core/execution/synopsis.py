"""The synopsis of an execution, which a list shows and searches without reading the log; and facts that reports share.

`describe_edits` says which arguments people changed between a question and its answer: the author of the call must be
told, and a report must say what was really done.

The texts of a synopsis are in the words of the goal's or the plan's author: cut, but not escaped. NUL and lone
surrogates, which a database cannot store in text, are replaced.
"""

import re
import unicodedata
from collections.abc import Iterator

from msgspec.structs import replace

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.struct import FrozenStruct, JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState, StepState, SuspensionState
from planwarden.agent.core.plan.pins import list_tool_names

TITLE_CHARS = 300
NAME_CHARS = 200
"""The most characters of the name of a host, a saved plan or a tool."""
FAULT_CHARS = 300
SEARCH_CHARS = 1_000
"""The most characters to search in the goal or, without a goal, in the descriptions of the steps."""
MAX_TOOLS = 100
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
MAX_WORDS = 5
MAX_WORD_CHARS = 200
MAX_EDITS = 10
"""The most edits to report for one execution; the newest are reported."""
MAX_VALUE_CHARS = 80
_BUDGETS = {
    "modelTokens": "the budget of model tokens is used up",
    "toolCalls": "the budget of tool calls is used up",
    "seconds": "the budget of time is used up",
    "modelPatience": "the model's provider gave no answer for too long",
}


class Synopsis(FrozenStruct):
    title: str
    """The goal; without a goal, the saved plan's name; without both, the descriptions of the steps."""
    is_goal: bool
    """Whether the title is the goal, in the words of the goal's author."""
    host: str
    """The name of the program that asked for the execution, as in `Requester`; empty if there is none."""
    saved_plan: str
    """The name of the saved plan that the execution runs; empty when it runs none."""
    tools: tuple[str, ...]
    """The names of the tools that the plan names or a model called, sorted; at most `MAX_TOOLS`."""
    search: str
    """The text in which a list searches, folded like the words of `fold_words`."""


def build_synopsis(execution: ExecutionState) -> Synopsis:
    """Return the synopsis of the execution as it is now."""
    goal = execution.goal or ""
    saved_plan = clean_text(execution.saved_plan.name if execution.saved_plan else "", NAME_CHARS)
    lines = (state.step.description or state.step.step_id for state in execution.steps.values())
    steps = "" if goal else "; ".join(lines)[:SEARCH_CHARS]
    searched = (execution.execution_id, execution.thread_id, saved_plan, goal[:SEARCH_CHARS] or steps)
    return Synopsis(
        title=clean_text(goal or saved_plan or steps, TITLE_CHARS),
        is_goal=bool(goal.strip()),
        host=clean_text(execution.host or "", NAME_CHARS),
        saved_plan=saved_plan,
        tools=_list_tools(execution),
        search="\n".join(map(_fold, searched)),
    )


def describe_fault(execution: ExecutionState) -> str:
    """Return why a finished execution did not reach its goal, as the author of the reason wrote it; often empty."""
    match execution.status:
        case "failed":
            fault = execution.error_message or ""
        case "incomplete":
            fault = _BUDGETS.get(execution.exhausted or "", "")
        case "cancelled":
            fault = execution.cancel_reason or ""
        case "rejected":
            decisions = [item.decision for item in execution.suspensions.values() if item.decision is not None]
            reasons = (decision.reason for decision in reversed(decisions) if not decision.approved)
            fault = next(filter(None, reasons), "")
        case _:
            fault = ""
    return clean_text(fault, FAULT_CHARS)


def fold_words(search: str) -> tuple[str, ...]:
    """Return the folded words of a search, at most `MAX_WORDS` texts; the last one holds all remaining words."""
    return tuple(_fold(search[:MAX_WORD_CHARS]).split(None, MAX_WORDS - 1))


def clean_text(text: str, limit: int = NAME_CHARS) -> str:
    """Return the text cut to the limit, with a substitute for each character that a database cannot store."""
    cut = text[:limit]
    return cut if cut.isascii() and "\0" not in cut else _UNSTORABLE.sub("\ufffd", cut)


def _list_tools(execution: ExecutionState) -> tuple[str, ...]:
    names = set(list_tool_names(execution.plan)) if execution.plan is not None else set[str]()
    names |= {call.tool_name for state in execution.steps.values() for call in state.calls if call.by_model}
    return tuple(sorted(clean_text(name) for name in names if "\n" not in name)[:MAX_TOOLS])


def _fold(text: str) -> str:
    """Return the text in the form for comparisons: without differences of case, width or white space."""
    cut = clean_text(text, SEARCH_CHARS)
    folded = cut.lower() if cut.isascii() else unicodedata.normalize("NFKC", cut).casefold()
    return " ".join(folded.split())[: 2 * SEARCH_CHARS]


def describe_edits(execution: ExecutionState) -> str:
    """Return a sentence about the arguments that somebody other than the calling model changed; empty if none."""
    edits = [
        edit
        for suspension in execution.suspensions.values()
        if suspension.decision and suspension.decision.approved
        for edit in _list_edits(suspension)
    ]
    if not edits:
        return ""
    more = f"; and {len(edits) - MAX_EDITS} more before these" if len(edits) > MAX_EDITS else ""
    return f"Changed before it was approved: {'; '.join(edits[-MAX_EDITS:])}{more}."


def list_shown_steps(execution: ExecutionState) -> Iterator[StepState]:
    """Yield the steps; in a cancelled or rejected execution, open steps that called nothing are shown as `skipped`."""
    is_given_up = execution.status in ("cancelled", "rejected")
    for state in execution.steps.values():
        is_idle = state.status in ("pending", "suspended") and all(call.intended_at is None for call in state.calls)
        yield replace(state, status="skipped") if is_given_up and is_idle else state


def describe_rejecter(assurance: ev.Assurance | None) -> str:
    """Return who rejected a step, as words to write after `rejected`; empty text if that is not known."""
    if assurance in ev.MODEL_ASSURANCES:
        return " by the calling model; no person did"
    if assurance == "client":
        return " by a client; not proven to be a person"
    if assurance == "timeout":
        return " because nobody answered in time; no person rejected it"
    return " by a person" if assurance is not None else ""


def _list_edits(suspension: SuspensionState) -> Iterator[str]:
    """Yield each argument that a person changed, as a part of a sentence."""
    question, first = suspension.question, suspension.first
    if first is None:
        return
    for edit in question.edits:
        if edit.assurance in ev.MODEL_ASSURANCES:
            continue
        for path in edit.arguments:
            row_index, _, name = path.partition("/") if question.rows else ("", "", path)
            tool = (question.covers[int(row_index)].tool_name if row_index else question.tool_name) or ""
            before, after = (_find_arguments(version, row_index) for version in (first, question))
            row = f" (index {row_index})" if row_index else ""
            yield (
                f"{tool} of step {question.step_id!r}{row}: {name[:MAX_VALUE_CHARS]!r} from {_quote(before, name)} to "
                f"{_quote(after, name)}, by {edit.principal!r}"
            )


def _find_arguments(question: ev.Question, row_index: str) -> dict[str, JsonValue]:
    return question.covers[int(row_index)].arguments if row_index else question.arguments or {}


def _quote(arguments: dict[str, JsonValue], name: str) -> str:
    if name not in arguments:
        return "nothing"
    text = canonical_json(arguments[name])
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}... ({len(text)} characters)"
