"""Turns views into camelCase JSON: a whole view or, for a caller that knows the rest, only the changes of a call. The
changes leave out everything that the caller wrote or has already received (plan, results, instructions, schemas of
tools), that the caller does not need (usage, facts about tools), or that is empty. If the same kind of question comes
again for a step or for the plan, its instructions and tools are shown again. `get_execution` shows everything.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Any, cast

import msgspec
from pydantic.alias_generators import to_camel

from planwarden.agent.common.artifact import is_stand_in
from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.struct import JsonValue, StoredStruct
from planwarden.server.views.execution import Execution
from planwarden.server.views.instants import format_instant
from planwarden.server.views.suspension import Suspension

Document = dict[str, Any]

HIDDEN_FIELDS = frozenset({"card_source", "plan_step"})
"""Fields that are never in the JSON; code uses them to build views for people and to find revisions of a plan."""


def to_json(view: object) -> dict[str, JsonValue]:
    """Return a view as camelCase JSON, without the optional fields that are empty."""
    return cast("dict[str, JsonValue]", _encode(view))


def to_short_json(view: object, *, lists: bool = False) -> dict[str, JsonValue]:
    """Return a view as camelCase JSON without null fields or empty lists; `lists` keeps empty required lists."""
    return cast("dict[str, JsonValue]", _encode(view, is_short=True, lists=lists))


@cache
def list_optional(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields that `to_json` leaves out at their default value: null, an empty list, or a `quorum` of 1."""
    fields = () if issubclass(kind, StoredStruct) else msgspec.structs.fields(kind)
    return frozenset(field.name for field in fields if field.default in (None, ()) or field.name == "quorum")


@cache
def _list_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, bool], ...]:
    names = (name for name in kind.__struct_fields__ if name not in HIDDEN_FIELDS)
    return tuple((name, to_camel(name), name in list_optional(kind)) for name in names)


def _encode(value: Any, *, is_short: bool = False, lists: bool = False) -> Any:
    kind = type(cast("object", value))
    if kind is tuple:
        return [_encode(item, is_short=is_short) for item in value]
    if kind is datetime:
        return format_instant(value, "milliseconds")
    if not issubclass(kind, msgspec.Struct):
        return value
    document: dict[str, Any] = {}
    for name, key, is_optional in _list_fields(kind):
        part = getattr(value, name)
        is_left_out = is_optional or (is_short and not (lists and part == ()))
        if (is_left_out and (part is None or part == ())) or (name == "quorum" and part == 1):
            continue
        encoded = _encode(part, is_short=is_short)
        if encoded or not (is_short and isinstance(part, msgspec.Struct)):
            document[key] = encoded
    extra = document.pop("extra", None)
    if isinstance(extra, Mapping):
        document.update(cast("Mapping[str, Any]", extra))
    return document


_OF_EXECUTION = (
    *("threadId", "executionId", "status", "awaiting", "nextAction", "output", "error", "warnings", "forecast"),
    "doneBefore",
)
_OF_SUCCEEDED_CALL = ("toolName", "arguments", "status")
_OF_STEP = ("id", "status", "result", "error", "skippedBecause", "skippedReason", "revisionRefused")
_KNOWN_ABOUT_QUESTION = ("suspensionId", "stepId", "addressee", "kind")
_OF_TOOL = ("name", "description", "inputSchema")
_SAID_ABOVE = ("threadId", "executionId", "createdAt")


def describe_changes(after: Execution, before: Execution | None = None, answered: str | None = None) -> Document:
    """Return the execution as JSON: what is new since `before`, and what comes next.

    `before` is a view that the caller has certainly seen, or None. `answered` is the id of the question
    that the caller's request names; while that question is open, it is shown in full.
    """
    earlier = {suspension.suspension_id: suspension for suspension in before.suspensions} if before is not None else {}
    whole = cast("Document", to_short_json(after, lists=True))
    document = _pick(whole, _OF_EXECUTION)
    if after.awaiting == "caller":
        # Each question has its own `addressee`.
        del document["awaiting"]
    if answered in earlier and earlier[answered].kind == "synthesis":
        # The caller has just written the output.
        document.pop("output", None)
    if before is not None:
        del document["executionId"]
        if after.warnings == before.warnings:
            document.pop("warnings", None)
    if before is not None and before.steps and (revised := _describe_revision(before, after)):
        document["revised"] = revised
    steps = whole["steps"] if after.status == "planned" else list(_show_steps(after, before, whole["steps"]))
    questions = list(_show_questions(after, whole["suspensions"], earlier, answered))
    return {**document, **({"steps": steps} if steps else {}), **({"suspensions": questions} if questions else {})}


