"""Fork: from a named step on, all that depends on it runs again, gated again, with other inputs or another plan."""

import json
from collections.abc import Mapping

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded, NotRetryable
from planwarden.agent.core.control import retry_reuse
from planwarden.server.api.audit import verify_audit
from tests.kit import ITEM, NO, Decision, Ledger, confirm, decide, plan, requirement, statuses, tool_step, warden
from tests.storage.suite import BackEnd

WHO: JsonValue = {"$from": "inputs", "pointer": "/who"}
TONE: JsonValue = {"$from": "inputs", "pointer": "/tone"}
INPUTS: JsonValue = {
    "type": "object",
    "properties": {"who": {"type": "string"}, "tone": {"type": "string", "default": "kind"}},
    "required": ["who"],
}
STEPS = plan(
    tool_step("find", "find", {"topic": WHO}),
    tool_step("write", "note", {"text": TONE}),
    tool_step("send", "erase", {"ids": {"$from": "find", "pointer": "/ids"}}),
    tool_step("aside", "note", {"text": "aside"}, dependencies=["find"]),
)
BROKEN, LOST = planwarden.ToolError("broken"), planwarden.OutcomeUnknown("the line broke")
LETTER: dict[str, JsonValue] = {**STEPS, "inputs": INPUTS}
"""`aside` hangs on `find` alone; `send` needs a person."""


async def run_letter(made: planwarden.Warden) -> planwarden.Execution:
    return await decide(made, await made.execute_plan(LETTER, inputs={"who": "owls"}))


def acting(name: str, ledger: Ledger, faults: Mapping[str, Exception]) -> object:
    """A tool that writes its value down as JSON, and fails for one with a fault; what is lost was done."""

    @planwarden.tool(name=name, risk="read", effect="effect")
    async def tool(value: object) -> object:
        """Do it."""
        fault = faults.get(json.dumps(value))
        if fault is not BROKEN:
            ledger.lines.append(f"{name} {json.dumps(value)}")
        if fault is not None:
            raise fault
        return value

    return tool


@requirement("retry:fork")
async def test_a_step_and_what_depends_on_it_runs_again_and_is_asked_again(back_end: BackEnd) -> None:
    ledger = Ledger()
    async with warden(ledger, store=back_end.connect()) as made:
        done = await run_letter(made)
        assert sorted(ledger.lines) == ["erase [1, 2, 3]", "note aside", "note kind"]
        forked = await made.retry(done.thread_id, from_step="write")
        [question] = forked.suspensions
        assert question.kind == "approval" and forked.retry_of == done.execution_id
        assert f"Step 'write' of this plan already ran in execution '{done.execution_id}' and returned" in " ".join(
            question.found
        )
        assert "Step 'send'" in " ".join(question.found) and '{"erased":3}' in " ".join(question.found)
        assert any("'find', 'aside' completed there" in sentence for sentence in question.found)
        taken = {step.id: step.taken_from for step in forked.steps}
        assert taken == {"find": done.execution_id, "write": None, "send": None, "aside": done.execution_id}
        again = await decide(made, question)
        assert again.status == "completed"
        assert (await verify_audit(made.service.store)).is_whole
    assert sorted(ledger.lines) == ["erase [1, 2, 3]"] * 2 + ["note aside"] + ["note kind"] * 2


@requirement("retry:fork")
async def test_other_inputs_branch_from_a_step() -> None:
    ledger = Ledger()
    async with warden(ledger) as made:
        done = await run_letter(made)
        find = made.service.find
        with pytest.raises(NotRetryable, match=r"'find' was completed .* takes inputs that are different now"):
            await made.retry(done.thread_id, from_step="write", inputs={"who": "mice", "tone": "stern"})
        with pytest.raises(InvalidArguments, match="inputs"):
            await made.retry(done.thread_id, from_step="write", inputs={"who": 7})
        forked = await made.retry(done.thread_id, from_step="write", inputs={"who": "owls", "tone": "stern"})
        assert dict((await find(forked.execution_id)).inputs) == {"who": "owls", "tone": "stern"}
        await made.cancel_execution(done.thread_id)
        whole = await made.retry(done.thread_id, from_step="find", inputs={"who": "mice"})
        assert [step.taken_from for step in whole.steps] == [None] * 4
        # What is not named stays: no default slips in for what the first run was given.
        assert dict((await find(whole.execution_id)).inputs) == {"who": "mice", "tone": "stern"}
        await made.cancel_execution(done.thread_id)
        # A plan that takes other inputs is given those alone.
        other: dict[str, JsonValue] = {**STEPS, "inputs": {"properties": {"who": {}, "tone": {"default": "calm"}}}}
        changed = await made.retry(done.thread_id, from_step="find", inputs={"who": "bats"}, plan=other)
        assert dict((await find(changed.execution_id)).inputs) == {"who": "bats", "tone": "calm"}
    assert ledger.lines.count("note stern") == 2


