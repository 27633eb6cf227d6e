"""Revising a plan while it runs: which steps may change, and how models with tool calling send the change."""

from collections.abc import Collection
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.models.endpoint import Mode
from planwarden.agent.runtime.real_paths import find_real_paths
from planwarden.server.settings.rules import build_rule_book
from tests.kit import NO, YES, Ledger, calls, confirm, decide, governed, model_step, plan, statuses, tool_step, warden
from tests.support.doubles.manners import Manner, obedient
from tests.support.doubles.messages import REVISE_TOOL, ModelReply, ModelRequest
from tests.support.doubles.server import WIRES, ProviderDouble, build_provider_model, serve_double
from tests.support.wardens import run

THINK: dict[str, JsonValue] = {"id": "think", "description": "think about it", "stepType": "reasoning"}
STEPS = plan(THINK, tool_step("a", "note", {"text": "old"}))


def add(step: JsonValue, **place: JsonValue) -> JsonValue:
    return {"op": "add", "step": step, **place}


def remove(step_id: str) -> JsonValue:
    return {"op": "remove", "id": step_id}


def change(step_id: str, values: JsonValue) -> JsonValue:
    return {"op": "change", "id": step_id, "set": values}


CHANGE: list[JsonValue] = [change("a", {"toolCalls": [{"toolName": "note", "arguments": {"text": "new"}}]})]
REVISES = ModelReply(text="The note was wrong.", calls=((REVISE_TOOL, {"operations": CHANGE}),))


async def run_doubled(
    *answers: ModelReply, wire: str = "openai-chat", steps: dict[str, JsonValue] = STEPS, mode: Mode = "tools"
) -> tuple[planwarden.Execution, Ledger, ProviderDouble]:
    """The execution with all observations; the answers come in turn, the last one again and again."""
    left, ledger = list(answers), Ledger()

    def answer(asked: ModelRequest) -> ModelReply:
        return obedient(asked) if asked.forced else left.pop(0) if len(left) > 1 else left[0]

    async with (
        serve_double(wire, Manner("test", "x", answer)) as double,
        warden(ledger, model=build_provider_model(double, mode=mode)) as w,
    ):
        execution = await w.execute_plan(steps)
        return await w.get_execution(execution.thread_id, observations_after=0), ledger, double


def find_refusals(execution: planwarden.Execution) -> list[str]:
    """The messages of the revisions that were refused."""
    return [str(o.data["message"]) for o in execution.observations or () if o.type == "VALIDATION_FAILED"]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_call_of_the_revision_is_a_patch_and_no_call_of_the_plan(wire: str) -> None:
    execution, ledger, double = await run_doubled(REVISES, wire=wire)
    assert (execution.status, ledger.lines) == ("completed", ["note new"])
    assert execution.steps[0].result == "The note was wrong." and execution.steps[0].actual_tool_calls == ()
    assert double.requests[0].may_revise and "revise" not in double.requests[0].system


async def test_revising_is_offered_only_if_a_step_has_not_begun_and_no_call_is_due() -> None:
    steps = plan(THINK, model_step("a", "note"), {**THINK, "id": "z"})
    _, _, double = await run_doubled(ModelReply(text="I thought."), steps=steps)
    assert [asked.may_revise for asked in double.requests] == [True, False, False]


async def test_a_revision_without_an_answer_is_kept_and_the_answer_asked_for() -> None:
    silent = ModelReply(calls=((REVISE_TOOL, {"operations": CHANGE}),))
    execution, ledger, double = await run_doubled(silent, ModelReply(text="Now I thought."))
    assert (execution.status, ledger.lines, len(double.requests)) == ("completed", ["note new"], 2)
    assert "did not answer the step in text" in double.requests[1].text
    assert execution.steps[0].result == "Now I thought."


@pytest.mark.parametrize("arguments", ['{"operations": [{"op"', {"operations": "all"}, {}])
async def test_after_a_broken_revision_the_model_is_asked_once_more(arguments: object) -> None:
    broken = ModelReply(text="I thought.", calls=((REVISE_TOOL, arguments),))
    execution, ledger, double = await run_doubled(broken, REVISES)
    assert (execution.status, ledger.lines, len(double.requests)) == ("completed", ["note new"], 2)
    assert "the arguments of revise_plan" in double.requests[1].text


