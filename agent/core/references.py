"""The values of bindings: `resolve` replaces each `{"$from": ...}` in arguments by what it takes from a result.

Pointers are RFC 6901 (https://www.rfc-editor.org/rfc/rfc6901). The engine copies values, so no model retypes them.
If the log holds only a stand-in, the pointer leads into the artifact: `resolve` raises `PartsNeeded`, and a caller that
can read the store calls it again with those parts. What comes from an earlier execution stands in the log already.

With `parse`, the first text that the pointer meets is read as JSON, and the pointer goes on in there.

A few bytes can name a large value many times, so the bytes are counted before anything is put together.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice

from pydantic import JsonValue

from planwarden.agent.common.artifact import is_cut_off
from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.bindings import Earlier, EarlierResult, Reference, find_references, read_reference
from planwarden.agent.core.pointers import (
    MAX_ARGUMENT_BYTES,
    ArtifactPart,
    LeadsNowhere,
    ParsedTexts,
    PartAddress,
    follow,
)
from planwarden.agent.core.state import Call, StepState

MAX_REFERENCES = 1_000
"""Of the arguments of one call."""


class PartsNeeded(Exception):
    """Not an error: the caller has to read these parts before the references can be resolved."""

    def __init__(self, wanted: frozenset[PartAddress]) -> None:
        super().__init__(f"{len(wanted)} part(s) of artifacts")
        self.wanted = wanted


_NONE: Mapping[PartAddress, ArtifactPart] = {}
_NOTHING: Earlier = {}


def resolve(
    arguments: dict[str, JsonValue],
    steps: Mapping[str, StepState],
    parts: Mapping[PartAddress, ArtifactPart] = _NONE,
    earlier: Earlier = _NOTHING,
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
    wanted = (find_address(steps[taken.step_id], taken) for taken in found if taken.step_id in steps)
    if missing := frozenset(part for part in wanted if part is not None and part not in parts):
        raise PartsNeeded(missing)
    texts = ParsedTexts()
    values = {taken: _find_value(taken, steps, parts, earlier, texts) for taken in dict.fromkeys(found)}
    _check_size(found, values)
    return {key: _replace_references(value, values) for key, value in arguments.items()}


def find_result(
    state: StepState, taken: Reference, parts: Mapping[PartAddress, ArtifactPart], texts: ParsedTexts
) -> JsonValue:
    """Returns what the reference takes from the result of a completed step.

    `parts` has the part at its `find_address`.

    Raises:
        InvalidArguments: there is nothing usable at the pointer.
    """
    address = find_address(state, taken)
    step_id, pointer = state.step.step_id, taken.pointer
    if address is None and (too_large := _find_stand_ins(state, pointer)):
        sizes = ", ".join(f"{call.tool_name} returned {_read_size(call)} bytes" for call in too_large)
        raise InvalidArguments(
            f"the whole result of step {step_id!r} does not fit into arguments, which may have {MAX_ARGUMENT_BYTES} "
            f"bytes ({sizes}); add a 'pointer' to the part that is needed"
        )
    try:
        part = ArtifactPart(follow(state.result, taken, texts)) if address is None else parts[address]
    except LeadsNowhere as reason:
        kept = "; the result was too large to be kept whole" if is_cut_off(state.result) else ""
        part = ArtifactPart(fault=f"{reason}{kept}")
    if part.fault is not None:
        raise InvalidArguments(f"the pointer {pointer[:200]!r} into the result of step {step_id!r} {part.fault}")
    return part.value


def _check_size(found: Iterable[Reference], values: Mapping[Reference, JsonValue]) -> None:
    """Raises `InvalidArguments` if the values, each as often as it is named, exceed `MAX_ARGUMENT_BYTES`."""
    total = 0
    for taken, times in Counter(found).items():
        size = measure_at_least(values[taken], MAX_ARGUMENT_BYTES)
        total += size * times
        if total > MAX_ARGUMENT_BYTES:
            often = f"{times} times " if times > 1 else ""
            raise InvalidArguments(
                f"the arguments would be larger than {MAX_ARGUMENT_BYTES} bytes: they take {taken.pointer[:200]!r} "
                f"of step {taken.step_id!r}, at least {size} bytes, {often}through '$from'; point to the parts that "
                "are needed"
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
    taken: Reference,
    steps: Mapping[str, StepState],
    parts: Mapping[PartAddress, ArtifactPart],
    earlier: Earlier,
    texts: ParsedTexts,
) -> JsonValue:
    state = steps.get(taken.step_id)
    if state is not None and state.status == "completed":
        return find_result(state, taken, parts, texts)
    if state is not None:
        raise InvalidArguments(f"'$from' names step {taken.step_id!r}, which has no result: it is {state.status}")
    known = earlier.get(taken)
    if not isinstance(known, EarlierResult):
        raise InvalidArguments(f"'$from' names step {taken.step_id[:64]!r}, which is not in the plan")
    return known.value


def find_address(state: StepState, taken: Reference) -> PartAddress | None:
    """Returns the part of an artifact that the pointer leads to, or None if the log itself holds the value."""
    calls, pointer = _list_returned(state), taken.pointer
    if state.status != "completed" or all(call.artifact is None for call in calls):
        return None
    if len(calls) == 1:
        needed = pointer or taken.parse
        return PartAddress(calls[0].artifact or "", pointer, taken.parse) if needed else None
    # The result of several calls is the list of their results.
    first, _, rest = pointer.removeprefix("/").partition("/")
    call = calls[int(first)] if pointer.startswith("/") and first in map(str, range(len(calls))) else None
    if call is None or call.artifact is None or not (rest or taken.parse):
        return None
    return PartAddress(call.artifact, f"/{rest}" if rest else "", taken.parse)


def _find_stand_ins(state: StepState, pointer: str) -> list[Call]:
    """Returns the calls whose stand-ins the pointer would copy instead of their results."""
    calls = _list_returned(state)
    taken = calls if not pointer else [call for number, call in enumerate(calls) if pointer == f"/{number}"]
    return [call for call in taken if call.artifact is not None]


def _list_returned(state: StepState) -> list[Call]:
    return [call for call in state.calls if call.status == "succeeded"]


def _read_size(call: Call) -> JsonValue:
    return call.value.get("sizeBytes") if isinstance(call.value, dict) else None
