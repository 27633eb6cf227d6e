"""`[[rules]]` in planwarden.toml: what is wrong is named, and what is right is part of the policy."""

from pathlib import Path

import pytest

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.tool import Risk, ToolDefinition
from planwarden.server.settings.configuration import Settings, load_settings
from tests.requirements import requirement

RULE = '[[rules]]\ntool = "pay"\n'


def load(home: Path, text: str) -> Settings:
    (home / "planwarden.toml").write_text(text, encoding="utf-8")
    return load_settings(home=home, environment={})


@requirement("rules:faults")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rules = 5", "list"),
        ('[rules]\ntool = "pay"', "list"),
        ("rules = [5]", "rule 1 is no table"),
        ('[[rules]]\nthen = "deny"', "rule 1.tool: Field required"),
        ('[[rules]]\ntool = 5\nthen = "deny"', "rule 1.tool: Input should be a valid string"),
        ('[[rules]]\ntool = "pay me"\nthen = "deny"', "is no name or glob"),
        ('[[rules]]\ntool = "[ab]*"\nthen = "deny"', "is no name or glob"),
        (RULE, "needs either then"),
        (RULE + 'then = "deny"\nrisk = "read"', "needs either then"),
        (RULE + 'then = "denied"', "rule 1.then: Input should be 'allow', 'ask' or 'deny'"),
        (RULE + 'than = "deny"', "unknown key rule 1.than (did you mean 'then'?)"),
        (RULE + 'then = "deny"\nbecause = "a\\nb"', "because must be one line"),
        (RULE + 'then = "deny"\nwhen = { x = 5 }', "when.'x' must be a table such as { max = 100 }, not 5"),
        (RULE + 'then = "deny"\nwhen = { x = {} }', "when.'x' is empty"),
        (RULE + 'then = "deny"\nwhen = { x = { maxx = 5 } }', "unknown key 'maxx' (did you mean 'max'?)"),
        (RULE + 'then = "deny"\nwhen = { to = { iban = { prefix = "DE" } } }', 'with slashes, such as "to/iban"'),
        (RULE + 'then = "deny"\nwhen = { x = { items = { max = 5 } } }', "short forms stand only at the top"),
        (RULE + 'then = "deny"\nwhen = { x = { max = "5" } }', "has max = '5', which is not a number"),
        (RULE + 'then = "deny"\nwhen = { x = { max = true } }', "has max = True, which is not a number"),
        (RULE + 'then = "deny"\nwhen = { x = { max = nan } }', "which is not JSON"),
        (RULE + 'then = "deny"\nwhen = { x = { min = 5, max = 4 } }', "min 5 above max 4"),
        (RULE + 'then = "deny"\nwhen = { x = { in = "EUR" } }', "which is not a list of values"),
        (RULE + 'then = "deny"\nwhen = { x = { in = [1979-05-27] } }', "write dates as text"),
        (RULE + 'then = "deny"\nwhen = { x = { const = 1979-05-27 } }', "write dates as text"),
        (RULE + 'then = "deny"\nwhen = { x = { prefix = "" } }', "which is not a text of 1 to"),
        (RULE + 'then = "deny"\nwhen = { x = { matches = "(" } }', "has a 'matches' that is not usable"),
        (RULE + 'then = "deny"\nwhen = { x = { matches = "a)|(?:b" } }', "has a 'matches' that is not usable"),
        (RULE + 'then = "deny"\nwhen = { x = { matches = "(?=a)" } }', "has a 'matches' that is not usable"),
        (RULE + 'then = "deny"\nwhen = { x = { length = 5 } }', "has length = 5; write { min = 1, max = 200 }"),
        (RULE + 'then = "deny"\nwhen = { x = { length = { min = 5, max = 4 } } }', "nothing matches"),
        (RULE + 'then = "deny"\nwhen = { x = { domain = "https://example.com" } }', "no name of a host"),
        (RULE + 'then = "deny"\nwhen = { x = { domain = "*.example.com" } }', "no name of a host"),
        (RULE + 'then = "deny"\nwhen = { x = { under = "data" } }', "which is not an absolute folder"),
        (RULE + 'then = "deny"\nwhen = { x = { type = "strin" } }', "not usable as JSON Schema"),
        (RULE + 'then = "deny"\nwhen = { "a~b" = { max = 5 } }', "is no JSON Pointer"),
        (RULE + 'then = "deny"\nwhen = { a = { max = 5 }, "/a" = { min = 1 } }', "the same place twice"),
        (RULE + 'then = "deny"\nbudget = [{ count = 5, per = "day" }]', 'goes with then = "allow" only'),
        (RULE + 'then = "allow"\nbudget = [5]', "budget 1 is no table"),
        (RULE + 'then = "allow"\nbudget = [{ count = 5 }]', "budget 1.per: Field required"),
        (
            RULE + 'then = "allow"\nbudget = [{ count = 5, sum = "x", per = "day" }]',
            "needs either sum and limit, or count",
        ),
        (RULE + 'then = "allow"\nbudget = [{ sum = "x", limit = -5, per = "day" }]', "budget 1.limit"),
        (RULE + 'then = "allow"\nbudget = [{ count = 5, per = "year" }]', "budget 1.per"),
        ((RULE + 'then = "deny"\n') * 501, "the limit is 500"),
        (RULE + 'then = "deny"\nwhen = {' + ", ".join(f"x{n} = {{ max = 5 }}" for n in range(21)) + "}", "limit is 20"),
        (RULE + 'then = "deny"\nwhen = { x = { in = [' + "1, " * 1_001 + "] } }", "the limit is 1000"),
        (RULE + 'then = "deny"\nwhen = { x = ' + "{ not = " * 30 + "{ max = 5 }" + " }" * 31, "nested deeper"),
    ],
)
def test_what_is_wrong_with_a_rule_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        load(tmp_path, text)
    assert says in refused.value.message and "planwarden.toml" in refused.value.message
    assert len(refused.value.message) < 1_000


