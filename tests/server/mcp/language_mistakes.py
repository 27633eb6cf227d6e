"""Mistakes that models make in the language of plans: calls, bindings, conditions and loops of other languages."""

import json

from pydantic import JsonValue

from tests.server.mcp.mistakes import (
    CALL,
    EXECUTION,
    PLAN,
    STEP,
    SUSPENSION,
    THOUGHT,
    THREAD,
    Arguments,
    Mistake,
    Refused,
    Table,
    Understood,
)

FIND: Arguments = {
    "id": "find",
    "description": "Find",
    "toolCalls": [{"toolName": "find", "arguments": {"topic": "t"}}],
}
IDS: Arguments = {"$from": "find", "pointer": "/ids"}
RIGHT = 'write {"toolName": "note", "arguments": {"text": "x"}}'
TOPIC = 'write {"$from": "find", "pointer": "/topic"}'
CONDITION = '[{"value": {"$from": "find", "pointer": "/amount"}, "matches": {"exclusiveMinimum": 5000}}]'


def _fence(value: JsonValue) -> str:
    return f"```json\n{json.dumps(value)}\n```"


def _list_fences(table: Table) -> None:
    table.meant("a fenced plan", _fence(PLAN))
    table.meant("a plan in a plain fence", f"\n```\n{json.dumps(PLAN)}\n```\n")
    table.meant("a fenced list of steps", {"todoList": _fence([STEP])})
    table.meant("fenced calls", {"todoList": [{**STEP, "toolCalls": _fence([CALL])}]})
    table.meant(
        "fenced arguments", {"todoList": [{**STEP, "toolCalls": [{**CALL, "arguments": _fence({"text": "x"})}]}]}
    )
    table.answer("step", "a fenced answer", _fence({"toolCalls": [CALL]}), Understood())
    table.answer("plan", "a fenced plan in an answer", _fence(PLAN), Understood())
    table.plan(
        "a fenced plan among words", f"Here it is:\n{_fence(PLAN)}\nDone.", "not an object, but the text", '{"id"'
    )
    table.plan("a plan in YAML", "todoList:\n- id: a", "not an object, but the text", '{"todoList": [')
    table.plan("a plan in JavaScript", "{'todoList': []}", "not an object, but the text", '{"todoList": [')


def _list_calls(table: Table) -> None:
    function: Arguments = {"name": "note", "arguments": '{"text": "x"}'}
    written: tuple[tuple[str, Arguments], ...] = (
        ("a function object", {"type": "function", "function": function}),
        ("a function object with an id", {"id": "call_1", "type": "function", "function": function}),
        ("a tool_use block", {"type": "tool_use", "id": "toolu_1", "name": "note", "input": {"text": "x"}}),
        ("a functionCall", {"functionCall": {"name": "note", "args": {"text": "x"}}}),
        ("a recipient", {"recipient_name": "functions.note", "parameters": {"text": "x"}}),
        ("an MCP call", {"type": "call", "name": "note", "arguments": {"text": "x"}}),
    )
    for name, call in written:
        table.step(name, {**STEP, "toolCalls": [call]}, "toolCalls[0] is a call in the form of another API", RIGHT)
        words = ("content.toolCalls[0] is a call in the form of another API", RIGHT)
        table.answer("step", f"{name} in an answer", {"toolCalls": [call]}, Refused(words))
    table.step(
        "name and input",
        {**STEP, "toolCalls": [{"name": "note", "input": {"text": "x"}}]},
        "'input' (write 'arguments')",
        "'name' (write 'toolName')",
    )
    table.step("calls by their tools", {**STEP, "toolCalls": {"note": {"text": "x"}}}, "must be a list, not an object")
    for name in ("mcp__planwarden__note", "mail.note", "functions.note", "default_api:note"):
        table.step(f"a tool called {name}", {**THOUGHT, "requiredTools": [name]}, repr(name), "did you mean 'note'")
    table.step("a tool by its number", {**THOUGHT, "requiredTools": [1]}, "requiredTools[0] must be text, not 1")
    note: Arguments = {"toolName": "note", "arguments": None}
    table.step("arguments are null", {**STEP, "toolCalls": [note]}, '"text" is a required property')


