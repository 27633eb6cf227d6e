"""Mistakes that models make, as calls of MCP tools, and what each leads to."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue

Arguments = dict[str, Any]
Stage = Literal["nothing", "plan", "step", "human", "done"]
"""What waits before the call: nothing, a question to the caller for a plan or a step, a person's; `done` is decided."""

THREAD, SUSPENSION, EXECUTION, BEGINNING = "{thread}", "{suspension}", "{execution}", "{beginning}"
"""Replaced by the ids of the stage; the last one by the first eight characters of its thread id."""
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
    name: str
    tool: str
    arguments: Arguments
    outcome: Refused | Understood | AskedAgain
    stage: Stage = "nothing"


@dataclass
class Table:
    rows: list[Mistake] = field(default_factory=list[Mistake])

    def plan(self, name: str, plan: JsonValue, *words: str, code: str = "invalid_plan") -> None:
        """A plan that is refused."""
        self.rows.append(Mistake(name, "execute_plan", {"plan": plan}, Refused(words, code)))

    def step(self, name: str, step: Arguments, *words: str, code: str = "invalid_plan") -> None:
        """A plan of one step that is refused."""
        self.plan(name, {"todoList": [step]}, *words, code=code)

    def meant(self, name: str, plan: JsonValue, **options: JsonValue) -> None:
        """A plan that is understood."""
        self.rows.append(Mistake(name, "execute_plan", {"plan": plan, **options}, Understood()))

    def options(self, name: str, options: JsonValue, *words: str) -> None:
        self.rows.append(Mistake(name, "execute_plan", {"plan": PLAN, "options": options}, Refused(words)))

    def call(self, name: str, tool: str, arguments: Arguments, *words: str, code: str = "invalid_arguments") -> None:
        self.rows.append(Mistake(name, tool, arguments, Refused(words, code)))

    def on(
        self, stage: Stage, name: str, tool: str, arguments: Arguments, *words: str, code: str = "invalid_arguments"
    ) -> None:
        self.rows.append(Mistake(name, tool, arguments, Refused(words, code), stage))

    def answer(self, stage: Stage, name: str, content: JsonValue, outcome: Refused | Understood | AskedAgain) -> None:
        arguments = {"threadId": THREAD, "suspensionId": SUSPENSION, "content": content}
        self.rows.append(Mistake(name, "submit_answer", arguments, outcome, stage))

    def decide(self, name: str, decision: JsonValue, *words: str, code: str = "invalid_arguments") -> None:
        arguments = {"threadId": THREAD, "suspensionId": SUSPENSION, "decision": decision}
        self.on("human", name, "resume_execution", arguments, *words, code=code)


