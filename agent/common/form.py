"""Say in sentences what is wrong with the form of data that callers and models send, and show the right form.

`SentForm.tidy` undoes what some clients do to JSON: they send lists and objects as text, and null for what is absent.
`find_form_faults` knows only the JSON Schema keywords that our schemas use, and refuses keys that `properties` lacks.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planwarden.agent.common.canonical import exceeds, read_json
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.common.suggestions import describe_foreign_call, describe_unknown_keys

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

MAX_TEXT_CHARS = 1024 * 1024
"""The most characters of JSON that is sent as text."""
MAX_TEXT_VALUES = 50_000
MAX_QUOTED_CHARS = 60
MAX_PATH_CHARS = 200
MAX_FAULTS = 50

_FENCE = re.compile(r"\s*```[a-zA-Z0-9]{0,16}[ \t\r]*\n(.*)```\s*", re.DOTALL)
"""A Markdown fence around a whole text. Matching takes linear time: its opening line can match in only one way."""

FormSchema = Mapping[str, Any]
KnownKeys = Mapping[str, tuple[str, ...]]

_A_CALL = '{"toolName": "find_order", "arguments": {"order": "A-1"}}'
_A_STEP = f'{{"id": "find", "description": "Find the order", "toolCalls": [{_A_CALL}]}}'
_A_BINDING = '{"$from": "find", "pointer": "/amount"}'
_A_CONDITION = f'{{"value": {_A_BINDING}, "matches": {{"exclusiveMinimum": 5000}}}}'
EXAMPLES: Mapping[str, str] = {
    "plan": f'{{"todoList": [{_A_STEP}]}}',
    "todoList": f"[{_A_STEP}]",
    "toolCalls": f"[{_A_CALL}]",
    "arguments": '{"order": "A-1"}',
    "requiredTools": '["find_order"]',
    "dependencies": '["find"]',
    "confirms": '["send"]',
    "options": '{"waitSeconds": 10}',
    "budgets": '{"toolCalls": 20}',
    "prompts": '{"planning": "..."}',
    "decision": "{}, and the person is asked",
    "approved": "a decision without it, and the person is asked",
    "modifiedArgs": '{"order": "A-2"}',
    "content": f'{{"toolCalls": [{_A_CALL}]}} or {{"content": "..."}}',
    "revise": f'[{{"op": "add", "step": {_A_STEP}, "after": "ask"}}, {{"op": "remove", "id": "send"}}]',
    "names": '["find_order"]',
    "inputs": '{"customer": "A-1"}',
    "when": f"[{_A_CONDITION}]",
    "value": _A_BINDING,
    "matches": '{"exclusiveMinimum": 5000}',
    "retry": '{"attempts": 3}',
}
"""What to write under each key."""
_AT_PATHS = {
    "inputs": '{"type": "object", "properties": {"customer": {"type": "string"}}}',
    "content.content": None,
}
"""What to write at a path, if not what `EXAMPLES` has; None where the refusal of an answer has its own example."""
_LISTS_OF_NAMES = ("requiredTools", "dependencies", "confirms", "names")
"""Lists for which callers often send a single name; the suggestion then shows that name in a list."""
_NESTED = {"object": "{", "array": "["}
"""The types that may be sent as text, each with the first character of its JSON."""
_ENTRIES: Mapping[str, str] = {"todoList": _A_STEP, "toolCalls": _A_CALL, "when": _A_CONDITION}
"""One entry of the list under each key."""

_KINDS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "object": ("an object", (dict,)),
    "array": ("a list", (list,)),
    "string": ("text", (str,)),
    "integer": ("a whole number", (int,)),
    "number": ("a number", (int, float)),
    "boolean": ("true or false", (bool,)),
}


class SentForm:
    """Knows where a schema of sent data has objects and lists, and the objects' keys; reads the schema only once."""

    def __init__(self, schema: FormSchema) -> None:
        choices: tuple[FormSchema, ...] = tuple(schema.get("anyOf", (schema,)))
        kinds = {kind: choice for choice in choices for kind in _NESTED if choice.get("type") == kind}
        self._openings = tuple(_NESTED[kind] for kind in kinds)
        parts: Mapping[str, FormSchema] = kinds.get("object", {}).get("properties", {})
        self._parts = {key: SentForm(part) if _is_nested(part) else None for key, part in parts.items()}
        entry: FormSchema = kinds.get("array", {}).get("items", {})
        self._entry = SentForm(entry) if _is_nested(entry) else None

    def tidy(self, value: JsonValue) -> JsonValue:
        """Return the value without null properties, and with text read as JSON where the schema has objects or lists.

        Other text stays as it is, and so does everything under keys that the schema does not have.

        Raises `LimitExceeded` if the text has too many characters or values, or its JSON is nested too deeply.
        """
        if isinstance(value, str) and self._openings:
            value = _read_text(value, self._openings)
        if isinstance(value, dict) and self._parts:
            parts = self._parts
            return {
                key: part if (form := parts.get(key)) is None else form.tidy(part)
                for key, part in value.items()
                if part is not None or key not in parts
            }
        if isinstance(value, list) and self._entry is not None:
            return list(map(self._entry.tidy, value))
        return value


def _is_nested(schema: FormSchema) -> bool:
    return "anyOf" in schema or schema.get("type") in _NESTED


def _read_text(text: str, openings: tuple[str, ...]) -> JsonValue:
    if len(text) > MAX_TEXT_CHARS:
        raise LimitExceeded(
            f"JSON sent as text has {len(text)} characters, the limit is {MAX_TEXT_CHARS}; send it as JSON"
        )
    fenced = _FENCE.fullmatch(text)
    inner = text if fenced is None else fenced.group(1)
    if not inner.lstrip().startswith(openings):
        return text
    try:
        value = read_json(inner)
    except InvalidArguments:
        return text
    if exceeds(value, MAX_TEXT_VALUES, MAX_TEXT_CHARS):
        raise LimitExceeded(f"JSON sent as text has more than {MAX_TEXT_VALUES} values")
    return value