async def test_in_text_mode_a_revision_is_json() -> None:
    text = 'The note was wrong. {"revise": [{"op": "remove", "id": "a"}]}'
    execution, ledger, double = await run_doubled(ModelReply(text=text), mode="text")
    assert not double.requests[0].may_revise and '"revise"' in double.requests[0].system
    assert (execution.status, ledger.lines) == ("completed", [])


def revising(*operations: JsonValue, content: str | None = "I thought about it.") -> JsonValue:
    return {"when": {"purpose": "step"}, "reply": {"content": content, "revise": list(operations)}}


async def test_pending_steps_are_added_changed_removed_and_moved_and_the_difference_is_shown() -> None:
    new = tool_step("new", "note", {"text": "new"}, dependencies=["think"])
    patch = revising(add(new, after="think"), *CHANGE, remove("b"), {"op": "move", "id": "a"})
    last = tool_step("b", "note", {"text": "b"}, dependencies=["think"])
    execution, lines = await run(THINK, tool_step("a", "note", {"text": "old"}), last, script=[patch])
    assert execution.status == "completed" and sorted(lines) == ["note new", "note new"]
    assert [step.id for step in execution.steps] == ["think", "new", "a"]
    [revised] = [o for o in execution.observations or () if o.type == "PLAN_REVISED"]
    assert revised.data == {"added": ["new"], "changed": ["a"], "removed": ["b"], "moved": ["a"]}


THOUGHT: JsonValue = {"when": {"purpose": "step"}, "reply": {"content": "Then not."}}


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        (remove("think"), "has begun"),
        (change("gate", {"description": "x"}), "asks a person"),
        (remove("gate"), "asks a person"),
        (change("c", {"dependencies": []}), "must still wait"),
        (change("a", {"id": "z"}), "other than its id"),
        (remove("nope"), "unknown step 'nope'; the plan has 'think', 'gate', 'a', 'c'"),
        ({"op": "replace", "id": "a"}, "'op' must be add, change, remove or move, not the text \"replace\""),
        (add({"id": "a", "description": "twice"}), "several steps have the id"),
        (add(model_step("n", "teleport")), "unknown tools"),
        (add({"id": "n", "description": "x", "dependencies": ["n"]}), "circle"),
        (add("do it"), "no object"),
        (add({"id": "n", "description": "x"}, after="z"), "names unknown step 'z'; the plan has 'think', 'gate',"),
        ({"op": "remove", "id": "a", "status": "completed"}, "has no key"),
        ("all of it", 'an operation must be an object, not the text "all of it"'),
    ],
)
async def test_a_patch_that_is_not_allowed_changes_nothing_and_says_why(operation: JsonValue, why: str) -> None:
    execution, lines = await run(
        THINK,
        confirm("gate", confirms=["a"]),
        tool_step("a", "erase", {"ids": [1]}),
        tool_step("c", "note", {"text": "c"}, dependencies=["gate"]),
        script=[revising(operation), THOUGHT],
    )
    assert list(statuses(execution).values()) == ["completed", "suspended", "pending", "pending"] and lines == []
    refused = find_refusals(execution)
    assert len(refused) == 1 and why in refused[0]


def calling(*calls: tuple[str, dict[str, JsonValue]]) -> dict[str, JsonValue]:
    return {
        "requiredTools": list(dict.fromkeys(name for name, _ in calls)),
        "toolCalls": [{"toolName": name, "arguments": arguments} for name, arguments in calls],
    }


NOTE, FIND = calling(("note", {"text": "c"})), calling(("find", {"topic": "g"}))
TWO_NOTES = calling(("note", {"text": "old"}), ("note", {"text": "c"}))
ERASE_AND_NOTE = calling(("erase", {"ids": [1]}), ("note", {"text": "c"}))
NOTE_AND_ERASE = calling(("note", {"text": "c"}), ("erase", {"ids": [1]}))
ADD_Z = add(tool_step("z", "note", {"text": "c"}, dependencies=["think"]))


def redirect(step_id: str, *dependencies: str) -> JsonValue:
    return change(step_id, {"dependencies": list(dependencies)})


