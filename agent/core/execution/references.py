"""The values of bindings: `resolve` replaces each `{"$from": ...}` in arguments with the value that it points to.

Pointers are RFC 6901 (https://www.rfc-editor.org/rfc/rfc6901). The engine copies values, so no model retypes them.
If the log has only a stand-in for a large value, `resolve` raises `PartsNeeded`, which names parts of the artifact; a
caller with access to the store reads them and calls `resolve` again. Values from earlier executions are in the log.

A short plan can refer to a large value many times, so the total size is checked before any result is built.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.common.errors import InvalidArguments, Needed
from planwarden.agent.common.schema_cost import ValueSize
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import (
    INPUTS,
    ITEM,
    ITEM_INDEX,
    Binding,
    Earlier,
    EarlierResult,
    Reference,
    fill_template,
    find_bindings,
    read_reference,
    read_with,
)
from planwarden.agent.core.binding.pointers import MAX_ARGUMENT_BYTES, ArtifactPart, ParsedTexts, PartAddress, find_part
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState

MAX_REFERENCES = 1_000
"""The most bindings in the arguments of one call."""


class PartsNeeded(Needed):
    """These parts of artifacts have to be read before the references can be resolved."""

    keys: frozenset[PartAddress]


class AbsentValue(InvalidArguments):
    """A binding points to nothing, or to a step that was skipped or rejected; its default applies, if it has one."""


class BindingSources(msgspec.Struct, frozen=True):
    """Where bindings take their values from."""

    steps: Mapping[str, StepState]
    earlier: Earlier
    own: Mapping[str, JsonValue]
    """The values of `inputs`, `item` and `itemIndex`, as far as the plan or the step has them."""
    parts: Mapping[PartAddress, ArtifactPart]
    """The parts of artifacts that have been read so far."""
    item_calls: Sequence[Call] = ()
    """The calls of the current `item`."""
    takes_lists: bool = False
    """Whether a value may be the list of a loop, for which the limits are larger than for arguments."""
    sizes: dict[str, tuple[JsonValue, ValueSize]] = {}
    """The values that conditions looked at, each with its size, by the text of its binding."""

    def find_step(self, reference: Reference) -> StepState | None:
        """Return the named step, or a copy with just the named call; None if the step or the result is missing."""
        if reference.call is None:
            return None if reference.step_id in self.own else self.steps.get(reference.step_id)
        call = self.item_calls[reference.call] if 0 <= reference.call < len(self.item_calls) else None
        if call is None or call.status != "succeeded":
            return None
        return replace(self.steps[call.step_id], calls=(call,), turns=(), items=None, status="completed")


def list_sources(
    execution: ExecutionState,
    parts: Mapping[PartAddress, ArtifactPart] | None = None,
    item: tuple[JsonValue, int] | None = None,
    item_calls: Sequence[Call] = (),
    *,
    takes_lists: bool = False,
) -> BindingSources:
    """Return the values that bindings of the plan can refer to; `item` is a loop's current item and its index."""
    own: dict[str, JsonValue] = {}
    plan = execution.plan
    if plan is not None and plan.inputs is not None:
        own[INPUTS] = dict(execution.inputs)
    if item is not None:
        own[ITEM], own[ITEM_INDEX] = item
    return BindingSources(execution.steps, execution.earlier, own, parts or {}, item_calls, takes_lists)


def resolve(arguments: dict[str, JsonValue], sources: BindingSources) -> dict[str, JsonValue]:
    """Return the arguments with every binding and template replaced; the same object if there is none.

    Raises:
        InvalidArguments: a step is unknown or unfinished, its result has nothing usable at the pointer, or the
            resolved arguments would be larger than `MAX_ARGUMENT_BYTES`.
        AbsentValue: a binding without a default points to nothing, or to a step that was skipped or rejected.
        PartsNeeded: a binding leads into an artifact, and the sources do not have its value.
    """
    bindings = tuple(islice(find_bindings(arguments), MAX_REFERENCES + 1))
    if not bindings:
        return arguments
    if len(bindings) > MAX_REFERENCES:
        raise InvalidArguments(f"the arguments have more than {MAX_REFERENCES} '$from' references")
    values = find_values(bindings, sources)
    _check_size(bindings, values)
    return {key: _replace_bindings(value, values) for key, value in arguments.items()}


def find_values(bindings: Iterable[Binding], sources: BindingSources) -> dict[Reference, JsonValue]:
    """Return the value of each binding that does not fall back to its default. Raise what `resolve` raises."""
    by_reference = {
        binding.reference: binding for binding in sorted(bindings, key=lambda binding: not binding.has_default)
    }
    steps = ((reference, sources.find_step(reference)) for reference in by_reference)
    addresses = (
        find_address(state, reference, takes_lists=sources.takes_lists)
        for reference, state in steps
        if state is not None
    )
    if missing := {part for part in addresses if part is not None and part not in sources.parts}:
        raise PartsNeeded(missing)
    texts = ParsedTexts()
    values: dict[Reference, JsonValue] = {}
    for reference, binding in by_reference.items():
        try:
            values[reference] = _find_value(reference, sources, texts)
        except AbsentValue:
            if not binding.has_default:
                raise
    return values


