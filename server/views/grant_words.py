"""What a grant for a step of a saved plan allows, in words: the same at a terminal, on a question and in the list."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from planwarden.agent.approval.grants import VERSION_DIGITS
from planwarden.agent.core.binding.bindings import INPUTS, ITEM, ITEM_INDEX
from planwarden.server.views.escaping import escape_text


def describe_step_terms(tool_name: str, step_id: str, plan: str, version: str) -> tuple[str, str, str, str]:
    """Return what such a grant is for, escaped: tool, step, the plan's title or name, and the version's beginning."""
    return escape_text(tool_name), escape_text(step_id), escape_text(plan), f"version {version[:VERSION_DIGITS]}"


def name_owner(owner: str | None) -> str:
    """Return whose runs a grant is for, escaped."""
    return "everybody" if owner is None else escape_text(owner)


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
