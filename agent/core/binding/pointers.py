"""Follow a JSON pointer (RFC 6901, https://www.rfc-editor.org/rfc/rfc6901) into a result, and into JSON text in it.

With `parse`, the first text that the pointer reaches is read as JSON, and the rest of the pointer leads into that JSON.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import cast

import msgspec
from jsonpointer import JsonPointer, JsonPointerException

from planwarden.agent.common.artifact import INLINE_VALUES, JSON_TYPE, Artifact
from planwarden.agent.common.canonical import exceeds, is_larger, measure_encoded, read_json
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import Reference

MAX_ARGUMENT_BYTES = 256 * 1024
MAX_LISTED = 10_000
"""The most items that a loop goes through."""
MAX_LIST_BYTES = 4 * 1024 * 1024
MAX_LIST_VALUES = 200_000
"""The most values in a loop's list; each of its items must also be small enough for arguments."""
MAX_KEYS = 10
MAX_KEY_CHARS = 64
MAX_PARSED_CHARS = 256 * 1024
"""The most characters of text from the log that the bindings of one call read as JSON."""


class PartAddress(msgspec.Struct, frozen=True):
    """The address of a part of an artifact."""

    artifact_id: str
    pointer: str
    parse: str = ""
    """As in `Reference`."""
    may_be_list: bool = False
    """Whether the part is read before a step begins, so that it may be a loop's list: see `find_list_fault`."""


class ArtifactPart(msgspec.Struct, frozen=True):
    """The value at a `PartAddress`, or why there is none."""

    value: JsonValue = None
    fault: str | None = None
    """Why there is no value, as the end of a sentence about the pointer."""
    is_absent: bool = False
    """Whether nothing is there; False if something is there that cannot be used."""


class LeadsNowhere(Exception):
    """Why a pointer leads to no value, as the end of a sentence about the pointer."""

    def __init__(self, reason: str, *, is_absent: bool = False) -> None:
        """Take `is_absent` as in `ArtifactPart`."""
        super().__init__(reason)
        self.is_absent = is_absent


class ParsedTexts:
    """Reads texts as JSON, each of them once, up to `max_chars` characters in all."""

    def __init__(self, max_chars: int | None = MAX_PARSED_CHARS) -> None:
        self._left = max_chars
        self._values: dict[str, JsonValue] = {}

    def parse(self, text: str) -> JsonValue:
        """Return the value of a JSON text. Raises `LeadsNowhere` if it is not JSON, or too large."""
        if text not in self._values:
            if self._left is not None and len(text) > self._left:
                raise LeadsNowhere(
                    f"leads to text that is too large: one call's bindings read at most {MAX_PARSED_CHARS} characters "
                    "of JSON"
                )
            self._left = None if self._left is None else self._left - len(text)
            try:
                self._values[text] = read_json(text)
            except (InvalidArguments, LimitExceeded) as error:
                raise LeadsNowhere(f"leads to text that cannot be read as JSON: {error.message}") from None
        return self._values[text]


def follow(document: JsonValue, reference: Reference, texts: ParsedTexts) -> JsonValue:
    """Return the value at the pointer. Raises `LeadsNowhere` if there is no value, or it cannot be read."""
    try:
        pointer = JsonPointer(reference.pointer)
    except JsonPointerException:
        raise LeadsNowhere("is not a JSON pointer (RFC 6901), such as '/results/0/url'") from None
    wants_text = bool(reference.parse)
    for token in (*cast("Sequence[str]", pointer.parts), None):
        if wants_text and isinstance(document, str):
            document, wants_text = texts.parse(document), False
        if token is None:
            break
        if isinstance(document, str):
            raise LeadsNowhere(_explain_text(reference), is_absent=True)
        if not isinstance(document, dict | list) or (isinstance(document, list) and token == "-"):
            raise LeadsNowhere(f"has nothing there{_describe_parts(document)}", is_absent=True)
        try:
            document = cast("JsonValue", pointer.walk(document, token))
        except JsonPointerException:
            raise LeadsNowhere(f"has nothing there{_describe_parts(document)}", is_absent=True) from None
    if wants_text:
        raise LeadsNowhere("meets no text that could be read as JSON; leave 'parse' out")
    return document


def _describe_parts(document: JsonValue) -> str:
    """Return, as the end of a sentence, what is there instead of the part that the pointer names."""
    if isinstance(document, list):
        return f": the list has {len(document)} entr{'y' if len(document) == 1 else 'ies'}"
    return f": the object has only {describe_keys(document)}" if isinstance(document, dict) and document else ""


def describe_keys(keys: Iterable[str], before: str = "") -> str:
    """Return the first keys, cut and quoted, each with `before` in front of it."""
    return ", ".join(repr(f"{before}{key[:MAX_KEY_CHARS]}") for key in islice(keys, MAX_KEYS))


def find_part(document: JsonValue, reference: Reference, texts: ParsedTexts) -> ArtifactPart:
    """Return the value at the pointer, or why there is none."""
    try:
        return ArtifactPart(follow(document, reference, texts))
    except LeadsNowhere as reason:
        return ArtifactPart(fault=str(reason), is_absent=reason.is_absent)


def _explain_text(reference: Reference) -> str:
    if reference.parse:
        return "leads into text"
    example = json.dumps(Reference(reference.step_id[:64], reference.pointer[:200], "json").to_json())
    return f'leads into text, which has no parts; if the text is JSON, add "parse": "json", as in {example}'


def read_parts(artifact: Artifact, addresses: Iterable[PartAddress]) -> dict[PartAddress, ArtifactPart]:
    """Return the artifact's part at each address."""
    if artifact.media_type != JSON_TYPE:
        return dict.fromkeys(addresses, ArtifactPart(fault=f"leads into {artifact.media_type}, which is not JSON"))
    document, texts = cast("JsonValue", json.loads(artifact.data)), ParsedTexts(None)
    return {address: _read_part(document, address, texts) for address in addresses}


def _read_part(document: JsonValue, address: PartAddress, texts: ParsedTexts) -> ArtifactPart:
    part = find_part(document, Reference("STEP", address.pointer, address.parse), texts)
    value = part.value
    if address.may_be_list and isinstance(value, list):
        fault = find_list_fault(value)
        return part if fault is None else ArtifactPart(fault=fault)
    # Counting costs little, so only a value that passes the count is encoded.
    if exceeds(value, INLINE_VALUES, MAX_ARGUMENT_BYTES) or is_larger(value, MAX_ARGUMENT_BYTES):
        limit = f"{MAX_ARGUMENT_BYTES} bytes or {INLINE_VALUES} values"
        return ArtifactPart(fault=f"leads to more than {limit}; point to the part that is needed")
    return part


def find_list_fault(items: list[JsonValue]) -> str | None:
    """Return why a loop cannot go through the items, as the end of a sentence about the pointer; None if it can."""
    if len(items) > MAX_LISTED:
        return f"leads to {len(items)} items, and a loop has at most {MAX_LISTED}"
    if exceeds(items, MAX_LIST_VALUES, MAX_LIST_BYTES):
        return f"leads to a list of more than {MAX_LIST_BYTES} bytes or {MAX_LIST_VALUES} values"
    total = 0
    for index, item in enumerate(items):
        size = measure_encoded(item)
        if size > MAX_ARGUMENT_BYTES:
            return f"leads to a list whose item at index {index} has more than {MAX_ARGUMENT_BYTES} bytes"
        total += size
    return f"leads to a list of more than {MAX_LIST_BYTES} bytes" if total > MAX_LIST_BYTES else None
