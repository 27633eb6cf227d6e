"""Mistakes that models make in the language of plans: calls, bindings, conditions and loops of other languages."""

import json

from pydantic import JsonValue

from tests.server.mcp.mistakes import CALL, PLAN, STEP, THOUGHT, Arguments, Mistake, Refused, Table, Understood

FIND: Arguments = {"id": "find", "description": "Find"} | {
    "toolCalls": [{"toolName": "find", "arguments": {"topic": "t"}}]
}
IDS: Arguments = {"$from": "find", "pointer": "/ids"}
RIGHT = 'write {"toolName": "note", "arguments": {"text": "x"}}'
TOPIC = 'write {"$from": "find", "pointer": "/topic"}'
CONDITION = '[{"value": {"$from": "find", "pointer": "/amount"}, "matches": {"exclusiveMinimum": 5000}}]'


def _fence(value: JsonValue) -> str:
    return f"```json\n{json.dumps(value)}\n```"


def _list_fences(table: Table) -> None:
    for plan in (
        _fence(PLAN),
        f"\n```\n{json.dumps(PLAN)}\n```\n",
        {"todoList": _fence([STEP])},
        {"todoList": [{**STEP, "toolCalls": _fence([CALL])}]},
        {"todoList": [{**STEP, "toolCalls": [{**CALL, "arguments": _fence({"text": "x"})}]}]},
    ):
        table.meant(plan)
    table.answer("step", _fence({"toolCalls": [CALL]}), Understood())
    table.answer("plan", _fence(PLAN), Understood())
    table.plan(f"Here it is:\n{_fence(PLAN)}\nDone.", "not an object, but the text", '{"id"')
    for text in ("todoList:\n- id: a", "{'todoList': []}"):
        table.plan(text, "not an object, but the text", '{"todoList": [')


def _list_calls(table: Table) -> None:
    function: Arguments = {"name": "note", "arguments": '{"text": "x"}'}
    calls: tuple[Arguments, ...] = (
        {"type": "function", "function": function},
        {"type": "function", "id": "call_1", "function": function},
        {"type": "tool_use", "id": "toolu_1", "name": "note", "input": {"text": "x"}},
        {"functionCall": {"name": "note", "args": {"text": "x"}}},
        {"recipient_name": "functions.note", "parameters": {"text": "x"}},
        {"type": "call", "name": "note", "arguments": {"text": "x"}},
    )
    for call in calls:
        words = ("toolCalls[0] is a call in the form of another API", RIGHT)
        table.step({**STEP, "toolCalls": [call]}, *words)
        table.answer("step", {"toolCalls": [call]}, Refused((f"content.{words[0]}", RIGHT)))
    table.step({**STEP, "toolCalls": {"note": {"text": "x"}}}, "must be a list, not an object")
    table.step({**THOUGHT, "requiredTools": [1]}, "requiredTools[0] must be text, not 1")
    table.literals(None, '"text" is a required property')


def _list_fields(table: Table) -> None:
    table.call("execute_plan", {"steps": [STEP]}, "'steps' (write 'plan.steps')")
    table.call("execute_plan", {"goal": "x"}, "run_goal takes a goal alone")
    both: Arguments = {**THOUGHT, "colour": "red", "requiredTools": ["calculater"]}
    table.step(both, "2 fault(s)", "no key 'colour'", "there is no tool 'calculater' (did you mean 'calculator'?)")
    table.step({**STEP, "onReject": "abort"}, "'skip', 'stop' or 'continue'", '"abort"')
    table.step({**STEP, "toolValidationMode": "lenient"}, "'strict' or 'advisory'")
    table.step({**STEP, "confirms": True}, "confirms must be a list, not true", '["send"]')
    table.step({**STEP, "confirms": "b"}, "confirms must be a list", '["send"]')
    table.step({**STEP, "dependencies": {"a": True}}, "dependencies must be a list")
    for given, words in ((3, "not 3"), (True, "not true"), ("3", 'not the text "3"')):
        table.step({**STEP, "retry": given}, f"retry must be an object, {words}", '{"attempts": 3}')
    table.step({**STEP, "retry": {"attempts": 1}}, "attempts must be at least 2, not 1")
    retry: Arguments = {"maxAttempts": 3, "delay": 1}
    table.step({**STEP, "retry": retry}, "'delay' (write 'delayS')", "'maxAttempts' (write 'attempts')")
    table.step({**STEP, "id": "a/b"}, "todoList[0].id has a space, a colon or a slash")
    table.step({**STEP, "id": True}, "todoList[0].id must be text, not true")


