"""Takes the pictures of docs/inbox.md: `python -m dev.pictures.inbox [FOLDER]`, or `make screenshots`.

It takes the pages that everybody sees in every size and colour scheme, the others once.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio
from tests.support.paths import DOCS
from tests.support.scene import CLEAN_UP, LETTER, InboxScene, find_chromium, launch_browser, open_scene

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.server.api.grants import GrantRequest

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

FOLDER = DOCS / "images"
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
SIZES = {"desktop": (1120, 820), "phone": (390, 844)}


async def _page(browser: "Browser", size: str, scheme: Scheme) -> "Page":
    width, height = SIZES[size]
    is_phone = size == "phone"
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        device_scale_factor=2 if is_phone else 1,
        is_mobile=is_phone,
        has_touch=is_phone,
    )
    return await context.new_page()


async def _take(page: "Page", found: InboxScene, ids: dict[str, str], folder: Path, size: str, scheme: Scheme) -> None:
    """Takes the pages that everybody sees."""

    async def shoot(name: str) -> None:
        await page.screenshot(path=folder / f"inbox-{name}-{size}-{scheme}.png")

    await page.goto(await found.make_link())
    await page.click("main button[type=submit]")
    await page.wait_for_selector(".question")
    await shoot("waiting")
    await page.goto(f"{found.url}/suspensions/{ids['delete']}")
    await shoot("question")
    await page.goto(f"{found.url}/suspensions/{ids['mail']}")
    await page.click("text=Edit the arguments first")
    await page.fill("label:has-text('subject') + input", "Your account will be closed on 1 December")
    await page.select_option("select", label="high")
    await page.click("button.approve")
    await page.wait_for_selector(".changes")
    await shoot("changes")
    await page.goto(f"{found.url}/review?id={ids['delete']}&id={ids['pay']}&id={ids['hostile']}")
    await shoot("review")


async def _take_others(page: "Page", found: InboxScene, ids: dict[str, str], folder: Path) -> None:
    places = {
        "hostile": f"/suspensions/{ids['hostile']}",
        "grant": f"/suspensions/{ids['pay']}/grant",
        "timeline": f"/executions/{ids['execution']}",
    }
    for name, path in places.items():
        await page.goto(f"{found.url}{path}")
        await page.screenshot(path=folder / f"inbox-{name}.png")


async def _decide_some(found: InboxScene, ids: dict[str, str]) -> None:
    """Makes earlier decisions, and a grant."""
    service = found.warden.service
    person = Authority(assurance="human", channel="inbox", principal="ann")
    for steps, decision in (
        ((LETTER,), Decision(approved=False, reason="They have logged in yesterday")),
        (CLEAN_UP, Decision(approved=True)),
    ):
        ids["past"] = await found.run_to_question(*steps, goal="Clean the CRM")
        row = await service.engine.store.find_suspension(ids["past"])
        assert row is not None
        ids["execution"] = row.execution_id
        await service.answer(row.thread_id, ids["past"], decision, person, wait_seconds=5, principal=None)
    request = GrantRequest(tool_name="pay_invoice", arguments={"currency": "EUR"}, uses=20, expires_in_s=3_600)
    await service.grants.make(request, person)


async def main() -> int:
    path = find_chromium()
    if path is None:
        print("there is no Chromium on this machine; `apt-get install chromium` brings one", file=sys.stderr)
        return 1
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    async with open_scene() as found, launch_browser(path) as browser:
        ids = await found.ask_every_kind()
        for size in SIZES:
            for scheme in SCHEMES:
                page = await _page(browser, size, scheme)
                await _take(page, found, ids, folder, size, scheme)
                if (size, scheme) == ("desktop", "light"):
                    await _decide_some(found, ids)
                    await _take_others(page, found, ids, folder)
    return 0


if __name__ == "__main__":
    sys.exit(anyio.run(main))