def _list_places(table: Table) -> None:
    table.call("steps beside the plan", "execute_plan", {"steps": [STEP]}, "'steps' (write 'plan.steps')")
    table.call("a goal for execute_plan", "execute_plan", {"goal": "x"}, "run_goal takes a goal alone")
    table.step("a step that needs approval", {**STEP, "requireApproval": True}, "'requireApproval'", "it takes id")
    both: Arguments = {**THOUGHT, "colour": "red", "requiredTools": ["calculater"]}
    words = ("2 fault(s)", "no key 'colour'", "there is no tool 'calculater' (did you mean 'calculator'?)")
    table.step("a wrong key and a wrong tool", both, *words)
    table.step("on_reject", {**STEP, "on_reject": "stop"}, "'on_reject' (write 'onReject')")
    table.step("another rejection", {**STEP, "onReject": "abort"}, "'skip', 'stop' or 'continue'", '"abort"')
    table.step("another validation", {**STEP, "toolValidationMode": "lenient"}, "'strict' or 'advisory'")
    table.step("confirms is true", {**STEP, "confirms": True}, "confirms must be a list, not true", '["send"]')
    table.step("one step to confirm", {**STEP, "confirms": "b"}, "confirms must be a list", '["send"]')
    table.step("dependencies by their ids", {**STEP, "dependencies": {"a": True}}, "dependencies must be a list")
    for given, words in (
        (3, "not 3"),
        (True, "not true"),
        ("3", 'not the text "3"'),
    ):
        table.step(
            f"retry: {given!r}", {**STEP, "retry": given}, f"retry must be an object, {words}", '{"attempts": 3}'
        )
    table.step("one attempt", {**STEP, "retry": {"attempts": 1}}, "attempts must be at least 2, not 1")
    table.step(
        "other words for attempts",
        {**STEP, "retry": {"maxAttempts": 3, "delay": 1}},
        "'delay' (write 'delayS')",
        "'maxAttempts' (write 'attempts')",
    )


def _list_ids(table: Table) -> None:
    numbered: Arguments = {**FIND, "id": 1}
    take: Arguments = {"$from": 1, "pointer": "/topic"}
    call: Arguments = {"toolName": "note", "arguments": {"text": take}}
    second: Arguments = {**STEP, "id": 2, "dependencies": [1], "toolCalls": [call]}
    plans: tuple[tuple[str, list[JsonValue], tuple[str, ...]], ...] = (
        ("a number as an id", [{**STEP, "id": 1}], ("note x",)),
        ("numbers as ids and sources", [numbered, second], ("note t",)),
        ("a number in a condition", [numbered, {**second, "when": {"value": take, "matches": {}}}], ("note t",)),
        (
            "a number in a loop",
            [numbered, {**second, "forEach": {**take, "pointer": "/ids"}, "toolCalls": [CALL]}],
            ("note x",) * 3,
        ),
    )
    for name, steps, lines in plans:
        table.rows.append(Mistake(name, "execute_plan", {"plan": {"todoList": steps}}, Understood(lines)))
    table.step("an id with a slash", {**STEP, "id": "a/b"}, "todoList[0].id has a space, a colon or a slash")
    table.step("an id that is true", {**STEP, "id": True}, "todoList[0].id must be text, not true")
    given: Arguments = {"threadId": THREAD, "suspensionId": "a", "content": {"content": "x"}}
    words = ("'a' is the id of a step, not a suspensionId", f"open questions: '{SUSPENSION}'")
    table.on("step", "step for question", "submit_answer", given, *words, code="unknown_suspension")
    given = {"threadId": THREAD, "suspensionId": "a", "decision": {"approved": True}}
    table.on("human", "step for a person's question", "resume_execution", given, *words, code="unknown_suspension")
    rest: Arguments = {"suspensionId": SUSPENSION, "decision": {"approved": True}}
    code = "unknown_suspension"
    table.on(
        "human",
        "execution for a person's thread",
        "resume_execution",
        {"threadId": EXECUTION, **rest},
        THREAD,
        code=code,
    )
    table.on(
        "human", "question for its thread", "resume_execution", {"threadId": SUSPENSION, **rest}, THREAD, code=code
    )
    table.call("a number for a thread", "get_execution", {"threadId": 5}, "threadId must be text, not 5")