def _list_numbers(table: Table) -> None:
    first: Arguments = {**FIND, "id": 1}
    take: Arguments = {"$from": 1, "pointer": "/topic"}
    call: Arguments = {"toolName": "note", "arguments": {"text": take}}
    second: Arguments = {**STEP, "id": 2, "dependencies": [1], "toolCalls": [call]}
    loop: Arguments = {"forEach": {**take, "pointer": "/ids"}, "toolCalls": [CALL]}
    plans: tuple[tuple[list[JsonValue], tuple[str, ...]], ...] = (
        ([{**STEP, "id": 1}], ("note x",)),
        ([first, second], ("note t",)),
        ([first, {**second, "when": {"value": take, "matches": {}}}], ("note t",)),
        ([first, {**second, **loop}], ("note x",) * 3),
    )
    for steps, lines in plans:
        table.rows.append(Mistake("execute_plan", {"plan": {"todoList": steps}}, Understood(lines)))


def _list_bindings(table: Table) -> None:
    bindings: tuple[tuple[JsonValue, str], ...] = (
        ({"$from": "find.topic"}, TOPIC),
        ({"$from": "steps.find.result.topic"}, TOPIC),
        ({"$from": ["find"]}, "'$from' must be the id of one step, in text"),
        ({"$from": "find", "path": "topic"}, "write 'pointer': '/topic'"),
        ({"$from": "find", "pointer": "$.topic"}, "pointer '$.topic' is not a JSON pointer (RFC 6901); write '/topic'"),
        ({"$ref": "find.topic"}, TOPIC),
        ({"$ref": "#/find/topic"}, TOPIC),
        ({"from": "find", "pointer": "/topic"}, TOPIC),
        ({"step": "find", "path": "$.topic"}, TOPIC),
        ({"$step": "find", "pointer": "/topic"}, TOPIC),
        ("{{steps.find.topic}}", TOPIC),
        ("{{find.output.topic}}", TOPIC),
        ("${find.topic}", TOPIC),
        ("$find.topic", TOPIC),
        ({"$from": "find", "parse": "yaml"}, "'parse' is 'yaml', but the only value that it takes is \"json\""),
        ({"$text": "Dear {name}"}, "'$text' takes 'name', which 'with' does not have"),
        ({"$text": "Dear {{name}}", "with": {"name": IDS}}, "write '{name}' in one pair of braces"),
        ({"$text": "Dear {name}", "with": {"name": "Ann"}}, "'name' in 'with' must be a binding, such as"),
        ({"$from": "a"}, "step 'a' takes a value from itself"),
    )
    for written, words in bindings:
        step: Arguments = {**STEP, "toolCalls": [{"toolName": "note", "arguments": {"text": written}}]}
        table.plan({"todoList": [FIND, step]}, words, "step 'a'")
    for written in ({"$item": "name"}, "{{item.name}}", "$item.name"):
        call: Arguments = {"toolName": "note", "arguments": {"text": written}}
        right = 'write {"$from": "item", "pointer": "/name"}'
        table.step({**STEP, "forEach": [{"name": "x"}], "toolCalls": [call]}, right)