def _list_plans(table: Table) -> None:
    table.meant("plan as text", json.dumps(PLAN))
    table.meant("todoList as text", {"todoList": json.dumps([STEP])})
    table.meant("a step as text", {"todoList": [json.dumps(STEP)]})
    table.meant("toolCalls as text", {"todoList": [{**STEP, "toolCalls": json.dumps([CALL])}]})
    table.meant("a call as text", {"todoList": [{**STEP, "toolCalls": [json.dumps(CALL)]}]})
    table.meant("arguments as text", {"todoList": [{**STEP, "toolCalls": [{**CALL, "arguments": '{"text": "x"}'}]}]})
    table.meant("requiredTools as text", {"todoList": [{**STEP, "requiredTools": '["note"]'}]})
    table.meant("dependencies as text", {"todoList": [{**STEP, "dependencies": "[]"}]})
    table.meant(
        "text in text in text", json.dumps({"todoList": json.dumps([{**STEP, "toolCalls": json.dumps([CALL])}])})
    )
    table.meant("options as text", PLAN, options='{"waitSeconds": 20, "budgets": "{\\"toolCalls\\": 5}"}')
    table.meant(
        "null for every optional key",
        {
            "todoList": [
                {
                    **STEP,
                    **dict.fromkeys(
                        (
                            "stepType",
                            "requiredTools",
                            "expectedOutcome",
                            "toolValidationMode",
                            "dependencies",
                            "confirms",
                            "onReject",
                        )
                    ),
                }
            ]
        },
    )
    table.meant("null for every optional argument", PLAN, goal=None, threadId=None, key=None, options=None)
    table.meant("the older name of the list", {"steps": [STEP]})
    table.meant("a status that a model claims", {"todoList": [{**STEP, "status": "completed", "result": "done"}]})
    table.plan("plan as other text", "find the order, then note it", "not an object", '{"todoList": [')
    table.plan("plan as text that is cut off", '{"todoList": [{"id": "a"', '{"todoList": [')
    table.plan("plan as a list", [STEP], "a list", '{"todoList": [')
    table.plan("plan in a plan", {"plan": PLAN}, "'plan' (write 'todoList')", '{"todoList": [')
    table.plan("todo_list", {"todo_list": [STEP]}, "'todo_list' (write 'todoList')")
    table.plan("tasks", {"tasks": [STEP]}, "'tasks' (write 'todoList')")
    table.plan("an empty plan", {}, '{"todoList": [')
    table.plan("no steps", {"todoList": []}, "no steps", '{"todoList": [')
    table.plan("steps as an object", {"todoList": {"a": STEP}}, "'todoList' is an object, not a list", '[{"id"')
    table.plan("a step in words", {"todoList": ["note it"]}, "todoList[0] must be an object", '{"id"')
    table.plan(
        "text that is nested too deeply", '{"todoList": ' + "[" * 100 + "]" * 100 + "}", "64", code="limit_exceeded"
    )
    table.plan("text of too many values", '{"todoList": [' + "0," * 60_000 + "0]}", "50000", code="limit_exceeded")
    table.plan("text that is too long", '{"todoList": "' + " " * (1 << 20) + '"}', "1048576", code="limit_exceeded")


