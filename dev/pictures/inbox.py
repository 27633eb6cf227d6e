"""Takes the pictures of the inbox in docs: `python -m dev.pictures.inbox [FOLDER]`, or `make screenshots`."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio
from tests.support.browser import find_chromium, launch_browser
from tests.support.paths import DOCS

from dev.pictures.office import Office, call_through_gates, open_office
from dev.pictures.png import save

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

FOLDER = DOCS / "images"
Scheme = Literal["light", "dark"]
SIZES = {"desktop": (1120, 820), "phone": (390, 844)}
MARGIN = 16
"""Pixels below what a picture ends with."""


@dataclass
class Camera:
    """A person's browser, and the folder for its pictures."""

    page: "Page"
    office: Office
    folder: Path

    async def open(self, name: str) -> None:
        await self.page.goto(f"{self.office.scene.url}{self.office.paths[name]}")

    async def shoot(self, name: str, until: str | None = None, of: str = "inbox") -> None:
        """Takes what is on the screen; with `until`, the page down to the end of the first thing found there."""
        path = self.folder / f"{of}-{name}.png"
        if until is None:
            return save(await self.page.screenshot(), path)
        box = await self.page.locator(until).first.bounding_box()
        width = self.page.viewport_size["width"] if self.page.viewport_size else SIZES["desktop"][0]
        assert box is not None, until
        height = box["y"] + box["height"] + MARGIN
        picture = await self.page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
        return save(picture, path)


async def take_light(camera: Camera) -> None:
    """What most pictures show: a wide screen by day."""
    page = camera.page
    await page.wait_for_selector(".question")
    await camera.shoot("waiting")
    await camera.open("delete")
    await camera.shoot("question", "form.decide")
    await camera.open("hostile")
    await camera.shoot("hostile", "form.decide")
    await camera.open("review")
    await camera.shoot("review")
    await camera.open("grant")
    await camera.shoot("grant", "main form")
    await camera.open("outcome")
    await camera.shoot("outcome", "article.card")
    await camera.open("plan")
    await camera.shoot("plan-light", "section.actions")
    await camera.open("rows")
    await page.uncheck("#row-1 input[name=row]")
    await camera.shoot("rows", "form:has(.rows)")
    await _change_arguments(camera)
    await _keep_a_schedule(camera)
    await page.goto(f"{camera.office.scene.url}/plans")
    await camera.shoot("plans")
    await call_through_gates(camera.office)
    await page.goto(f"{camera.office.scene.url}/calls")
    await camera.shoot("calls", "#plans", of="gate")


async def take_dark(camera: Camera) -> None:
    await camera.open("plan")
    await camera.shoot("plan-dark", "section.actions")


async def take_phone(camera: Camera) -> None:
    await camera.open("plan")
    await camera.shoot("plan-phone")


async def take_dark_phone(camera: Camera) -> None:
    await camera.open("delete")
    await camera.shoot("question-phone")


async def _change_arguments(camera: Camera) -> None:
    page = camera.page
    await camera.open("mail")
    await page.click("text=Edit the arguments first")
    await page.fill("label:has-text('subject') + input", "Your account will be closed on 1 December")
    await page.select_option("select", label="high")
    await page.click("button.approve")
    await page.wait_for_selector(".changes")
    await camera.shoot("changes", "form.decide")


async def _keep_a_schedule(camera: Camera) -> None:
    page, url = camera.page, camera.office.scene.url
    await page.goto(f"{url}/saved/remind/schedule")
    await page.get_by_label("Times").fill("0 9 * * 1")
    await page.get_by_label("Time zone").fill("Europe/Berlin")
    await page.get_by_role("button", name="Add the schedule").click()
    await page.wait_for_url("**/inbox/schedules/**")
    await page.get_by_role("button", name="Run now").click()
    await page.wait_for_selector(".runs a")
    await camera.shoot("schedule", "#schedule")
    await page.goto(f"{url}/saved/welcome")
    await page.get_by_label("customer").fill("Borealis")
    await page.get_by_label("mail").fill("office@borealis.example")
    await page.get_by_role("button", name="Forecast").click()
    await page.wait_for_selector(".forecast .asks")
    await camera.shoot("saved-plan", ".beside form")


LOOKS: tuple[tuple[str, Scheme, Callable[[Camera], Awaitable[None]]], ...] = (
    ("desktop", "dark", take_dark),
    ("phone", "light", take_phone),
    ("phone", "dark", take_dark_phone),
    # The last one, because it changes what the pages show.
    ("desktop", "light", take_light),
)


async def _open_page(browser: "Browser", size: str, scheme: Scheme) -> "Page":
    width, height = SIZES[size]
    is_phone = size == "phone"
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        device_scale_factor=2 if is_phone else 1,
        is_mobile=is_phone,
        has_touch=is_phone,
        timezone_id="Europe/Berlin",
    )
    return await context.new_page()


async def main() -> int:
    path = find_chromium()
    if path is None:
        print("there is no Chromium on this machine; `apt-get install chromium` brings one", file=sys.stderr)
        return 1
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    async with open_office() as office, launch_browser(path) as browser:
        for size, scheme, take in LOOKS:
            page = await _open_page(browser, size, scheme)
            await page.goto(await office.scene.make_link())
            await page.click("main button[type=submit]")
            await page.wait_for_selector("nav")
            await take(Camera(page, office, folder))
    return 0


if __name__ == "__main__":
    sys.exit(anyio.run(main))