def find_form_faults(value: JsonValue, schema: FormSchema, where: str) -> Iterator[str]:
    """Yield a sentence for each fault; `where` is the path of the value."""
    key = where.rpartition(".")[2].partition("[")[0]
    kind = schema.get("type")
    if isinstance(kind, str) and not _has_kind(value, kind):
        yield f"{where} must be {_KINDS[kind][0]}, not {describe(value)}{_suggest(key, where, value)}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{where} must be {' or '.join(repr(choice) for choice in schema['enum'])}, not {describe(value)}"
    elif isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        words = {"minimum": "at least", "maximum": "at most"}
        limits = [f"{word} {schema[bound]}" for bound, word in words.items() if bound in schema]
        yield f"{where} must be {' and '.join(limits)}, not {describe(value)}"
    elif isinstance(value, list) and "items" in schema:
        for index, part in enumerate(value):
            yield from find_form_faults(part, schema["items"], f"{where}[{index}]")
    elif isinstance(value, dict) and "properties" in schema:
        yield from _find_object_faults(value, schema, where)


def _find_object_faults(value: dict[str, JsonValue], schema: FormSchema, where: str) -> Iterator[str]:
    parts: FormSchema = schema["properties"]
    unknown = value.keys() - parts.keys()
    if unknown and "toolName" in parts and (foreign := describe_foreign_call(where, value)) is not None:
        yield foreign
        return
    if unknown:
        yield describe_unknown_keys(where, unknown, list(parts))
    for missing in schema.get("required", ()):
        if missing not in value:
            yield f"{where} needs {missing!r}{_suggest(missing, missing)}"
    for name, part in value.items():
        if name in parts:
            yield from find_form_faults(part, parts[name], f"{where}.{name}")


_KINDS_OF_PYDANTIC: Mapping[str, str] = {
    "string_type": "string",
    "int_type": "integer",
    "float_type": "number",
    "bool_type": "boolean",
    "list_type": "array",
    "dict_type": "object",
    "model_type": "object",
}


def list_pydantic_faults(error: "ValidationError", where: str, keys: KnownKeys | None = None) -> list[str]:
    """Return sentences on the first `MAX_FAULTS` faults. Paths begin with `where`; `keys` has valid keys by path."""
    faults, unknown = error.errors(include_url=False)[:MAX_FAULTS], dict[str, list[str]]()
    for fault in faults:
        if fault["type"] == "extra_forbidden":
            unknown.setdefault(_write_path(where, fault["loc"][:-1]), []).append(str(fault["loc"][-1]))
    others = [_describe_pydantic_fault(fault, where) for fault in faults if fault["type"] != "extra_forbidden"]
    return [describe_unknown_keys(path, names, (keys or {}).get(path, ())) for path, names in unknown.items()] + others


def _describe_pydantic_fault(fault: "ErrorDetails", root: str) -> str:
    *parents, last = fault["loc"] or ("",)
    parent = _write_path(root, parents)
    where = _write_path(parent, [last]) if last != "" else parent
    key = next((part for part in reversed(fault["loc"]) if isinstance(part, str)), root)
    limits, value = fault.get("ctx", {}), fault["input"]
    match fault["type"]:
        case "missing":
            return f"{parent} needs {str(last)!r}{_suggest(str(last), where)}"
        case "literal_error":
            return f"{where} must be {limits['expected']}, not {describe(value)}"
        case kind if kind in _KINDS_OF_PYDANTIC:
            words, _ = _KINDS[_KINDS_OF_PYDANTIC[kind]]
            return f"{where} must be {words}, not {describe(value)}{_suggest(key, where, value)}"
        case "string_too_short" | "too_short":
            return f"{where} is empty"
        case "string_too_long":
            return f"{where} has more than {limits['max_length']} characters"
        case "too_long":
            return f"{where} has more than {limits['max_length']} entries"
        case "string_pattern_mismatch" if key == "id":
            name = re.sub(r"[\s:/]+", "_", value[:MAX_QUOTED_CHARS]).strip("_") or "find"
            return f"{where} has a space, a colon or a slash; write a name such as {name!r}"
        case "greater_than_equal" | "less_than_equal" | "greater_than":
            words = {"ge": "at least", "le": "at most", "gt": "more than"}
            [(bound, limit)] = [(word, limits[name]) for name, word in words.items() if name in limits]
            return f"{where} must be {bound} {limit:g}, not {describe(value)}"
        case _:
            return f"{where}: {fault['msg'].removeprefix('Value error, ')}"


def _write_path(root: str, parts: Sequence[str | int]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return f"{root}{path}"[:MAX_PATH_CHARS].removeprefix(".")


def describe(value: JsonValue) -> str:
    """Return what the value is, in a few words, however large it is."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f"the text {json.dumps(value[:MAX_QUOTED_CHARS], ensure_ascii=False)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number with many digits"
    return json.dumps(value)


def _has_kind(value: JsonValue, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS[kind][1])


def _suggest(key: str, where: str, value: JsonValue = None) -> str:
    if key in _LISTS_OF_NAMES and isinstance(value, str) and 0 < len(value) <= MAX_QUOTED_CHARS:
        return f"; send {json.dumps([value], ensure_ascii=False)}"
    example = (_ENTRIES if where.endswith("]") else EXAMPLES).get(key)
    example = _AT_PATHS.get(where, example)
    return f"; send {example}" if example is not None else ""
