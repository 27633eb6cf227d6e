"""What the host reads about a gated call: the server's own result, or prose as an error result.

A tool with an output schema may return nothing else than what fits it, except an error. A form in JSON would make a
model poll; a sentence that says what happens by itself, and what to do, does not.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TypeVar

from msgspec import Raw

from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.state import Call, ExecutionState, SuspensionState
from planwarden.server.gate import frames
from planwarden.server.views.escaping import escape_text

Value = TypeVar("Value")
MAX_REASON_CHARS = 500
MAX_VALUE_CHARS = 200
MAX_EDITS = 20

DISPOSITION = "io.modelcontextprotocol/tool-approval-disposition"
"""The key of `_meta` under which SEP-2848 says what became of a call that needed an approval."""

Result = dict[str, JsonValue]
Answer = Mapping[str, JsonValue | Raw]
"""A result; parts may be the bytes that the server sent."""
Disposition = Literal["approved-executed", "denied-not-executed", "execution-error", "outcome-unknown"]


def build_text(text: str, *, is_error: bool = True) -> Result:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def ask_to_wait(name: str, where: str) -> Result:
    return build_text(
        f"Nobody has decided yet. {name} will run by itself when a person approves it ({where}). Do not ask for "
        "approval in the chat. To get the result, call it again with the same arguments."
    )


def say_still_running(name: str) -> Result:
    return build_text(
        f"{name} may run, and has not ended yet. It goes on by itself. To get the result, call it again with the same "
        "arguments; that does not run it again."
    )


def say_unknown(name: str, where: str) -> Result:
    text = (
        f"{name} was sent to its server, and nobody knows whether it happened. Do not repeat it and do not work around "
        f"it: a person has to find out ({where}). To hear what became of it, call it again with the same arguments."
    )
    return _add_disposition(build_text(text), "outcome-unknown")


def find_call(execution: ExecutionState) -> Call | None:
    """Return the one call of the execution."""
    calls = [call for state in execution.steps.values() for call in state.calls]
    return calls[0] if len(calls) == 1 else None


def has_run(execution: ExecutionState) -> bool:
    """Return whether the call was sent to its server, and ended."""
    call = find_call(execution)
    return call is not None and call.status in ("succeeded", "failed") and call.attempts > 0


def find_rejection(execution: ExecutionState) -> SuspensionState | None:
    """Return the question that somebody answered with no."""
    for suspension in execution.suspensions.values():
        decision = suspension.decision
        if suspension.status == "decided" and decision is not None and decision.approved is False:
            return suspension
    return None


def describe_end(execution: ExecutionState, name: str, whole: JsonValue) -> Result:
    """Return the answer of a finished execution; `whole` is the stored result of its call."""
    result = _describe_end(execution, name, whole)
    return _add_disposition(result, find_disposition(execution)) if execution.suspensions else result


def add_facts(execution: ExecutionState, raw: dict[str, Raw]) -> dict[str, JsonValue | Raw]:
    """Return a result that is too large to be stored, with what `_meta` says of the call."""
    result: dict[str, JsonValue | Raw] = {**raw, "_meta": frames.read_value(raw.get("_meta"))}
    return _add_disposition(result, find_disposition(execution)) if execution.suspensions else result


def find_disposition(execution: ExecutionState) -> Disposition:
    """Return what became of the call of a finished execution, in the words of SEP-2848."""
    call = find_call(execution)
    if call is not None and call.status == "succeeded":
        return "approved-executed"
    return "execution-error" if has_run(execution) else "denied-not-executed"


def _add_disposition(result: dict[str, Value], disposition: Disposition) -> dict[str, Value | JsonValue]:
    meta = result.get("_meta")
    return {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), DISPOSITION: disposition}}


def _describe_end(execution: ExecutionState, name: str, whole: JsonValue) -> Result:
    call, rejection = find_call(execution), find_rejection(execution)
    if rejection is not None:
        reason = rejection.decision.reason if rejection.decision is not None else None
        text = f": {escape_text(reason[:MAX_REASON_CHARS])}" if reason else ""
        return build_text(f"Not run: a person rejected this call of {name}{text}. Do not try it again.")
    if call is not None and call.status == "succeeded":
        if isinstance(whole, str) and not _was_reported_by_person(execution, call):
            # What takes the place of a result that is too large to be stored.
            return build_text(whole)
        if _was_reported_by_person(execution, call) or not isinstance(whole, dict):
            # Not the server's own result, and a tool with an output schema may return no other, except an error.
            return build_text(f"{name} happened, as a person found out. The person says: {whole}")
        return _add_edits(execution, call, whole)
    if call is not None and call.status == "failed":
        if isinstance(call.beside, dict):
            return _add_edits(execution, call, call.beside)
        return build_text(call.error_message or f"{name} failed")
    if any(suspension.status == "timed_out" for suspension in execution.suspensions.values()):
        return build_text(f"Not run: nobody decided about this call of {name} in time.")
    return build_text(f"Not run: planwarden's execution of {name} ended as {execution.status}.")


def add_first_line(execution: ExecutionState, result: Result) -> Result:
    """Return the result with the line that says when the call ran, for a host that did not wait for it."""
    when = datetime.fromtimestamp(execution.updated_at, UTC).astimezone().strftime("%H:%M")
    return _add_block(result, f"ran at {when} after a person approved it; not run again")


def _was_reported_by_person(execution: ExecutionState, call: Call) -> bool:
    suspension = execution.suspensions.get(call.suspension_id or "")
    return (
        suspension is not None
        and suspension.question.kind == "reconcile"
        and call.status == "succeeded"
        and (
            suspension.decision is not None
            and isinstance(suspension.decision.content, dict)
            and suspension.decision.content.get("happened") is True
        )
    )


def _add_edits(execution: ExecutionState, call: Call, result: Result) -> Result:
    """Return the result with what a person changed in the arguments before they ran."""
    ran = call.arguments or {}
    if is_same_json(call.proposed, ran):
        return result
    names = [name for name in dict.fromkeys((*call.proposed, *ran)) if not _is_same(name, call.proposed, ran)]
    edits = "; ".join(
        f"{_show(name)}: {_show(call.proposed.get(name))} -> {_show(ran.get(name))}" for name in names[:MAX_EDITS]
    )
    suspension = execution.suspensions.get(call.suspension_id or "")
    who = "" if suspension is None or not suspension.principal else f" ({suspension.principal})"
    meta = result.get("_meta")
    more: JsonValue = {"editedArguments": list[JsonValue](names), "arguments": ran}
    changed = _add_block(result, f"A person{who} changed the arguments before it ran: {edits}")
    return {**changed, "_meta": {**(meta if isinstance(meta, dict) else {}), "planwarden/edited": more}}


def _is_same(name: str, one: dict[str, JsonValue], other: dict[str, JsonValue]) -> bool:
    return name in one and name in other and is_same_json(one[name], other[name])


def _show(value: JsonValue) -> str:
    return escape_text(str(value))[:MAX_VALUE_CHARS]


def _add_block(result: Result, text: str) -> Result:
    content = result.get("content")
    blocks: list[JsonValue] = [{"type": "text", "text": text}, *(content if isinstance(content, list) else [])]
    return {**result, "content": blocks}
