"""What is wrong with arguments as a plan has them, before anything runs.

Literal values are checked by their tools' schemas, within a limit of work, because planwarden does nothing else during
the check. What a binding will bring is not known yet: everything around it is checked.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from pydantic import JsonValue

from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.core.binding.bindings import (
    Earlier,
    EarlierNeeded,
    EarlierResult,
    Path,
    Reference,
    is_plain,
    leave_out_bindings,
)
from planwarden.agent.core.binding.placeholders import list_texts, search
from planwarden.agent.core.plan.checks.bindings import suggest_binding
from planwarden.agent.core.plan.plan import ArgumentCheck

MAX_FAULTS = 50
MAX_BOUND = 1_000
"""Bindings of one plan to earlier executions."""
MAX_EARLIER_BYTES = 1024 * 1024
"""Of the values of these bindings together."""
CHECK_LIMIT = 2_500_000
"""Units of `schema_cost` for the literal arguments of one plan. Calls beyond it are checked when their turn comes."""


class WrittenCall(NamedTuple):
    """A call of a plan."""

    step_id: str
    tool_name: str
    arguments: dict[str, JsonValue]

    def __str__(self) -> str:
        return f"step {self.step_id!r}, {self.tool_name}"


def find_argument_faults(calls: Iterable[WrittenCall], checks: Mapping[str, ArgumentCheck | None]) -> list[str]:
    """Return what the tools' schemas find in the arguments, at most `MAX_FAULTS` sentences."""
    faults: list[str] = []
    work_left = CHECK_LIMIT
    for call in calls:
        check = checks.get(call.tool_name)
        if check is None:
            continue
        if work_left <= 0 or len(faults) >= MAX_FAULTS:
            break
        bound: list[Path] = []
        filled = call.arguments
        if not is_plain(filled):
            filled = {key: leave_out_bindings(value, bound, (key,)) for key, value in filled.items()}
        call_faults, work = check(filled, bound, work_left)
        work_left -= work
        if call_faults:
            faults.extend(f"{call}: {fault}" for fault in call_faults)
    return faults[:MAX_FAULTS]


def list_placeholders(calls: Iterable[WrittenCall]) -> list[str]:
    """Return a sentence for each value that the writer did not know and filled in for show, at most `MAX_FAULTS`."""
    texts = ((call, path, text) for call in calls for path, text in list_texts(call.arguments))
    return list(islice((f"{call}: {fault}" for call, fault in search(texts)), MAX_FAULTS))


def find_foreign_faults(
    foreign: Mapping[Reference, str], earlier: Earlier | None, names: Collection[str]
) -> Iterator[str]:
    """Yield why bindings to earlier executions of the thread cannot be had; `names` are what this plan has.

    Raises:
        EarlierNeeded: some were not looked up yet.
    """
    if earlier is None:
        for reference, step_id in foreign.items():
            fault = f"step {step_id!r} refers to unknown step(s) {reference.step_id[:64]!r}"
            right = suggest_binding(reference.step_id, names, reference.pointer)
            hint = "to take the result of an earlier execution, run the plan on its thread"
            yield f"{fault}; {hint if right is None else f'write {right}'}"
        return
    if len(foreign) > MAX_BOUND:
        yield f"the plan takes {len(foreign)} values from earlier executions, the limit is {MAX_BOUND}"
        return
    if missing := foreign.keys() - earlier.keys():
        raise EarlierNeeded(frozenset(missing))
    results = {reference: earlier[reference] for reference in foreign}
    for reference, why in results.items():
        right = suggest_binding(reference.step_id, names, reference.pointer) if isinstance(why, str) else None
        if isinstance(why, str):
            yield f"step {foreign[reference]!r}: {why}" + (f"; write {right}" if right is not None else "")
    values = [result.value for result in results.values() if isinstance(result, EarlierResult)]
    if measure_at_least(values, MAX_EARLIER_BYTES) > MAX_EARLIER_BYTES:
        yield (
            f"the values that the plan takes from earlier executions have more than {MAX_EARLIER_BYTES} bytes "
            "together; point to the parts that are needed"
        )