GATES = pytest.mark.parametrize(
    "gate", [confirm("gate"), tool_step("gate", "erase", {"ids": [1]})], ids=["asks", "may ask"]
)
OVERTAKING: dict[str, list[JsonValue]] = {
    "skipping the gate": [redirect("c")],
    "without the step between": [remove("b"), redirect("c", "think")],
    "through the step between": [redirect("b", "think")],
    "without the gate": [remove("gate"), redirect("b", "think")],
    "added again": [remove("c"), add(tool_step("c", "note", {"text": "c"}, dependencies=[]))],
}


@GATES
@pytest.mark.parametrize("patch", OVERTAKING.values(), ids=OVERTAKING)
async def test_no_step_overtakes_one_that_may_ask_a_person(gate: dict[str, JsonValue], patch: list[JsonValue]) -> None:
    between, last = tool_step("b", "find", {"topic": "b"}), tool_step("c", "note", {"text": "c"})
    execution, lines = await run(THINK, gate, between, last, script=[revising(*patch), THOUGHT])
    assert (execution.status, lines, len(execution.steps)) == ("suspended", [], 4)
    [refused] = find_refusals(execution)
    assert any(why in refused for why in ("must still wait for 'gate'", "and cannot be revised"))


NEW_EFFECTS: dict[str, list[JsonValue]] = {
    "in place of another": [remove("c"), add(tool_step("z", "note", {"text": "c"}, dependencies=[]))],
    "called by the model": [add(model_step("z", "note", dependencies=["think"]))],
    "in a step that read": [change("b", NOTE)],
    "by the same tool": [change("n", TWO_NOTES)],
    "without the gate": [remove("gate"), remove("c"), ADD_Z],
    "behind what was the gate": [change("gate", FIND), ADD_Z],
    "by a gate that only reads": [change("gate", FIND)],
    "by a gate that a rejection passes": [change("gate", {"onReject": "continue"})],
    "within the gate": [change("gate", NOTE_AND_ERASE)],
}


@GATES
@pytest.mark.parametrize("patch", NEW_EFFECTS.values(), ids=NEW_EFFECTS)
async def test_no_new_effect_overtakes_a_step_that_may_ask_a_person(
    gate: dict[str, JsonValue], patch: list[JsonValue]
) -> None:
    free = tool_step("b", "find", {"topic": "b"}, dependencies=["think"])
    last = tool_step("c", "note", {"text": "c"}, dependencies=["gate"])
    note = tool_step("n", "note", {"text": "old"}, dependencies=["think"])
    gated: dict[str, JsonValue] = {**gate, "dependencies": ["think"]}
    execution, lines = await run(THINK, free, gated, last, note, script=[revising(*patch), THOUGHT])
    assert (execution.status, lines, len(execution.steps)) == ("suspended", ["note old"], 5)
    [refused] = find_refusals(execution)
    reasons = ("must wait for 'gate'", "must still wait for 'gate'", "cannot be revised", "must go on asking")
    assert any(why in refused for why in reasons)


ASKS_FOR_TWO = {"tool": "erase", "when": {"ids": {"length": {"max": 1}}}, "then": "allow"}
ASKS_FOR_BIG = {"tool": "note", "when": {"text": {"prefix": "big"}}, "then": "ask"}
LOOK = tool_step("look", "find", {"topic": "x"}, dependencies=["think"])
LOOK_AGAIN: JsonValue = calling(("find", {"topic": "x", "limit": 1}))
FROM_LOOK: dict[str, JsonValue] = {"ids": {"$from": "look", "pointer": "/ids"}}
TOPIC: dict[str, JsonValue] = {"ids": {"$from": "look", "pointer": "/topic"}}
TWO, BIG = tool_step("gate", "erase", {"ids": [1, 2]}), tool_step("gate", "note", {"text": "big"})
ADVISORY: dict[str, JsonValue] = {**TWO, "toolValidationMode": "advisory"}