@requirement("rules:policy")
def test_a_changed_rule_is_a_changed_policy(tmp_path: Path) -> None:
    rule = RULE + 'when = { x = { max = 5 } }\nthen = "allow"\n'
    other = RULE + 'then = "deny"\n'
    texts = ["", rule, rule.replace("5", "6"), rule + 'because = "small"', rule + other, other + rule]
    assert len({load(tmp_path, text).policy.policy_digest for text in texts}) == len(texts)
    assert load(tmp_path, rule).policy.policy_digest == load(tmp_path, rule + "\n# a comment").policy.policy_digest


@requirement("rules:policy")
@pytest.mark.parametrize(
    ("says", "needs"),
    [
        ('then = "allow"', {"read": None, "confirm": None, "dangerous": None, "critical": "signed"}),
        ('then = "ask"', {"read": "human", "confirm": "human", "dangerous": "human", "critical": "signed"}),
        ('risk = "read"', {"read": None, "confirm": None, "dangerous": None, "critical": "signed"}),
        ('risk = "confirm"', {"read": "client", "confirm": "client", "dangerous": "client", "critical": "signed"}),
        ('risk = "critical"', {"read": "signed", "confirm": "signed", "dangerous": "signed", "critical": "signed"}),
    ],
)
def test_a_rule_takes_nothing_away_from_a_critical_tool(
    tmp_path: Path, says: str, needs: dict[Risk, str | None]
) -> None:
    policy = load(tmp_path, RULE + says).policy
    found = {
        risk: policy.requirement(ToolDefinition(name="pay", description="", input_schema={}, risk=risk), {})
        for risk in needs
    }
    assert {risk: required.needs for risk, required in found.items()} == needs
    assert {risk for risk, required in found.items() if required.rule is None} == {"critical"}


@requirement("rules:policy")
def test_a_denied_call_has_its_reason_and_a_blocking_tool_has_no_rules(tmp_path: Path) -> None:
    policy = load(tmp_path, '[[rules]]\ntool = "*"\nthen = "deny"\nbecause = "not on Sundays"').policy
    definition = ToolDefinition(name="pay", description="", input_schema={})
    assert policy.requirement(definition, {}).denied == "not on Sundays"
    asks = ToolDefinition(name="ask", description="", input_schema={}, execution_mode="blocking", risk="confirm")
    assert (policy.requirement(asks, {}).denied, policy.requirement(asks, {}).needs) == (None, "client")