def _list_decisions(table: Table) -> None:
    ids: Arguments = {"threadId": THREAD, "suspensionId": SUSPENSION}
    both: Arguments = {**ids, "approved": True, "decision": {"approved": True}}
    table.on("human", "approved twice", "resume_execution", both, "'approved' (write 'decision.approved')")
    for word in ("approve", "yes", "approved"):
        table.decide(f"decided in a word: {word}", word, "decision must be an object", f'not the text "{word}"')
    table.decide("a status for a decision", {"status": "approved"}, "'status'", "approved, reason")


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
        ({"$text": "Dear {name}"}, "'$text' takes 'name', which 'with' does not have"),
        ({"$text": "Dear {{name}}", "with": {"name": IDS}}, "write '{name}' in one pair of braces"),
        ({"$text": "Dear {name}", "with": {"name": "Ann"}}, "'name' in 'with' must be a binding, such as"),
        ({"$from": "a"}, "step 'a' takes a value from itself"),
    )
    for written, words in bindings:
        step: Arguments = {**STEP, "toolCalls": [{"toolName": "note", "arguments": {"text": written}}]}
        table.plan(f"takes {json.dumps(written)}", {"todoList": [FIND, step]}, words, "step 'a'")
    for written in ({"$item": "name"}, "{{item.name}}", "$item.name"):
        loop: Arguments = {
            "forEach": [{"name": "x"}],
            "toolCalls": [{"toolName": "note", "arguments": {"text": written}}],
        }
        right = 'write {"$from": "item", "pointer": "/name"}'
        table.step(f"takes {json.dumps(written)} of an item", {**STEP, **loop}, right)


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
    for number, (when, words) in enumerate(conditions):
        table.plan(f"condition {number}", {"todoList": [FIND, {**STEP, "when": when}]}, words)
    for key in ("if", "condition", "onlyIf"):
        table.step(f"{key} for when", {**STEP, key: {"value": IDS, "matches": {}}}, f"'{key}' (write 'when')")


def _list_loops(table: Table) -> None:
    lists: tuple[JsonValue, ...] = ("find.ids", "{{find.ids}}", {"in": "find"}, {"items": IDS, "maxItems": 3}, 3)
    for items in lists:
        words = "'forEach' must be a list, or a binding to one"
        table.plan(f"a loop over {json.dumps(items)}", {"todoList": [FIND, {**STEP, "forEach": items}]}, words)
    for key in ("for_each", "loop", "iterate"):
        table.step(f"{key} for forEach", {**STEP, key: [1]}, f"'{key}' (write 'forEach')")
    table.step("maxItems outside of a loop", {**STEP, "maxItems": 3}, "maxItems without 'forEach'")
    table.step("maxItems as text", {**STEP, "forEach": [1], "maxItems": "3"}, "maxItems must be a whole number")
    ids: Arguments = {"id": "loop", "description": "Loop", "forEach": [1], "toolCalls": [CALL]}
    by_name: Arguments = {"toolName": "note", "arguments": {"text": {"$from": "loop", "pointer": "/id"}}}
    words = "leads into a list by the name 'id'; write a place, such as /0"
    table.plan("a list by a name", {"todoList": [ids, {**STEP, "toolCalls": [by_name]}]}, words)
    when: Arguments = {"value": {"$from": "item"}, "matches": {"minimum": 1}}
    table.step("a condition for each item", {**STEP, "forEach": [1], "when": when}, "is known in 'toolCalls' only")


def _list_inputs(table: Table) -> None:
    right = 'such as {"type": "object", "properties": {"customer": {"type": "string"}}}'
    maps: tuple[tuple[str, JsonValue], ...] = (
        ("inputs by their descriptions", {"customer": "The id of the customer"}),
        ("inputs by their types", {"customer": {"type": "string"}}),
    )
    for name, inputs in maps:
        table.plan(name, {**PLAN, "inputs": inputs}, "inputs must be the JSON Schema of an object", right)
    table.plan(
        "a list of inputs", {**PLAN, "inputs": ["customer"]}, "inputs must be an object, not a list", '"properties"'
    )
    for form, example in (("date", "2026-07-31"), ("date-time", "2026-07-31T09:00:00Z")):
        plan: Arguments = {**PLAN, "inputs": {"properties": {"due": {"type": "string", "format": form}}}}
        given: Arguments = {"plan": plan, "inputs": {"due": "tomorrow"}}
        table.call(f"words for a {form}", "execute_plan", given, f'/due: "tomorrow" is not a "{form}"', example)
        given = {"plan": plan, "inputs": {"due": example}}
        table.rows.append(Mistake(f"a {form}", "execute_plan", given, Understood()))


def list_language_mistakes() -> list[Mistake]:
    """Return all of them, each with another name."""
    table = Table()
    for add in (
        _list_fences,
        _list_calls,
        _list_places,
        _list_ids,
        _list_decisions,
        _list_bindings,
        _list_conditions,
        _list_loops,
        _list_inputs,
    ):
        add(table)
    return table.rows
