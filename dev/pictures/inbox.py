"""The pictures of the inbox."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tests.support.browser import log_in

from dev.pictures.camera import open_page, shoot
from dev.pictures.office import Office, call_through_gates, open_office

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page


@dataclass
class Camera:
    """A person's browser, and the folder for its pictures."""

    page: "Page"
    office: Office
    folder: Path

    async def open(self, name: str) -> None:
        await self.page.goto(f"{self.office.scene.url}{self.office.paths[name]}")

    async def take(self, page: str, name: str, until: str | None = None) -> None:
        """Open one page and take it."""
        await self.open(page)
        await self.shoot(name, until)

    async def shoot(self, name: str, until: str | None = None, of: str = "inbox") -> None:
        await shoot(self.page, self.folder / f"{of}-{name}.png", until)


async def take_light(camera: Camera) -> None:
    """What most pictures show: a wide screen by day."""
    page = camera.page
    await page.wait_for_selector(".question")
    await camera.shoot("waiting")
    for name, picture, until in (
        ("delete", "question", "form.decide"),
        ("hostile", "hostile", "form.decide"),
        ("review", "review", None),
        ("grant", "grant", "main form"),
        ("outcome", "outcome", "article.card"),
        ("plan", "plan-light", "section.actions"),
    ):
        await camera.take(name, picture, until)
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
    await page.wait_for_selector(".forecast li")
    await camera.shoot("saved-plan", ".beside form")


LOOKS: tuple[tuple[str, Literal["light", "dark"], Callable[[Camera], Awaitable[None]]], ...] = (
    ("desktop", "dark", lambda camera: camera.take("plan", "plan-dark", "section.actions")),
    ("phone", "light", lambda camera: camera.take("plan", "plan-phone")),
    ("phone", "dark", lambda camera: camera.take("delete", "question-phone")),
    # The last one, because it changes what the pages show.
    ("desktop", "light", take_light),
)


async def take(browser: "Browser", folder: Path) -> None:
    """Take the pictures of every look."""
    async with open_office() as office:
        for size, scheme, take_look in LOOKS:
            page = await open_page(browser, size, scheme)
            await log_in(page, await office.scene.make_link())
            await take_look(Camera(page, office, folder))
