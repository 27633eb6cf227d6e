"""Builds the answer to a gated call: the server's own result, or a text that is marked as an error, because a tool with
an output schema may return no other text. The text says what continues by itself, and what the model should do. A
status in JSON would make a model poll instead.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeVar, cast

from msgspec import Raw

from planwarden.agent.common.canonical import canonical_json, is_same_json
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.events import MODEL_ASSURANCES
from planwarden.agent.core.execution.state import Call, ExecutionState, SuspensionState
from planwarden.server.gate import frames
from planwarden.server.views.decisions import describe_editor
from planwarden.server.views.escaping import escape_text

Value = TypeVar("Value")
MAX_REASON_CHARS = 500
MAX_VALUE_CHARS = 200
MAX_EDITS = 20

DISPOSITION = "io.modelcontextprotocol/tool-approval-disposition"
"""The key of `_meta` for the fate of a call that needed an approval, defined by SEP-2848."""

Result = dict[str, JsonValue]
Answer = Mapping[str, JsonValue | Raw]
"""A result. Its parts may be the bytes that the server sent."""


def build_text(text: str) -> Result:
    return {"content": [{"type": "text", "text": text}], "isError": True}


def refuse(message: str, code: str) -> Result:
    """Return the answer to a call that was not run, with the reason and planwarden's code for it."""
    return build_text(f"Not run ({code}): {message}")


def ask_to_wait(name: str, where: str) -> Result:
    return build_text(
        f"Nobody has decided yet. {name} will run by itself when a person approves it ({where}). Do not ask for "
        "approval in the chat. To get the result, call it again with the same arguments."
    )


def say_still_running(name: str) -> Result:
    return build_text(
        f"{name} is allowed to run, and has not ended yet. It goes on by itself. To get the result, call it again with "
        "the same arguments; that does not run it again."
    )


def say_unknown(name: str, where: str) -> Result:
    text = (
        f"{name} was sent to its server, and nobody knows whether it happened. Do not repeat it and do not work around "
        f"it: a person has to find out ({where}). To hear what became of it, call it again with the same arguments."
    )
    return _add_meta(build_text(text), DISPOSITION, "outcome-unknown")


def has_run(execution: ExecutionState) -> bool:
    """Return whether the call was sent to its server, and ended."""
    call = execution.only_call
    if call is None or call.status not in ("succeeded", "failed"):
        return False
    return call.attempts > 0 and not call.nothing_happened


def is_given_up(execution: ExecutionState) -> bool:
    """Return whether people gave up finding out what became of the call after it was sent to its server."""
    call = execution.only_call
    return execution.is_finished and call is not None and call.status == "outcome_unknown"


def is_rejected_by_person(execution: ExecutionState) -> bool:
    rejection = _find_rejection(execution)
    return rejection is not None and rejection.assurance not in MODEL_ASSURANCES


def _find_rejection(execution: ExecutionState) -> SuspensionState | None:
    """Return the first question about the call that somebody answered with no; None if there is none. The question
    whether the call has happened does not count.
    """
    for suspension in execution.suspensions.values():
        decision = suspension.decision
        is_about_call = suspension.question.kind != "reconcile" and suspension.status == "decided"
        if is_about_call and decision is not None and decision.approved is False:
            return suspension
    return None


def describe_end(execution: ExecutionState, name: str, whole: JsonValue) -> Result:
    """Return the answer of a finished execution. `whole` is the stored result of its call."""
    return _add_facts(execution, _describe_end(execution, name, whole))


def describe_result(execution: ExecutionState, result: Mapping[str, Raw]) -> Answer:
    """Return the answer of a finished execution. `result` is the result of its call, which could not be stored."""
    return _add_facts(execution, _add_edits(execution, frames.drop_own_facts(result)))


def _add_facts(execution: ExecutionState, result: Mapping[str, Value | JsonValue]) -> dict[str, Value | JsonValue]:
    """Return the result. If somebody was asked about the call, add to `_meta` what became of the call."""
    return _add_meta(result, DISPOSITION, _find_disposition(execution)) if execution.suspensions else dict(result)


def _find_disposition(execution: ExecutionState) -> str:
    """Return what became of the call of a finished execution, in the words of SEP-2848."""
    call = execution.only_call
    if call is not None and call.status == "succeeded":
        return "approved-executed"
    if is_given_up(execution):
        return "outcome-unknown"
    was_approved = call is not None and call.status == "failed" and call.attempts > 0
    return "execution-error" if was_approved else "denied-not-executed"


