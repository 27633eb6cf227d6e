"""The pictures of hosts and of the demo.

Hosts run in a terminal emulator, with a double of their model on this machine. The pictures show their screen.
"""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
from tests.clients.app_host import find_view, open_app, run_app_host, run_to_question
from tests.clients.installed import Unavailable
from tests.clients.scenes import HOSTS, REMIND, SCENES, TOOLS
from tests.clients.stage import Stage
from tests.server.cli.support import clean_environment, command_line
from tests.support.browser import find_chromium
from tests.support.screen import Screen, run_on_screen

from dev.pictures.camera import save

if TYPE_CHECKING:
    from playwright.async_api import Browser, ViewportSize

DEMO_COLUMNS, DEMO_LINES = 108, 60
APP_SIZE: "ViewportSize" = {"width": 1280, "height": 1180}
"""Room for a question and the plan below it."""
SCALE = 1.6
"""A cell of the screen is then a whole number of pixels wide and high."""


def hosts() -> dict[str, str]:
    """Returns every screen of every scene as an HTML document, by the name of its picture."""
    pages: dict[str, str] = {}

    def add(name: str, screen: Screen) -> None:
        title = next(f"{host.name} {host.version}" for host in HOSTS if name.startswith(host.picture))
        pages[name] = screen.render_page(title)

    for scene in SCENES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                scene(Stage(Path(folder), tools=TOOLS, kills=False), add)
            except Unavailable as error:
                print(f"{scene.__name__}: {error}", file=sys.stderr)
    return pages


def demo() -> dict[str, str]:
    """Returns the screen of `make demo` after a person said yes."""
    with tempfile.TemporaryDirectory() as folder:
        env = clean_environment({"HOME": folder, "LOGNAME": "ann"})
        with run_on_screen(
            command_line("demo"), cwd=Path(folder), env=env, columns=DEMO_COLUMNS, lines=DEMO_LINES
        ) as screen:
            screen.expect("Approve?")
            screen.press("y", "enter")
            assert screen.finish() == 0, screen.text
            return {"demo": screen.render_page("make demo")}


async def draw(pages: dict[str, str], browser: "Browser", folder: Path) -> None:
    """Writes one PNG for each document."""
    context = await browser.new_context(device_scale_factor=SCALE, viewport={"width": 1000, "height": 800})
    page = await context.new_page()
    for name, document in pages.items():
        await page.set_content(document)
        save(await page.locator("main").screenshot(omit_background=True), folder / f"{name}.png")


async def draw_app(folder: Path) -> None:
    """Takes the pictures of the MCP App in the Inspector's page."""
    chromium = find_chromium()
    assert chromium is not None
    with tempfile.TemporaryDirectory() as place:
        stage = Stage(Path(place), tools=TOOLS, kills=False)
        thread_id = run_to_question(stage, REMIND)
        with run_app_host(stage) as host:
            async with open_app(host, chromium, "get_execution", {"threadId": thread_id}) as page:
                await page.set_viewport_size(APP_SIZE)
                view = await find_view(page)
                await view.wait_for_selector("#drawing svg")
                save(await page.screenshot(), folder / "host-inspector-app.png")
                await view.get_by_role("button", name="Approve").click()
                await view.wait_for_selector("#status.good")
                await page.set_viewport_size({**APP_SIZE, "height": 780})
                save(await page.screenshot(), folder / "host-inspector-app-approved.png")


async def take(browser: "Browser", folder: Path) -> None:
    """Take the pictures of everything that can be run here."""
    await draw(await anyio.to_thread.run_sync(demo), browser, folder)
    await draw(await anyio.to_thread.run_sync(hosts), browser, folder)
    try:
        await draw_app(folder)
    except Unavailable as error:
        print(f"the MCP Inspector: {error}", file=sys.stderr)
