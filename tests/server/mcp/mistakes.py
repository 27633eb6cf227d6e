"""Mistakes that models make, as calls of MCP tools, and what each leads to.

What else a plan is refused for, `tests/agent/core/test_plan_faults.py` has.
"""

import functools
import json
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pydantic import JsonValue

Arguments = dict[str, Any]
Stage = Literal["nothing", "plan", "step", "human", "done"]
"""What waits before the call: nothing, a question to the caller for a plan or a step, a person's; `done` is decided."""

THREAD, SUSPENSION, EXECUTION, BEGINNING = "{thread}", "{suspension}", "{execution}", "{beginning}"
"""Replaced by the ids of the stage; the last one by the first eight characters of its thread id."""
IDS: Arguments = {"threadId": THREAD, "suspensionId": SUSPENSION}
APPROVED: Arguments = {"decision": {"approved": True}}
LONG = "x" * 20_000
FIND: Arguments = {"id": "find", "description": "Find"} | {
    "toolCalls": [{"toolName": "find", "arguments": {"topic": "t"}}]
}
CALL: Arguments = {"toolName": "note", "arguments": {"text": "x"}}
STEP: Arguments = {"id": "a", "description": "Note it", "toolCalls": [CALL]}
THOUGHT: Arguments = {"id": "a", "description": "Think"}
PLAN: Arguments = {"todoList": [STEP]}


@dataclass(frozen=True)
class Refused:
    """An error before anything ran, whose message has all of these."""

    words: tuple[str, ...]
    code: str = "invalid_arguments"


@dataclass(frozen=True)
class Understood:
    """The call is taken as it was meant."""

    ledger: tuple[str, ...] = ("note x",)
    status: str = "completed"