def find_result(
    state: StepState,
    reference: Reference,
    parts: Mapping[PartAddress, ArtifactPart],
    texts: ParsedTexts,
    *,
    takes_lists: bool = False,
) -> JsonValue:
    """Return what the reference takes from the result of a completed step.

    If `find_address` returns an address for the same `takes_lists`, `parts` must have the part at that address.

    Raises:
        InvalidArguments: there is nothing usable at the pointer.
    """
    address = find_address(state, reference, takes_lists=takes_lists)
    pointer = reference.pointer
    source = f"step {state.step.step_id!r}" if reference.call is None else f"call {reference.call} of the same item"
    if address is None and (too_large := _find_stand_ins(state, pointer)):
        stand_ins = ((call.tool_name, call.value if isinstance(call.value, dict) else {}) for call in too_large)
        sizes = ", ".join(f"{name} returned {value.get('sizeBytes')} bytes" for name, value in stand_ins)
        raise InvalidArguments(
            f"the whole result of {source} does not fit into arguments, which may have {MAX_ARGUMENT_BYTES} "
            f"bytes ({sizes}); add a 'pointer' to the part that is needed"
        )
    part = find_part(state.result, reference, texts) if address is None else parts[address]
    return _take_value(part, pointer, f"the result of {source}")


def _take_value(part: ArtifactPart, pointer: str, source: str) -> JsonValue:
    if part.fault is not None:
        kind = AbsentValue if part.is_absent else InvalidArguments
        raise kind(f"the pointer {pointer[:200]!r} into {source} {part.fault}")
    return part.value


def _check_size(bindings: Collection[Binding], values: Mapping[Reference, JsonValue]) -> None:
    """Raise `InvalidArguments` if the values, counted once per binding, exceed `MAX_ARGUMENT_BYTES` in total."""
    times = Counter(binding.reference for binding in bindings)
    total = sum(
        measure_at_least(binding.source.get("default"), MAX_ARGUMENT_BYTES)
        for binding in bindings
        if binding.reference not in values
    )
    if total > MAX_ARGUMENT_BYTES:
        raise InvalidArguments(f"the arguments would be larger than {MAX_ARGUMENT_BYTES} bytes with their defaults")
    for reference, value in values.items():
        size = measure_at_least(value, MAX_ARGUMENT_BYTES)
        total += size * times[reference]
        if total > MAX_ARGUMENT_BYTES:
            often = f"{times[reference]} times " if times[reference] > 1 else ""
            raise InvalidArguments(
                f"the arguments would be larger than {MAX_ARGUMENT_BYTES} bytes: they take {reference.pointer[:200]!r} "
                f"of {reference.step_id[:64]!r}, which has at least {size} bytes, {often}through '$from'; point to the "
                "parts that are needed"
            )


def _replace_bindings(value: JsonValue, values: Mapping[Reference, JsonValue]) -> JsonValue:
    if isinstance(value, list):
        return [_replace_bindings(child, values) for child in value]
    if not isinstance(value, dict):
        return value
    if "$from" in value:
        reference = read_reference(value)
        return values[reference] if reference in values else value["default"]
    if "$text" in value:
        return fill_template(value, {name: _replace_bindings(part, values) for name, part in read_with(value).items()})
    return {key: _replace_bindings(child, values) for key, child in value.items()}


def _find_value(reference: Reference, sources: BindingSources, texts: ParsedTexts) -> JsonValue:
    if reference.call is None and reference.step_id in sources.own:
        part = find_part(sources.own[reference.step_id], reference, texts)
        return _take_value(part, reference.pointer, repr(reference.step_id))
    state = sources.find_step(reference)
    if state is not None and state.status == "completed":
        return find_result(state, reference, sources.parts, texts, takes_lists=sources.takes_lists)
    if state is not None:
        kind = AbsentValue if state.status in ("skipped", "rejected") else InvalidArguments
        raise kind(f"'$from' names step {reference.step_id!r}, which has no result: it is {state.status}")
    if reference.call is not None:
        raise InvalidArguments(f"call {reference.call} of the same item has no result")
    earlier = sources.earlier.get(reference)
    if not isinstance(earlier, EarlierResult):
        raise InvalidArguments(f"'$from' names step {reference.step_id[:64]!r}, which is not in the plan")
    return earlier.value


def find_address(state: StepState, reference: Reference, *, takes_lists: bool = False) -> PartAddress | None:
    """Return the address of the artifact part that the pointer leads to; None if the value is taken from the log.

    With `takes_lists`, the part may also be a whole result, namely the list for a loop.
    """
    calls, pointer = _list_returned(state), reference.pointer
    if state.status != "completed" or not calls:
        return None
    call = calls[0]
    if len(calls) > 1:
        # The result of several calls is the list of their results.
        first, _, rest = pointer.removeprefix("/").partition("/")
        call = calls[int(first)] if pointer.startswith("/") and first in map(str, range(len(calls))) else None
        pointer = f"/{rest}" if rest else ""
    if call is None or call.artifact is None or not (pointer or reference.parse or takes_lists):
        return None
    return PartAddress(call.artifact, pointer, reference.parse, takes_lists)


def _find_stand_ins(state: StepState, pointer: str) -> list[Call]:
    """Return the calls for which the pointer would copy a stand-in instead of the real result."""
    calls = _list_returned(state)
    matching = calls if not pointer else [call for number, call in enumerate(calls) if pointer == f"/{number}"]
    return [call for call in matching if call.artifact is not None]


def _list_returned(state: StepState) -> list[Call]:
    return [call for call in state.calls if call.status == "succeeded"]
