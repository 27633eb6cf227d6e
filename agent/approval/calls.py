"""A call as it would run now: its arguments, and whether its tool is still the one that somebody relied on.

References in arguments are resolved, defaults are filled in, and the result is checked. An accepted plan pins the
definitions of its tools. If a tool changed since, approvals of its old definition do not count, and a person is asked
even about calls that otherwise need no approval, until somebody approves a call of the tool as it is now.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from planwarden.agent.approval.context import CallRequest
from planwarden.agent.common.canonical import is_larger
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import find_binding_faults, has_bindings
from planwarden.agent.core.binding.placeholders import find_empty_lists, find_placeholders
from planwarden.agent.core.binding.pointers import MAX_ARGUMENT_BYTES
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.references import list_sources, resolve
from planwarden.agent.core.execution.state import ExecutionState, StepState, SuspensionState
from planwarden.agent.core.plan.pins import PIN_CHARS, describe_difference
from planwarden.agent.core.plan.plan import find_steps_before
from planwarden.agent.core.tool import ToolDefinition


def complete_arguments(request: CallRequest) -> dict[str, JsonValue]:
    """Return the arguments with which the call will run.

    Raises:
        InvalidArguments: with the first ten faults.
        PartsNeeded: parts of artifacts have to be read first.
    """
    context, execution, call, state = request.context, request.execution, request.call, request.state
    if call.by_model:
        # The arguments in a plan were checked when the plan was accepted.
        faults = [*find_binding_faults(call.proposed), *find_placeholders(call.proposed, execution.goal_and_inputs)]
        faults.extend(find_empty_lists(call.proposed, _list_results(execution, state)))
        # Only bindings without a fault can be resolved.
        _raise_faults(request, faults)
    resolved = call.proposed
    if not execution.options.is_literal and has_bindings(resolved):
        item = state.find_item(call)
        item_calls = () if item is None else state.list_item_calls(item[1])
        resolved = resolve(resolved, list_sources(execution, context.parts, item, item_calls))
    check_arguments_size(resolved)
    completed, invalid = context.tools.complete(call.tool_name, resolved)
    _raise_faults(request, [_mention_template(fault, call.proposed) for fault in invalid])
    if execution.options.is_literal or completed is resolved:
        return resolved
    check_arguments_size(completed)
    return completed


def _mention_template(fault: str, arguments: Mapping[str, JsonValue]) -> str:
    """Return the fault; if a binding gives a value that is not text where text is expected, add how to convert it."""
    source = arguments.get(fault.partition(": ")[0].removeprefix("/"))
    if not fault.endswith('is not of type "string"') or not (isinstance(source, dict) and "$from" in source):
        return fault
    return f"{fault}; {json.dumps({'$text': '{value}', 'with': {'value': source}})} makes text of it"


def _raise_faults(request: CallRequest, faults: Sequence[str]) -> None:
    if faults:
        raise InvalidArguments("; ".join(faults[:10]), details={"inputSchema": request.definition.input_schema})


def _list_results(execution: ExecutionState, state: StepState) -> Iterator[JsonValue]:
    """Yield the results of this step's calls and of all steps that it waits for; a loop's results are one list."""
    before = find_steps_before((other.step for other in execution.steps.values()), state.step.step_id)
    for other in (*map(execution.steps.__getitem__, before), state):
        if other.items is not None:
            yield other.result
        yield from (call.value for call in other.calls if call.status == "succeeded")


def check_arguments_size(arguments: dict[str, JsonValue]) -> None:
    """Raise `InvalidArguments` for arguments larger than `MAX_ARGUMENT_BYTES`."""
    if is_larger(arguments, MAX_ARGUMENT_BYTES):
        raise InvalidArguments(f"the arguments are larger than {MAX_ARGUMENT_BYTES} bytes")


def has_changed_since_plan(execution: ExecutionState, definition: ToolDefinition) -> bool:
    """Return whether the tool has changed since the plan was accepted, without an approval of the tool as it is now."""
    pinned = execution.pins.get(definition.name)
    if not pinned or definition.digest.startswith(pinned):
        return False
    return not any(
        suspension.decision is not None and suspension.decision.approved and _has_shown(suspension, definition)
        for suspension in execution.suspensions.values()
    )


def describe_change(request: CallRequest, since: ev.Question | ToolDefinition | None) -> str:
    """Return one sentence that says how the tool changed.

    `since` is what somebody relied on: an earlier question, a definition, or None for the accepted plan.
    """
    definition, tools = request.definition, request.context.tools
    match since:
        case ToolDefinition():
            when, before = "while it was called", since
        case ev.Question():
            when = "after it was approved" if since.traits.is_about_calls else "since it was asked about"
            before = tools.find_former(since.definition_digest)
        case None:
            when = "since the plan was accepted"
            before = tools.find_former(request.execution.pins.get(definition.name, "")[:PIN_CHARS])
    return f"{definition.name} changed {when}: {describe_difference(before, definition)}."


def _has_shown(approved: SuspensionState, definition: ToolDefinition) -> bool:
    """Return whether the question's own call, or one that it covers, was a call of the tool as it is now."""
    question = approved.question
    definitions = [(covered.tool_name, covered.definition_digest) for covered in approved.covered]
    if question.traits.releases == "call":
        definitions.append((question.tool_name or "", question.definition_digest))
    return (definition.name, definition.digest) in definitions