def _list_steps(table: Table) -> None:
    table.step("dependsOn", {**STEP, "dependsOn": []}, "'dependsOn' (write 'dependencies')", "requiredTools")
    table.step("depends_on", {**STEP, "depends_on": []}, "'depends_on' (write 'dependencies')")
    table.step("required_tools", {**THOUGHT, "required_tools": ["note"]}, "'required_tools' (write 'requiredTools')")
    table.step("tools", {**THOUGHT, "tools": ["note"]}, "'tools' (write 'requiredTools')")
    table.step(
        "name for an id", {"name": "a", "description": "x"}, "1 fault(s): todoList[0] has no key 'name' (write 'id')"
    )
    table.step("title for a description", {"id": "a", "title": "x"}, "'title' (write 'description')")
    table.step("tool_calls", {**THOUGHT, "tool_calls": [CALL]}, "'tool_calls' (write 'toolCalls')")
    table.step("an unknown key", {**STEP, "colour": "red"}, "'colour'", "it takes id, description")
    table.step(
        "a saved plan as a step",
        {"id": "a", "use": "remind", "inputs": {"customer": "Ada"}},
        "todoList[0] has no key 'use'",
        "write the steps of that plan here, or start the plan by itself with run_plan",
    )
    table.step("no id", {"description": "x"}, "todoList[0] has no 'id'")
    table.step("no description", {"id": "a"}, "todoList[0] has no 'description'")
    table.step("id is null", {"id": None, "description": "x"}, "todoList[0] has no 'id'")
    table.step("an id in words", {"id": "find it", "description": "x"}, "todoList[0].id", "'find_order'")
    table.plan("the same id twice", {"todoList": [STEP, STEP]}, "duplicate", "'a'")
    table.step("waits for itself", {**STEP, "dependencies": ["a"]}, "circle", "a -> a")
    table.step("depends on no step", {**STEP, "dependencies": ["b"]}, "'b'")
    table.step(
        "text for a list", {**THOUGHT, "requiredTools": "note"}, "requiredTools must be a list", '["find_order"]'
    )
    table.step("one dependency as text", {**STEP, "dependencies": "b"}, "dependencies must be a list", '["find"]')
    table.step("a tool step without tools", {**THOUGHT, "stepType": "tool"}, "requiredTools", "toolCalls")
    table.step("another type", {**STEP, "stepType": "action"}, "stepType must be 'tool' or 'reasoning'", "action")
    table.step(
        "name and args",
        {**STEP, "toolCalls": [{"name": "note", "args": {"text": "x"}}]},
        "'name' (write 'toolName')",
        "'args' (write 'arguments')",
    )
    table.step(
        "tool and input",
        {**STEP, "toolCalls": [{"tool": "note", "input": {"text": "x"}}]},
        "'tool' (write 'toolName')",
        "'input' (write 'arguments')",
    )
    table.step("a call as a tool's name", {**STEP, "toolCalls": ["note"]}, "toolCalls[0] must be an object", "toolName")
    table.step("one call without a list", {**STEP, "toolCalls": CALL}, "toolCalls must be a list", '[{"toolName"')
    table.step(
        "arguments as a list", {**STEP, "toolCalls": [{**CALL, "arguments": ["x"]}]}, "arguments must be an object"
    )
    table.step("another spelling of a tool", {**THOUGHT, "requiredTools": ["web-extract"]}, "did you mean 'webExtract'")
    table.step("a mistyped tool", {**THOUGHT, "requiredTools": ["calculater"]}, "did you mean 'calculator'")
    table.step(
        "a tool with a prefix", {**THOUGHT, "requiredTools": ["planwarden_calculator"]}, "did you mean 'calculator'"
    )
    table.step(
        "a literal of another type",
        {**STEP, "toolCalls": [{"toolName": "note", "arguments": {"text": 5}}]},
        "nothing of the plan has run",
        "step 'a', note",
        "/text",
        "string",
    )
    table.step(
        "a literal that is missing",
        {**STEP, "toolCalls": [{"toolName": "note", "arguments": {}}]},
        '"text" is a required property',
        "get_tool_schemas",
    )
    table.step(
        "a literal of another name",
        {**STEP, "toolCalls": [{"toolName": "note", "arguments": {"text": "x", "words": "x"}}]},
        "words",
        "text",
    )
    table.step(
        "a tool of nobody", {**THOUGHT, "requiredTools": ["teleport"]}, "'teleport'", "available: ", "calculator"
    )


