"""What a call changed, for a caller that has seen the execution before: shorter than the whole view.

Left out is what the caller wrote or was told (plan, results, instructions, schemas of tools), what it has no use for
(usage, facts about tools) and what is empty. What is asked about a step or a plan for a second time is told whole
again. `get_execution` has all of it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from planwarden.agent.common.artifact import is_stand_in
from planwarden.server.views.encoding import to_short_json
from planwarden.server.views.execution import Execution, Step
from planwarden.server.views.suspension import Suspension

Document = dict[str, Any]

_OF_EXECUTION = (
    "threadId",
    "executionId",
    "status",
    "awaiting",
    "nextAction",
    "output",
    "error",
    "warnings",
    "forecast",
    "doneBefore",
)
_OF_SUCCEEDED_CALL = ("toolName", "arguments", "status")
_OF_STEP = ("id", "status", "result", "error", "skippedBecause", "skippedReason")
_OF_CALLER_QUESTION = ("suspensionId", "stepId", "addressee", "kind", "instructions", "prompt")
_KNOWN_ABOUT_QUESTION = ("suspensionId", "stepId", "addressee", "kind")
_OF_TOOL = ("name", "description", "inputSchema")
_SAID_ABOVE = ("threadId", "executionId", "createdAt")


def describe_changes(after: Execution, before: Execution | None = None, answered: str | None = None) -> Document:
    """Return the execution as JSON, with what is not in `before` and what comes next.

    `before` is what the caller has seen: None when it sees the execution for the first time. `answered` is the question
    that the call names; it is shown in full while it is open.
    """
    earlier = {suspension.suspension_id: suspension for suspension in before.suspensions} if before is not None else {}
    whole = cast("Document", to_short_json(after, lists=True))
    document = {key: whole[key] for key in _OF_EXECUTION if key in whole}
    if after.awaiting == "caller":
        # Its questions say so.
        del document["awaiting"]
    if answered in earlier and earlier[answered].kind == "synthesis":
        # The caller has just written it.
        document.pop("output", None)
    if before is not None:
        del document["executionId"]
        if after.warnings == before.warnings:
            document.pop("warnings", None)
    if before is not None and before.steps and (revised := describe_revision(before, after)):
        document["revised"] = revised
    steps = whole["steps"] if after.status == "planned" else list(_show_steps(after, before, whole["steps"]))
    questions = list(_show_questions(after, whole["suspensions"], earlier, answered))
    return {**document, **({"steps": steps} if steps else {}), **({"suspensions": questions} if questions else {})}


def describe_revision(before: Execution, after: Execution) -> dict[str, list[str]]:
    """Return the ids of steps that were added, changed, removed or moved in the plan; empty if none was."""
    old, new = {step.id: step for step in before.steps}, {step.id: step for step in after.steps}
    both = [step_id for step_id in new if step_id in old]
    order = [step_id for step_id in old if step_id in new]
    changes = {
        "added": [step_id for step_id in new if step_id not in old],
        "changed": [step_id for step_id in both if _find_plan_part(new[step_id]) != _find_plan_part(old[step_id])],
        "removed": [step_id for step_id in old if step_id not in new],
        "moved": [step_id for step_id, earlier in zip(both, order, strict=True) if step_id != earlier],
    }
    return {kind: ids for kind, ids in changes.items() if ids}


def _find_plan_part(step: Step) -> tuple[object, ...]:
    return step.description, step.step_type, step.required_tools, step.dependencies, step.tool_validation_mode


def _show_steps(after: Execution, before: Execution | None, documents: list[Document]) -> Iterator[Document]:
    """Yield the steps that changed, except those that a question is about, and pending ones, which the plan describes.

    Calls that succeeded with the arguments that the plan or the caller wrote are left out; a loop's are in its result.
    """
    earlier = {item.id: item for item in before.steps} if before is not None else {}
    asking_steps = {item.step_id for item in after.suspensions}
    for step, whole in zip(after.steps, documents, strict=True):
        if (
            step.status == "pending"
            or step == earlier.get(step.id)
            or (step.status == "suspended" and step.id in asking_steps)
        ):
            continue
        entry = {key: whole[key] for key in _OF_STEP if key in whole}
        if step.items is not None and step.items.next is not None:
            # The result is cut: this says that there is more, and from which item on.
            entry["items"] = whole["items"]
        if step.validation_status == "failed":
            entry["validationStatus"] = "failed"
        calls = [
            call if call["status"] != "succeeded" else {key: call[key] for key in _OF_SUCCEEDED_CALL if key in call}
            for call in whole.get("actualToolCalls", ())
            if call["status"] != "succeeded" or (step.items is None and "resolved" in call)
        ]
        yield {**entry, "actualToolCalls": calls} if calls else entry


def _show_questions(
    after: Execution, documents: list[Document], earlier: Mapping[str, Suspension], answered: str | None
) -> Iterator[Document]:
    """Yield the open questions: new ones, changed ones and the one that was answered in full, the others by name."""
    instructions = {suspension.instructions for suspension in earlier.values()}
    equipped = {tool.name for suspension in earlier.values() for tool in suspension.tools}
    again = {(suspension.kind, suspension.step_id) for suspension in earlier.values()}
    for suspension, whole in zip(after.suspensions, documents, strict=True):
        is_again = (suspension.kind, suspension.step_id) in again
        former = earlier.get(suspension.suspension_id)
        if former is not None and suspension.suspension_id != answered and former.digest == suspension.digest:
            yield {key: whole[key] for key in _KNOWN_ABOUT_QUESTION if key in whole}
        elif suspension.addressee == "caller":
            entry = {key: whole[key] for key in _OF_CALLER_QUESTION if key in whole}
            if suspension.instructions in instructions and not is_again:
                entry.pop("instructions", None)
            instructions.add(suspension.instructions)
            if _uses_stored_results(after, suspension):
                entry["results"] = whole["results"]
            tools = [tool for tool in whole.get("tools", ()) if is_again or tool["name"] not in equipped]
            if tools:
                entry["tools"] = [{key: tool[key] for key in _OF_TOOL} for tool in tools]
                equipped.update(tool["name"] for tool in tools)
            yield entry
        else:
            yield {key: value for key, value in whole.items() if key not in _SAID_ABOVE}


def _uses_stored_results(execution: Execution, question: Suspension) -> bool:
    """Return whether `steps` shows only the beginning of a result: then the question says how to take values from
    it."""
    steps = {step.id: step for step in execution.steps}
    sources = steps if question.step_id is None else steps[question.step_id].dependencies
    results = [steps[step_id].result for step_id in sources]
    parts = [part for result in results if isinstance(result, list) for part in result]
    return question.results is not None and any(map(is_stand_in, [*results, *parts]))