@pytest.mark.parametrize(
    ("rule", "gate", "patch"),
    [
        (ASKS_FOR_TWO, TWO, [change("gate", calling(("erase", {"ids": [1]})))]),
        (ASKS_FOR_TWO, TWO, [change("gate", {"toolCalls": []})]),
        (ASKS_FOR_TWO, tool_step("gate", "erase", FROM_LOOK), [change("look", LOOK_AGAIN)]),
        (ASKS_FOR_BIG, BIG, [change("gate", calling(("note", {"text": "small"})))]),
        (ASKS_FOR_BIG, BIG, [{"op": "remove", "id": "gate"}, redirect("c", "think")]),
        (None, ADVISORY, [change("gate", {"toolCalls": []})]),
        (None, ADVISORY, [change("gate", calling(("erase", TOPIC)))]),
    ],
    ids=[
        "by smaller arguments",
        "by arguments of the model",
        "by a smaller list to take",
        "by a text without the word",
        "although only a rule asks",
        "by no call in an advisory step",
        "by a call that fails in an advisory step",
    ],
)
async def test_no_revision_changes_what_a_step_asks_about_until_nobody_is_asked(
    rule: dict[str, object] | None, gate: dict[str, JsonValue], patch: list[JsonValue]
) -> None:
    settings = None if rule is None else governed(rules=build_rule_book([rule]), facts={"rules": [rule]})
    last = tool_step("c", "note", {"text": "c"}, dependencies=["gate"])
    steps: list[dict[str, JsonValue]] = [THINK, LOOK, {**gate, "dependencies": ["look"]}, last]
    small = calls(("erase", {"ids": [1]}))
    execution, lines = await run(*steps, script=[revising(*patch), small, THOUGHT, THOUGHT], settings=settings)
    assert (statuses(execution)["gate"], lines) == ("suspended", [])
    [refused] = find_refusals(execution)
    assert "must go on asking" in refused or "a person may be asked about step 'gate'" in refused


@pytest.mark.parametrize(
    "patch",
    [[change("gate", NOTE_AND_ERASE)], [change("gate", NOTE)], [remove("gate"), ADD_Z]],
    ids=["before it", "without it", "in a step of its own"],
)
async def test_a_call_that_asks_nobody_stays_behind_the_earlier_call_of_its_step_that_asks(
    patch: list[JsonValue],
) -> None:
    gate = {**tool_step("gate", "erase", {"ids": [1]}, dependencies=["think"]), **ERASE_AND_NOTE}
    execution, lines = await run(THINK, gate, script=[revising(*patch), THOUGHT])
    assert (statuses(execution), lines) == ({"think": "completed", "gate": "suspended"}, [])
    assert len(find_refusals(execution)) == 1


async def test_where_the_paths_of_all_calls_lead_is_looked_up_at_once_before_a_revision_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[int] = []

    async def follow(paths: Collection[str]) -> dict[str, str | None]:
        looked_up.append(len(paths))
        return await find_real_paths(paths)

    @planwarden.tool(name="delete")
    async def delete(path: str) -> str:
        """Delete a file."""
        return path

    monkeypatch.setattr("planwarden.agent.runtime.lookups.find_real_paths", follow)
    folders = [str(tmp_path), *(f"/nowhere/{n}" for n in range(5))]
    rules = [{"tool": "delete", "when": {"path": {"under": folder}}, "then": "allow"} for folder in folders]
    gates = [tool_step(f"g{n}", "delete", {"path": f"/outside/{n}"}, dependencies=["think"]) for n in range(9)]
    last = tool_step("c", "note", {"text": "c"}, dependencies=["g0"])
    patch = revising(change("g0", calling(("delete", {"path": str(tmp_path / "inside")}))))
    settings = governed(rules=build_rule_book(rules), facts={"rules": rules})
    execution, lines = await run(THINK, *gates, last, script=[patch, THOUGHT], tools=[delete], settings=settings)
    [refused] = find_refusals(execution)
    assert "must go on asking" in refused and lines == [] and looked_up[0] >= len(gates) + len(folders)


@pytest.mark.parametrize(
    ("rule", "arguments", "patch"),
    [
        (ASKS_FOR_TWO, {"ids": [1, 2]}, change("gate", calling(("erase", {"ids": [3, 4, 5]})))),
        ({"tool": "*", "then": "ask"}, FROM_LOOK, change("look", LOOK_AGAIN)),
        ({**ASKS_FOR_BIG, "tool": "*"}, FROM_LOOK, change("look", LOOK_AGAIN)),
    ],
    ids=["about some calls", "about all calls", "about texts of other tools"],
)
async def test_a_step_under_a_rule_is_changed_as_long_as_it_goes_on_asking(
    rule: dict[str, object], arguments: JsonValue, patch: JsonValue
) -> None:
    gate = tool_step("gate", "erase", arguments, dependencies=["look"])
    last = tool_step("c", "note", {"text": {"$from": "look", "pointer": "/topic"}}, dependencies=["gate"])
    settings = governed(rules=build_rule_book([rule]), facts={"rules": [rule]})
    execution, _ = await run(THINK, LOOK, gate, last, script=[revising(patch)], settings=settings)
    assert not find_refusals(execution) and "suspended" in statuses(execution).values()