def _list_arguments(table: Table) -> None:
    table.call("thread_id", "get_execution", {"thread_id": "x"}, "'thread_id' (write 'threadId')", "has no 'threadId'")
    table.call("execution_id", "get_execution", {"execution_id": "x"}, "'execution_id' (write 'threadId')")
    table.call("todoList beside the plan", "execute_plan", {"todoList": [STEP]}, "'todoList' (write 'plan.todoList')")
    table.call("task for a goal", "run_goal", {"task": "x"}, "'task' (write 'goal')", "run_goal has no 'goal'")
    table.call("goal is null", "run_goal", {"goal": None}, "run_goal has no 'goal'")
    table.call("an empty goal", "run_goal", {"goal": "  "}, "'goal' is empty")
    table.call("goal as an object", "run_goal", {"goal": {"text": "x"}}, "goal must be text, not an object")
    table.call(
        "one name without a list", "get_tool_schemas", {"names": "note"}, "names must be a list", '["find_order"]'
    )
    table.call("a huge number", "search_tools", {"limit": 10**400}, "limit must be at least 1 and at most 100")
    table.call("a number as text", "search_tools", {"limit": "5"}, 'limit must be a whole number, not the text "5"')
    table.call("nothing to run", "execute_plan", {}, "'plan'", "'threadId'")
    table.call("a tool for plans", "note", {"text": "x"}, "execute_plan", code="unknown_tool")
    table.call("another spelling", "runGoal", {"goal": "x"}, "did you mean 'run_goal'", code="unknown_tool")
    table.call("a host's prefix", "mcp__planwarden__run_goal", {}, "did you mean 'run_goal'", code="unknown_tool")
    table.options("options in words", "fast", "options must be an object", '{"waitSeconds": 10}')
    table.options("unknown options", {"max_iterations": 3}, "'max_iterations' (write 'maxIterations')", "budgets")
    table.options("iterations as text", {"maxIterations": "3"}, "options.maxIterations must be a whole number")
    table.options("too many iterations", {"maxIterations": 10**30}, "maxIterations must be")
    table.call(
        "an option beside the options",
        "execute_plan",
        {"plan": PLAN, "wait_seconds": 5},
        "'wait_seconds' (write 'options.waitSeconds')",
    )
    table.options("wait as text", {"waitSeconds": "10"}, "options.waitSeconds must be a number")
    table.options("a negative wait", {"waitSeconds": -1}, "options.waitSeconds must be at least 0, not -1")
    table.options("another mode", {"toolMode": "loose"}, "'strict' or 'flexible'", "loose")
    table.options("synthesize as text", {"synthesize": "yes"}, "options.synthesize must be true or false")
    table.options("a budget as a number", {"budgets": 5}, "options.budgets must be an object", '{"toolCalls": 20}')
    table.options("an unknown budget", {"budgets": {"tokens": 5}}, "'tokens' (write 'modelTokens')")
    table.options("prompts as a list", {"prompts": ["x"]}, "options.prompts must be an object")


def _list_ids(table: Table) -> None:
    code = "unknown_thread"
    table.call("an unknown thread", "get_execution", {"threadId": "nope"}, "'nope'", code=code)
    table.call("an empty thread id", "get_execution", {"threadId": ""}, "'threadId' is empty", code=code)
    table.on("plan", "execution for thread", "get_execution", {"threadId": EXECUTION}, "executionId", THREAD, code=code)
    table.on(
        "plan", "question for thread", "get_execution", {"threadId": SUSPENSION}, "suspensionId", THREAD, code=code
    )
    table.on("plan", "the beginning of an id", "get_execution", {"threadId": BEGINNING}, "mean", THREAD, code=code)
    table.on("plan", "an id with blanks", "get_execution", {"threadId": f" {THREAD} "}, "mean", THREAD, code=code)
    code, rest = "unknown_suspension", {"content": PLAN}
    for name, thread, suspension, words in (
        ("thread for question", THREAD, THREAD, ("is a threadId, not a suspensionId",)),
        ("execution for question", THREAD, EXECUTION, ("executionId", "not a suspensionId")),
        ("question of no thread", EXECUTION, SUSPENSION, ("executionId", THREAD)),
        ("an unknown question", THREAD, "nope", ("'nope'",)),
        ("an empty question id", THREAD, "", ("'suspensionId' is empty",)),
        ("the beginning of a question id", THREAD, f"{BEGINNING}", ("threadId",)),
    ):
        given = {"threadId": thread, "suspensionId": suspension, **rest}
        table.on("plan", name, "submit_answer", given, *words, code=code)


