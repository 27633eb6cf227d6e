"""The saved plans that a plan can use: what the core knows of them, and how a prompt lists them.

They are read outside, all at one moment, and come in as an argument. What a plan took from them stands in the event
that accepts it, so no fold of a log looks at them again.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

from planwarden.agent.common.errors import UnknownPlan
from planwarden.agent.common.struct import JsonValue

MAX_LISTED = 30
"""Plans in a planning prompt."""
MAX_LISTED_CHARS = 4_000
"""Of their lines together."""
MAX_NAMED_CHARS = 1_000
"""Of the lines in the prompt of a step."""
MAX_SUMMARY_CHARS = 120
MAX_INPUTS = 12
MAX_INPUT_CHARS = 40
_WORD = re.compile(r"\w{3,}")


class UsablePlan(Protocol):
    """A saved plan as its file is now."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str | None: ...
    @property
    def description(self) -> str | None: ...
    @property
    def inputs(self) -> dict[str, JsonValue] | None: ...
    @property
    def document(self) -> dict[str, JsonValue]: ...
    @property
    def digest(self) -> str: ...


class UsablePlans(Protocol):
    """All of them at one moment."""

    @property
    def plans(self) -> Sequence[UsablePlan]:
        """By name."""
        ...

    def find(self, name: str) -> UsablePlan:
        """Returns the plan. Raises `UnknownPlan`, which says what there is, or that its file cannot be used."""
        ...


class NoPlans:
    """What can be used where nobody keeps plans."""

    @property
    def plans(self) -> Sequence[UsablePlan]:
        return ()

    def find(self, name: str) -> UsablePlan:
        raise UnknownPlan(f"there is no saved plan {name[:64]!r}: no folder of plans has one")


class UsablePlansNeeded(Exception):
    """Not an error: the same can be asked again with the saved plans as they are now."""


def choose_plans(plans: UsablePlans, goal: str) -> list[UsablePlan]:
    """Returns the plans that a prompt lists: all if they are few, else those with most words of the goal."""
    if len(plans.plans) <= MAX_LISTED:
        return list(plans.plans)
    wanted = _find_words(goal)
    ranked = sorted(plans.plans, key=lambda plan: -len(wanted & _find_words(f"{plan.name} {_find_summary(plan)}")))
    return ranked[:MAX_LISTED]


def write_plan_lines(chosen: Sequence[UsablePlan], limit: int, *, described: bool) -> list[str]:
    """Returns one line for each plan, such as `remind(customer, days?): Remind a customer`, in `limit` characters.

    Names of inputs and descriptions are text from outside: whoever shows the lines puts them between markers.
    """
    lines: list[str] = []
    for plan in chosen:
        summary = _find_summary(plan) if described else ""
        line = f"{plan.name}({', '.join(_list_inputs(plan))})" + (f": {summary}" if summary else "")
        limit -= len(line) + 1
        if limit < 0:
            break
        lines.append(line)
    return lines


def _list_inputs(plan: UsablePlan) -> Iterator[str]:
    """Yields the names of the inputs; with a question mark where a run need not be given one."""
    schema = plan.inputs or {}
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    for name, entry in islice(properties.items() if isinstance(properties, dict) else (), MAX_INPUTS):
        has_default = isinstance(entry, dict) and "default" in entry
        yield _cut_line(name, MAX_INPUT_CHARS) + ("" if name in needed and not has_default else "?")


def _find_summary(plan: UsablePlan) -> str:
    text = plan.description or plan.title or ""
    return _cut_line(text.strip().partition("\n")[0], MAX_SUMMARY_CHARS)


def _cut_line(text: str, limit: int) -> str:
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def _find_words(text: str) -> set[str]:
    return set(_WORD.findall(text[:10_000].casefold()))