@dataclass(frozen=True)
class AskedAgain:
    """The answer counts, and the question is asked again with all of these in its prompt."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Mistake:
    tool: str
    arguments: Arguments
    outcome: Refused | Understood | AskedAgain
    stage: Stage = "nothing"

    @property
    def name(self) -> str:
        """Return how a failing row is found."""
        return f"{self.tool} {self.stage} {str(self.arguments)[:80]}"


@dataclass
class Table:
    rows: list[Mistake] = field(default_factory=list[Mistake])

    def plan(self, plan: Any, *words: str, code: str = "invalid_plan") -> None:
        """A plan that is refused."""
        self.call("execute_plan", {"plan": plan}, *words, code=code)

    def step(self, step: Arguments, *words: str, code: str = "invalid_plan") -> None:
        """A plan of one step that is refused."""
        self.plan({"todoList": [step]}, *words, code=code)

    def literals(self, arguments: Any, *words: str) -> None:
        """A plan that is refused for what it gives `note`."""
        self.step({**STEP, "toolCalls": [{"toolName": "note", "arguments": arguments}]}, *words)

    def meant(self, plan: Any, **options: Any) -> None:
        """A plan that is understood."""
        self.rows.append(Mistake("execute_plan", {"plan": plan, **options}, Understood()))

    def options(self, options: Any, *words: str) -> None:
        self.call("execute_plan", {"plan": PLAN, "options": options}, *words)

    def call(
        self, tool: str, arguments: Arguments, *words: str, code: str = "invalid_arguments", stage: Stage = "nothing"
    ) -> None:
        self.rows.append(Mistake(tool, arguments, Refused(words, code), stage))

    def answer(self, stage: Stage, content: Any, outcome: Refused | Understood | AskedAgain) -> None:
        self.rows.append(Mistake("submit_answer", {**IDS, "content": content}, outcome, stage))

    def decide(self, decision: Any, *words: str) -> None:
        self.call("resume_execution", {**IDS, "decision": decision}, *words, stage="human")


def _list_plans(table: Table) -> None:
    optional = "stepType requiredTools expectedOutcome toolValidationMode dependencies confirms onReject"
    for plan in (
        json.dumps(PLAN),
        {"todoList": json.dumps([STEP])},
        {"todoList": [{**STEP, "toolCalls": json.dumps([CALL])}]},
        {"todoList": [{**STEP, "toolCalls": [{**CALL, "arguments": '{"text": "x"}'}]}]},
        json.dumps({"todoList": json.dumps([{**STEP, "toolCalls": json.dumps([CALL])}])}),
        {"todoList": [{**STEP, **dict.fromkeys(optional.split())}]},
        {"steps": [STEP]},
        {"todoList": [{**STEP, "status": "completed", "result": "done"}]},
    ):
        table.meant(plan)
    table.meant(PLAN, options='{"waitSeconds": 20, "budgets": "{\\"toolCalls\\": 5}"}')
    right = '{"todoList": ['
    table.plan("find the order, then note it", "not an object", right)
    table.plan('{"todoList": [{"id": "a"', right)
    table.plan([STEP], "a list", right)
    table.plan({}, right)
    table.plan({"todoList": []}, "no steps", right)
    table.plan({"todoList": [STEP], "steps": [STEP]}, "both")
    table.plan({"tasks": [STEP]}, "'tasks' (write 'todoList')")
    table.plan({"todoList": {"a": STEP}}, "'todoList' is an object, not a list", '[{"id"')
    table.plan({"todoList": ["note it"]}, "todoList[0] must be an object", '{"id"')
    steps = [{**THOUGHT, "id": f"s{number}"} for number in range(100_000)]
    table.plan({"todoList": steps}, "100000 steps", code="limit_exceeded")
    table.plan('{"todoList": ' + "[" * 100 + "]" * 100 + "}", "64", code="limit_exceeded")
    table.plan('{"todoList": [' + "0," * 60_000 + "0]}", "50000", code="limit_exceeded")
    table.plan('{"todoList": "' + " " * (1 << 20) + '"}', "1048576", code="limit_exceeded")
    deep: JsonValue = functools.reduce(lambda inner, _: [inner], range(150), cast("JsonValue", 1))
    table.plan({"todoList": [{**STEP, "toolCalls": [{**CALL, "arguments": {"text": deep}}]}]}, code="limit_exceeded")
    table.answer("plan", {"content": deep}, Refused((), "limit_exceeded"))
    # A refusal quotes little of what was sent.
    table.step({**STEP, "dependencies": [f"z{number}" for number in range(5_000)]}, "'z0'")
    table.options({LONG: 1, "budgets": {LONG: 2}}, "xxx")
    table.call("execute_plan", {"plan": PLAN, "threadId": LONG}, code="unknown_thread")


def _fence(value: JsonValue) -> str:
    return f"```json\n{json.dumps(value)}\n```"


def _list_fences(table: Table) -> None:
    for plan in (
        _fence(PLAN),
        f"\n```\n{json.dumps(PLAN)}\n```\n",
        {"todoList": [{**STEP, "toolCalls": [{**CALL, "arguments": _fence({"text": "x"})}]}]},
    ):
        table.meant(plan)
    table.answer("step", _fence({"toolCalls": [CALL]}), Understood())
    table.plan(f"Here it is:\n{_fence(PLAN)}\nDone.", "not an object, but the text", '{"id"')
    for text in ("todoList:\n- id: a", "{'todoList': []}"):
        table.plan(text, "not an object, but the text", '{"todoList": [')


def _list_steps(table: Table) -> None:
    for wrong, right in (
        ("dependsOn", "dependencies"),
        ("required_tools", "requiredTools"),
        ("tools", "requiredTools"),
        ("on_reject", "onReject"),
        ("if", "when"),
        ("loop", "forEach"),
    ):
        table.step({**STEP, wrong: ["note"]}, f"'{wrong}' (write '{right}')")
    table.step({"name": "a", "description": "x"}, "1 fault(s): todoList[0] has no key 'name' (write 'id')")
    table.step({**STEP, "colour": "red"}, "'colour'", "it takes id, description")
    table.step({**STEP, "use": "remind"}, "todoList[0] has no key 'use'", "it takes id", "by itself with run_plan")
    table.step({"id": "a"}, "todoList[0] has no 'description'")
    table.step({"id": "find it", "description": "x"}, "todoList[0].id", "'find_order'")
    table.step({"id": 7.5, "description": None}, "todoList[0].id must be text, not 7.5")
    table.plan({"todoList": [STEP, STEP]}, "duplicate", "'a'")
    table.step({**STEP, "dependencies": ["a"]}, "circle", "a -> a")
    table.step({**THOUGHT, "requiredTools": "note"}, "requiredTools must be a list", '["find_order"]')
    table.step({**THOUGHT, "stepType": "tool"}, "requiredTools", "toolCalls")
    table.step({**STEP, "stepType": "action"}, "stepType must be 'tool' or 'reasoning'", "action")
    for name, arguments in (("name", "args"), ("tool", "input")):
        call = {name: "note", arguments: {"text": "x"}}
        words = (f"'{name}' (write 'toolName')", f"'{arguments}' (write 'arguments')")
        table.step({**STEP, "toolCalls": [call]}, *words)
    table.step({**STEP, "toolCalls": CALL}, "toolCalls must be a list", '[{"toolName"')
    for written, right in (
        ("calculater", "calculator"),
        ("planwarden_calculator", "calculator"),
        ("mcp__planwarden__note", "note"),
    ):
        table.step({**THOUGHT, "requiredTools": [written]}, repr(written), f"did you mean '{right}'")
    table.step({**THOUGHT, "requiredTools": ["teleport"]}, "'teleport'", "available: ", "calculator")
    table.literals({"text": 5}, "nothing of the plan has run", "step 'a', note: /text: 5 is not of type \"string\"")
    table.literals({"text": "x", "words": "x"}, "'words' was unexpected", "it takes 'text'")
    many = {**STEP, "toolCalls": [{"toolName": "find", "arguments": {"topic": 5, "limits": 2}}]}
    table.step(many, "/topic: 5 is not", "'limits' was unexpected", "it takes 'topic', 'limit'")


def _list_calls(table: Table) -> None:
    function: Arguments = {"name": "note", "arguments": '{"text": "x"}'}
    calls: tuple[Arguments, ...] = (
        {"type": "function", "function": function},
        {"type": "tool_use", "id": "toolu_1", "name": "note", "input": {"text": "x"}},
        {"recipient_name": "functions.note", "parameters": {"text": "x"}},
    )
    for call in calls:
        right = 'write {"toolName": "note", "arguments": {"text": "x"}}'
        words = ("toolCalls[0] is a call in the form of another API", right)
        table.step({**STEP, "toolCalls": [call]}, *words)
        table.answer("step", {"toolCalls": [call]}, Refused((f"content.{words[0]}", right)))
    table.step({**THOUGHT, "requiredTools": [1]}, "requiredTools[0] must be text, not 1")
    table.literals(None, '"text" is a required property')


def _list_fields(table: Table) -> None:
    table.call("execute_plan", {"steps": [STEP]}, "'steps' (write 'plan.steps')")
    table.call("execute_plan", {"goal": "x"}, "run_goal takes a goal alone")
    both: Arguments = {**THOUGHT, "colour": "red", "requiredTools": ["calculater"]}
    table.step(both, "2 fault(s)", "no key 'colour'", "there is no tool 'calculater' (did you mean 'calculator'?)")
    table.step({**STEP, "onReject": "abort"}, "'skip', 'stop' or 'continue'", '"abort"')
    table.step({**STEP, "confirms": True}, "confirms must be a list, not true", '["send"]')
    for given, words in ((3, "not 3"), ("3", 'not the text "3"')):
        table.step({**STEP, "retry": given}, f"retry must be an object, {words}", '{"attempts": 3}')
    retry: Arguments = {"maxAttempts": 3, "delay": 1}
    table.step({**STEP, "retry": retry}, "'delay' (write 'delayS')", "'maxAttempts' (write 'attempts')")
    table.step({**STEP, "id": "a/b"}, "todoList[0].id has a space, a colon or a slash")


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


def _list_other_languages(table: Table) -> None:
    """A binding, a condition, a loop and inputs as other languages have them."""
    ids: Arguments = {"$from": "find", "pointer": "/ids"}
    right = 'write {"$from": "find", "pointer": "/topic"}'
    for written in ({"step": "find", "path": "$.topic"}, "{{steps.find.topic}}"):
        step: Arguments = {**STEP, "toolCalls": [{"toolName": "note", "arguments": {"text": written}}]}
        table.plan({"todoList": [FIND, step]}, right, "step 'a'")
    condition = '[{"value": {"$from": "find", "pointer": "/amount"}, "matches": {"exclusiveMinimum": 5000}}]'
    table.plan({"todoList": [FIND, {**STEP, "when": "amount > 5000"}]}, condition)
    table.plan({"todoList": [FIND, {**STEP, "when": {"value": ids, "equals": 5}}]}, "'equals' (write 'matches')")
    for items in ("find.ids", {"in": "find"}):
        table.plan({"todoList": [FIND, {**STEP, "forEach": items}]}, "'forEach' must be a list, or a binding to one")
    right = 'such as {"type": "object", "properties": {"customer": {"type": "string"}}}'
    table.plan({**PLAN, "inputs": {"customer": {"type": "string"}}}, "must be the JSON Schema of an object", right)
    for form, example in (("date", "2026-07-31"), ("date-time", "2026-07-31T09:00:00Z")):
        plan: Arguments = {**PLAN, "inputs": {"properties": {"due": {"type": "string", "format": form}}}}
        given: Arguments = {"plan": plan, "inputs": {"due": "tomorrow"}}
        table.call("execute_plan", given, f'/due: "tomorrow" is not a "{form}"', example)


def _list_arguments(table: Table) -> None:
    table.call("get_execution", {"thread_id": "x"}, "'thread_id' (write 'threadId')", "has no 'threadId'")
    table.call("run_goal", {"goal": "x", "mode": None, "thread_id": "y"}, "'mode', 'thread_id'", "threadId")
    table.call("run_goal", {"task": "x"}, "'task' (write 'goal')", "run_goal has no 'goal'")
    table.call("run_goal", {"goal": "  "}, "'goal' is empty")
    table.call("run_goal", {"goal": {"text": "x"}}, "goal must be text, not an object")
    table.call("get_tool_schemas", {"names": "note"}, "names must be a list", '["find_order"]')
    for limit in (0, 10**400):
        table.call("search_tools", {"limit": limit}, "limit must be at least 1 and at most 100")
    table.call("search_tools", {"limit": "5"}, 'limit must be a whole number, not the text "5"')
    table.call("search_tools", {"cursor": "-1"}, "cursor")
    table.call("get_execution", {"threadId": "t", "observationsAfter": -1}, "observationsAfter")
    table.call("submit_answer", {"threadId": "t", "suspensionId": "s", "content": {}, "waitSeconds": -1}, "waitSeconds")
    table.call("execute_plan", {}, "'plan'", "'threadId'")
    for name in ("note", "displayConfirmation"):
        table.call(name, {"text": "x"}, "execute_plan", code="unknown_tool")
    table.call("no_such_tool", {}, "run_goal", code="unknown_tool")
    for name in ("runGoal", "mcp__planwarden__run_goal"):
        table.call(name, {"goal": "x"}, "did you mean 'run_goal'", code="unknown_tool")
    table.call("execute_plan", {"plan": PLAN, "wait_seconds": 5}, "'wait_seconds' (write 'options.waitSeconds')")
    for key, words in (("", "'key' is empty"), ("x" * 201, "limit is 200"), (7, "key"), ("a\tb", "U+0009 at place 2")):
        table.call("run_goal", {"goal": "a goal", "key": key}, words)
    for name in ("run_goal", "create_plan", "execute_plan"):
        given = {"threadId": THREAD, **({"plan": PLAN} if name == "execute_plan" else {"goal": "y"})}
        table.call(name, given, THREAD, code="thread_busy", stage="plan")


def _list_options(table: Table) -> None:
    table.options("fast", "options must be an object", '{"waitSeconds": 10}')
    table.options([], "waitSeconds")
    table.options({"max_iterations": 3}, "'max_iterations' (write 'maxIterations')", "budgets")
    table.options({"maxIterations": "3"}, "options.maxIterations must be a whole number")
    table.options({"waitSeconds": "10"}, "options.waitSeconds must be a number")
    table.options({"waitSeconds": -1}, "options.waitSeconds must be at least 0, not -1")
    table.options({"synthesize": "yes"}, "options.synthesize must be true or false")
    table.options({"budgets": 5}, "options.budgets must be an object", '{"toolCalls": 20}')
    table.options({"budgets": {"tokens": 5}}, "'tokens' (write 'modelTokens')")


def _list_questions(table: Table) -> None:
    refusals: list[tuple[Arguments, str]] = [
        ({"message": ""}, "'message' is empty"),
        ({"message": "?", "details": {"a": {"$from": "b"}}}, "'$from'"),
        ({"message": "?", "form": {"type": "string"}}, "type 'object'"),
        ({"message": "?", "form": {"type": "object", "$ref": "http://x/y"}}, "not a usable"),
        ({"details": {}}, "message"),
    ]
    for given, words in refusals:
        table.call("ask_person", given, words)
    for given, words in (
        ({"message": "x" * 4_001}, "the limit is 4000"),
        ({"message": "?", "addressee": "x" * 201}, "the limit is 200"),
        ({"message": "?", "details": {"a": "x" * 70_000}}, "'details' has more than"),
    ):
        table.call("ask_person", given, words, code="limit_exceeded")


def _list_ids(table: Table) -> None:
    code = "unknown_thread"
    table.call("get_execution", {"threadId": 5}, "threadId must be text, not 5")
    table.call("get_execution", {"threadId": "nope"}, "'nope'", code=code)
    table.call("get_execution", {"threadId": ""}, "'threadId' is empty", code=code)
    for thread, words in ((EXECUTION, "executionId"), (SUSPENSION, "suspensionId"), (BEGINNING, "mean")):
        table.call("get_execution", {"threadId": thread}, words, THREAD, code=code, stage="plan")
    table.call("get_execution", {"threadId": f" {THREAD} "}, "mean", THREAD, code=code, stage="plan")
    code = "unknown_suspension"
    for thread, suspension, *words in (
        (THREAD, THREAD, "is a threadId, not a suspensionId"),
        (THREAD, EXECUTION, "executionId", "not a suspensionId"),
        (EXECUTION, SUSPENSION, "executionId", THREAD),
        (THREAD, "nope", "'nope'"),
    ):
        given = {"threadId": thread, "suspensionId": suspension, "content": PLAN}
        table.call("submit_answer", given, *words, code=code, stage="plan")
    of_step: Arguments = {"threadId": THREAD, "suspensionId": "a"}
    words = ["'a' is the id of a step, not a suspensionId", f"open questions: '{SUSPENSION}'"]
    table.call("submit_answer", {**of_step, "content": {"content": "x"}}, *words, code=code, stage="step")
    table.call("resume_execution", {**of_step, **APPROVED}, *words, code=code, stage="human")
    for thread in (EXECUTION, SUSPENSION):
        given = {"threadId": thread, "suspensionId": SUSPENSION, **APPROVED}
        table.call("resume_execution", given, THREAD, code=code, stage="human")


def _list_answers(table: Table) -> None:
    note: Arguments = {"toolCalls": [CALL]}
    for content in (
        json.dumps(note),
        {"toolCalls": [{**CALL, "arguments": '{"text": "x"}'}]},
        {**note, "content": None, "revise": None},
    ):
        table.answer("step", content, Understood())
    table.answer("plan", json.dumps(PLAN), Understood())
    refusals: list[tuple[Any, tuple[str, ...]]] = [
        ("noted", ("content must be an object", '{"toolCalls": [')),
        (None, ("content",)),
        ({"toolCalls": [{"name": "note", "args": {}}]}, ("'name' (write 'toolName')", "'args' (write 'arguments')")),
        ({}, ("'toolCalls'", "'content'", '"toolName"')),
        ({"content": 3}, ("content.content must be text, not 3",)),
    ]
    for content, words in refusals:
        table.answer("step", content, Refused(words))
    unknown: Arguments = {"todoList": [{**THOUGHT, "required_tools": ["note"]}]}
    used: Arguments = {"todoList": [STEP, {**THOUGHT, "id": "b", "use": "remind"}]}
    table.answer("plan", unknown, AskedAgain(("'required_tools' (write 'requiredTools')",)))
    table.answer("plan", used, AskedAgain(("todoList[1] has no key 'use'", "run_plan")))
    table.answer("human", {"approved": True}, Refused(("resume_execution",)))
    table.call("submit_answer", {**IDS, "answer": note}, "'answer' (write 'content')", stage="step")


def _list_decisions(table: Table) -> None:
    wrong = "decision.approved must be true or false"
    table.decide({"approved": "true"}, wrong, 'text "true"')
    table.decide({"approved": "yes"}, wrong, "the person is asked")
    table.decide({"approved": 1}, f"{wrong}, not 1")
    table.decide('{"approved": "true"}', wrong)
    table.decide("approve", "decision must be an object", 'not the text "approve"', "send {}, and the person")
    table.decide({"approve": True}, "'approve' (write 'approved')", "reason")
    table.decide({"approved": True, "modifiedArgs": [1]}, "modifiedArgs must be an object")
    for given in ({**IDS, "approved": True}, {**IDS, "approved": True, **APPROVED}):
        table.call("resume_execution", given, "'approved' (write 'decision.approved')", stage="human")
    table.call("resume_execution", {**IDS, **APPROVED}, "rejected", code="already_decided", stage="done")
    for decision in (
        '{"approved": true}',
        {},
        None,
        {"reason": "it looks right"},
        {"content": {"items": [0]}},
        {"approved": True, "modifiedArgs": '{"ids": [2]}'},
    ):
        given = {**IDS, "decision": decision}
        table.rows.append(Mistake("resume_execution", given, Understood((), "suspended"), "human"))
    given = {**IDS, "decision": '{"approved": false, "reason": null}'}
    for stage in ("human", "done"):
        table.rows.append(Mistake("resume_execution", given, Understood((), "rejected"), stage))


def list_mistakes() -> list[Mistake]:
    """Return all of them."""
    table = Table()
    for add in (
        _list_plans,
        _list_fences,
        _list_steps,
        _list_calls,
        _list_fields,
        _list_numbers,
        _list_other_languages,
        _list_arguments,
        _list_options,
        _list_questions,
        _list_ids,
        _list_answers,
        _list_decisions,
    ):
        add(table)
    return table.rows
