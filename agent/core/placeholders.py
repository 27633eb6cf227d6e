"""Placeholders: values that stand for something the writer did not know."""

import re
from collections.abc import Iterator
from itertools import islice

from planwarden.agent.common.struct import JsonValue

_EXAMPLE_ADDRESS = re.compile(
    r"(?:https?://)?(?:[\w.-]+\.)?example\.(?:com|org|net)(?::\d+)?(?:[/?#].*)?|[^@\s]+@(?:[\w-]+\.)*example\.(?:com|org|net)",
    re.IGNORECASE | re.DOTALL,
)
_ANGLE_BRACKETS = re.compile(r"<[^<>]{1,200}>")
_MARKERS = ("TODO", "TBD", "FIXME", "PLACEHOLDER")
_MARKER = re.compile(rf"(?:{'|'.join(_MARKERS)})(?:\W.*)?", re.DOTALL)


MAX_CHARS = 2_000
"""A longer text is no placeholder, whatever it begins with."""
MAX_VALUES = 20_000
"""Values that one search looks at."""


def find_placeholders(arguments: JsonValue) -> Iterator[str]:
    """Yields one sentence for each value that stands for something the writer did not know.

    A value is a placeholder only as a whole: a sentence that mentions example.com is text, a URL on example.com is a
    placeholder. Bindings are skipped, because their values come from a tool.
    """
    for path, text in islice(_list_texts(arguments, ""), MAX_VALUES):
        if len(text) > MAX_CHARS:
            continue
        text = text.strip()
        if "example." in text.casefold() and _EXAMPLE_ADDRESS.fullmatch(text):
            yield f"{path} is {text[:80]!r}, an example address, not a real one"
        elif text.startswith("<") and _ANGLE_BRACKETS.fullmatch(text):
            yield f"{path} is the placeholder {text[:80]!r}"
        elif text.startswith(_MARKERS) and _MARKER.fullmatch(text):
            yield f"{path} is {text[:80]!r}, not a value"


def _list_texts(value: JsonValue, path: str) -> Iterator[tuple[str, str]]:
    """Yields each text in the value, in its order, with its path."""
    parts = ()
    if isinstance(value, dict) and "$from" not in value and "$text" not in value:
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    for key, child in parts:
        if isinstance(child, str):
            yield f"{path}/{key}", child
        else:
            yield from _list_texts(child, f"{path}/{key}")
