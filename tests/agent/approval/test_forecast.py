"""The forecast of a plan: what it says comes true, it runs nothing, and it says what only the run will know."""

import re
from pathlib import Path

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, InvalidPlan
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.server.api.grants import GrantRequest
from planwarden.server.settings.configuration import load_settings
from planwarden.server.views.forecast import Forecast
from planwarden.server.views.graph.mermaid import write_mermaid
from planwarden.server.views.graph.plan_graph import build_graph, list_in_order
from tests.kit import Ledger, MemoryStore, by, confirm, model_step, plan, requirement, tool_step, warden

pytestmark = pytest.mark.anyio

BOUND: JsonValue = {"$from": "find", "pointer": "/ids"}


Json = dict[str, JsonValue]


def taking(inputs: Json, *steps: Json) -> Json:
    """Return a plan that takes these inputs, all of them required."""
    return {"inputs": {"properties": inputs, "required": [*inputs]}, **plan(*steps)}


async def forecast(*steps: Json, takes: Json | None = None, **inputs: JsonValue) -> Forecast:
    written = taking(takes, *steps) if takes else plan(*steps)
    async with warden(Ledger()) as w:
        return await w.service.forecast_plan(written, inputs=inputs or None, principal="local")


@requirement("plan:forecast")
async def test_it_says_whom_each_call_will_ask_and_what_only_the_run_knows() -> None:
    ledger, store = Ledger(), MemoryStore()
    steps = (
        tool_step("find", "find", {"topic": "x"}),
        confirm("ask", confirms=["one"]),
        tool_step("one", "erase", {"ids": [1]}),
        tool_step("two", "erase", {"ids": [2]}),
        tool_step("all", "erase", {"ids": BOUND}),
        model_step("think", "note"),
        tool_step("last", "wait", {"seconds": 5}),
    )
    async with warden(ledger, store=store) as w:
        found = await w.service.forecast_plan(plan(*steps), principal="local")
    assert [(asking.step_id, asking.asks, asking.needs, asking.confirms) for asking in found.asks] == [
        ("ask", "confirmation", "human", ("one",)),
        ("two", "approval", "human", ()),
    ]
    assert "inbox" in found.asks[1].whom and found.asks[1].because == "calls of this tool are dangerous"
    [bound] = found.only_the_run_knows
    assert (bound.step_id, bound.risk, bound.takes_from) == ("all", "dangerous", ("find",))
    assert found.models == ("think",) and found.impossible == () and found.unseen is None
    assert [step.id for step in found.steps] == [step["id"] for step in steps]
    assert ledger.lines == [] and await store.executions(None, 10) == ()


@requirement("plan:forecast")
async def test_what_it_says_of_literal_calls_is_what_a_rehearsal_finds() -> None:
    steps = (
        tool_step("a", "erase", {"ids": [1]}),
        tool_step("b", "erase", {"ids": [2]}),
        confirm("c", confirms=["d"]),
        tool_step("d", "erase", {"ids": [4]}),
        tool_step("e", "note", {"text": "x"}),
        tool_step("f", "requestInput", {"message": "who?", "form": {"type": "object", "properties": {}}}),
    )
    async with warden(Ledger()) as w:
        grant = GrantRequest(tool_name="erase", arguments={"ids": [2]}, uses=9, expires_in_s=3600)
        await w.service.grants.make(grant, by())
        found = await w.service.forecast_plan(plan(*steps), principal="local")
        done = await w.execute_plan(plan(*steps), options={"rehearse": True}, wait_seconds=60)
    judged = [(step.id, call.rehearsal) for step in done.steps for call in step.actual_tool_calls]
    asked = [(name, one.asks, one.needs, one.quorum, one.confirms) for name, one in judged if one and one.asks]
    assert asked == [(a.step_id, a.asks, a.needs, a.quorum, a.confirms) for a in found.asks]
    assert [name for name, *_ in asked] == ["a", "c", "f"]


