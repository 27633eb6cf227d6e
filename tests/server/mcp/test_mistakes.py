"""Mistakes that models make: understood, or refused before anything ran in a sentence that shows what is right.

What else a plan is refused for, `tests/agent/core/test_plan_faults.py` has.
"""

import functools
import json
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import MAX_MESSAGE_CHARS
from tests.kit import each_once, model_step, plan, requirement, tool_step
from tests.server.mcp.support import ERAS, Desk, Document, ids_of, question_of, text_of

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
        return f"{self.tool} {self.stage} {str(self.arguments)[:80]}"


@dataclass
class Table:
    rows: list[Mistake] = field(default_factory=list[Mistake])

    def plan(self, plan: Any, *words: str, code: str = "invalid_plan") -> None:
        self.call("execute_plan", {"plan": plan}, *words, code=code)

    def step(self, step: Arguments, *words: str, code: str = "invalid_plan") -> None:
        self.plan({"todoList": [step]}, *words, code=code)

    def literals(self, arguments: Any, *words: str) -> None:
        self.step({**STEP, "toolCalls": [{"toolName": "note", "arguments": arguments}]}, *words)

    def meant(self, plan: Any, **options: Any) -> None:
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
    for taken in (
        json.dumps(PLAN),
        json.dumps({"todoList": json.dumps([{**STEP, "toolCalls": json.dumps([CALL])}])}),
        {"todoList": [{**STEP, **dict.fromkeys(optional.split())}]},
        {"steps": [STEP]},
        {"todoList": [{**STEP, "status": "completed", "result": "done"}]},
    ):
        table.meant(taken)
    table.meant(PLAN, options='{"waitSeconds": 20, "budgets": "{\\"toolCalls\\": 5}"}')
    right = '{"todoList": ['
    both: Arguments = {"plan": {"todoList": [{**STEP, "descripton": 1}]}, "options": {"wait": 5, "auto": True}}
    faults = ("'descripton'", "options has no key 'auto', 'wait' (write 'waitSeconds'); it takes maxIterations")
    table.call("execute_plan", both, *faults, code="invalid_plan")
    table.plan("find the order, then note it", "not an object", right)
    table.plan('{"todoList": [{"id": "a"', right)
    table.plan([STEP], "a list", right)
    table.plan({"todoList": []}, "no steps", right)
    table.plan({"todoList": [STEP], "steps": [STEP]}, "both")
    table.plan({"todoList": {"a": STEP}}, "'todoList' is an object, not a list", '[{"id"')
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
    table.call("execute_plan", {"plan": PLAN, "threadId": LONG}, code="unknown_thread")
    first: Arguments = {**FIND, "id": 1}
    take: Arguments = {"$from": 1, "pointer": "/topic"}
    call: Arguments = {"toolName": "note", "arguments": {"text": take}}
    second: Arguments = {**STEP, "id": 2, "dependencies": [1], "toolCalls": [call]}
    loop: Arguments = {"forEach": {**take, "pointer": "/ids"}, "toolCalls": [CALL]}
    plans: tuple[tuple[list[JsonValue], tuple[str, ...]], ...] = (
        ([{**STEP, "id": 1}], ("note x",)),
        ([first, second], ("note t",)),
        ([first, {**second, **loop}], ("note x",) * 3),
        ([first, {**second, "forEach": json.dumps(loop["forEach"]), "toolCalls": [CALL]}], ("note x",) * 3),
        ([{**STEP, "forEach": "[1, 2]"}], ("note x",) * 2),
        ([{**STEP, "retry": '{"attempts": 3}'}], ("note x",)),
        ([first, {**second, "when": {"value": json.dumps(take), "matches": '{"const": "t"}'}}], ("note t",)),
    )
    for steps, lines in plans:
        table.rows.append(Mistake("execute_plan", {"plan": {"todoList": steps}}, Understood(lines)))


def _fence(value: JsonValue) -> str:
    return f"```json\n{json.dumps(value)}\n```"


