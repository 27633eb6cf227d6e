"""`[tools."NAME"] once`: what the operator may write, and that it is part of the policy."""

from pathlib import Path

import pytest

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.tool import ToolDefinition
from planwarden.server.settings.configuration import Settings, load_settings
from tests.requirements import requirement

TOOL = ToolDefinition(name="refund", description="", input_schema={}, risk="read")


def load(home: Path, text: str) -> Settings:
    (home / "planwarden.toml").write_text(text, encoding="utf-8")
    return load_settings(home=home, environment={})


@requirement("rules:once")
def test_a_tool_has_a_key_for_ninety_days_or_as_many_as_are_said(tmp_path: Path) -> None:
    policy = load(tmp_path, '[tools."refund"]\nonce = ["/payment_id", "/lines/0"]\n').policy
    found = policy.find_once("refund")
    assert found is not None and (found.pointers, found.keep_s) == (("/payment_id", "/lines/0"), 90 * 86_400)
    assert policy.find_once("pay") is None
    shorter = load(tmp_path, '[tools."refund"]\nonce = ["/payment_id"]\nonce_days = 0.5\n').policy
    found = shorter.find_once("refund")
    assert found is not None and found.keep_s == 43_200
    assert len({policy.policy_digest, shorter.policy_digest, load(tmp_path, "").policy.policy_digest}) == 3


@requirement("rules:once")
def test_a_key_is_no_part_of_the_tools_definition(tmp_path: Path) -> None:
    settings = load(tmp_path, '[tools."refund"]\nonce = ["/payment_id"]\n')
    assert settings.apply_to(TOOL).digest == TOOL.digest


@requirement("rules:once")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("once = []", "once"),
        ('once = ["payment_id"]', "is no JSON pointer"),
        ('once = ["/a~2"]', "is no JSON pointer"),
        ('once = [""]', "once"),
        ('once = ["/a", "/a"]', "names a pointer twice"),
        ('once = "/a"', "once"),
        ("once_days = 3", "goes with once"),
        ('once = ["/a"]\nonce_days = 0', "once_days"),
        ('once = ["/a"]\nonce_days = 1e9', "once_days"),
        (f"once = {[f'/{n}' for n in range(11)]}", "once"),
    ],
)
def test_a_key_that_is_not_usable_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(InvalidArguments, match=says):
        load(tmp_path, f'[tools."refund"]\n{line}\n')


@requirement("rules:once")
def test_without_its_key_a_call_needs_a_person_and_no_rule_takes_that_away(tmp_path: Path) -> None:
    text = '[tools."refund"]\nonce = ["/id"]\n[[rules]]\ntool = "refund"\nthen = "{}"\n'
    policy = load(tmp_path, text.format("allow")).policy
    assert policy.requirement(TOOL, {"id": 1}).needs is None
    missing = policy.requirement(TOOL, {})
    assert (missing.needs, missing.has_no_key, missing.shares) == ("human", True, ())
    assert load(tmp_path, text.format("deny")).policy.requirement(TOOL, {}).denied is not None