def _list_answers(table: Table) -> None:
    note: Arguments = {"toolCalls": [CALL]}
    table.answer("step", "an answer as text", json.dumps(note), Understood())
    table.answer("step", "calls as text", {"toolCalls": json.dumps([CALL])}, Understood())
    table.answer(
        "step", "arguments of a call as text", {"toolCalls": [{**CALL, "arguments": '{"text": "x"}'}]}, Understood()
    )
    table.answer("step", "null beside the calls", {**note, "content": None, "revise": None}, Understood())
    table.answer("plan", "a plan as text in an answer", json.dumps(PLAN), Understood())
    table.answer("step", "an answer in words", "noted", Refused(("content must be an object", '{"toolCalls": [')))
    table.answer("step", "tool_calls in an answer", {"tool_calls": [CALL]}, Refused(("(write 'toolCalls')",)))
    table.answer(
        "step",
        "name and args in an answer",
        {"toolCalls": [{"name": "note", "args": {}}]},
        Refused(("'name' (write 'toolName')", "'args' (write 'arguments')")),
    )
    table.answer("step", "an empty answer", {}, Refused(("'toolCalls'", "'content'", '"toolName"')))
    table.answer("step", "text as a number", {"content": 3}, Refused(("content.content must be text, not 3",)))
    table.answer("plan", "a plan in a plan", {"plan": PLAN}, AskedAgain(("'plan' (write 'todoList')",)))
    table.answer(
        "plan",
        "a plan with wrong keys",
        {"todoList": [{**THOUGHT, "required_tools": ["note"]}]},
        AskedAgain(("'required_tools' (write 'requiredTools')",)),
    )
    table.answer(
        "plan",
        "a saved plan as a step of a model's plan",
        {"todoList": [STEP, {**THOUGHT, "id": "b", "use": "remind"}]},
        AskedAgain(("todoList[1] has no key 'use'", "run_plan")),
    )
    table.answer("human", "an answer for a person", {"approved": True}, Refused(("resume_execution",)))
    table.on(
        "step",
        "answer for content",
        "submit_answer",
        {"threadId": THREAD, "suspensionId": SUSPENSION, "answer": note},
        "'answer' (write 'content')",
    )


def _list_decisions(table: Table) -> None:
    table.decide("approved as text", {"approved": "true"}, "decision.approved must be true or false", 'text "true"')
    table.decide(
        "approved as yes", {"approved": "yes"}, "decision.approved must be true or false", "the person is asked"
    )
    table.decide("approved as a verb", {"approved": "approve"}, "decision.approved must be true or false")
    table.decide("approved as a number", {"approved": 1}, "decision.approved must be true or false, not 1")
    table.decide("approved as text in text", '{"approved": "true"}', "decision.approved must be true or false")
    table.decide("a decision in words", "approve", "decision must be an object", "send {}, and the person")
    table.decide("a decision as true", True, "decision must be an object, not true")
    table.decide("another word for approved", {"approve": True}, "'approve' (write 'approved')", "reason")
    table.decide(
        "edited arguments as a list", {"approved": True, "modifiedArgs": [1]}, "modifiedArgs must be an object"
    )
    table.on(
        "human",
        "approved beside the ids",
        "resume_execution",
        {"threadId": THREAD, "suspensionId": SUSPENSION, "approved": True},
        "'approved' (write 'decision.approved')",
    )
    given = {"threadId": THREAD, "suspensionId": SUSPENSION, "decision": {"approved": True}}
    table.on(
        "done", "a decision about what was rejected", "resume_execution", given, "rejected", code="already_decided"
    )
    asks = Understood((), "suspended")
    for name, decision in (
        ("a decision as text", '{"approved": true}'),
        ("an empty decision", {}),
        ("a decision of null", None),
        ("a decision with a reason only", {"reason": "it looks right"}),
        ("rows without a decision", {"content": {"items": [0]}}),
        ("edited arguments as text", {"approved": True, "modifiedArgs": '{"ids": [2]}'}),
    ):
        table.rows.append(Mistake(name, "resume_execution", {**given, "decision": decision}, asks, "human"))
    given = {**given, "decision": '{"approved": false, "reason": null}'}
    table.rows.append(Mistake("a rejection as text", "resume_execution", given, Understood((), "rejected"), "human"))
    table.rows.append(Mistake("the same decision twice", "resume_execution", given, Understood((), "rejected"), "done"))


def list_mistakes() -> list[Mistake]:
    """All of them, each with another name."""
    table = Table()
    for add in (_list_plans, _list_steps, _list_arguments, _list_ids, _list_answers, _list_decisions):
        add(table)
    return table.rows