READER = tool_step("r", "find", {"topic": "r"}, dependencies=["gate"])
BEFORE_GATE: dict[str, JsonValue] = {"id": "again", "description": "think again", "dependencies": ["think"]}
SERIES: dict[str, tuple[list[JsonValue], JsonValue]] = {
    "without the effect": ([remove("c")], ADD_Z),
    "without the gate": ([remove("c"), remove("r"), remove("gate")], ADD_Z),
    "a gate that reads": ([remove("c"), change("gate", FIND)], ADD_Z),
    "a gate passed": ([remove("c"), change("gate", {"onReject": "continue"})], ADD_Z),
    "an effect in a step that read": ([remove("c"), change("gate", FIND)], change("r", NOTE)),
}


@pytest.mark.parametrize(("first", "second"), SERIES.values(), ids=SERIES)
async def test_no_series_of_revisions_takes_an_effect_from_behind_a_step_that_may_ask(
    first: list[JsonValue], second: JsonValue
) -> None:
    gate = tool_step("gate", "erase", {"ids": [1]}, dependencies=["think"])
    last = tool_step("c", "note", {"text": "c"}, dependencies=["gate"])
    script = [revising(*first), revising(second), THOUGHT]
    execution, lines = await run(THINK, BEFORE_GATE, gate, READER, last, script=script)
    assert lines == []
    revised = [o for o in execution.observations or () if o.type == "PLAN_REVISED"]
    refused = find_refusals(execution)
    assert len(revised) == len(refused) == 1 and "wait for 'gate'" in refused[0]


async def test_a_step_that_would_have_asked_holds_new_effects_although_it_ran_without_asking() -> None:
    gate = tool_step("gate", "erase", {"ids": [1]}, dependencies=["think"])
    again: dict[str, JsonValue] = {**BEFORE_GATE, "dependencies": ["gate"]}
    last = tool_step("c", "note", {"text": "c"}, dependencies=["gate"])
    first = revising(remove("c"), change("gate", FIND))
    execution, lines = await run(THINK, gate, again, last, script=[first, revising(ADD_Z), THOUGHT])
    [refused] = find_refusals(execution)
    assert "must wait for 'gate'" in refused and (execution.status, lines) == ("completed", [])


async def test_a_retry_compares_further_revisions_with_the_plan_before_the_first_one() -> None:
    ask: dict[str, JsonValue] = {**confirm("ask"), "dependencies": ["think"]}
    again: dict[str, JsonValue] = {**BEFORE_GATE, "dependencies": ["ask"]}
    gate = tool_step("gate", "erase", {"ids": [1]}, dependencies=["ask"])
    last, ledger = tool_step("c", "note", {"text": "c"}, dependencies=["gate"]), Ledger()
    script = [revising(remove("c"), remove("gate")), revising(ADD_Z), THOUGHT]
    async with warden(ledger, script=script) as w:
        rejected = await decide(w, await w.execute_plan(plan(THINK, ask, again, gate, last)), NO)
        rejected = await decide(w, await w.retry(rejected.thread_id), NO)
        retried = await decide(w, await w.retry(rejected.thread_id), YES)
        retried = await w.get_execution(retried.thread_id, observations_after=0)
    assert (rejected.status, retried.status, ledger.lines) == ("rejected", "completed", [])
    [refused] = find_refusals(retried)
    assert "must wait for 'gate'" in refused


BACKUP = tool_step("backup", "note", {"text": "backup"}, dependencies=["think"])


async def test_an_effect_is_added_before_a_call_that_asks_only_for_itself() -> None:
    erase = tool_step("erase", "erase", {"ids": [1]}, dependencies=["think"])
    report = tool_step("report", "find", {"topic": "r"}, dependencies=["erase"])
    patch = revising(add(BACKUP), redirect("erase", "think", "backup"))
    execution, lines = await run(THINK, erase, report, script=[patch])
    assert list(statuses(execution).values()) == ["completed", "suspended", "pending", "completed"]
    assert lines == ["note backup"]


IF_X: JsonValue = [{"value": {"$from": "look", "pointer": "/topic"}, "matches": {"const": "x"}}]


