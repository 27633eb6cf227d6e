"""TAEF: which required tools the log proves for a step, and which arguments are placeholders.

Only recorded, successful results count, over the whole history of the step. What a model wrote about a tool does not.
Names and rules are those of the Tool-Aware Execution Framework, described in docs/concepts.md.
"""

import re
from collections.abc import Iterator

from pydantic import JsonValue

from planwarden.agent.core.state import StepState

_EXAMPLE_ADDRESS = re.compile(
    r"(?:https?://)?(?:[\w.-]+\.)?example\.(?:com|org|net)(?::\d+)?(?:[/?#].*)?|[^@\s]+@(?:[\w-]+\.)*example\.(?:com|org|net)",
    re.IGNORECASE | re.DOTALL,
)
_ANGLE_BRACKETS = re.compile(r"<[^<>]{1,200}>")
_MARKER = re.compile(r"(?:TODO|TBD|FIXME|PLACEHOLDER)(?:\W.*)?", re.DOTALL)


def find_missing_tools(step: StepState) -> tuple[str, ...]:
    """Returns the required tools, in the plan's order, that have no recorded, successful result in this step."""
    proven = {call.tool_name for call in step.calls if call.status == "succeeded"}
    return tuple(name for name in step.step.required_tools if name not in proven)


def find_placeholders(arguments: JsonValue, path: str = "") -> Iterator[str]:
    """Yields one sentence for each value that stands for something the writer did not know.

    A value is a placeholder only as a whole: a sentence that mentions example.com is text, a URL on example.com is a
    placeholder. References are skipped, because their values come from a tool.
    """
    if isinstance(arguments, dict):
        if "$from" in arguments:
            return
        for key, value in arguments.items():
            yield from find_placeholders(value, f"{path}/{key}")
    elif isinstance(arguments, list):
        for index, value in enumerate(arguments):
            yield from find_placeholders(value, f"{path}/{index}")
    elif isinstance(arguments, str):
        text = arguments.strip()
        if _EXAMPLE_ADDRESS.fullmatch(text):
            yield f"{path} is {text[:80]!r}, an example address, not a real one"
        elif _ANGLE_BRACKETS.fullmatch(text):
            yield f"{path} is the placeholder {text[:80]!r}"
        elif _MARKER.fullmatch(text):
            yield f"{path} is {text[:80]!r}, not a value"


def find_empty_lists(arguments: JsonValue, results: tuple[JsonValue, ...]) -> Iterator[str]:
    """Yields one sentence for each empty list at the top level if an earlier step returned a list with entries."""
    if not isinstance(arguments, dict) or not any(_has_entries(result) for result in results):
        return
    for key, value in arguments.items():
        if value == []:
            yield f"/{key} is empty although earlier steps returned data for it"


def _has_entries(result: JsonValue) -> bool:
    if isinstance(result, dict):
        return any(isinstance(value, list) and value for value in result.values())
    return isinstance(result, list) and bool(result)
