"""How long the pages of the inbox take in a database of any size: from the request to the last byte, without a network.

The pages are those that grow with what is stored: the questions that wait, the plans, the history, the saved plans, and
the page of one plan of 300 steps.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
from pydantic import JsonValue

from planwarden import Warden
from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.browser import INBOX_PATH
from planwarden.server.inbox.site import InboxSite
from planwarden.server.settings.configuration import Settings

PLAN_STEPS = 300
SAVED_PLANS = 100
_ORIGIN = "http://127.0.0.1:8766"
_SAVED = "todoList: [{id: look, description: Look, toolCalls: [{toolName: find_order, arguments: {order: A-1}}]}]\n"

Run = Callable[[], Awaitable[object]]


def write_saved_plans(home: Path) -> None:
    """Files for the page of saved plans; `maxSteps` lets the long plan run."""
    home.mkdir(mode=0o700, exist_ok=True)
    folder = home / "plans"
    if not folder.exists():
        folder.mkdir()
        for number in range(SAVED_PLANS):
            (folder / f"plan-{number}.yaml").write_text(_SAVED, encoding="utf-8")
    (home / "planwarden.toml").write_text(f"[execution]\nmaxSteps = {PLAN_STEPS}\n", encoding="utf-8")


@asynccontextmanager
async def open_pages(opened: Warden, home: Path, long_plan: dict[str, JsonValue]) -> AsyncGenerator[Mapping[str, Run]]:
    """Yields what requests each page, by the name of the page; a page that does not answer 200 raises."""
    done = await opened.execute_plan(long_plan, wait_seconds=120)
    site = InboxSite(service=lambda: opened.service, settings=Settings(home=home))
    codes = await site.access().make_codes("bench", "terminal")
    session = await site.access().redeem(codes.link)
    app = build_inbox_app(site, lambda: {_ORIGIN.removeprefix("http://")})
    cookies = {site.cookie_name: session.token}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=_ORIGIN, cookies=cookies) as client:

        def request(path: str) -> Run:
            async def get() -> None:
                answer = await client.get(f"{INBOX_PATH}{path}")
                if answer.status_code != 200:
                    raise RuntimeError(f"the page {path!r} answered {answer.status_code}")

            return get

        yield {
            "page of what waits": request(""),
            "page of plans": request("/plans"),
            "page of history": request("/history"),
            "page of saved plans": request("/saved"),
            f"page of a plan of {PLAN_STEPS} steps": request(f"/executions/{done.execution_id}"),
        }