@pytest.mark.parametrize("end", ["passed over", "rejected", "unreached"])
async def test_an_effect_is_added_beside_a_gate_that_a_condition_passed_over_and_beside_no_other(end: str) -> None:
    look = tool_step("look", "find", {"topic": "x"}, dependencies=[])
    never: JsonValue = [{"value": {"$from": "look", "pointer": "/nothing"}, "matches": {}}]
    broken = tool_step("broken", "broken", {}, dependencies=[])
    gate: dict[str, JsonValue] = {**confirm("gate"), "dependencies": ["broken" if end == "unreached" else "look"]}
    behind = tool_step("behind", "note", {"text": "b"}, dependencies=["gate"])
    other: dict[str, JsonValue] = {**confirm("other"), "dependencies": ["look"]}
    last, ledger = tool_step("last", "find", {"topic": "y"}, dependencies=["think"]), Ledger()
    async with warden(ledger, script=[revising(add(BACKUP)), THOUGHT]) as w:
        gates = [gate | ({"when": never} if end == "passed over" else {}), other]
        asked = await w.execute_plan(plan(look, broken, *gates, behind, {**THINK, "dependencies": ["other"]}, last))
        for suspension in asked.suspensions:
            await decide(w, suspension, NO if suspension.step_id == "gate" else YES)
        done = await w.get_execution(asked.thread_id)
    assert statuses(done)["gate"] == ("rejected" if end == "rejected" else "skipped")
    assert ("note backup" in ledger.lines) == (end == "passed over")


@pytest.mark.parametrize(
    "asking",
    [
        {**confirm("gate"), "when": IF_X},
        tool_step("gate", "erase", {"ids": [1]}, when=IF_X),
        tool_step("gate", "erase", {"ids": [{"$from": "item"}]}, forEach={"$from": "look", "pointer": "/ids"}),
    ],
    ids=["a confirmation", "an approval", "the approvals of a loop"],
)
async def test_a_model_does_not_change_what_decides_whether_a_person_is_asked(asking: dict[str, JsonValue]) -> None:
    look = tool_step("look", "find", {"topic": "x"}, dependencies=["think"])
    gate: dict[str, JsonValue] = {**asking, "dependencies": ["look"]}
    behind = tool_step("behind", "note", {"text": "b"}, dependencies=["gate"])
    call: JsonValue = [{"toolName": "find", "arguments": {"topic": "y", "limit": 0}}]
    patch = revising(change("look", {"toolCalls": call}))
    execution, lines = await run(THINK, look, gate, behind, script=[patch, THOUGHT])
    assert (statuses(execution)["gate"], lines) == ("suspended", [])
    [refused] = find_refusals(execution)
    assert "a person may be asked about step 'gate'" in refused


async def test_a_model_adds_reads_before_an_open_question_and_effects_behind_it() -> None:
    added = [tool_step("r", "find", {"topic": "r"}, dependencies=[]), model_step("n", "note", dependencies=["gate"])]
    execution, _ = await run(THINK, confirm("gate"), script=[revising(*map(add, added))])
    assert statuses(execution) == {"think": "completed", "gate": "suspended", "r": "completed", "n": "pending"}


async def test_a_step_need_not_wait_for_steps_that_ask_nobody() -> None:
    between, last = tool_step("b", "find", {"topic": "b"}), tool_step("c", "note", {"text": "c"})
    patch = revising(remove("b"), redirect("c", "gate"))
    execution, _ = await run(THINK, confirm("gate"), between, last, script=[patch])
    assert [step.id for step in execution.steps] == ["think", "gate", "c"]


async def test_a_patch_cannot_add_a_dangerous_step_without_approval_and_comes_with_the_calls_of_a_tool_step() -> None:
    script = revising(add(tool_step("n", "erase", {"ids": [1]})))
    execution, lines = await run(THINK, script=[script])
    assert execution.status == "suspended" and execution.suspensions[0].kind == "approval" and lines == []
    call: JsonValue = {"toolName": "find", "arguments": {"topic": "t"}}
    reply: JsonValue = {"reply": {"toolCalls": [call], "revise": [remove("b")]}}
    execution, lines = await run(model_step("a", "find"), tool_step("b", "note", {"text": "b"}), script=[reply])
    assert execution.status == "completed" and [step.id for step in execution.steps] == ["a"] and lines == []
