"""Earlier calls of the same item: what calls of a loop take from each other, and the order that follows from it.

`{"$from": "item", "call": 0, "pointer": "/email"}` takes the result of the first call of the same item. A call that
takes a result waits until the calls before it were made for all items. The calls between two such waits are a wave.
When a call of a wave needs a person, what the calls of all items will do is known, and one question has a row for each.
"""

import json
from collections.abc import Iterator, Sequence

from planwarden.agent.common.struct import FrozenStruct, JsonValue
from planwarden.agent.core.binding.bindings import ITEM, Reference, find_references
from planwarden.agent.core.plan.plan import PlannedCall, PlanStep

EXAMPLE = json.dumps(Reference(ITEM, "/email", call=0).to_json())


class ItemOrder(FrozenStruct):
    """In which order the calls of a loop are made. Calls of an item are counted from 0."""

    takes: tuple[tuple[int, ...], ...] = ()
    """For each call of an item: the earlier ones whose results it takes."""
    ends: tuple[int, ...] = ()
    """For each wave: the first call of an item that does not belong to it or to a wave before."""


def find_item_order(calls: Sequence[PlannedCall]) -> ItemOrder:
    """Return the order of the calls that are made for each item."""
    takes: list[tuple[int, ...]] = []
    ends: list[int] = []
    for number, planned in enumerate(calls):
        sources = {reference.call for reference in find_references(planned.arguments) if reference.call is not None}
        takes.append(tuple(sorted(sources)))
        if any(other >= (ends[-1] if ends else 0) for other in sources):
            ends.append(number)
    return ItemOrder(takes=tuple(takes), ends=(*ends, len(calls)))


def find_item_call_faults(step: PlanStep) -> Iterator[str]:
    """Yield a sentence for each binding of the step that takes the result of a call which it cannot take."""
    outside: list[JsonValue] = [condition.value for condition in step.when]
    if step.loop is not None:
        outside.append(step.loop.items)
    for reference in find_references(outside):
        if reference.call is not None:
            yield f"'call' works only in the arguments of 'toolCalls' of a loop, as in {EXAMPLE}"
    for number, planned in enumerate(step.tool_calls):
        for reference in find_references(planned.arguments):
            if reference.call is not None and (fault := _find_fault(step, number, reference, reference.call)):
                yield f"toolCalls[{number}]: {fault}"


def _find_fault(step: PlanStep, number: int, reference: Reference, call: int) -> str | None:
    if reference.step_id != ITEM:
        step_id = reference.step_id[:64]
        return f"'call' goes with \"item\", not with step {step_id!r}: {EXAMPLE} takes an earlier call of the same item"
    if step.loop is None:
        return "'call' takes an earlier call of the same item, and the step has no 'forEach'"
    if number == 0:
        return f"no call comes before it; put the call that finds the value first, and {EXAMPLE} into a later one"
    if not 0 <= call < number:
        right = json.dumps(reference._replace(call=number - 1, pointer=reference.pointer[:200]).to_json())
        choice = "0" if number == 1 else f"0 to {number - 1}"
        return f"'call' is {str(call)[:20]}, and an earlier call of the same item is {choice}, counted from 0: {right}"
    return None