@requirement("retry:fork")
async def test_a_fork_asks_every_confirmation_again_that_stands_before_what_runs() -> None:
    ledger = Ledger()
    steps = plan(confirm("ask"), tool_step("a", "note", {"text": "a"}), tool_step("b", "note", {"text": "b"}))
    async with warden(ledger) as made:
        asked = await made.execute_plan(steps)
        done = await decide(made, asked)
        assert done.status == "completed"
        forked = await made.retry(done.thread_id, from_step="b")
        [question] = forked.suspensions
        assert question.step_id == "ask" and ledger.lines == ["note a", "note b"]
        rejected = await decide(made, question, NO)
        assert rejected.status == "rejected"
        assert statuses(rejected) == {"ask": "rejected", "a": "completed", "b": "skipped"}
    assert ledger.lines == ["note a", "note b"]


@requirement("retry:fork", "retry:unknown")
async def test_no_fork_runs_a_call_again_that_may_have_happened() -> None:
    ledger = Ledger()
    lose = tool_step("a", "lose", {"value": 1})
    async with warden(ledger, tools=[acting("lose", ledger, {"1": LOST})]) as made:
        asked = await made.execute_plan(plan(lose, tool_step("b", "note", {"text": "b"})))
        failed = await decide(made, asked, NO)
        for from_step, changed in (("a", None), (None, plan({**lose, "description": "other"}))):
            with pytest.raises(NotRetryable, match="nobody knows whether call 'a:1'"):
                await made.retry(failed.thread_id, from_step=from_step, plan=changed)
        assert (await made.retry(failed.thread_id, from_step="b")).suspensions[0].kind == "reconcile"
    assert ledger.lines == ["lose 1"]


@requirement("retry:rest")
async def test_large_results_stay_readable_when_the_first_execution_is_pruned(back_end: BackEnd) -> None:
    ledger, faults = Ledger(), {'"the end"': BROKEN}

    @planwarden.tool(name="huge", risk="read", effect="read")
    async def huge() -> JsonValue:
        """Much."""
        lines: list[JsonValue] = ["x" * 1000] * 300
        return {"lines": lines, "end": "the end"}

    steps = plan(tool_step("a", "huge"), tool_step("b", "mend", {"value": {"$from": "a", "pointer": "/end"}}))
    async with warden(tools=[huge, acting("mend", ledger, faults)], store=back_end.connect()) as made:
        store = made.service.store
        failed = await made.execute_plan(steps)
        result = failed.steps[0].result
        assert isinstance(result, dict) and result["stored"] is True
        assert (await made.retry(failed.thread_id)).status == "failed"
        back_end.clock.advance(10)
        faults.clear()
        third = await made.retry(failed.thread_id)
        assert await store.prune(back_end.clock.now() - 5) == 2
        artifact = await made.service.read_artifact(failed.thread_id, str(result["artifactId"]), principal="local")
        assert len(artifact.data) > 300_000
        assert third.status == "completed" and ledger.lines == ['mend "the end"']
        forked = await made.retry(failed.thread_id, from_step="b")
        assert forked.status == "completed" and forked.steps[0].taken_from == failed.execution_id
    assert ledger.lines == ['mend "the end"'] * 2


@requirement("retry:refused")
async def test_results_beyond_the_limit_are_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_reuse, "MAX_BYTES", 50)
    async with warden(Ledger()) as made:
        failed = await made.execute_plan(plan(tool_step("a", "note", {"text": "x" * 60}), tool_step("b", "broken")))
        with pytest.raises(LimitExceeded, match="to take over"):
            await made.retry(failed.thread_id)


def loop(step_id: str, *calls: JsonValue, **extra: JsonValue) -> dict[str, JsonValue]:
    return {"id": step_id, "description": "loop", "forEach": ["a", "b", "c"], "toolCalls": list(calls), **extra}


NOTE: JsonValue = {"toolName": "note", "arguments": {"text": ITEM}}
MEND: JsonValue = {"toolName": "mend", "arguments": {"value": ITEM}}


