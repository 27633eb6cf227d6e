"""References in arguments: `{"$from": STEP_ID, "pointer": POINTER}` becomes the value that step returned.

Pointers are RFC 6901 (https://www.rfc-editor.org/rfc/rfc6901). The engine copies values, so no model retypes them.
"""

from collections.abc import Mapping

from jsonpointer import JsonPointer, JsonPointerException
from pydantic import JsonValue

from planwarden.agent.errors import InvalidArguments
from planwarden.agent.plan import references
from planwarden.agent.state import StepState


def resolve(arguments: dict[str, JsonValue], steps: Mapping[str, StepState]) -> dict[str, JsonValue]:
    """The arguments with every reference replaced; the same object when there is none.

    Raises:
        InvalidArguments: a step is unknown or unfinished, or its result has nothing at the pointer.
    """
    if not any(True for _ in references(arguments)):
        return arguments
    return {key: _resolved(value, steps) for key, value in arguments.items()}


def _resolved(value: JsonValue, steps: Mapping[str, StepState]) -> JsonValue:
    if isinstance(value, list):
        return [_resolved(child, steps) for child in value]
    if not isinstance(value, dict):
        return value
    if "$from" not in value:
        return {key: _resolved(child, steps) for key, child in value.items()}
    step_id, pointer = str(value["$from"]), str(value.get("pointer", ""))
    state = steps.get(step_id)
    if state is None:
        raise InvalidArguments(f"'$from' names step {step_id!r}, which is not in the plan")
    if state.status != "completed":
        raise InvalidArguments(f"'$from' names step {step_id!r}, which has no result: it is {state.status}")
    try:
        return JsonPointer(pointer).resolve(state.result)
    except JsonPointerException:
        raise InvalidArguments(f"the result of step {step_id!r} has nothing at {pointer!r}") from None
