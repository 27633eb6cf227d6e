"""What a confirmation covers: the calls that it showed, whatever a model revises, and none that certainly fails."""

import pytest
from pydantic import JsonValue

from planwarden.agent.approval import covering_confirmations
from planwarden.server.cli.checks.store import replay_logs
from tests import kit
from tests.kit import Ledger, MemoryStore, confirm, decide, model_step, plan, requirement, statuses, tool_step, warden

FIND = tool_step("find", "find", {"topic": "t"})


def bound(pointer: str, **extra: JsonValue) -> kit.Json:
    return {"$from": "find", "pointer": pointer, **extra}


IDS = bound("/ids")
NONE: kit.Json = {"value": IDS, "matches": {"maxItems": 0}}
SOME: kit.Json = {"value": IDS, "matches": {"minItems": 1}}


def erase(ids: JsonValue, **extra: JsonValue) -> kit.Json:
    return tool_step("do", "erase", {"ids": ids}, **extra)


def wipe(items: JsonValue, **extra: JsonValue) -> kit.Json:
    return tool_step("do", "erase", {"ids": [kit.ITEM]}, forEach=items, **extra)


@requirement("confirm:certain")
@pytest.mark.parametrize(
    ("step", "why"),
    [
        (erase(bound("/idz")), "the pointer '/idz' into the result of step 'find' has nothing"),
        (erase(bound("/topic")), "erase of step 'do' cannot run: /ids: \"t\" is not of type"),
        (erase(bound("/topic"), when=SOME), "erase of step 'do' cannot run"),
        (erase(bound("/ids")), None),
        (erase(bound("/idz", default=[])), None),
        (erase(bound("/topic"), when=NONE), None),
        # What comes from a step that is not over is left to the run.
        (erase({"$from": "later", "pointer": "/topic"}), None),
        (wipe(bound("/idz")), "the loop of step 'do' cannot run: the pointer '/idz' into the result of step 'find'"),
        (wipe(bound("/topic")), "the loop of step 'do' cannot run: 'forEach' leads to the text \"t\", which is not"),
        (wipe(IDS, maxItems=1), "the loop of step 'do' cannot run: 'forEach' has 3 items, the step allows 1"),
        (wipe([1, "x"]), "erase of step 'do' cannot run at index 1: /ids/0: \"x\" is not of type"),
        (wipe([1, "x"], when=SOME), "erase of step 'do' cannot run at index 1"),
        (wipe([1, "x"], when=NONE), None),
        (wipe([1, "x"], onItemFailure="continue"), None),
        (wipe({"$from": "later", "pointer": "/topic"}), None),
    ],
)
async def test_a_call_or_a_loop_that_cannot_run_is_found_before_a_person_is_asked_to_confirm_it(
    step: kit.Json, why: str | None
) -> None:
    ledger = Ledger()
    later = tool_step("later", "find", {"topic": "u"}, dependencies=["ask"])
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(FIND, confirm("ask", confirms=["do"]), later, step))
    assert ledger.lines == []
    if why is None:
        assert [question.step_id for question in asked.suspensions] == ["ask"]
        return
    assert asked.suspensions == () and statuses(asked)["ask"] == "failed" and statuses(asked)["do"] == "skipped"
    error = asked.steps[1].error
    assert error is not None and why in error.message and "nobody was asked, because" in error.message


EMAIL = "<email>"


@requirement("plan:placeholders")
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (
            tool_step("a", "send", {"to": "ann@example.org", "text": "Dear {{name}}, hello."}),
            ["send, /to is 'ann@example.org', an example address", "send, /text has the placeholder '{{name}}'"],
        ),
        (confirm("a", confirms=["b"]), ["send, /to is the placeholder '<email>'"]),
    ],
)
async def test_a_question_says_first_what_looks_like_a_placeholder(step: kit.Json, expected: list[str]) -> None:
    async with warden(tools=[kit.acting("send", [])]) as w:
        covered = [tool_step("b", "send", {"to": EMAIL})] if "confirms" in step else []
        asked = await w.execute_plan(plan(step, *covered), goal="Mail '<email>' 'Dear {{name}}' to ann@example.org")
    [question] = asked.suspensions
    assert len(asked.warnings) == len(expected)
    for sentence, start in zip(question.found, expected, strict=False):
        assert sentence.startswith(f"A placeholder: {start}")


@requirement("confirms:loop")
@pytest.mark.parametrize("items", [[1, 2, 2], IDS], ids=["listed", "found before"])
@pytest.mark.parametrize("concurrent", [1, 3])
async def test_one_answer_covers_each_call_of_a_loop_once_in_any_process(items: JsonValue, concurrent: int) -> None:
    ledger, store = Ledger(), MemoryStore()
    steps = plan(FIND, confirm("ask", confirms=["do"]), wipe(items, maxConcurrent=concurrent))
    async with warden(ledger, store=store) as w:
        asked = await w.execute_plan(steps)
        [question] = asked.suspensions
        wanted = [{"ids": [item]} for item in (items if isinstance(items, list) else [1, 2, 3])]
        assert [call.arguments for call in question.confirms] == wanted and asked.warnings == ()
    async with warden(ledger, store=store) as w:
        done = await decide(w, asked)
        assert (await replay_logs(store, has_finished=True)).faults == []
    assert (done.status, sorted(ledger.lines)) == ("completed", sorted(f"erase {found['ids']}" for found in wanted))


@requirement("confirms:loop")
async def test_an_answer_covers_no_call_of_the_loop_that_it_did_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covering_confirmations, "MAX_COVERED", 3)
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(confirm("ask", confirms=["do"]), wipe([*range(5)], maxConcurrent=5)))
        assert len(asked.suspensions[0].confirms) == 3
        [question] = (await decide(w, asked)).suspensions
    assert [call.arguments for call in question.calls] == [{"ids": [3]}, {"ids": [4]}] and len(ledger.lines) == 3


def revising(patch: kit.Json) -> kit.Json:
    call: JsonValue = {"toolName": "note", "arguments": {"text": "a"}}
    return {"when": {"purpose": "step"}, "reply": {"toolCalls": [call], "revise": [patch]}}


@requirement("confirm:exact")
@pytest.mark.parametrize(
    ("step_id", "change"),
    [
        ("wipe", {"forEach": [*range(20)]}),
        ("wipe", {"when": []}),
        ("wipe", {"dependencies": ["ask"]}),
        ("check", {"toolCalls": [{"toolName": "find", "arguments": {"topic": "never"}}]}),
        ("check", None),
    ],
    ids=["into a loop", "without its condition", "before its condition", "with another value", "without what it needs"],
)
async def test_a_model_cannot_change_what_a_person_was_asked_about(step_id: str, change: kit.Json | None) -> None:
    ledger = Ledger()
    never: JsonValue = {"value": {"$from": "check", "pointer": "/topic"}, "matches": {"const": "never"}}
    steps = plan(
        confirm("ask", confirms=["wipe"]),
        model_step("think", "note", dependencies=["ask"]),
        tool_step("check", "find", {"topic": "t"}, dependencies=["think"]),
        tool_step("wipe", "erase", {"ids": [7]}, dependencies=["check"], when=never),
    )
    patch: kit.Json = (
        {"op": "remove", "id": step_id} if change is None else {"op": "change", "id": step_id, "set": change}
    )
    async with warden(ledger, script=[revising(patch)]) as opened:
        await decide(opened, await opened.execute_plan(steps, wait_seconds=30))
    assert ledger.lines == ["note a"]
