"""Placeholders: values that stand for something the writer did not know."""

import re
from collections.abc import Iterator

from pydantic import JsonValue

_EXAMPLE_ADDRESS = re.compile(
    r"(?:https?://)?(?:[\w.-]+\.)?example\.(?:com|org|net)(?::\d+)?(?:[/?#].*)?|[^@\s]+@(?:[\w-]+\.)*example\.(?:com|org|net)",
    re.IGNORECASE | re.DOTALL,
)
_ANGLE_BRACKETS = re.compile(r"<[^<>]{1,200}>")
_MARKER = re.compile(r"(?:TODO|TBD|FIXME|PLACEHOLDER)(?:\W.*)?", re.DOTALL)


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
