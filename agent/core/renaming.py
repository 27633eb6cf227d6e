"""Puts a prefix before the names of a plan's steps, wherever they stand: a plan within a plan has names of its own.

Copies only what changes. What is malformed stays, for the check of the whole plan to name.
"""

from pydantic import JsonValue

from planwarden.agent.core.bindings import ITEM, ITEM_INDEX

_OF_LOOPS = frozenset({ITEM, ITEM_INDEX})
_IDS = ("dependencies", "confirms")


def rename_step(step: dict[str, JsonValue], prefix: str) -> dict[str, JsonValue]:
    """Returns the step with the prefix before its id, those that it names, and the sources of its bindings."""
    kept = _OF_LOOPS if step.get("forEach") is not None else frozenset[str]()
    renamed = dict(step)
    renamed["id"] = _rename(step.get("id"), prefix)
    for key in _IDS:
        names = step.get(key)
        if isinstance(names, list):
            renamed[key] = [_rename(name, prefix) for name in names]
    for key in ("toolCalls", "forEach"):
        if key in step:
            renamed[key] = rename_bindings(step[key], prefix, kept)
    if "when" in step:
        when = step["when"]
        conditions = when if isinstance(when, list) else [when]
        renamed["when"] = [_rename_condition(condition, prefix, kept) for condition in conditions]
    return renamed


def rename_bindings(value: JsonValue, prefix: str, kept: frozenset[str] = frozenset()) -> JsonValue:
    """Returns the value with the prefix before the source of each binding, but for the `kept` ones."""
    if isinstance(value, list):
        return [rename_bindings(child, prefix, kept) for child in value]
    if not isinstance(value, dict):
        return value
    if "$from" in value:
        name = value["$from"]
        return value if isinstance(name, str) and name in kept else {**value, "$from": _rename(name, prefix)}
    if "$text" in value and isinstance(value.get("with"), dict):
        return {**value, "with": rename_bindings(value["with"], prefix, kept)}
    return {key: rename_bindings(child, prefix, kept) for key, child in value.items()}


def _rename_condition(condition: JsonValue, prefix: str, kept: frozenset[str]) -> JsonValue:
    if not isinstance(condition, dict) or "value" not in condition:
        return condition
    return {**condition, "value": rename_bindings(condition["value"], prefix, kept)}


def _rename(name: JsonValue, prefix: str) -> JsonValue:
    return prefix + name if isinstance(name, str) else name