def _add_meta(result: Mapping[str, Value | JsonValue], key: str, value: JsonValue) -> dict[str, Value | JsonValue]:
    return {**result, "_meta": {**frames.read_members(cast("Raw | JsonValue", result.get("_meta"))), key: value}}


def _describe_end(execution: ExecutionState, name: str, whole: JsonValue) -> Result:
    call, rejection = execution.only_call, _find_rejection(execution)
    if rejection is not None:
        if not is_rejected_by_person(execution):
            return build_text(f"Not run: a model rejected this call of {name} through planwarden; no person did.")
        reason = rejection.decision.reason if rejection.decision is not None else None
        text = f": {escape_text(reason[:MAX_REASON_CHARS])}" if reason else ""
        return build_text(f"Not run: a person rejected this call of {name}{text}. Do not try it again.")
    if is_given_up(execution):
        return build_text(
            f"{name} was sent to its server, and nobody could find out whether it happened. Do not repeat it and do "
            "not work around it; tell the user."
        )
    if call is not None and call.status == "succeeded":
        is_reported = _was_reported_by_person(execution, call)
        if isinstance(whole, dict) and not is_reported:
            return _add_edits(execution, frames.drop_own_facts(whole))
        # Two texts are not the server's own result, so they become an error: a person's report, and the text in place
        # of a result that is too large to store.
        is_stand_in = isinstance(whole, str) and not is_reported
        says = f"{name} happened, as a person found out. The person says: {whole}"
        return _add_edits(execution, build_text(str(whole) if is_stand_in else says))
    if call is not None and call.status == "failed":
        if not call.attempts:
            return refuse(call.error_message or "planwarden refused it", call.error_code or "tool_error")
        result = call.beside if isinstance(call.beside, dict) else None
        answer = frames.drop_own_facts(result) if result else build_text(call.error_message or f"{name} failed")
        return _add_edits(execution, answer)
    if any(suspension.status == "timed_out" for suspension in execution.suspensions.values()):
        return build_text(f"Not run: nobody decided about this call of {name} in time.")
    return build_text(f"Not run: planwarden's execution of {name} ended as {execution.status}.")


def add_first_line(execution: ExecutionState, result: Result) -> Result:
    """Return the result with a first line for a host that repeats the call: it says when the call ran."""
    when = datetime.fromtimestamp(execution.updated_at, UTC).astimezone().strftime("%H:%M")
    return _add_block(result, f"ran at {when} after a person approved it; not run again")


def _was_reported_by_person(execution: ExecutionState, call: Call) -> bool:
    suspension = execution.suspensions.get(call.suspension_id or "")
    if suspension is None or suspension.question.kind != "reconcile" or suspension.decision is None:
        return False
    content = suspension.decision.content
    return isinstance(content, dict) and content.get("happened") is True


def _add_edits(execution: ExecutionState, result: Mapping[str, Value | JsonValue]) -> dict[str, Value | JsonValue]:
    """Return the result. If somebody changed the arguments before the call ran, add what changed and by whom."""
    call = execution.only_call
    if call is None or not has_run(execution):
        return dict(result)
    before, ran = call.proposed, call.arguments or {}
    names = [
        name
        for name in dict.fromkeys((*before, *ran))
        if name not in before or name not in ran or not is_same_json(before[name], ran[name])
    ]
    if not names:
        return dict(result)
    questions = [suspension.question for suspension in execution.suspensions.values()]
    edited = [edit for question in questions for edit in question.edits]
    editors = {name: describe_editor(edit) for edit in edited for name in edit.arguments}
    edits = "; ".join(
        f"{_cut(name)}: {_show(before, name)} -> {_show(ran, name)}, by {editors.get(name, 'somebody')}"
        for name in names[:MAX_EDITS]
    )
    more: JsonValue = {"editedArguments": list[JsonValue](names), "arguments": ran}
    result = _add_block(result, f"The arguments were changed before it ran: {edits}")
    return _add_meta(result, "planwarden/edited", more)


def _show(arguments: Mapping[str, JsonValue], name: str) -> str:
    value = arguments.get(name)
    text = value if isinstance(value, str) else canonical_json(value)
    return _cut(text) if name in arguments else "nothing"


def _cut(text: str) -> str:
    return escape_text(text)[:MAX_VALUE_CHARS]


def _add_block(result: Mapping[str, Value | JsonValue], text: str) -> dict[str, Value | JsonValue]:
    raw = result.get("content")
    content = frames.read_value(raw) if isinstance(raw, Raw) else raw
    blocks: list[JsonValue] = [{"type": "text", "text": text}, *(content if isinstance(content, list) else [])]
    return {**result, "content": blocks}