@requirement("plan:forecast")
async def test_inputs_are_known_when_they_are_given_and_unknown_before() -> None:
    step = tool_step("a", "erase", {"ids": {"$from": "inputs", "pointer": "/ids"}})
    takes: Json = {"ids": {"type": "array"}}
    before, known = await forecast(step, takes=takes), await forecast(step, takes=takes, ids=[1])
    assert [call.takes_from for call in before.only_the_run_knows] == [("inputs",)] and before.asks == ()
    assert [asking.step_id for asking in known.asks] == ["a"] and known.only_the_run_knows == ()


@requirement("plan:forecast")
async def test_what_cannot_run_is_refused_as_it_would_be_when_it_is_sent() -> None:
    step = tool_step("a", "erase", {"ids": {"$from": "inputs", "pointer": "/ids"}})
    with pytest.raises(InvalidArguments):
        await forecast(step, takes={"ids": {"type": "array"}}, ids=7)
    with pytest.raises(InvalidPlan, match="unknown tools: 'eraze'"):
        await forecast(tool_step("a", "eraze", {"ids": [1]}))
    with pytest.raises(InvalidPlan):
        await forecast(tool_step("a", "erase", {"ids": "all"}))


@requirement("plan:forecast")
async def test_the_answer_of_create_plan_has_it_while_the_plan_waits() -> None:
    steps = (tool_step("find", "find", {"topic": "x"}), tool_step("all", "erase", {"ids": BOUND}))
    script: list[JsonValue] = [{"when": {"purpose": "plan"}, "reply": {"plan": plan(*steps)}}]
    async with warden(Ledger(), script=script) as w:
        made = await w.create_plan("erase what is old", wait_seconds=60)
        done = await w.execute_plan(thread_id=made.thread_id, wait_seconds=60)
    assert made.forecast is not None and [found.step_id for found in made.forecast.only_the_run_knows] == ["all"]
    # The steps are in the view already.
    assert made.forecast.steps == () and made.forecast.graph is None
    assert done.forecast is None


@requirement("plan:forecast")
async def test_many_and_large_calls_are_counted_and_not_looked_at() -> None:
    listed: list[JsonValue] = [{"toolName": "note", "arguments": {"text": "x"}}] * 50
    one = tool_step("a", "note", {"text": "x"})
    steps: list[Json] = [{**one, "toolCalls": listed, "id": f"s{number}"} for number in range(11)]
    large = tool_step("z", "note", {"text": "x" * 1_100_000})
    assert (await forecast(*steps)).unseen == 50
    assert (await forecast(tool_step("a", "find", {"topic": "x"}), large)).unseen == 1


@requirement("plan:forecast")
async def test_no_name_in_a_plan_can_add_anything_to_the_graph() -> None:
    steps = (tool_step("a", "find", {"topic": "x"}), tool_step('b"]-->x;', "erase", {"ids": [1]}, dependencies=["a"]))
    graph = (await forecast(*steps)).graph or ""
    lines = graph.splitlines()
    assert lines[0] == "flowchart TD" and lines[-1] == "  n0 --> n1"
    assert all(re.fullmatch(r'  n\d(\["|\{\{")[\w #;,.<>/-]*("\]|"\}\})(:::asks)?', line) for line in lines[1:3])
    assert "script" not in graph and lines[2].startswith("  n1{{")


@requirement("plan:forecast")
async def test_the_steps_stand_in_the_order_in_which_they_may_start() -> None:
    written = plan(
        tool_step("c", "find", {"topic": BOUND}, dependencies=["b"]),
        tool_step("b", "note", {"text": "x"}, dependencies=["find"]),
        tool_step("find", "find", {"topic": "x"}, dependencies=[]),
    )
    async with warden(Ledger()) as w:
        parsed, _ = parse_plan(written, author="caller", tools=w.service.engine.tool_facts())
    assert [step.step_id for step in list_in_order(parsed)] == ["find", "b", "c"]
    assert "  n0 ==> n2" in write_mermaid(build_graph(parsed))


