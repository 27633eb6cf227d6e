"""A large plan is parsed outside the judgement, which is repeated until it needs nothing more."""

import pytest
from pydantic import JsonValue

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.core.bindings import EarlierNeeded, EarlierResult, Reference
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_parsing import MAX_VALUES, Parsed, ParsingNeeded, PlanParsing
from tests.support.wardens import plan, tool_step

FACTS = {"find": ToolFacts(is_blocking=False)}
LARGE: list[JsonValue] = [0] * (MAX_VALUES + 1)


def parse_elsewhere(parsing: PlanParsing, document: JsonValue, earlier: dict[Reference, EarlierResult | str]) -> Parsed:
    """Do what whoever runs a judgement does, adding to what was found in place."""
    for _ in range(4):
        try:
            return parsing.parse(document, author="model", tools=dict(FACTS), max_steps=50, earlier=earlier)
        except ParsingNeeded as needed:
            needed.parse()
        except EarlierNeeded as needed:
            earlier |= dict.fromkeys(needed.wanted, "it is not there")
    raise AssertionError("the judgement never ends")


def test_a_large_plan_whose_earlier_results_are_looked_up_in_between_is_parsed_with_them() -> None:
    step = tool_step("a", "find", {"topic": {"$from": "before"}, "other": LARGE})
    with pytest.raises(InvalidPlan, match="it is not there"):
        parse_elsewhere(PlanParsing(), plan(step), {})


def test_another_large_plan_in_the_same_judgement_is_parsed_itself() -> None:
    parsing = PlanParsing()
    for name in ("a", "b"):
        parsed, _ = parse_elsewhere(parsing, plan(tool_step(name, "find", {"topic": LARGE})), {})
        assert [step.step_id for step in parsed.steps] == [name]
    for value, end in ((1, ",1]}"), (True, ",true]}")):
        parsed, _ = parse_elsewhere(parsing, plan(tool_step("a", "find", {"topic": [*LARGE, value]})), {})
        assert canonical_json(parsed.steps[0].tool_calls[0].arguments).endswith(end)
