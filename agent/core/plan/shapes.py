"""Shapes: what is known about a value before the run, as the JSON Schema that the value will fit.

The shape of a call's result comes from its tool's output schema, that of an input from the plan's `inputs`, and that of
an item from its list. Nothing is known about the text of a model or the results of a tool without an output schema.
"""

from collections.abc import Mapping
from typing import NamedTuple

from planwarden.agent.common.schema_defaults import read_properties
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import INPUTS, ITEM, ITEM_INDEX, Reference, has_bindings, read_reference
from planwarden.agent.core.binding.conditions import JsonSchema, is_closed, list_types
from planwarden.agent.core.binding.pointers import describe_keys
from planwarden.agent.core.plan.inputs import close_schema
from planwarden.agent.core.plan.plan import Plan, PlannedCall, PlanStep, ToolFacts

MAX_QUOTED = 64
MAX_LITERALS = 1_000
"""The longest literal list of objects whose keys are collected."""
_ELSEWHERE = frozenset({"$ref", "$dynamicRef", "anyOf", "oneOf", "allOf", "if", "not"})
"""Keywords that may say more about the type of a value; nothing is concluded from a schema that has one."""


_ANSWER: JsonSchema = {"approved": {"type": "boolean"}, "reason": {"type": "string"}, "modifiedArgs": {}}
"""The properties that a decision has in addition to its `content`."""


class Shape(NamedTuple):
    """What is known about the value that a binding takes."""

    schema: JsonSchema | None = None
    fault: str | None = None
    """Why there can be no value, as the end of a sentence about the pointer."""


class Shapes:
    """What is known about the values in a plan."""

    def __init__(self, plan: Plan, tools: Mapping[str, ToolFacts]) -> None:
        self._plan = plan
        self._steps = {step.step_id: step for step in plan.steps}
        self._tools = tools

    def find(self, reference: Reference, step: PlanStep) -> Shape:
        """Return what is known about the value that a binding of the step takes."""
        if reference.call is not None:
            called = step.tool_calls[reference.call].tool_name if 0 <= reference.call < len(step.tool_calls) else ""
            return _follow(self._find_returned(called), reference)
        return _follow(self._find_source(reference.step_id, step), reference)

    def _find_source(self, name: str, step: PlanStep) -> JsonSchema | None:
        if step.loop is not None and name == ITEM_INDEX:
            return {"type": "integer"}
        if step.loop is not None and name == ITEM:
            return self._find_item(step.loop.items, step)
        if name == INPUTS and self._plan.inputs is not None:
            return close_schema(self._plan.inputs)
        return self._find_result(self._steps[name]) if name in self._steps else None

    def _find_item(self, items: JsonValue, step: PlanStep) -> JsonSchema | None:
        if isinstance(items, list):
            return _describe_entries(items)
        if not isinstance(items, dict) or items.get("$from") in (ITEM, ITEM_INDEX):
            return None
        listed = self.find(read_reference(items), step).schema
        entry = None if listed is None else listed.get("items")
        return entry if isinstance(entry, dict) else None

    def _find_result(self, step: PlanStep) -> JsonSchema | None:
        """Return the shape of the step's result: the value of its only call, or a list of values of calls or items."""
        results = [_describe_form_result(call) or self._find_returned(call.tool_name) for call in step.tool_calls]
        if not results or not {*step.required_tools} <= {call.tool_name for call in step.tool_calls}:
            return None
        # In a loop, each item that failed or was rejected leaves null, so nothing is known about the entries.
        if step.loop is not None or len(results) > 1:
            return {"type": "array"}
        return results[0] if step.tool_validation_mode == "strict" else None

    def _find_returned(self, tool_name: str) -> JsonSchema | None:
        facts = self._tools.get(tool_name)
        return None if facts is None else facts.returns


def _follow(schema: JsonSchema | None, reference: Reference) -> Shape:
    """Return the shape of the part of a value to which the reference's pointer leads."""
    _, *tokens = reference.pointer.split("/")
    for number, token in enumerate(tokens):
        if schema is None or _ELSEWHERE & schema.keys():
            return Shape()
        kinds, token = list_types(schema), token.replace("~1", "/").replace("~0", "~")
        if kinds == ("array",) and not token.isdecimal():
            whole = "".join(f"/{before}" for before in tokens[:number])[:MAX_QUOTED]
            hint = f"write the pointer '{whole}' for the list, or an index, such as '{whole}/0', for an entry"
            return Shape(fault=f"leads into a list by the name {token[:MAX_QUOTED]!r}; {hint}")
        if kinds == ("string",) and reference.parse:
            return Shape()
        if kinds and not {*kinds} & {"object", "array"}:
            return Shape(fault=f"leads into {' or '.join(kinds)}, which has no parts")
        if is_closed(schema) and token not in read_properties(schema):
            return Shape(
                fault=f"leads to nothing: there is no {token[:MAX_QUOTED]!r}, only {_list_names(schema, token)}"
            )
        part = read_properties(schema).get(token) if "object" in kinds else schema.get("items")
        schema = part if isinstance(part, dict) else None
    is_known = schema is not None and not reference.parse and not _ELSEWHERE & schema.keys()
    return Shape(schema if is_known else None)


def _list_names(schema: JsonSchema, token: str) -> str:
    """Return the names in the schema and, if `token` is a property of one of these properties, the pointer to it."""
    properties = read_properties(schema)
    parts = ((name, part) for name, part in properties.items() if isinstance(part, dict))
    deeper = next((f"; write '/{name}/{token}'" for name, part in parts if token in read_properties(part)), "")
    return (describe_keys(properties) or "nothing") + deeper


def _describe_form_result(call: PlannedCall) -> JsonSchema | None:
    """Return the schema of a `requestInput` call's result, if the call's form is in the plan; otherwise None."""
    form = call.arguments.get("form") if call.tool_name == "requestInput" else None
    if not isinstance(form, dict) or not read_properties(form) or has_bindings(form):
        return None
    return {
        "type": "object",
        "properties": {**_ANSWER, "content": {"type": "object", **form}},
        "additionalProperties": False,
    }


def _describe_entries(entries: list[JsonValue]) -> JsonSchema | None:
    """Return the schema that all entries of a literal list fit; None if none is known."""
    if 0 < len(entries) <= MAX_LITERALS and all(isinstance(entry, dict) for entry in entries):
        names = {name for entry in entries if isinstance(entry, dict) for name in entry}
        return {"type": "object", "properties": {name: {} for name in names}, "additionalProperties": False}
    kinds = {"string" if isinstance(entry, str) else "" for entry in entries}
    return {"type": "string"} if kinds == {"string"} else None
