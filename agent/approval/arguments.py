"""The arguments of a call as they will run: references resolved, defaults filled in, checked."""

from planwarden.agent.approval.context import ApprovalContext
from planwarden.agent.common.canonical import is_larger
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.bindings import find_binding_faults, has_bindings
from planwarden.agent.core.placeholders import find_placeholders
from planwarden.agent.core.pointers import MAX_ARGUMENT_BYTES
from planwarden.agent.core.references import list_sources, resolve
from planwarden.agent.core.state import Call, ExecutionState
from planwarden.agent.core.verify import find_empty_lists


def complete_arguments(context: ApprovalContext, execution: ExecutionState, call: Call) -> dict[str, JsonValue]:
    """What will run.

    Raises:
        InvalidArguments: with every fault.
        PartsNeeded: parts of artifacts have to be read first.
    """
    faults: list[str] = []
    if call.by_model:
        # Those of a plan were checked when it was accepted.
        faults += [*find_binding_faults(call.proposed), *find_placeholders(call.proposed)]
        step = execution.steps[call.step_id].step
        faults.extend(find_empty_lists(call.proposed, tuple(execution.steps[d].result for d in step.dependencies)))
    resolved = call.proposed
    if has_bindings(resolved):
        state = execution.steps[call.step_id]
        item = state.find_item(call)
        item_calls = () if item is None else state.list_item_calls(item[1])
        resolved = resolve(resolved, list_sources(execution, context.parts, item, item_calls))
    _check_size(resolved)
    completed, invalid = context.tools.complete(call.tool_name, resolved)
    faults.extend(invalid)
    if faults:
        definition = context.tools.get(call.tool_name)
        schema = definition.input_schema if definition else {}
        raise InvalidArguments("; ".join(faults[:10]), details={"inputSchema": schema})
    if completed is not resolved:
        _check_size(completed)
    return completed


def _check_size(arguments: dict[str, JsonValue]) -> None:
    if is_larger(arguments, MAX_ARGUMENT_BYTES):
        raise InvalidArguments(f"the arguments are larger than {MAX_ARGUMENT_BYTES} bytes")