@requirement("retry:calls")
async def test_items_of_a_loop_that_succeeded_are_not_done_again() -> None:
    ledger, faults = Ledger(), {'"b"': BROKEN}
    last = tool_step("last", "note", {"text": {"$from": "each", "pointer": "/1/1"}})
    async with warden(ledger, tools=[acting("mend", ledger, faults)]) as made:
        failed = await made.execute_plan(plan(loop("each", NOTE, MEND), last))
        again = await made.retry(failed.thread_id)
        assert failed.status == again.status == "failed" and ledger.lines == ["note a", 'mend "a"', "note b"]
        faults.clear()
        done = await made.retry(failed.thread_id)
        assert done.status == "completed" and ledger.lines[3:] == ['mend "b"', "note c", 'mend "c"', "note b"]
        forked = await made.retry(failed.thread_id, from_step="last")
        assert forked.status == "completed" and forked.steps[0].taken_from == done.execution_id
        assert forked.steps[0].result == done.steps[0].result and ledger.lines[7:] == ["note b"]
        assert (await verify_audit(made.service.store)).is_whole


@requirement("retry:calls")
async def test_calls_of_a_loop_that_take_changed_inputs_are_made_again_with_what_rests_on_them() -> None:
    ledger, faults = Ledger(), {'"a"': BROKEN}
    first: JsonValue = {"$text": "read {it}", "with": {"it": {"$from": "item", "call": 1, "pointer": "/written"}}}
    notes: list[JsonValue] = [{"toolName": "note", "arguments": {"text": text}} for text in (ITEM, WHO, first)]
    each = loop("each", *notes, MEND, forEach=["a"])
    async with warden(ledger, tools=[acting("mend", ledger, faults)]) as made:
        failed = await made.execute_plan({**plan(each), "inputs": INPUTS}, inputs={"who": "owls"})
        assert failed.status == "failed" and ledger.lines == ["note a", "note owls", "note read owls"]
        await made.retry(failed.thread_id, inputs={"who": "bats"})
        assert ledger.lines[3:] == ["note bats", "note read bats"]
        # The loop of the retry kept its calls; nor do those hold for other inputs when it does not come to begin.
        faults.clear()
        done = await made.retry(failed.thread_id, inputs={"who": "mice"})
    assert done.status == "completed" and ledger.lines[5:] == ["note mice", "note read mice", 'mend "a"']


@requirement("retry:calls", "retry:refused")
@pytest.mark.parametrize(("before", "after"), [(1, True), (1.0, True), ([1], [True]), ({"a": 0}, {"a": False})])
async def test_values_that_are_equal_only_in_python_are_different(before: JsonValue, after: JsonValue) -> None:
    ledger = Ledger()

    def steps(value: JsonValue) -> list[dict[str, JsonValue]]:
        return [tool_step("one", "write", {"value": value}), tool_step("last", "broken")]

    given: JsonValue = {"$from": "inputs", "pointer": "/value"}
    inputs: JsonValue = {"type": "object", "properties": {"value": {}}}
    async with warden(ledger, tools=[acting("write", ledger, {})]) as made:
        failed = await made.execute_plan(plan(*steps(before)))
        with pytest.raises(NotRetryable, match=r"'one' was completed .* and is different"):
            await made.retry(failed.thread_id, plan=plan(*steps(after)))
        await made.retry(failed.thread_id, plan=plan(*steps(before)))
        taken = await made.execute_plan({**plan(*steps(given)), "inputs": inputs}, inputs={"value": before})
        with pytest.raises(NotRetryable, match="takes inputs that are different now"):
            await made.retry(taken.thread_id, inputs={"value": after})
    assert ledger.lines == [f"write {json.dumps(before)}"] * 2


@requirement("retry:calls")
async def test_an_item_of_a_loop_that_is_equal_only_in_python_is_another_item() -> None:
    ledger, faults = Ledger(), {'"last"': BROKEN}
    items: JsonValue = {"$from": "inputs", "pointer": "/items"}
    each = loop("each", MEND, forEach=items)
    inputs: JsonValue = {"type": "object", "properties": {"items": {"type": "array"}}}
    async with warden(tools=[acting("mend", ledger, faults)]) as made:
        failed = await made.execute_plan({**plan(each), "inputs": inputs}, inputs={"items": [1, 2, "last"]})
        faults.clear()
        await made.retry(failed.thread_id, inputs={"items": [True, 2, "last"]})
    assert ledger.lines == ["mend 1", "mend 2", "mend true", 'mend "last"']


