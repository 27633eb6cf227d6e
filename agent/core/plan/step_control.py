"""What controls a step, beyond its dependencies: conditions (`when`), a loop (`forEach`), and attempts (`retry`)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planwarden.agent.common.struct import JsonValue, StoredStruct
from planwarden.agent.core.binding.bindings import find_binding_faults
from planwarden.agent.core.binding.conditions import find_matches_faults
from planwarden.agent.core.plan.plan_words import OnItemFailure

# The form of a plan takes long to import, and is needed only where one is handed in.
if TYPE_CHECKING:
    from planwarden.agent.core.plan.plan_input import StepInput

DEFAULT_ITEMS, MAX_ITEMS = 100, 10_000
LOOP_KEYS = ("maxItems", "maxConcurrent", "onItemFailure")
_BINDING = '{"$from": "find", "pointer": "/ids"}'


class Condition(StoredStruct):
    """Holds when the value is there and fits the schema."""

    value: dict[str, JsonValue]
    """A binding."""
    matches: dict[str, JsonValue]
    """A JSON Schema."""


class Loop(StoredStruct):
    """Makes the calls of its step once for each item."""

    items: JsonValue
    """A binding to a list, or a list."""
    max_items: int = DEFAULT_ITEMS
    max_concurrent: int = 1
    on_item_failure: OnItemFailure = "stop"


class RetryPolicy(StoredStruct):
    """How often, and after how long, a call that failed by its tool's own word is made again."""

    attempts: int
    """Calls in all."""
    delay_s: float
    """Seconds before the second attempt."""
    factor: float
    """By which each further wait is longer."""
    max_delay_s: float

    def find_delay_s(self, attempts: int) -> float:
        """Return the seconds to wait after so many attempts."""
        return min(self.max_delay_s, self.delay_s * self.factor ** (attempts - 1))


class StepControl(StoredStruct):
    when: tuple[Condition, ...] = ()
    """All must hold, else the step is skipped."""
    loop: Loop | None = None
    retry: RetryPolicy | None = None


def read_control(entry: "StepInput") -> StepControl | None:
    """Return what controls the step, with defaults; None if nothing does. It has no faults."""
    if entry.forEach is None and entry.retry is None and not entry.when:
        return None
    loop = retry = None
    if entry.forEach is not None:
        loop = Loop(
            items=entry.forEach,
            max_items=entry.maxItems or DEFAULT_ITEMS,
            max_concurrent=entry.maxConcurrent or 1,
            on_item_failure=entry.onItemFailure or "stop",
        )
    if entry.retry is not None:
        retry = RetryPolicy(
            attempts=entry.retry.attempts,
            delay_s=entry.retry.delayS,
            factor=entry.retry.factor,
            max_delay_s=entry.retry.maxDelayS,
        )
    when = tuple(Condition(value=condition.value, matches=condition.matches) for condition in entry.when)
    return StepControl(when=when, loop=loop, retry=retry)


def control_to_json(control: StepControl | None) -> dict[str, JsonValue]:
    """Return the keys of a step from which `read_control` makes an equal value, without defaults."""
    document: dict[str, JsonValue] = {}
    if control is None:
        return document
    if control.when:
        document["when"] = [{"value": condition.value, "matches": condition.matches} for condition in control.when]
    if control.loop is not None:
        loop = control.loop
        document["forEach"] = loop.items
        limits = (("maxItems", loop.max_items, DEFAULT_ITEMS), ("maxConcurrent", loop.max_concurrent, 1))
        document |= {key: value for key, value, default in limits if value != default}
        if loop.on_item_failure != "stop":
            document["onItemFailure"] = loop.on_item_failure
    if control.retry is not None:
        retry = control.retry
        document["retry"] = {
            "attempts": retry.attempts,
            "delayS": retry.delay_s,
            "factor": retry.factor,
            "maxDelayS": retry.max_delay_s,
        }
    return document


def find_control_faults(entry: "StepInput") -> Iterator[str]:
    """Yield what is wrong with the control of a step, one sentence each."""
    for number, condition in enumerate(entry.when):
        yield from (f"when[{number}]: {fault}" for fault in _find_condition_faults(condition.value, condition.matches))
    if entry.forEach is None:
        if stray := [key for key in LOOP_KEYS if getattr(entry, key) is not None]:
            yield f"{', '.join(stray)} without 'forEach'"
        return
    is_bound = isinstance(entry.forEach, dict) and "$from" in entry.forEach
    if not is_bound and not isinstance(entry.forEach, list):
        yield f"'forEach' must be a list, or a binding to one, such as {_BINDING}"
    yield from (f"forEach: {fault}" for fault in find_binding_faults(entry.forEach))
    most = entry.maxItems or DEFAULT_ITEMS
    if isinstance(entry.forEach, list) and len(entry.forEach) > most:
        yield f"'forEach' has {len(entry.forEach)} items, and 'maxItems' is {most}"
    if not entry.toolCalls:
        yield "'forEach' needs 'toolCalls', which are made once for each item"
    tool_names = {call.toolName for call in entry.toolCalls}
    if foreign := [name for name in entry.requiredTools if name not in tool_names]:
        yield f"'requiredTools' of a step with 'forEach' must be in its 'toolCalls': {', '.join(foreign)[:200]}"


def _find_condition_faults(value: dict[str, JsonValue], matches: dict[str, JsonValue]) -> Iterator[str]:
    if "$from" not in value:
        yield f"'value' must be a binding, such as {_BINDING}"
    yield from find_binding_faults(value)
    yield from find_matches_faults(matches)
