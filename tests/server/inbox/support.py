"""Helpers of the inbox tests: an inbox on a warden, and a browser without JavaScript that fills in forms."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import httpx2
from pydantic import JsonValue
from starlette.applications import Starlette

import planwarden
from planwarden.agent.ports.store import Store, SuspensionRow
from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.site import InboxSite
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.suspension import Suspension
from planwarden.storage.location import StoreLocation
from planwarden.storage.sql.database import Database
from planwarden.storage.sql.records import HasRecords
from tests.support.fakes import WatchedStore
from tests.support.wardens import Ledger, plan, tool_step, warden

HOST = "127.0.0.1:8765"
ORIGIN = f"http://{HOST}"
ERASE = tool_step("erase", "erase", {"ids": [1, 2]})
Fields = dict[str, list[str]]


@dataclass
class Form:
    action: str
    method: str
    fields: Fields = field(default_factory=dict[str, list[str]])
    buttons: list[tuple[str, str, bool]] = field(default_factory=list[tuple[str, str, bool]])
    """Name, value, and whether it can be pressed."""


@dataclass
class Page:
    status: int
    text: str
    headers: httpx2.Headers
    forms: list[Form]
    words: str
    """The visible text, with the white space of the source."""

    @property
    def said(self) -> str:
        """The visible text with single spaces."""
        return " ".join(self.words.split())

    @property
    def run_id(self) -> str:
        """The id of the execution to which a form led."""
        assert self.status == 303, self.words
        return self.headers["location"].rpartition("/")[2]

    def form(self, ending: str) -> Form:
        [found] = [form for form in self.forms if form.action.endswith(ending)]
        return found


@dataclass
class Browser:
    client: httpx2.AsyncClient
    site: InboxSite | None
    """The site in this process; None for an inbox of another process."""
    origin: str = field(default=ORIGIN, kw_only=True)

    async def log_in(self, name: str = "ann") -> Page:
        assert self.site is not None
        codes = await self.site.access().make_codes(name, "terminal")
        return await self.pair(codes.link)

    async def pair(self, code: str) -> Page:
        page = await self.open(f"/inbox/pair?code={code}")
        answer = await self.submit(page.form("/pair"))
        assert answer.status == 303, answer.words
        return await self.open(answer.headers["location"])

    async def open(self, path: str, **headers: str) -> Page:
        return read(await self.client.get(path, headers=_to_header_names(headers)))

    async def submit(self, form: Form, *, press: str | None = None, **changes: str | list[str] | None) -> Page:
        """Send the form; `press` is the value of a button named `decision`, a change of None leaves a field out."""
        fields: Fields = {**form.fields}
        for name, value in changes.items():
            if value is None:
                fields.pop(name, None)
            else:
                fields[name] = value if isinstance(value, list) else [value]
        if press is not None:
            assert ("decision", press, True) in form.buttons, form.buttons
            fields["decision"] = [press]
        return await self.send(form.action, fields)

    async def send(self, path: str, fields: Mapping[str, Sequence[str]], **headers: str) -> Page:
        pairs = [(name, value) for name, values in fields.items() for value in values]
        body = urlencode(pairs)
        given = {
            "content-type": "application/x-www-form-urlencoded",
            "origin": self.origin,
            **_to_header_names(headers),
        }
        return read(await self.client.post(path, content=body, headers=given))

    async def open_question(self, asked: Suspension | SuspensionRow) -> Page:
        return await self.open(f"/inbox/suspensions/{asked.suspension_id}")

    async def refresh(self, page: Page) -> Page:
        """What the page gets when it asks for news."""
        return await self.open(page.text.split('hx-get="')[1].split('"')[0].replace("&amp;", "&"), hx_request="true")

    async def decide(self, suspension_id: str, press: str, **changes: str | list[str] | None) -> Page:
        page = await self.open(f"/inbox/suspensions/{suspension_id}")
        return await self.submit(page.form("/decision"), press=press, **changes)


@asynccontextmanager
async def follow_link(shown: str) -> AsyncGenerator[Browser]:
    """A browser that was let in by the link in the output of `planwarden inbox`."""
    found = re.search(r"http://\S+code=\S+", shown)
    assert found is not None, shown
    link = httpx2.URL(found[0])
    origin = f"{link.scheme}://{link.host}:{link.port}"
    async with httpx2.AsyncClient(base_url=origin, timeout=60) as client:
        browser = Browser(client, None, origin=origin)
        await browser.pair(link.params["code"])
        yield browser


@dataclass
class Inbox:
    warden: planwarden.Warden
    site: InboxSite
    app: Starlette
    ledger: Ledger = field(default_factory=Ledger)

    async def log_in(self, name: str = "ann") -> Browser:
        browser = self.browser()
        await browser.log_in(name)
        return browser

    def browser(self, base_url: str = ORIGIN) -> Browser:
        transport = httpx2.ASGITransport(self.app)
        return Browser(httpx2.AsyncClient(transport=transport, base_url=base_url), self.site)

    async def ask(self, *steps: dict[str, JsonValue], goal: str | None = None) -> Suspension:
        execution = await self.warden.execute_plan(plan(*(steps or (ERASE,))), goal=goal)
        assert execution.suspensions, execution
        return execution.suspensions[0]

    async def current_execution(self, suspension: Suspension) -> planwarden.Execution:
        return await self.warden.get_execution(suspension.thread_id)


@asynccontextmanager
async def inbox(
    ledger: Ledger | None = None,
    *,
    tools: Sequence[object] = (),
    store: Store | None = None,
    settings: Settings | None = None,
    passphrase_file: Path | None = None,
) -> AsyncGenerator[Inbox]:
    ledger = ledger or Ledger()
    async with warden(ledger, tools=tools, store=store, settings=settings) as made:
        found = open_inbox(made, passphrase_file, home=settings.home if settings else None)
        found.ledger = ledger
        yield found


@asynccontextmanager
async def visit(ledger: Ledger | None = None, **options: Any) -> AsyncGenerator[tuple[Inbox, Browser]]:
    """An inbox with the options of `inbox`, and somebody who is logged in."""
    async with inbox(ledger, **options) as found:
        yield found, await found.log_in()


def open_inbox(
    made: planwarden.Warden,
    passphrase_file: Path | None = None,
    *,
    home: Path | None = None,
    store: StoreLocation | None = None,
) -> Inbox:
    """The inbox of a warden that runs; `store` is where its settings say that executions are."""
    home = home or Path("/nonexistent")
    settings = Settings(home=home, passphrase_file=passphrase_file, given_store=store)
    site = InboxSite(service=lambda: made.service, settings=settings)
    return Inbox(made, site, build_inbox_app(site, lambda: {HOST}))


class CountingStore(WatchedStore):
    """A store that writes down what it is asked, except for records."""

    @property
    def records(self) -> Database:
        assert isinstance(self.inner, HasRecords)
        return self.inner.records


def read(response: httpx2.Response) -> Page:
    reader = _Reader()
    reader.feed(response.text)
    words = "".join(reader.words)
    return Page(response.status_code, response.text, response.headers, reader.forms, words)


class _Reader(HTMLParser):
    """Collects forms and words; knows as much of HTML as the inbox uses."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.forms: list[Form] = []
        self.words: list[str] = []
        self._textarea: str | None = None
        self._select: str | None = None
        self._fresh = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(given.get("action", ""), given.get("method", "get")))
        elif tag == "input" and given.get("name") and self.forms:
            self._input(given)
        elif tag == "textarea":
            self._textarea, self._fresh = given["name"], True
            self.forms[-1].fields[given["name"]] = [""]
        elif tag == "select":
            self._select = given["name"]
        elif tag == "option" and self._select is not None:
            fields = self.forms[-1].fields
            if "selected" in given or self._select not in fields:
                fields[self._select] = [given.get("value", "")]
        elif tag == "button" and self.forms:
            name, value = given.get("name", ""), given.get("value", "")
            self.forms[-1].buttons.append((name, value, "disabled" not in given))

    def _input(self, given: dict[str, str]) -> None:
        if given.get("type") in ("checkbox", "radio") and "checked" not in given:
            return
        self.forms[-1].fields.setdefault(given["name"], []).append(given.get("value", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._textarea = None
        elif tag == "select":
            self._select = None

    def handle_data(self, data: str) -> None:
        if self._textarea is None:
            self.words.append(data)
            return
        # The first line break inside a textarea is not part of it.
        text = data.removeprefix("\n") if self._fresh else data
        self._fresh = False
        self.forms[-1].fields[self._textarea][0] += text


def _to_header_names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


class Person:
    """A browser on a real port."""

    def __init__(self) -> None:
        self.client = httpx2.AsyncClient()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.aclose()

    async def open(self, url: str) -> Page:
        return read(await self.client.get(url))

    async def press(self, url: str, ending: str, **fields: str) -> Page:
        page = await self.open(url)
        form = page.form(ending)
        values = {**{name: value[0] for name, value in form.fields.items()}, **fields}
        origin = re.match(r"https?://[^/]+", url)
        assert origin is not None, url
        return read(await self.client.post(f"{origin[0]}{form.action}", data=values, headers={"origin": origin[0]}))

    async def approve(self, inbox_url: str, link: str) -> Page:
        assert (await self.press(link, "/pair")).status == 303
        return await self.press(inbox_url, "/decision", decision="approve")