@requirement("plan:forecast")
async def test_a_dangerous_loop_will_ask_once_for_all_rows_and_of_a_condition_only_the_run_knows() -> None:
    loop = tool_step("all", "erase", {"ids": [{"$from": "item"}]}, forEach=BOUND)
    judged = tool_step("some", "note", {"text": "x"}, when={"value": BOUND, "matches": {"minItems": 1}})
    found = await forecast(tool_step("find", "find", {"topic": "x"}), loop, judged)
    [asked] = found.asks
    assert (asked.step_id, asked.needs, asked.for_all_rows) == ("all", "human", True)
    assert asked.sentence == (
        "erase will ask, one question for all rows: a person, in the inbox or at a terminal: "
        "calls of this tool are dangerous"
    )
    assert [step.is_conditional for step in found.steps] == [False, False, True] and found.only_the_run_knows == ()
    # The graph has the loop as a step that asks.
    assert (found.graph or "").count("==>") == 2 and 'n1{{"all' in (found.graph or "")


@requirement("plan:forecast")
async def test_whether_a_loop_asks_is_open_where_a_grant_or_a_rule_looks_at_its_rows(tmp_path: Path) -> None:
    loop = tool_step("all", "erase", {"ids": [{"$from": "item"}]}, forEach=[1, 2])
    (tmp_path / "planwarden.toml").write_text('[[rules]]\ntool = "note"\nthen = "ask"\n', encoding="utf-8")
    noted = tool_step("notes", "note", {"text": {"$from": "item"}}, forEach=["a"])
    async with warden(Ledger(), settings=load_settings(home=tmp_path)) as w:
        ruled = await w.service.forecast_plan(plan(noted), principal="local")
        grant = GrantRequest(tool_name="erase", arguments={"ids": [2]}, uses=9, expires_in_s=3600)
        await w.service.grants.make(grant, by())
        granted = await w.service.forecast_plan(plan(loop), principal="local")
    assert [found.step_id for found in ruled.only_the_run_knows] == ["notes"] and ruled.asks == ()
    assert [found.step_id for found in granted.only_the_run_knows] == ["all"] and granted.asks == ()


@requirement("plan:forecast")
async def test_a_step_whose_condition_is_known_not_to_hold_will_be_skipped_with_what_takes_its_result() -> None:
    big: JsonValue = {"value": {"$from": "inputs", "pointer": "/days"}, "matches": {"minimum": 30}}
    steps = (
        tool_step("send", "erase", {"ids": [1]}, when=big),
        tool_step("takes", "erase", {"ids": {"$from": "send", "pointer": "/erased"}}),
        tool_step("after", "erase", {"ids": [3]}, dependencies=["send"]),
    )
    takes: Json = {"days": {"type": "integer"}}
    few, many = [await forecast(*steps, takes=takes, days=days) for days in (7, 31)]
    unknown = await forecast(*steps, takes=takes)
    async with warden(Ledger()) as w:
        ran = await w.execute_plan(
            taking(takes, *steps), inputs={"days": 7}, options={"rehearse": True}, wait_seconds=60
        )
    assert [step.skipped_because for step in few.steps] == ["when", "send", None]
    assert [asking.step_id for asking in few.asks] == ["after"]
    assert ":::skipped" in (few.graph or "")
    assert few.steps[0].fate == "will be skipped: its condition does not hold"
    assert few.steps[1].fate == "will be skipped, because of send"
    # What it says comes true.
    assert [step.skipped_because for step in ran.steps] == ["when", "send", None]
    assert [(step.skipped_because, step.is_conditional) for step in many.steps] == [(None, False)] * 3
    assert [asking.step_id for asking in many.asks] == ["send", "after"]
    assert [step.fate for step in unknown.steps] == ["runs only if its condition holds", "", ""]
    # The same of a condition that cannot be judged: this text is not JSON.
    odd: JsonValue = {"value": {"$from": "inputs", "pointer": "/text", "parse": "json"}, "matches": {}}
    unjudged = await forecast(
        tool_step("a", "note", {"text": "x"}, when=odd), takes={"text": {"type": "string"}}, text="{"
    )
    assert [(step.skipped_because, step.is_conditional) for step in unjudged.steps] == [(None, True)]
