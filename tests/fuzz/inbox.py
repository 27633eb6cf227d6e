"""The inbox: addresses, query strings, cookies, headers and forms, from a browser that is logged in."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx2

from tests.fuzz.entrance import PYTHON_WORDS, Wrong
from tests.fuzz.inputs import ODD_TEXTS, PLANS, Mutator
from tests.server.inbox.support import ORIGIN, Browser, Form, Inbox, inbox
from tests.server.mcp.support import sender
from tests.support.wardens import Ledger

PATHS = (
    *("/inbox", "/inbox/", "/inbox/history", "/inbox/review", "/inbox/grants", "/inbox/keys"),
    *("/inbox/pair", "/inbox/static/inbox.css", "/inbox/suspensions/{id}", "/inbox/plans"),
    *("/inbox/suspensions/{id}/decision", "/inbox/suspensions/{id}/grant", "/inbox/executions/{thread}"),
    *("/inbox/threads/{thread}", "/inbox/grants/{id}/revoke"),
    *("/inbox/keys/{id}/remove",),
)
QUERIES = ("cursor", "next", "code", "v", "page", "ids", "after", "limit", "q", "seen")
KINDS = (
    *("application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=utf-16"),
    *("multipart/form-data; boundary=x", "application/json", "text/plain", ""),
)
FORM_TOKENS = (b"&", b"=", b"%", b"%00", b"%ff", b"%ED%A0%80", b"+", b"&" * 2_100, b"\0", b"\xff", b"--x\r\n", b"[]")
ENOUGH = 8


class Pages:
    def __init__(self, found: Inbox, browser: Browser) -> None:
        self._inbox = found
        self._browser = browser
        self._questions: list[tuple[str, str]] = []
        """Suspension and thread."""
        self._forms: list[Form] = []
        """Those of all pages."""

    async def send(self, mutator: Mutator) -> str:
        request = self._make_post(mutator) if mutator.chance(0.6) else self._make_get(mutator)
        mutator.sent = (request.method, request.url.raw_path, request.headers.raw, request.content[:2_000])
        answer = await self._browser.client.send(request)
        if answer.status_code >= 500:
            raise Wrong(f"status {answer.status_code}: {answer.text[:500]}")
        if any(word in answer.text for word in PYTHON_WORDS):
            raise Wrong(f"a page with words of Python: {answer.text[:2_000]}")
        return f"{request.method} {answer.status_code}"

    async def check_alive(self) -> None:
        """Asks new questions when there are few, and logs in again: a form may have ended the session."""
        page = await self._inbox.warden.list_suspensions(limit=100)
        asked = [(found.suspension_id, found.thread_id) for found in page.suspensions if found.addressee == "human"]
        for document in PLANS if len(asked) < ENOUGH else ():
            view = await self._inbox.warden.execute_plan(document)
            asked.extend((found.suspension_id, view.thread_id) for found in view.suspensions)
        self._questions = asked
        if (await self._browser.open("/inbox")).status != 200:
            self._browser.client.cookies.clear()
            await self._browser.log_in()
        page = await self._browser.open("/inbox")
        if page.status != 200:
            raise Wrong("the list of questions does not open")
        pages = [page, *[await self._browser.open(where) for where in ("/inbox/review", "/inbox/keys")]]
        pages += [await self._browser.open(f"/inbox/suspensions/{found}") for found, _ in asked]
        self._forms = [form for page in pages for form in page.forms if not form.action.endswith("/end")]

    def _make_get(self, mutator: Mutator) -> httpx2.Request:
        path = self._make_path(mutator)
        query = {mutator.pick(QUERIES): mutator.odd_text() for _ in range(mutator.random.randrange(3))}
        text = urlencode(query, errors="surrogatepass")
        return self._build("GET", f"{path}?{text}" if query else path, b"", self._make_headers(mutator))

    def _make_post(self, mutator: Mutator) -> httpx2.Request:
        form: Form = mutator.pick(self._forms)
        pairs = [(name, value) for name, values in form.fields.items() for value in values]
        buttons = [(name, value) for name, value, _ in form.buttons if name]
        if buttons and mutator.chance(0.8):
            pairs.append(mutator.pick(buttons))
        for _ in range(mutator.random.randrange(3)):
            place = mutator.random.randrange(len(pairs) + 1)
            name = mutator.pick(pairs)[0] if pairs and mutator.chance(0.8) else mutator.odd_text()
            new = [(name, mutator.odd_text())] * mutator.random.randrange(3)
            pairs[place : place + mutator.random.randrange(2)] = new
        body = urlencode(pairs, errors="surrogatepass").encode()
        if mutator.chance(0.2):
            body = mutator.damage(body, FORM_TOKENS)
        kind = mutator.pick(KINDS) if mutator.chance(0.1) else KINDS[0]
        headers = {b"content-type": kind.encode(), b"origin": ORIGIN.encode(), **self._make_headers(mutator)}
        path = self._make_path(mutator) if mutator.chance(0.1) else form.action or "/inbox"
        return self._build(mutator.pick(("PUT", "DELETE")) if mutator.chance(0.02) else "POST", path, body, headers)

    def _make_path(self, mutator: Mutator) -> str:
        suspension_id, thread_id = mutator.pick(self._questions)
        odd = quote(mutator.odd_text()[:2_000], errors="surrogatepass", safe="")
        if mutator.chance(0.4):
            suspension_id = thread_id = odd
        path: str = mutator.pick(PATHS)
        return path.format(id=suspension_id, thread=thread_id) + (f"/{odd}" if mutator.chance(0.05) else "")

    @staticmethod
    def _make_headers(mutator: Mutator) -> dict[bytes, bytes]:
        if mutator.chance(0.75):
            return {}
        names = (b"cookie", b"host", b"origin", b"accept", b"hx-request", b"sec-fetch-site", b"referer", b"range")
        odd = (*ODD_TEXTS, "planwarden_session=x", "true", "cross-site", "application/json", "null", "a=" + "b" * 9_000)
        return {mutator.pick(names): mutator.pick(odd).encode("utf-8", "surrogatepass")[:9_000]}

    def _build(self, method: str, path: str, body: bytes, headers: dict[bytes, bytes]) -> httpx2.Request:
        return self._browser.client.build_request(method, path, content=body, headers=headers)


@asynccontextmanager
async def open_inbox(home: Path) -> AsyncGenerator[Pages]:
    ledger = Ledger()
    async with inbox(ledger, tools=[sender(ledger)]) as found:
        browser = found.browser()
        await browser.log_in()
        pages = Pages(found, browser)
        await pages.check_alive()
        yield pages
        await browser.client.aclose()