def _pick(document: Document, keys: Iterable[str]) -> Document:
    return {key: document[key] for key in keys if key in document}


def _describe_revision(before: Execution, after: Execution) -> dict[str, list[str]]:
    """Return the ids of the steps that were added, changed, removed or moved in the plan; empty if there are none."""
    old, new = ({step.id: step.plan_step for step in view.steps} for view in (before, after))
    both, order = [step_id for step_id in new if step_id in old], [step_id for step_id in old if step_id in new]
    changes = {
        "added": [step_id for step_id in new if step_id not in old],
        "changed": [step_id for step_id in both if not is_same_json(new[step_id], old[step_id])],
        "removed": [step_id for step_id in old if step_id not in new],
        "moved": [step_id for step_id, earlier in zip(both, order, strict=True) if step_id != earlier],
    }
    return {kind: ids for kind, ids in changes.items() if ids}


def _show_steps(after: Execution, before: Execution | None, documents: list[Document]) -> Iterator[Document]:
    """Yield the changed steps, except pending steps, which the plan describes, and suspended steps with a question.
    Leave out a successful call if the plan or the caller wrote its arguments, or if the result of a loop shows it.
    """
    earlier = {item.id: item for item in before.steps} if before is not None else {}
    asking_steps = {item.step_id for item in after.suspensions}
    for step, whole in zip(after.steps, documents, strict=True):
        is_asking = step.status == "suspended" and step.id in asking_steps
        if step.status == "pending" or step == earlier.get(step.id) or is_asking:
            continue
        entry = _pick(whole, _OF_STEP)
        if step.items is not None and step.items.next is not None:
            # The result is cut off; `items` tells at which item.
            entry["items"] = whole["items"]
        if step.validation_status == "failed":
            entry["validationStatus"] = "failed"
        calls = [
            _pick(call, _OF_SUCCEEDED_CALL if call["status"] == "succeeded" else call)
            for call in whole.get("actualToolCalls", ())
            if call["status"] != "succeeded" or (step.items is None and "resolved" in call)
        ]
        yield {**entry, "actualToolCalls": calls} if calls else entry


def _show_questions(
    after: Execution, documents: list[Document], earlier: Mapping[str, Suspension], answered: str | None
) -> Iterator[Document]:
    """Yield the open questions: new ones, changed ones and `answered` in full, the others only in brief."""
    instructions = {suspension.instructions for suspension in earlier.values()}
    equipped = {tool.name for suspension in earlier.values() for tool in suspension.tools}
    again = {(suspension.kind, suspension.step_id) for suspension in earlier.values()}
    for suspension, whole in zip(after.suspensions, documents, strict=True):
        is_again = (suspension.kind, suspension.step_id) in again
        former = earlier.get(suspension.suspension_id)
        if former is not None and suspension.suspension_id != answered and former.digest == suspension.digest:
            yield _pick(whole, _KNOWN_ABOUT_QUESTION)
        elif suspension.addressee == "caller":
            # If a question is asked again, its prompt says why, so the prompt comes first.
            texts = ("prompt", "instructions", "results") if is_again else ("instructions", "results", "prompt")
            entry = _pick(whole, (*_KNOWN_ABOUT_QUESTION, *texts))
            if suspension.instructions in instructions and not is_again:
                entry.pop("instructions", None)
            instructions.add(suspension.instructions)
            if not _uses_stored_results(after, suspension):
                entry.pop("results", None)
            tools = [tool for tool in whole.get("tools", ()) if is_again or tool["name"] not in equipped]
            if tools:
                entry["tools"] = [{key: tool[key] for key in _OF_TOOL} for tool in tools]
                equipped.update(tool["name"] for tool in tools)
            yield entry
        else:
            yield {key: value for key, value in whole.items() if key not in _SAID_ABOVE}


def _uses_stored_results(execution: Execution, question: Suspension) -> bool:
    """Return whether `steps` cuts a result off, while the question's `results` tell how to use all of it."""
    steps = {step.id: step for step in execution.steps}
    sources = steps if question.step_id is None else steps[question.step_id].dependencies
    results = [steps[step_id].result for step_id in sources]
    parts = [part for result in results if isinstance(result, list) for part in result]
    return question.results is not None and any(map(is_stand_in, [*results, *parts]))
