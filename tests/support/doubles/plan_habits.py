"""How models write plans: each habit turns the plan that a double has for every goal into the one that it sends."""

import re
from collections.abc import Mapping
from typing import Any, cast

from tests.support.doubles.messages import Body, ModelRequest

THREE_STEPS: Body = {
    "todoList": [
        {"id": "gather", "description": "find the records", "requiredTools": ["find"]},
        {"id": "record", "description": "find the details and write them down", "requiredTools": ["find", "note"]},
        {"id": "report", "description": "write the closing note", "requiredTools": ["note"]},
    ]
}
"""A plan in which every habit shows, with the tools of `Ledger`."""
WRONG_KEYS = {"requiredTools": "tools", "description": "task"}
_RIGHT_KEY = re.compile(r"'([^']+)' \(write '([^']+)'\)")


def number_steps(request: ModelRequest) -> Body:
    """Return the plan with integers for ids, wherever a step is named; the last step takes a value of the first."""
    steps = [
        {**step, "id": number, "dependencies": list(range(1, number))}
        for number, step in enumerate(request.plan["todoList"], 1)
    ]
    if len(steps) > 1:
        call = {"toolName": "note", "arguments": {"text": {"$from": 1, "pointer": "/topic"}}}
        steps[-1] |= {"requiredTools": ["note"], "toolCalls": [call]}
    return {"todoList": steps}


def write_wrong_keys(request: ModelRequest) -> Body:
    """Return the plan with wrong keys; after a refusal, with those that the refusal names."""
    return _correct(_rename(request.plan, WRONG_KEYS), request)


def write_wrong_keys_twice(request: ModelRequest) -> Body:
    """Return the plan with wrong keys twice, whatever is said about them."""
    return _rename(request.plan, WRONG_KEYS) if request.number <= 2 else request.plan


def invent_condition(request: ModelRequest) -> Body:
    """Return the plan with a condition of another language, which does not hold; corrected as a refusal says."""
    first, *others = request.plan["todoList"]
    condition = {"value": {"$from": first["id"], "pointer": "/ids/0"}, "matches": {"$gt": 5000}}
    if others:
        others[-1] = {**others[-1], "when": condition}
    return _correct({"todoList": [first, *others]}, request)


def _correct(plan: Body, request: ModelRequest) -> Body:
    """Return the plan with the keys that the refusal says to write; it knows nothing else about them."""
    return _rename(plan, dict(_RIGHT_KEY.findall(request.text))) if request.is_plan_refused else plan


def _rename(node: Body, names: Mapping[str, str]) -> Body:
    return {names.get(key, key): _rename_in(part, names) for key, part in node.items()}


def _rename_in(part: Any, names: Mapping[str, str]) -> Any:
    if isinstance(part, list):
        return [_rename_in(entry, names) for entry in cast("list[Any]", part)]
    return _rename(cast("Body", part), names) if isinstance(part, dict) else part
