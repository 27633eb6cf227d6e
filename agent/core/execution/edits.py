"""What people changed in arguments between a question and its answer, in words.

The planner of the call must be told, and a report must say what was really done.
"""

from collections.abc import Iterator

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState

MAX_EDITS = 10
"""The most edits that are reported for one execution; the newest are kept."""
MAX_VALUE_CHARS = 80
MODEL: tuple[ev.Assurance, ...] = ("claimed", "caller")


def describe_edits(execution: ExecutionState) -> str:
    """Return a sentence about arguments that others than the calling model changed; empty if there are none."""
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


def _list_edits(suspension: SuspensionState) -> Iterator[str]:
    """Yield each argument that a person changed, as a part of a sentence."""
    question, first = suspension.question, suspension.first
    if first is None:
        return
    for edit in question.edits:
        if edit.assurance in MODEL:
            continue
        for path in edit.arguments:
            place, _, name = path.partition("/") if question.rows else ("", "", path)
            tool = (question.covers[int(place)].tool_name if place else question.tool_name) or ""
            before, after = (_find_arguments(version, place) for version in (first, question))
            row = f" (row {int(place) + 1})" if place else ""
            yield (
                f"{tool} of step {question.step_id!r}{row}: {name[:MAX_VALUE_CHARS]!r} from {_quote(before, name)} to "
                f"{_quote(after, name)}, by {edit.principal!r}"
            )


def _find_arguments(question: ev.Question, place: str) -> dict[str, JsonValue]:
    return question.covers[int(place)].arguments if place else question.arguments or {}


def _quote(arguments: dict[str, JsonValue], name: str) -> str:
    if name not in arguments:
        return "nothing"
    text = canonical_json(arguments[name])
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}... ({len(text)} characters)"
