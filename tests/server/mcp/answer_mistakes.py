"""Mistakes that models make after the start: ids, answers to questions, and decisions that are not theirs."""

import json
from typing import Any

from tests.server.mcp.mistakes import (
    APPROVED,
    BEGINNING,
    CALL,
    EXECUTION,
    IDS,
    PLAN,
    STEP,
    SUSPENSION,
    THOUGHT,
    THREAD,
    Arguments,
    AskedAgain,
    Mistake,
    Refused,
    Table,
    Understood,
)


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
        (THREAD, "", "'suspensionId' is empty"),
        (THREAD, BEGINNING, "threadId"),
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
        {"toolCalls": json.dumps([CALL])},
        {"toolCalls": [{**CALL, "arguments": '{"text": "x"}'}]},
        {**note, "content": None, "revise": None},
    ):
        table.answer("step", content, Understood())
    table.answer("plan", json.dumps(PLAN), Understood())
    refusals: list[tuple[Any, tuple[str, ...]]] = [
        ("noted", ("content must be an object", '{"toolCalls": [')),
        (None, ("content",)),
        ({"tool_calls": [CALL]}, ("(write 'toolCalls')",)),
        ({"toolCalls": [{"name": "note", "args": {}}]}, ("'name' (write 'toolName')", "'args' (write 'arguments')")),
        ({"toolCalls": "x"}, ("toolCalls",)),
        ({}, ("'toolCalls'", "'content'", '"toolName"')),
        ({"content": 3}, ("content.content must be text, not 3",)),
    ]
    for content, words in refusals:
        table.answer("step", content, Refused(words))
    unknown: Arguments = {"todoList": [{**THOUGHT, "required_tools": ["note"]}]}
    used: Arguments = {"todoList": [STEP, {**THOUGHT, "id": "b", "use": "remind"}]}
    table.answer("plan", {"plan": PLAN}, AskedAgain(("'plan' (write 'todoList')",)))
    table.answer("plan", unknown, AskedAgain(("'required_tools' (write 'requiredTools')",)))
    table.answer("plan", used, AskedAgain(("todoList[1] has no key 'use'", "run_plan")))
    table.answer("human", {"approved": True}, Refused(("resume_execution",)))
    table.call("submit_answer", {**IDS, "answer": note}, "'answer' (write 'content')", stage="step")


def _list_decisions(table: Table) -> None:
    wrong = "decision.approved must be true or false"
    table.decide({"approved": "true"}, wrong, 'text "true"')
    table.decide({"approved": "yes"}, wrong, "the person is asked")
    table.decide({"approved": "approve"}, wrong)
    table.decide({"approved": 1}, f"{wrong}, not 1")
    table.decide('{"approved": "true"}', wrong)
    table.decide("approve", "decision must be an object", 'not the text "approve"', "send {}, and the person")
    table.decide(True, "decision must be an object, not true")
    table.decide({"approve": True}, "'approve' (write 'approved')", "reason")
    table.decide({"status": "approved"}, "'status'", "approved, reason")
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


def list_answer_mistakes() -> list[Mistake]:
    """Return all of them."""
    table = Table()
    for add in (_list_ids, _list_answers, _list_decisions):
        add(table)
    return table.rows