def _list_steps(table: Table) -> None:
    for wrong, right in (("dependsOn", "dependencies"), ("tools", "requiredTools"), ("if", "when")):
        table.step({**STEP, wrong: ["note"]}, f"'{wrong}' (write '{right}')")
    table.step({"name": "a", "description": "x"}, "1 fault: todoList[0] has no key 'name' (write 'id')")
    table.step({"id": "a", "name": "b", "description": "x"}, "1 fault: todoList[0] has no key 'name'; it takes id")
    table.step({**STEP, "use": "remind"}, "todoList[0] has no key 'use'", "it takes id", "by itself with run_plan")
    table.step({"id": "find it", "description": "x"}, "todoList[0].id", "write a name such as 'find_it'")
    table.step({"id": 7.5, "description": None}, "todoList[0].id must be text, not 7.5")
    table.plan({"todoList": [STEP, STEP]}, "several steps have the id 'a'")
    table.step({**STEP, "dependencies": ["a"]}, "circle", "a -> a")
    table.step({**THOUGHT, "requiredTools": "note"}, "requiredTools must be a list", '["note"]')
    table.step({**THOUGHT, "stepType": "tool"}, "requiredTools", "toolCalls")
    table.step({**STEP, "stepType": "action"}, "stepType must be 'tool' or 'reasoning'", "action")
    call = {"name": "note", "args": {"text": "x"}}
    table.step({**STEP, "toolCalls": [call]}, "'name' (write 'toolName')", "'args' (write 'arguments')")
    for written, right in (
        ("calculater", "calculator"),
        ("planwarden_calculator", "calculator"),
        ("mcp__planwarden__note", "note"),
    ):
        table.step({**THOUGHT, "requiredTools": [written]}, repr(written), f"did you mean '{right}'")
    table.step({**THOUGHT, "requiredTools": ["teleport"]}, "'teleport'", "available: ", "calculator")
    why = "'webSearch' (not available: it has no search service"
    table.step({**THOUGHT, "requiredTools": ["webSearch"]}, f"the plan names tools that are not available: {why}")
    table.step({**THOUGHT, "requiredTools": ["webSearch"], "colour": "red"}, f"there is no tool {why}")
    table.literals({"text": 5}, "nothing of this has run", "step 'a', note: /text: 5 is not of type \"string\"")
    many = {**STEP, "toolCalls": [{"toolName": "find", "arguments": {"topic": 5, "limits": 2}}]}
    table.step(many, "/topic: 5 is not", "'limits' was unexpected", "it takes 'topic', 'limit'")
    table.call("execute_plan", {"steps": [STEP]}, "'steps' (write 'plan.steps')")
    table.call("execute_plan", {"goal": "x"}, "run_goal takes a goal alone")
    # A fence that never ends is not looked for in every way that its lines could be divided.
    table.plan("```" + "\n" * 100_000 + "x", "the plan is not an object")
    both: Arguments = {**THOUGHT, "colour": "red", "requiredTools": ["calculater"]}
    table.step(both, "2 faults", "no key 'colour'", "there is no tool 'calculater' (did you mean 'calculator'?)")
    table.step({**STEP, "onReject": "abort"}, "'skip', 'stop' or 'continue'", '"abort"')
    table.step({**STEP, "retry": 3}, "retry must be an object, not 3", '{"attempts": 3}')
    retry: Arguments = {"maxAttempts": 3, "delay": 1}
    table.step({**STEP, "retry": retry}, "'delay' (write 'delayS')", "'maxAttempts' (write 'attempts')")


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
    for taken in (_fence(PLAN), {"todoList": [{**STEP, "toolCalls": [{**CALL, "arguments": _fence({"text": "x"})}]}]}):
        table.meant(taken)
    table.answer("step", _fence({"toolCalls": [CALL]}), Understood())
    table.plan(f"Here it is:\n{_fence(PLAN)}\nDone.", "not an object, but the text", '{"id"')
    table.plan("{'todoList': []}", "not an object, but the text", '{"todoList": [')


def _list_other_languages(table: Table) -> None:
    ids: Arguments = {"$from": "find", "pointer": "/ids"}
    bindings: tuple[tuple[JsonValue, Arguments], ...] = (
        ({"step": "find", "path": "$.topic"}, {"$from": "find", "pointer": "/topic"}),
        ({"$from": "steps.find.result.ids[0]"}, {"$from": "find", "pointer": "/ids/0"}),
        (["{{steps.find.topic}}"], {"$from": "find", "pointer": "/topic"}),
        ({"$ref": "#/find/ids"}, ids),
        ({"from": "find", "pointer": "/ids"}, ids),
        ({"$result": "find.ids"}, ids),
        ("$find.ids", ids),
        ("{{inputs.who}}", {"$from": "inputs", "pointer": "/who"}),
    )
    for written, right in bindings:
        step: Arguments = {**STEP, "toolCalls": [{"toolName": "note", "arguments": {"text": written}}]}
        document: Arguments = {"todoList": [FIND, step], "inputs": {"properties": {"who": {}}}}
        table.plan(document, f"write {json.dumps(right)}", "step 'a'")
    unknown: Arguments = {
        **STEP,
        "toolCalls": [{**CALL, "arguments": {"text": {"$from": "inputs", "pointer": "/who"}}}],
    }
    table.step(unknown, "'inputs'", "declare it in plan.inputs")
    condition = '[{"value": {"$from": "find", "pointer": "/amount"}, "matches": {"exclusiveMinimum": 5000}}]'
    table.plan({"todoList": [FIND, {**STEP, "when": "amount > 5000"}]}, condition)
    table.plan({"todoList": [FIND, {**STEP, "when": {"value": ids, "equals": 5}}]}, '; write "matches": {"const": 5}')
    table.plan({"todoList": [FIND, {**STEP, "forEach": "find.ids"}]}, "'forEach' must be a list, or a binding to one")
    right = 'such as {"type": "object", "properties": {"customer": {"type": "string"}}}'
    table.plan({**PLAN, "inputs": {"customer": {"type": "string"}}}, "must be the JSON Schema of an object", right)
    dated: Arguments = {**PLAN, "inputs": {"properties": {"due": {"type": "string", "format": "date"}}}}
    given: Arguments = {"plan": dated, "inputs": {"due": "tomorrow"}}
    table.call("execute_plan", given, '/due: "tomorrow" is not a "date"', "2026-07-31")


