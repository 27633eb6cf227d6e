"""What a grant for a step of a saved plan allows, in words: the same at a terminal, on a question and in the list."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import msgspec

from planwarden.agent.approval.grants import VERSION_DIGITS, describe_uses_a_day
from planwarden.agent.core.binding.bindings import INPUTS, ITEM, ITEM_INDEX
from planwarden.server.views.escaping import escape_text


class StepTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of such a grant, escaped."""

    tool: str
    step: str
    plan: str
    """Title of the saved plan, or its name."""
    version: str
    """The beginning of the version."""
    uses: int
    """A day."""
    until: str
    """The last day."""
    whose: str
    has_values: bool
    """The grant names values that the arguments must have."""

    @property
    def sentence(self) -> str:
        """All of it."""
        values = " and these values" if self.has_values else ""
        return (
            f"{self.tool} in step {self.step} of the saved plan {self.plan}, {self.version}, with the arguments that "
            f"the plan writes there{values}, at most {describe_uses_a_day(self.uses)}, until {self.until}, in runs of "
            f"{self.whose}; "
            "any change of the plan, the tool or the arguments' source asks again"
        )


def build_step_terms(
    *,
    tool_name: str,
    step_id: str,
    plan: str,
    version: str,
    uses: int,
    ends_at: datetime,
    owner: str | None,
    has_values: bool = False,
) -> StepTerms:
    """Return the terms; `plan` is the title or the name."""
    return StepTerms(
        tool=escape_text(tool_name),
        step=escape_text(step_id),
        plan=escape_text(plan),
        version=f"version {version[:VERSION_DIGITS]}",
        uses=uses,
        until=format_last_day(ends_at),
        whose="everybody" if owner is None else escape_text(owner),
        has_values=has_values,
    )


def describe_names(arguments: Collection[str], free: Sequence[str]) -> str:
    """Return which arguments calls may have: those with the grant's values, those with any, and no other."""
    exact = "exactly these values" if arguments else ""
    some = f"any value of {', '.join(map(escape_text, free))}" if free else ""
    return (
        f"{' and '.join(part for part in (exact, some) if part)}, and no other argument"
        if exact or some
        else ("no arguments")
    )


def format_last_day(ends_at: datetime) -> str:
    """Return the day in UTC of the last moment before `ends_at`, such as `21 February 2027`."""
    last = ends_at - timedelta(seconds=1)
    return f"{last.day} {last:%B %Y}"


def describe_value_source(source: str) -> str:
    """Return whose value an argument takes; `source` is `inputs`, an item's reserved id, or a step."""
    if source == INPUTS:
        return "the run's inputs, which the one who starts it chooses"
    if source in (ITEM, ITEM_INDEX):
        return "the item of the loop"
    return f"step {escape_text(source)}"