@requirement("retry:calls")
@pytest.mark.parametrize(("text", "again"), [("{it}", ["new", "last"]), ("{it}{at}", ["new0", "a1", "b2", "last3"])])
async def test_an_item_that_succeeded_is_done_again_at_another_place_only_if_its_calls_take_the_place(
    text: str, again: list[str]
) -> None:
    ledger, faults = Ledger(), {'"last"': BROKEN, '"last3"': BROKEN}
    parts: dict[str, JsonValue] = {"it": ITEM, "at": {"$from": "itemIndex"}}
    taken: dict[str, JsonValue] = {name: part for name, part in parts.items() if name in text}
    mend: JsonValue = {"toolName": "mend", "arguments": {"value": {"$text": text, "with": taken}}}
    each = loop("each", mend, forEach={"$from": "inputs", "pointer": "/items"})
    inputs: JsonValue = {"type": "object", "properties": {"items": {"type": "array"}}}
    async with warden(tools=[acting("mend", ledger, faults)]) as made:
        failed = await made.execute_plan({**plan(each), "inputs": inputs}, inputs={"items": ["a", "b", "a", "last"]})
        faults.clear()
        done = await made.retry(failed.thread_id, inputs={"items": ["new", "a", "b", "last"]})
    assert ledger.lines[3:] == [f'mend "{item}"' for item in again] and done.status == "completed"


@requirement("retry:calls")
async def test_a_call_that_succeeded_is_not_made_again_when_another_plan_has_calls_before_it() -> None:
    ledger, faults = Ledger(), {"2": BROKEN}

    def steps(*values: JsonValue) -> dict[str, JsonValue]:
        calls: list[JsonValue] = [{"toolName": "mend", "arguments": {"value": value}} for value in values]
        return plan({**tool_step("a", "mend", {}), "toolCalls": calls})

    async with warden(tools=[acting("mend", ledger, faults)]) as made:
        failed = await made.execute_plan(steps(1, 1, 2))
        faults.clear()
        done = await made.retry(failed.thread_id, plan=steps(0, 1, 1.0, 2))
    assert ledger.lines == ["mend 1", "mend 1", "mend 0", "mend 2"] and done.status == "completed"


@requirement("retry:calls")
async def test_of_equal_items_the_one_that_succeeded_is_taken_over_if_a_retry_has_fewer_of_them() -> None:
    faults, lines = [BROKEN], list[object]()

    @planwarden.tool(name="mend", risk="read", effect="effect")
    async def mend(value: str) -> str:
        """Fail for the first item only."""
        if faults:
            raise faults.pop()
        lines.append(value)
        return value

    each = loop("each", MEND, forEach={"$from": "inputs", "pointer": "/items"}, onItemFailure="continue")
    inputs: JsonValue = {"type": "object", "properties": {"items": {"type": "array"}}}
    async with warden(tools=[mend]) as made:
        failed = await made.execute_plan({**plan(each), "inputs": inputs}, inputs={"items": ["a", "a"]})
        done = await made.retry(failed.thread_id, inputs={"items": ["a"]})
    assert (failed.status, done.status, lines) == ("failed", "completed", ["a"])


@requirement("retry:calls", "retry:gated")
async def test_a_loop_with_a_row_left_out_is_taken_over_with_its_gap_and_an_empty_one_too() -> None:
    ledger = Ledger()
    erase: JsonValue = {"toolName": "erase", "arguments": {"ids": ITEM}}
    rows = loop("rows", erase, forEach=[[1], [2], [3]])
    none = loop("none", erase, forEach=[])
    async with warden(ledger) as made:
        asked = await made.execute_plan(plan(rows, none, tool_step("b", "broken")))
        [question] = asked.suspensions
        decision = Decision(approved=True, content={"items": [0, 2]})
        failed = await decide(made, question, decision)
        assert failed.status == "failed" and ledger.lines == ["erase [1]", "erase [3]"]
        again = await made.retry(asked.thread_id)
        assert statuses(again) == {"rows": "completed", "none": "completed", "b": "failed"}
        assert again.steps[0].result == [{"erased": 1}, None, {"erased": 1}] and again.steps[1].result == []
        # The row that was left out is not shown as a call of the retry.
        assert [call.arguments for call in again.steps[0].actual_tool_calls] == [{"ids": [1]}, {"ids": [3]}]
        assert again.steps[0].items is not None
        assert (again.steps[0].items.total, again.steps[0].items.rejected) == (3, 1)
        forked = await made.retry(asked.thread_id, from_step="rows")
        [question] = forked.suspensions
        assert len(question.calls) == 3 and any("'rows' of this plan already ran" in told for told in question.found)
    assert ledger.lines == ["erase [1]", "erase [3]"]
