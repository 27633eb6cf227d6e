"""References in arguments: `resolve` replaces `{"$from": STEP_ID, "pointer": POINTER}` by the value from that step.

Pointers are RFC 6901 (https://www.rfc-editor.org/rfc/rfc6901). The engine copies values, so no model retypes them.
If the log holds only a stand-in, the pointer leads into the artifact: `resolve` raises `PartsNeeded`, and a caller that
can read the store calls it again with those parts.

A few bytes can name a large value many times, so the bytes are counted before anything is put together.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import cast

import msgspec
from jsonpointer import EndOfList, JsonPointer, JsonPointerException
from pydantic import JsonValue

from planwarden.agent.common.artifact import INLINE_VALUES, JSON_TYPE, Artifact
from planwarden.agent.common.canonical import exceeds, is_larger, measure_at_least
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.plan import find_references, read_reference
from planwarden.agent.core.state import Call, StepState

MAX_ARGUMENT_BYTES = 256 * 1024
MAX_REFERENCES = 1_000
"""Of the arguments of one call."""


class PartAddress(msgspec.Struct, frozen=True):
    """The address of a part of an artifact."""

    artifact_id: str
    pointer: str


class ArtifactPart(msgspec.Struct, frozen=True):
    """The value at a `PartAddress`, or why there is none."""

    value: JsonValue = None
    fault: str | None = None
    """Why there is no value, as the end of a sentence about the pointer."""


class PartsNeeded(Exception):
    """Not an error: the caller has to read these parts before the references can be resolved."""

    def __init__(self, wanted: frozenset[PartAddress]) -> None:
        super().__init__(f"{len(wanted)} part(s) of artifacts")
        self.wanted = wanted


_NONE: Mapping[PartAddress, ArtifactPart] = {}


def resolve(
    arguments: dict[str, JsonValue], steps: Mapping[str, StepState], parts: Mapping[PartAddress, ArtifactPart] = _NONE
) -> dict[str, JsonValue]:
    """Returns the arguments with every reference replaced; the same object if there is none.

    Raises:
        InvalidArguments: a step is unknown or unfinished, its result has nothing usable at the pointer, or the
            arguments would have more than `MAX_ARGUMENT_BYTES`.
        PartsNeeded: a reference leads into an artifact, and `parts` does not have its value.
    """
    found = tuple(islice(find_references(arguments), MAX_REFERENCES + 1))
    if not found:
        return arguments
    if len(found) > MAX_REFERENCES:
        raise InvalidArguments(f"the arguments have more than {MAX_REFERENCES} '$from' references")
    wanted = (_find_address(steps[step_id], pointer) for step_id, pointer in found if step_id in steps)
    if missing := frozenset(part for part in wanted if part is not None and part not in parts):
        raise PartsNeeded(missing)
    values = {reference: _find_value(*reference, steps, parts) for reference in dict.fromkeys(found)}
    _check_size(found, values)
    return {key: _replace_references(value, values) for key, value in arguments.items()}


def read_parts(artifact: Artifact, pointers: Iterable[str]) -> dict[PartAddress, ArtifactPart]:
    """Returns the artifact's part at each pointer."""
    if artifact.media_type != JSON_TYPE:
        fault = f"leads into {artifact.media_type}, which is not JSON"
        return {PartAddress(artifact.artifact_id, pointer): ArtifactPart(fault=fault) for pointer in pointers}
    document = cast("JsonValue", json.loads(artifact.data))
    return {PartAddress(artifact.artifact_id, pointer): _part(document, pointer) for pointer in pointers}


def _part(document: JsonValue, pointer: str) -> ArtifactPart:
    try:
        value = _read_pointer(document, pointer)
    except JsonPointerException:
        return ArtifactPart(fault="has nothing there")
    # Counting first costs little, and then only what is small becomes text.
    if exceeds(value, INLINE_VALUES, MAX_ARGUMENT_BYTES) or is_larger(value, MAX_ARGUMENT_BYTES):
        limit = f"{MAX_ARGUMENT_BYTES} bytes or {INLINE_VALUES} values"
        return ArtifactPart(fault=f"leads to more than {limit}; point to the part that is needed")
    return ArtifactPart(value)


