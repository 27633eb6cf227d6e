"""What a screen reader is given of the main pages, as Chromium's tree of accessibility has it, and what it is told."""

import re
from typing import TYPE_CHECKING, Any

from planwarden.agent.approval.answers import Authority, Decision
from tests.requirements import requirement
from tests.server.inbox.test_accessibility import answer
from tests.server.inbox.test_browser import BrowserTester, open_browser
from tests.support.browser import DRIVES_CHROMIUM
from tests.support.scene import CLEAN_UP, PAY

if TYPE_CHECKING:
    from playwright.async_api import Locator

pytestmark = DRIVES_CHROMIUM

WAITING = """
- banner:
  - navigation "Inbox"
- main:
  - status
  - heading "Waiting for a decision" [level=1]
  - checkbox "all on this page"
  - button "Review selected"
  - list:
    - listitem:
      - checkbox "Select pay_invoice, question 1"
      - paragraph:
        - link "pay_invoice"
    - listitem:
      - checkbox "Select crm_delete, question 2"
      - paragraph:
        - link "crm_delete"
- contentinfo
"""
QUESTION = """
- main:
  - article:
    - heading "Run pay_invoice?" [level=1]
    - group "planwarden found":
      - list
      - table
    - group "The call, as it will run":
      - table "Arguments of pay_invoice":
        - rowgroup:
          - row "Argument Value Where it comes from"
        - rowgroup:
          - row /invoice "x" edited by/
    - group "The agent says (unverified)"
  - form "Your decision":
    - textbox "Reason optional; the model sees it"
    - paragraph:
      - button "Reject"
      - button "Approve"
"""
PLAN = """
- main:
  - heading "Clean the CRM" [level=1]
  - paragraph: The plan waits for a person. 1 of 2 steps
  - paragraph:
    - link "Answer its question"
  - region "Graph":
    - heading "Graph" [level=2]
    - paragraph:
      - text: "2 steps: 1 done, 1 waits for a person."
      - link "delete"
      - text: waits for a person. The list of steps says in words what the graph shows.
    - group "Graph of the plan":
      - 'img "2 steps: 1 done, 1 waits for a person"'
  - region "What you can do":
    - heading "What you can do" [level=2]
    - button "Cancel"
  - region "Steps":
    - heading "Steps" [level=2]
    - group: find done use crm_find
    - group:
      - text: delete waits for a person Delete the stale records
      - 'group "Call 1 of step delete: crm_delete"'
  - region "What it used":
    - heading "What it used" [level=2]
  - region "What happened":
    - heading "What happened" [level=2]
"""


@requirement("inbox:screen-reader", "voices:apart")
async def test_headings_voices_states_and_buttons_are_named_in_the_order_of_the_page() -> None:
    from playwright.async_api import expect

    async with open_browser() as d:
        pay = await d.found.run_to_question({**PAY, "description": "Pay what is due"}, goal="Pay the invoice")
        edited: dict[str, Any] = {"invoice": "x", "amount": 1, "currency": "EUR", "account": "other"}
        claimed = Authority(assurance="claimed", channel="mcp", principal="local")
        await answer(d.found, pay, Decision(approved=True, modified_args=edited), claimed)
        delete = await d.found.run_to_question(*CLEAN_UP, goal="Clean the CRM")
        await d.log_in()
        execution_id = await d.found.find_execution(delete)
        for path, tree in (("", WAITING), (f"/suspensions/{pay}", QUESTION), (f"/executions/{execution_id}", PLAN)):
            await d.page.goto(f"{d.found.url}{path}")
            await expect(d.page.locator("body")).to_match_aria_snapshot(tree)


@requirement("inbox:screen-reader", "inbox:live", "inbox:outcome")
async def test_what_became_of_a_question_is_said_where_it_stands_open() -> None:
    from playwright.async_api import expect

    async with open_browser() as d:
        asked = await d.found.run_to_question(PAY)
        await d.log_in(target=f"/inbox/suspensions/{asked}")
        news = await _mark_news(d)
        await answer(d.found, asked, Decision(approved=False))
        await expect(news).to_have_text(re.compile("^Rejected."))
        assert await news.evaluate("(region) => region.isTheSame")


@requirement("inbox:screen-reader", "inbox:live", "inbox:keyboard")
async def test_a_plan_that_goes_on_is_said_and_leaves_the_focus_where_it_was() -> None:
    from playwright.async_api import expect

    async with open_browser() as d:
        asked = await d.found.run_to_question(*CLEAN_UP, goal="Clean the CRM")
        await d.log_in(target=f"/inbox/executions/{await d.found.find_execution(asked)}")
        news, graph = await _mark_news(d), d.page.get_by_role("group", name="Graph of the plan")
        await graph.focus()
        await answer(d.found, asked, Decision(approved=True))
        await expect(news).to_have_text("The plan is completed. 2 of 2 steps")
        assert await news.evaluate("(region) => region.isTheSame")
        await expect(graph).to_be_focused()
        await expect(graph.get_by_role("img")).to_have_accessible_name("2 steps: 2 done")


async def _mark_news(d: BrowserTester) -> "Locator":
    """The region in which news are said, marked, so that another one in its place has no mark."""
    news = d.page.locator("#news")
    assert await news.get_attribute("role") == "status"
    await news.evaluate("(region) => { region.isTheSame = true; }")
    return news