def _list_arguments(table: Table) -> None:
    table.call("get_execution", {"thread_id": "x"}, "'thread_id' (write 'threadId')", "get_execution needs 'threadId'")
    table.call(
        "run_goal", {"goal": "x", "mode": None, "thread_id": "y"}, "'options.toolMode'), 'thread_id'", "threadId"
    )
    table.call("run_goal", {"goal": "  "}, "'goal' is empty")
    for limit in (0, 10**400):
        table.call("search_tools", {"limit": limit}, "limit must be at least 1 and at most 100")
    table.call("search_tools", {"limit": "5"}, 'limit must be a whole number, not the text "5"')
    table.call("search_tools", {"cursor": "-1"}, "cursor")
    table.call("execute_plan", {}, "'plan'", "'threadId'")
    table.call("note", {"text": "x"}, "execute_plan", code="unknown_tool")
    table.call("no_such_tool", {}, "run_goal", code="unknown_tool")
    table.call("mcp__planwarden__run_goal", {"goal": "x"}, "did you mean 'run_goal'", code="unknown_tool")
    for key, words in (("", "'key' is empty"), ("x" * 201, "limit is 200"), (7, "key"), ("a\tb", "U+0009 at place 2")):
        table.call("run_goal", {"goal": "a goal", "key": key}, words)
    table.call(
        "run_goal",
        {"threadId": THREAD, "goal": "y"},
        THREAD,
        "get_execution shows what it waits for",
        code="thread_busy",
        stage="plan",
    )
    words = (THREAD, "or cancel_execution, after which retry_execution with a plan")
    table.call("execute_plan", {"threadId": THREAD, "plan": PLAN}, *words, code="thread_busy", stage="plan")
    table.options("fast", "options must be an object", '{"waitSeconds": 10}')
    table.options({"max_iterations": 3}, "'max_iterations' (write 'maxIterations')", "budgets")
    rehearsed: Arguments = {"plan": PLAN, "rehearse": True}
    table.call("execute_plan", rehearsed, "has no key 'rehearse' (write 'options.rehearse')")
    dry_run: Arguments = {"plan": PLAN, "dryRun": True}
    table.call("execute_plan", dry_run, "has no key 'dryRun' (write 'options.rehearse')")
    table.options({"dry_run": True}, "'dry_run' (write 'rehearse')")
    month: Arguments = {"name": "monthly", "month": "2026-01"}
    table.call("run_plan", month, "has no key 'month'; it takes name, inputs")
    table.options({"waitSeconds": -1}, "options.waitSeconds must be at least 0, not -1")
    table.options({"rehearse": True, "review": "person"}, "options.review does not go with options.rehearse")
    table.options({"synthesize": "yes"}, "options.synthesize must be true or false")
    table.options({"budgets": {"tokens": 5}}, "'tokens' (write 'modelTokens')")