def _read_pointer(document: JsonValue, pointer: str) -> JsonValue:
    """Raises `JsonPointerException` when nothing is there."""
    found = JsonPointer(pointer).resolve(document)
    if isinstance(found, EndOfList):
        raise JsonPointerException("'-' is behind the last element")
    return cast("JsonValue", found)


Reference = tuple[str, str]
"""A step's id and a pointer into its result."""


def _check_size(found: Iterable[Reference], values: Mapping[Reference, JsonValue]) -> None:
    """Raises `InvalidArguments` if the values, each as often as it is named, exceed `MAX_ARGUMENT_BYTES`."""
    total = 0
    for (step_id, pointer), times in Counter(found).items():
        size = measure_at_least(values[step_id, pointer], MAX_ARGUMENT_BYTES)
        total += size * times
        if total > MAX_ARGUMENT_BYTES:
            often = f"{times} times " if times > 1 else ""
            raise InvalidArguments(
                f"the arguments would be larger than {MAX_ARGUMENT_BYTES} bytes: they take {pointer[:200]!r} of step "
                f"{step_id!r}, at least {size} bytes, {often}through '$from'; point to the parts that are needed"
            )


def _replace_references(value: JsonValue, values: Mapping[Reference, JsonValue]) -> JsonValue:
    if isinstance(value, list):
        return [_replace_references(child, values) for child in value]
    if not isinstance(value, dict):
        return value
    if "$from" in value:
        return values[read_reference(value)]
    return {key: _replace_references(child, values) for key, child in value.items()}


def _find_value(
    step_id: str, pointer: str, steps: Mapping[str, StepState], parts: Mapping[PartAddress, ArtifactPart]
) -> JsonValue:
    state = steps.get(step_id)
    if state is None:
        raise InvalidArguments(f"'$from' names step {step_id!r}, which is not in the plan")
    if state.status != "completed":
        raise InvalidArguments(f"'$from' names step {step_id!r}, which has no result: it is {state.status}")
    wanted = _find_address(state, pointer)
    if wanted is not None:
        part = parts[wanted]
        if part.fault is not None:
            raise InvalidArguments(f"the pointer {pointer[:200]!r} into the result of step {step_id!r} {part.fault}")
        return part.value
    if too_large := _find_stand_ins(state, pointer):
        sizes = ", ".join(f"{call.tool_name} returned {_read_size(call)} bytes" for call in too_large)
        raise InvalidArguments(
            f"the whole result of step {step_id!r} does not fit into arguments, which may have {MAX_ARGUMENT_BYTES} "
            f"bytes ({sizes}); add a 'pointer' to the part that is needed"
        )
    try:
        return _read_pointer(state.result, pointer)
    except JsonPointerException:
        raise InvalidArguments(f"the result of step {step_id!r} has nothing at {pointer[:200]!r}") from None


def _find_address(state: StepState, pointer: str) -> PartAddress | None:
    """Returns the part of an artifact that the pointer leads to, or None if the log itself holds the value."""
    calls = _list_returned(state)
    if not pointer or state.status != "completed" or all(call.artifact is None for call in calls):
        return None
    if len(calls) == 1:
        return PartAddress(calls[0].artifact or "", pointer)
    # The result of several calls is the list of their results.
    first, _, rest = pointer.removeprefix("/").partition("/")
    call = calls[int(first)] if pointer.startswith("/") and first in map(str, range(len(calls))) else None
    return PartAddress(call.artifact, f"/{rest}") if rest and call is not None and call.artifact is not None else None


def _find_stand_ins(state: StepState, pointer: str) -> list[Call]:
    """Returns the calls whose stand-ins the pointer would copy instead of their results."""
    calls = _list_returned(state)
    taken = calls if not pointer else [call for number, call in enumerate(calls) if pointer == f"/{number}"]
    return [call for call in taken if call.artifact is not None]


def _list_returned(state: StepState) -> list[Call]:
    return [call for call in state.calls if call.status == "succeeded"]


def _read_size(call: Call) -> JsonValue:
    return call.value.get("sizeBytes") if isinstance(call.value, dict) else None
