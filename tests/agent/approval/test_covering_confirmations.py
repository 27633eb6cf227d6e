"""What a confirmation covers: the calls that it showed, whatever a model revises, and none that certainly fails."""

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval import covering_confirmations
from planwarden.server.cli.checks.store import replay_logs
from tests.kit import Ledger, MemoryStore, confirm, decide, model_step, plan, requirement, statuses, tool_step, warden

Json = dict[str, JsonValue]
FIND = tool_step("find", "find", {"topic": "t"})


@planwarden.tool(name="send")
async def send(to: str, text: str = "") -> str:
    """Send a letter."""
    return f"sent to {to}"


def bound(pointer: str, **extra: JsonValue) -> Json:
    return {"$from": "find", "pointer": pointer, **extra}


NONE: Json = {"value": bound("/ids"), "matches": {"maxItems": 0}}
SOME: Json = {"value": bound("/ids"), "matches": {"minItems": 1}}


@requirement("confirm:certain")
@pytest.mark.parametrize(
    ("ids", "extra", "why"),
    [
        (bound("/idz"), {}, "the pointer '/idz' into the result of step 'find' has nothing"),
        (bound("/topic"), {}, "erase of step 'do' cannot run: /ids: \"t\" is not of type"),
        (bound("/topic"), {"when": SOME}, "erase of step 'do' cannot run"),
        (bound("/ids"), {}, None),
        (bound("/idz", default=[]), {}, None),
        (bound("/topic"), {"when": NONE}, None),
        # What comes from a step that is not over is left to the run.
        ({"$from": "later", "pointer": "/topic"}, {}, None),
    ],
)
async def test_a_call_that_cannot_run_is_found_before_a_person_is_asked_to_confirm_it(
    ids: Json, extra: Json, why: str | None
) -> None:
    ledger = Ledger()
    later = tool_step("later", "find", {"topic": "u"}, dependencies=["ask"])
    async with warden(ledger) as w:
        steps = plan(FIND, confirm("ask", confirms=["do"]), later, tool_step("do", "erase", {"ids": ids}, **extra))
        asked = await w.execute_plan(steps)
    assert ledger.lines == []
    if why is None:
        assert [question.step_id for question in asked.suspensions] == ["ask"]
        return
    assert asked.suspensions == () and statuses(asked)["ask"] == "failed" and statuses(asked)["do"] == "skipped"
    error = asked.steps[1].error
    assert error is not None and why in error.message and "nobody was asked" in error.message


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
async def test_a_question_says_first_what_looks_like_a_placeholder(step: Json, expected: list[str]) -> None:
    async with warden(tools=[send]) as w:
        covered = [tool_step("b", "send", {"to": EMAIL})] if "confirms" in step else []
        asked = await w.execute_plan(plan(step, *covered), goal="Mail '<email>' 'Dear {{name}}' to ann@example.org")
    [question] = asked.suspensions
    assert len(asked.warnings) == len(expected)
    for sentence, start in zip(question.found, expected, strict=False):
        assert sentence.startswith(f"A placeholder: {start}")


ITEM: Json = {"$from": "item"}
IDS: Json = {"$from": "find", "pointer": "/ids"}


def wipe(items: JsonValue, **extra: JsonValue) -> Json:
    return tool_step("wipe", "erase", {"ids": [ITEM]}, forEach=items, **extra)


@requirement("confirm:certain")
@pytest.mark.parametrize(
    ("items", "extra", "why"),
    [
        (bound("/idz"), {}, "the loop of step 'wipe' cannot run: the pointer '/idz' into the result of step 'find'"),
        (bound("/topic"), {}, "the loop of step 'wipe' cannot run: 'forEach' leads to the text \"t\", which is not"),
        (IDS, {"maxItems": 1}, "the loop of step 'wipe' cannot run: 'forEach' has 3 items, the step allows 1"),
        ([1, "x"], {}, "erase of step 'wipe' cannot run at index 1: /ids/0: \"x\" is not of type"),
        ([1, "x"], {"when": SOME}, "erase of step 'wipe' cannot run at index 1"),
        ([1, "x"], {"when": NONE}, None),
        ([1, "x"], {"onItemFailure": "continue"}, None),
        ({"$from": "later", "pointer": "/topic"}, {}, None),
    ],
)
async def test_a_loop_that_cannot_run_is_told_before_a_person_is_asked_to_confirm_it(
    items: JsonValue, extra: Json, why: str | None
) -> None:
    later = tool_step("later", "find", {"topic": "u"}, dependencies=["ask"])
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(FIND, confirm("ask", confirms=["wipe"]), later, wipe(items, **extra)))
    if why is None:
        assert [question.step_id for question in asked.suspensions] == ["ask"]
        return
    error = asked.steps[1].error
    assert asked.suspensions == () and error is not None and f"nobody was asked, because {why}" in error.message


@requirement("confirms:loop")
@pytest.mark.parametrize("items", [[1, 2, 2], IDS], ids=["listed", "found before"])
@pytest.mark.parametrize("concurrent", [1, 3])
async def test_one_answer_covers_every_call_of_the_loop_once_also_in_another_process(
    items: JsonValue, concurrent: int
) -> None:
    ledger, store = Ledger(), MemoryStore()
    steps = plan(FIND, confirm("ask", confirms=["wipe"]), wipe(items, maxConcurrent=concurrent))
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
        asked = await w.execute_plan(plan(confirm("ask", confirms=["wipe"]), wipe([*range(5)], maxConcurrent=5)))
        assert len(asked.suspensions[0].confirms) == 3
        [question] = (await decide(w, asked)).suspensions
    assert [call.arguments for call in question.calls] == [{"ids": [3]}, {"ids": [4]}] and len(ledger.lines) == 3


def revising(patch: Json) -> Json:
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
async def test_a_model_cannot_change_what_a_person_was_asked_about(step_id: str, change: Json | None) -> None:
    ledger = Ledger()
    never: JsonValue = {"value": {"$from": "check", "pointer": "/topic"}, "matches": {"const": "never"}}
    steps = plan(
        confirm("ask", confirms=["wipe"]),
        model_step("think", "note", dependencies=["ask"]),
        tool_step("check", "find", {"topic": "t"}, dependencies=["think"]),
        tool_step("wipe", "erase", {"ids": [7]}, dependencies=["check"], when=never),
    )
    patch: Json = {"op": "remove", "id": step_id} if change is None else {"op": "change", "id": step_id, "set": change}
    async with warden(ledger, script=[revising(patch)]) as opened:
        await decide(opened, await opened.execute_plan(steps, wait_seconds=30))
    assert ledger.lines == ["note a"]
