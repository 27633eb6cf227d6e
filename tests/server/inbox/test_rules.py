"""Rules on pages: which one applies, which one let a call through, and which effect happened before."""

import tomllib
from pathlib import Path

import pytest

from planwarden.agent.ports.policy import OnceRule
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.settings.rules import build_rule_book
from tests.requirements import requirement
from tests.server.inbox.support import visit
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
    async with visit(settings=settings()) as (found, browser):
        asked = await found.ask(tool_step("a", "note", {"text": "ask <i>me</i>"}))
        question = await browser.open_question(asked)
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


ONCE = Settings(home=Path("/nonexistent"), policy=OperatorPolicy(once={"erase": OnceRule(("/ids/0",), 90 * 86_400.0)}))


@requirement("rules:once")
async def test_the_second_approval_is_refused_and_the_pages_name_the_first_call() -> None:
    async with visit(settings=ONCE) as (found, browser):
        asked = [await found.ask(), await found.ask()]
        pages = [await browser.open_question(question) for question in asked]
        approved = await browser.submit(pages[0].form("/decision"), press="approve")
        answer = await browser.submit(pages[1].form("/decision"), press="approve")
        assert (approved.status, answer.status) == (303, 409)
        first = asked[0].execution_id
        assert f"call 'erase:1' of execution '{first}'" in answer.words
        assert "planwarden once forget erase --key ids/0=1" in answer.words and found.ledger.lines == ["erase [1, 2]"]
        refused = await browser.open(f"/inbox/executions/{asked[1].execution_id}")
        assert first in refused.words and "planwarden once forget erase --key ids/0=1" in refused.words
        done = await browser.open(f"/inbox/executions/{first}")
        assert "once per ids/0 = 1" in done.words
