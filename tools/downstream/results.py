"""Turns a downstream server's result into the JSON that the log stores.

Structured content is the result itself, so that other steps can refer to its parts. Blocks that add something to it are
kept beside it. Without structured content, a single text is the result, and anything else is `{"content": [...]}` with
the blocks in order. Text stays text: it is parsed only to compare it with the structured content, and never followed.
Binary content is base64 up to a limit; beyond the limit only its type, size and hash are kept.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from planwarden.agent.common.artifact import INLINE_BYTES, INLINE_VALUES, ResultWithArtifacts
from planwarden.agent.common.canonical import exceeds
from planwarden.agent.common.errors import ToolError
from planwarden.tools.downstream.value_counter import MAX_VALUES

MAX_MEDIA_CHARS = 768 * 1024
"""The most base64 characters in all blocks of one result together."""
MAX_BLOCKS = 1_000
MAX_ERROR_CHARS = 1_000
_KEYS: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "image": ("mimeType", "data"),
    "audio": ("mimeType", "data"),
    "resource_link": ("uri", "name", "title", "description", "mimeType", "size"),
    "resource": ("resource",),
}
_RESOURCE_KEYS = ("uri", "mimeType", "text", "blob")


def build_result(content: Sequence[Mapping[str, JsonValue]], structured: JsonValue) -> JsonValue | ResultWithArtifacts:
    """Return the result of a call that succeeded. `content` has its blocks in the form that the server sent."""
    blocks = _read_blocks(content)
    if structured is not None:
        more: list[JsonValue] = [block for block in blocks if not _repeats(block, structured)]
        return ResultWithArtifacts(value=structured, artifacts=(), beside=more) if more else structured
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return blocks[0]["text"]
    return {"content": list[JsonValue](blocks)}


def read_whole_result(name: str, result: dict[str, JsonValue]) -> JsonValue:
    """Return the result of a gated call as its server sent it.

    Raises `ToolError`: it is not a tool's result, or reports a failure; the error then holds it, unless it is large.
    """
    content = result.get("content")
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise ToolError(f"{name} ran, but what its server answered is not a tool's result")
    if result.get("isError") is not True:
        return result
    text = read_error_text([block for block in content if isinstance(block, dict)])
    beside = result if not exceeds(result, INLINE_VALUES, INLINE_BYTES // 4) else None
    raise ToolError(f"{name} reports an error: {text[:MAX_ERROR_CHARS]}", beside=beside)


def read_error_text(content: Sequence[Mapping[str, JsonValue]]) -> str:
    """Return the text of a result that the server marks as an error."""
    texts = [str(block.get("text", "")) for block in content[:MAX_BLOCKS] if block.get("type") == "text"]
    return " ".join(text for text in texts if text) or "no reason was given"


def _read_blocks(content: Sequence[Mapping[str, JsonValue]]) -> list[dict[str, JsonValue]]:
    chars_left = MAX_MEDIA_CHARS
    blocks: list[dict[str, JsonValue]] = []
    for block in content[:MAX_BLOCKS]:
        kind = str(block.get("type"))
        result: dict[str, JsonValue] = {"type": kind}
        result |= {key: block[key] for key in _KEYS.get(kind, ()) if block.get(key) is not None}
        resource = result.get("resource")
        if isinstance(resource, dict):
            holder = {key: resource[key] for key in _RESOURCE_KEYS if resource.get(key) is not None}
            result["resource"] = holder
            chars_left = _limit_blob(holder, "blob", chars_left)
        else:
            chars_left = _limit_blob(result, "data", chars_left)
        blocks.append(result)
    if len(content) > MAX_BLOCKS:
        blocks.append({"type": "text", "text": f"[{len(content) - MAX_BLOCKS} more blocks were left out]"})
    return blocks


def _limit_blob(holder: dict[str, JsonValue], key: str, chars_left: int) -> int:
    """Replace a blob beyond the limit, in place, with its size and hash. Return what is left of the limit."""
    data = holder.get(key)
    if not isinstance(data, str):
        return chars_left
    if len(data) <= chars_left:
        return chars_left - len(data)
    del holder[key]
    try:
        whole = base64.b64decode(data, validate=True)
    except ValueError:
        whole = data.encode("utf-8", "surrogatepass")
    holder |= {"omitted": True, "sizeBytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    return chars_left


def _repeats(block: Mapping[str, JsonValue], structured: JsonValue) -> bool:
    """Return whether the block only repeats the structured content as text, as servers do for older clients."""
    text = block.get("text")
    if block["type"] != "text" or not isinstance(text, str):
        return False
    if isinstance(structured, dict) and list(structured) == ["result"]:
        return structured["result"] == text or _is_json_of(text, structured["result"]) or _is_json_of(text, structured)
    return _is_json_of(text, structured)


def _is_json_of(text: str, value: JsonValue) -> bool:
    # Parsing blocks the event loop. The count may be too high, because it includes commas inside of strings.
    if len(text) > MAX_VALUES and sum(map(text.count, ",[{")) > MAX_VALUES:
        return False
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False
