"""The inbox, when the effect of a call has happened before: the second approval is refused, and the pages say why."""

from pathlib import Path

import pytest

from planwarden.agent.ports.policy import OnceRule
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.policy import OperatorPolicy
from tests.requirements import requirement
from tests.server.inbox.support import inbox
from tests.support.wardens import Ledger

pytestmark = pytest.mark.anyio

ONCE = Settings(home=Path("/nonexistent"), policy=OperatorPolicy(once={"erase": OnceRule(("/ids/0",), 90 * 86_400.0)}))


@requirement("rules:once")
async def test_the_second_approval_is_refused_and_the_pages_name_the_first_call() -> None:
    ledger = Ledger()
    async with inbox(ledger, settings=ONCE) as found:
        asked = [await found.ask(), await found.ask()]
        browser = found.browser()
        await browser.log_in()
        pages = [await browser.open(f"/inbox/suspensions/{question.suspension_id}") for question in asked]
        approved = await browser.submit(pages[0].form("/decision"), press="approve")
        answer = await browser.submit(pages[1].form("/decision"), press="approve")
        assert (approved.status, answer.status) == (303, 409)
        first = asked[0].execution_id
        assert f"call 'erase:1' of execution '{first}'" in answer.words
        assert "planwarden once forget erase --key ids/0=1" in answer.words and ledger.lines == ["erase [1, 2]"]
        refused = await browser.open(f"/inbox/executions/{asked[1].execution_id}")
        assert first in refused.words and "planwarden once forget erase --key ids/0=1" in refused.words
        done = await browser.open(f"/inbox/executions/{first}")
        assert "once per ids/0 = 1" in done.words
