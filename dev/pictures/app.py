"""The pictures of the MCP App's view. The page around the view is a host of ours, which draws nothing of its own."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mcp import Client
from mcp.types import Implementation
from tests.clients.scenes import LETTER
from tests.server.mcp.support import served
from tests.support.browser import APPS, HostPage, open_view
from tests.support.scene import build_office_tools
from tests.support.wardens import Ledger, plan, tool_step

import planwarden
from dev.pictures.camera import save

if TYPE_CHECKING:
    from playwright.async_api import Browser

WIDTH = 720
FIND = tool_step("find", "list_overdue", {"days": 30}, description="Find what is overdue")
REMIND = tool_step(
    "remind",
    "send_reminders",
    {"customers": {"$from": "find", "pointer": "/customers"}, "text": LETTER},
    description="Remind all of them",
)
CLOSE = tool_step("close", "crm_delete", {"ids": [4021, 4077]}, description="Close the oldest accounts")
NOTE = tool_step("look", "list_overdue", {"days": 60}, description="Look again")


@planwarden.tool(risk="read", effect="read")
async def list_overdue(days: int) -> dict[str, list[str]]:
    """List customers whose invoices are overdue."""
    return {"customers": ["Acme Ltd", "Borealis", "Cobalt & Sons"]}


@planwarden.tool(risk="confirm")
async def send_reminders(customers: list[str], text: str) -> str:
    """Send a letter to customers."""
    return "sent"


async def _shoot(drawn: HostPage, path: Path) -> None:
    """Take the whole view."""
    height = await drawn.view.evaluate("Math.ceil(document.getElementById('main').getBoundingClientRect().height)")
    await drawn.page.set_viewport_size({"width": WIDTH, "height": height})
    # The page of the host begins with its own heading.
    save(await drawn.page.locator("iframe").screenshot(), path)


async def take(browser: "Browser", folder: Path) -> None:
    """Take the pictures of both questions, and of what follows an approval."""
    tools = [*build_office_tools(Ledger()), list_overdue, send_reminders]
    with TemporaryDirectory() as home:
        async with (
            served(Path(home), tools=tools) as found,
            Client(found.server, extensions=APPS, client_info=Implementation(name="An assistant", version="1")) as host,
        ):
            # The address at which a person's inbox stays.
            found.warden.service.inbox_url = "http://localhost:8766/inbox"
            asking = {"plan": plan(FIND, REMIND, NOTE), "goal": "Remind everybody whose invoice is overdue"}
            closing = {"plan": plan(FIND, CLOSE), "goal": "Close the oldest accounts"}
            for name, arguments in (("app-light", asking), ("app-dangerous", closing)):
                result = await host.call_tool("execute_plan", arguments)
                context = await browser.new_context(viewport={"width": WIDTH, "height": 900})
                drawn = await open_view(await context.new_page(), host, result)
                await drawn.view.wait_for_selector("#drawing svg")
                await _shoot(drawn, folder / f"{name}.png")
                if name == "app-light":
                    await drawn.view.get_by_role("button", name="Approve").click()
                    await drawn.view.wait_for_selector("#status.good")
                    await _shoot(drawn, folder / "app-done.png")
