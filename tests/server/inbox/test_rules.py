"""Rules on pages: a question says which one applies, a call which one let it through, and nothing in them is markup."""

import tomllib
from pathlib import Path

import pytest

from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.settings.rules import build_rule_book
from tests.requirements import requirement
from tests.server.inbox.support import inbox
from tests.support.wardens import plan, tool_step

pytestmark = pytest.mark.anyio

RULES = """
[[rules]]
tool = "note"
when = { text = { prefix = "ask" } }
then = "ask"
because = "<b>by hand</b>"
[[rules]]
tool = "erase"
when = { "ids/0" = { min = 1, max = 9 } }
then = "allow"
[[rules]]
tool = "erase"
then = "deny"
because = "kept"
"""


def settings() -> Settings:
    rules, facts = build_rule_book(tomllib.loads(RULES)["rules"])
    return Settings(home=Path("/nonexistent"), policy=OperatorPolicy(rules=rules, facts={"rules": facts}))


@requirement("rules:calls")
async def test_a_question_and_a_call_name_their_rule_and_its_values() -> None:
    async with inbox(settings=settings()) as found:
        browser = found.browser()
        await browser.log_in()
        asked = await found.ask(tool_step("a", "note", {"text": "ask <i>me</i>"}))
        question = await browser.open(f"/inbox/suspensions/{asked.suspension_id}")
        waiting = await browser.open("/inbox")
        for page in (question, waiting):
            assert 'Rule 1 applies: ask note when text begins with "ask" (<b>by hand</b>)' in page.words
            assert 'here text = "ask <i>me</i>"' in page.words
            assert "<b>by" not in page.text and "<i>me" not in page.text
        for number, says in (
            (5, "Allowed by rule 2: allow erase when ids/0"),
            (50, "rule 3 of the operator denies it: kept"),
        ):
            done = await found.warden.execute_plan(plan(tool_step("a", "erase", {"ids": [number]})), wait_seconds=60)
            assert says in (await browser.open(f"/inbox/executions/{done.execution_id}")).words