def _list_conditions(table: Table) -> None:
    conditions: tuple[tuple[JsonValue, str], ...] = (
        ("amount > 5000", CONDITION),
        (True, CONDITION),
        (IDS, "has no 'matches'; send"),
        ({"value": IDS, "matches": {"$gt": 5}}, "'$gt' (write 'exclusiveMinimum')"),
        ({"value": IDS, "matches": {"equals": 5}}, "'equals' (write 'const')"),
        ({"value": IDS, "matches": {"minItems": 1, "format": "date"}}, "has no key 'format'"),
        ({"value": IDS, "matches": {"oneOf": [{"minItems": 1}]}}, "'oneOf' (write 'anyOf')"),
        ({"value": IDS, "matches": {"type": "array", "minimum": 5}}, "minimum is for numbers, and its type is array"),
        ({"value": IDS, "matches": {"minItems": 1, "minimum": 5}}, "minItems is for lists and minimum is for numbers"),
        ({"value": IDS, "matches": "> 5"}, '{"exclusiveMinimum": 5000}'),
        ({"value": IDS, "matches": 5}, "matches must be an object, not 5"),
        ({"value": IDS, "equals": 5}, "'equals' (write 'matches')"),
        ({"left": IDS, "op": ">", "right": 5}, "'left' (write 'value')"),
        ({"value": "find.ids", "matches": {"minItems": 1}}, 'not the text "find.ids"; send {"$from": "find"'),
        ({"value": {"from": "find"}, "matches": {}}, "'value' must be a binding, such as"),
    )
    for when, words in conditions:
        table.plan({"todoList": [FIND, {**STEP, "when": when}]}, words)


def _list_loops(table: Table) -> None:
    lists: tuple[JsonValue, ...] = ("find.ids", "{{find.ids}}", {"in": "find"}, {"items": IDS, "maxItems": 3}, 3)
    for items in lists:
        words = "'forEach' must be a list, or a binding to one"
        table.plan({"todoList": [FIND, {**STEP, "forEach": items}]}, words)
    table.step({**STEP, "maxItems": 3}, "maxItems without 'forEach'")
    table.step({**STEP, "forEach": [1], "maxItems": "3"}, "maxItems must be a whole number")
    ids: Arguments = {"id": "loop", "description": "Loop", "forEach": [1], "toolCalls": [CALL]}
    by_name: Arguments = {"toolName": "note", "arguments": {"text": {"$from": "loop", "pointer": "/id"}}}
    words = "leads into a list by the name 'id'; write a place, such as /0"
    table.plan({"todoList": [ids, {**STEP, "toolCalls": [by_name]}]}, words)
    when: Arguments = {"value": {"$from": "item"}, "matches": {"minimum": 1}}
    table.step({**STEP, "forEach": [1], "when": when}, "is known in 'toolCalls' only")


def _list_inputs(table: Table) -> None:
    right = 'such as {"type": "object", "properties": {"customer": {"type": "string"}}}'
    for customer in ("The id of the customer", {"type": "string"}):
        inputs: Arguments = {"customer": customer}
        table.plan({**PLAN, "inputs": inputs}, "inputs must be the JSON Schema of an object", right)
    table.plan({**PLAN, "inputs": ["customer"]}, "inputs must be an object, not a list", '"properties"')
    for form, example in (("date", "2026-07-31"), ("date-time", "2026-07-31T09:00:00Z")):
        plan: Arguments = {**PLAN, "inputs": {"properties": {"due": {"type": "string", "format": form}}}}
        given: Arguments = {"plan": plan, "inputs": {"due": "tomorrow"}}
        table.call("execute_plan", given, f'/due: "tomorrow" is not a "{form}"', example)
        given = {"plan": plan, "inputs": {"due": example}}
        table.rows.append(Mistake("execute_plan", given, Understood()))


def list_language_mistakes() -> list[Mistake]:
    """Return all of them."""
    table = Table()
    for add in (
        _list_fences,
        _list_calls,
        _list_fields,
        _list_numbers,
        _list_bindings,
        _list_conditions,
        _list_loops,
        _list_inputs,
    ):
        add(table)
    return table.rows