def _list_questions(table: Table) -> None:
    refusals: list[tuple[Arguments, str]] = [
        ({"message": ""}, "'message' is empty"),
        ({"message": "?", "details": {"a": {"$from": "b"}}}, "'$from'"),
        ({"message": "?", "form": {"type": "string"}}, "type 'object'"),
        ({"message": "?", "form": {"type": "object", "$ref": "http://x/y"}}, "not a usable"),
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
    table.call("get_execution", {"threadId": "nope"}, "'nope': list_suspensions names threads and questions", code=code)
    table.call("run_goal", {"goal": "x", "threadId": "nope"}, "'nope': leave threadId out to start one", code=code)
    table.call("get_execution", {"threadId": ""}, "'threadId' is empty", code=code)
    for thread, words in ((EXECUTION, "executionId"), (SUSPENSION, "suspensionId"), (BEGINNING, "mean")):
        table.call("get_execution", {"threadId": thread}, words, THREAD, code=code, stage="plan")
    table.call("get_execution", {"threadId": f" {THREAD} "}, "mean", THREAD, code=code, stage="plan")
    code = "unknown_suspension"
    given = {"threadId": THREAD, "suspensionId": "nope", **APPROVED}
    table.call("resume_execution", given, f"'{THREAD}': list_suspensions names", code=code, stage="plan")
    for thread, suspension, *words in (
        (THREAD, THREAD, "is a threadId, not a suspensionId"),
        (THREAD, EXECUTION, "executionId", "not a suspensionId"),
    ):
        given = {"threadId": thread, "suspensionId": suspension, "content": PLAN}
        table.call("submit_answer", given, *words, code=code, stage="plan")
    of_step: Arguments = {"threadId": THREAD, "suspensionId": "a"}
    words = ["'a' is the id of a step, not a suspensionId", f"open questions: '{SUSPENSION}'"]
    table.call("submit_answer", {**of_step, "content": {"content": "x"}}, *words, code=code, stage="step")
    table.call("resume_execution", {**of_step, **APPROVED}, *words, code=code, stage="human")
    given = {"threadId": EXECUTION, "suspensionId": SUSPENSION, **APPROVED}
    table.call("resume_execution", given, THREAD, code=code, stage="human")


def _list_answers(table: Table) -> None:
    note: Arguments = {"toolCalls": [CALL]}
    for content in (json.dumps(note), {**note, "content": None, "revise": None}):
        table.answer("step", content, Understood())
    for wrapped in (json.dumps(PLAN), {"plan": PLAN}, {"content": json.dumps({"plan": PLAN})}):
        table.answer("plan", wrapped, Understood())
    refusals: list[tuple[Any, tuple[str, ...]]] = [
        ("noted", ("content must be an object", '{"toolCalls": [')),
        ({"toolCalls": [{"name": "note", "args": {}}]}, ("'name' (write 'toolName')", "'args' (write 'arguments')")),
        ({}, ("'toolCalls'", "'content'", '"toolName"')),
        ({"todoList": [STEP]}, ("content has no key 'todoList' (write 'revise')",)),
        (
            {"content": ["noted"]},
            ('content.content must be text, not a list; send {"toolCalls": [{"toolName": "...", ',),
        ),
    ]
    for content, words in refusals:
        table.answer("step", content, Refused(words))
    used: Arguments = {"todoList": [STEP, {**THOUGHT, "id": "b", "use": "remind"}]}
    table.answer("plan", used, AskedAgain(("todoList[1] has no key 'use'", "run_plan")))
    unoffered: Arguments = {"toolCalls": [{"toolName": "notte", "arguments": {"text": "x"}}]}
    table.answer("step", unoffered, AskedAgain(("notte", "failed: this step may call only note\n")))
    for text, why in (
        (
            '{"toolCalls": [{"name": "note", "args": {"text": "x"}}]}',
            "toolCalls[0] has no key 'args' (write 'arguments'), 'name' (write 'toolName'); it takes toolName, argum",
        ),
        ('{"toolCalls": [{"toolName": "note", "arguments": {"text": "x"},}]}', 'could be read; write {"toolCalls": ['),
        ('<tool_call>{"name": "note"}</tool_call>', 'no tool call in it could be read; write {"toolCalls": ['),
        ("I noted it.", "it contained no tool call"),
    ):
        table.answer("step", {"content": text}, AskedAgain(("did not count", why)))
    needs: Arguments = {**PLAN, "inputs": {"properties": {"to": {"type": "string"}}, "required": ["to"]}}
    words = ('"to" is a required property', "give each input a 'default'", "write the values into the steps")
    table.answer("plan", needs, AskedAgain(words))
    table.answer("human", {"approved": True}, Refused(("addressed to a person", "planwarden approve")))
    for decision in ({"approved": True, "reason": "fine"}, {"decision": {"approved": True}}):
        table.answer("plan", decision, Refused(("this question asks for a plan; send {",)))
    for stage in ("plan", "step"):
        table.call(
            "resume_execution",
            {**IDS, **APPROVED},
            "to you, and takes no decision: answer it with submit_answer",
            stage=stage,
        )
    table.call("submit_answer", {**IDS, "answer": note}, "'answer' (write 'content')", stage="step")


def _list_decisions(table: Table) -> None:
    wrong = "decision.approved must be true or false"
    table.decide({"approved": "true"}, wrong, 'text "true"')
    table.decide({"approved": 1}, f"{wrong}, not 1")
    table.decide('{"approved": "true"}', wrong)
    table.decide("approve", "decision must be an object", 'not the text "approve"', "send {}, and the person")
    table.decide({"approved": True, "modifiedArgs": [1]}, "modifiedArgs must be an object")
    table.decide({"approved": True, "modifiedArgs": {}}, "must have all arguments", '"ids" is a required property')
    given = {**IDS, "approved": True, **APPROVED}
    table.call("resume_execution", given, "'approved' (write 'decision.approved')", stage="human")
    rejected = ("rejected before; the first answer counts", "call get_execution")
    table.call("resume_execution", {**IDS, **APPROVED}, *rejected, code="already_decided", stage="done")
    for decision in (
        '{"approved": true}',
        {},
        None,
        {"content": {"items": [0]}},
        {"approved": True, "modifiedArgs": '{"ids": [2]}'},
    ):
        given = {**IDS, "decision": decision}
        table.rows.append(Mistake("resume_execution", given, Understood((), "suspended"), "human"))
    given = {**IDS, "decision": '{"approved": false, "reason": null}'}
    for stage in ("human", "done"):
        table.rows.append(Mistake("resume_execution", given, Understood((), "rejected"), stage))


def list_mistakes() -> list[Mistake]:
    table = Table()
    for add in (
        _list_plans,
        _list_steps,
        _list_calls,
        _list_other_languages,
        _list_arguments,
        _list_questions,
        _list_ids,
        _list_answers,
        _list_decisions,
    ):
        add(table)
    return table.rows


@requirement("mcp:mistakes")
@pytest.mark.parametrize(
    ("mistake", "era"), each_once(list_mistakes(), ERAS), ids=lambda value: getattr(value, "name", value)
)
async def test_a_mistake_is_understood_or_refused_before_anything_ran(desk: Desk, mistake: Mistake) -> None:
    ids = await _prepare(desk, mistake.stage)
    result = await desk.call(mistake.tool, **_fill_in(mistake.arguments, ids))
    document: Document = result.structured_content
    lines = tuple(desk.ledger.lines)
    match mistake.outcome:
        case Refused(words, code):
            assert result.is_error, text_of(result)
            error = document["error"]
            assert (error["code"], lines) == (code, ()), error["message"]
            for word in words:
                assert _fill_in(word, ids) in error["message"]
            assert len(error["message"]) <= MAX_MESSAGE_CHARS and len(json.dumps(error)) < 20_000
            assert not set(error["details"].get("problems", ())) & set(error["message"].split("; "))
            await _check_unchanged(desk, mistake.stage, ids)
        case Understood(expected, status):
            assert not result.is_error, text_of(result)
            assert (document["status"], lines) == (status, expected if status != "suspended" else ())
        case AskedAgain(words):
            assert not result.is_error, text_of(result)
            prompt = question_of(document)["prompt"]
            assert all(word in prompt for word in words), prompt
            assert lines == ()


async def _prepare(desk: Desk, stage: Stage) -> dict[str, str]:
    match stage:
        case "nothing":
            return {}
        case "plan":
            asked = await desk.ok("run_goal", goal="note x", options={"synthesize": False})
        case "step":
            asked = await desk.ok("execute_plan", plan=plan(model_step("a", "note")))
        case "human" | "done":
            asked = await desk.ok("execute_plan", plan=plan(tool_step("a", "erase", {"ids": [1]})))
    if stage == "done":
        await desk.ok("resume_execution", **ids_of(asked), decision={"approved": False})
    ids = ids_of(asked)
    return {
        THREAD: ids["threadId"],
        SUSPENSION: ids["suspensionId"],
        EXECUTION: asked["executionId"],
        BEGINNING: ids["threadId"][:8],
    }


async def _check_unchanged(desk: Desk, stage: Stage, ids: dict[str, str]) -> None:
    started = await desk.warden.service.store.executions(None, 10)
    assert len(started) == (0 if stage == "nothing" else 1)
    if stage not in ("nothing", "done"):
        still = await desk.ok("get_execution", threadId=ids[THREAD])
        assert (still["status"], question_of(still)["suspensionId"]) == ("suspended", ids[SUSPENSION])


def _fill_in(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill_in(part, ids) for key, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_fill_in(part, ids) for part in cast("list[Any]", value)]
    if isinstance(value, str):
        for name, real in ids.items():
            value = value.replace(name, real)
    return value
