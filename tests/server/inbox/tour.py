"""A tour of the pages of an inbox: what axe-core and a narrow screen say of each.

One page of one browser sees everything: wide and light, then dark, then as narrow as a phone.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from starlette.routing import Match, Route

from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.site import InboxSite
from tests.support.axe import find_violations
from tests.support.scene import InboxScene

if TYPE_CHECKING:
    from playwright.async_api import Page, ViewportSize

Scheme = Literal["light", "dark"]
WIDE: "ViewportSize" = {"width": 1120, "height": 820}
NARROW: "ViewportSize" = {"width": 390, "height": 844}
OF_COLOURS = ("color-contrast", "link-in-text-block")
"""The rules whose verdict a colour scheme can change; a scheme changes nothing else."""

UNTITLED = """() => [...document.querySelectorAll("h1")].filter((title) => title.checkVisibility()).length === 1
  && document.title.trim() && document.title !== "planwarden" ? [] : ["not one h1, or no title of its own"]"""
TOO_WIDE = """() => document.documentElement.scrollWidth > document.documentElement.clientWidth
  ? [`${document.documentElement.scrollWidth} pixels wide`] : []"""


@dataclass
class Tour:
    """Sees pages, and keeps what was found and which routes they came from."""

    found: InboxScene
    page: "Page"
    program: str
    """axe-core."""
    findings: list[str] = field(default_factory=list[str])
    seen: set[str] = field(default_factory=set[str])
    """Paths of routes."""

    async def log_in(self) -> None:
        await self.page.goto(await self.found.make_link())
        await self.look()
        await self.page.click("main button[type=submit]")
        await self.page.wait_for_selector("nav")

    async def visit(self, *paths: str) -> None:
        """Looks at each of these pages; a path begins after `/inbox`."""
        for path in paths:
            await self.page.goto(f"{self.found.url}{path}")
            await self.look()

    async def look(self, where: str = "") -> None:
        """Looks at the page that is open, in every look; `where` says what its address does not."""
        path = urlsplit(self.page.url).path
        self.seen |= {route.path for route in list_routes(self.found.site) if _fits(route, path)}
        await self._find("wide light", where, WIDE, "light")
        await self._find("wide dark", where, WIDE, "dark", *OF_COLOURS)
        await self._find("narrow dark", where, NARROW, "dark")
        await self._set(WIDE, "light")

    async def _find(self, look: str, where: str, size: "ViewportSize", scheme: Scheme, *rules: str) -> None:
        await self._set(size, scheme)
        said = await find_violations(self.page, self.program, rules)
        for script in () if rules else (UNTITLED, TOO_WIDE):
            said += await self.page.evaluate(script)
        place = f"{look}, {urlsplit(self.page.url).path} {where}"
        self.findings += [f"{place}: {finding}" for finding in said]

    async def _set(self, size: "ViewportSize", scheme: Scheme) -> None:
        await self.page.set_viewport_size(size)
        await self.page.emulate_media(color_scheme=scheme)


def list_routes(site: InboxSite) -> list[Route]:
    """The routes of an inbox that answer GET."""
    routes: list[Any] = build_inbox_app(site, lambda: ()).routes
    return [route for route in routes if isinstance(route, Route) and "GET" in (route.methods or ())]


def _fits(route: Route, path: str) -> bool:
    return route.matches({"type": "http", "method": "GET", "path": path})[0] is Match.FULL
