"""The section of the inbox in which people choose the browsers that notify them, without script."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from planwarden.server.inbox.pages import browsers as pages
from planwarden.server.notifications import subscribing
from planwarden.server.notifications.subscribing import MAX_ENDPOINT_CHARS
from planwarden.server.notifications.web_push import KEY_NAME, encode_public_key
from planwarden.server.settings.configuration import Settings
from planwarden.storage.ports.browsers import MAX_BROWSERS, NotifiedBrowser
from planwarden.storage.sqlite.memory import MemoryStore
from tests.requirements import requirement
from tests.server.inbox.support import Browser, Fields, Inbox, Page, inbox
from tests.support.push_service import BrowserDouble, encode

pytestmark = pytest.mark.anyio

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
ENDPOINT = "https://push.example/send/1"


@asynccontextmanager
async def open_home(home: Path) -> AsyncGenerator[tuple[Inbox, MemoryStore]]:
    store = MemoryStore()
    async with inbox(store=store, settings=Settings(home=home)) as found:
        yield found, store


async def choose(browser: Browser, endpoint: str = ENDPOINT, agent: str = FIREFOX, **changes: str) -> Page:
    """What the script sends after the person and the browser agreed."""
    double = BrowserDouble()
    form = (await browser.open("/inbox")).form("/browsers/add")
    given = {"endpoint": endpoint, "p256dh": double.p256dh, "auth": encode(double.auth), **changes}
    fields: Fields = {**form.fields, **{name: [value] for name, value in given.items()}}
    return await browser.send(form.action, fields, user_agent=agent)


async def list_all(store: MemoryStore) -> list[NotifiedBrowser]:
    return list(await store.browsers.all(store.clock.now()))


async def list_kinds(store: MemoryStore) -> list[str]:
    return [row.entry.kind for row in await store.audit_rows() if row.entry.kind.startswith("browser_")]


@requirement("push:page")
async def test_a_person_chooses_a_browser_sees_it_and_stops_it(tmp_path: Path) -> None:
    async with open_home(tmp_path) as (found, store):
        ann = await found.log_in()
        before = await ann.open("/inbox")
        assert "Notify me in this browser" in before.words and "Notifications need JavaScript" in before.words
        assert not (tmp_path / KEY_NAME).exists()
        answer = await choose(ann)
        assert (answer.status, answer.headers["location"]) == (303, "/inbox#browsers")
        [stored] = await list_all(store)
        assert (stored.principal, stored.endpoint, stored.label) == ("ann", ENDPOINT, "Firefox on Linux")
        page = await ann.open("/inbox")
        assert "Firefox on Linux" in page.words and ENDPOINT not in page.text and stored.auth not in page.text
        stopped = await ann.submit(page.form(f"/browsers/{stored.browser_id}/remove"))
        assert stopped.status == 303 and await list_all(store) == []
        assert (await ann.submit(page.form(f"/browsers/{stored.browser_id}/remove"))).status == 404
        assert await list_kinds(store) == ["browser_added", "browser_removed"]
        await choose(ann, agent="<script>alert(1)</script>")
        page = await ann.open("/inbox")
        assert "A browser" in page.words and "alert(1)" not in page.text


@requirement("push:key", "push:page")
async def test_the_script_gets_the_public_key_for_a_form_of_its_session_only(tmp_path: Path) -> None:
    async with open_home(tmp_path) as (found, _):
        ann = await found.log_in()
        csrf = (await ann.open("/inbox")).form("/browsers/add").fields["csrf"]
        assert (await ann.open("/inbox/browsers/key")).status == 403
        assert (await ann.send("/inbox/browsers/key", {"csrf": ["no"]})).status == 403
        assert not (tmp_path / KEY_NAME).exists()
        given = [json.loads((await ann.send("/inbox/browsers/key", {"csrf": csrf})).text) for _ in range(2)]
        assert given == [{"key": encode_public_key((tmp_path / KEY_NAME).read_bytes())}] * 2


@requirement("push:own")
async def test_nobody_sees_stops_or_replaces_the_browser_of_somebody_else(tmp_path: Path) -> None:
    async with open_home(tmp_path) as (found, store):
        ann, bob = await found.log_in(), await found.log_in("bob")
        await choose(ann)
        [hers] = await list_all(store)
        page = await bob.open("/inbox")
        assert "Firefox" not in page.words and hers.browser_id not in page.text
        csrf = page.form("/browsers/add").fields["csrf"]
        assert (await bob.send(f"/inbox/browsers/{hers.browser_id}/remove", {"csrf": csrf})).status == 404
        assert (await bob.send("/inbox/browsers/renew", {"csrf": csrf, "endpoint": [ENDPOINT]})).status == 204
        assert await list_all(store) == [hers]
        assert (await choose(bob)).status == 303
        assert [(known.principal, known.endpoint) for known in await list_all(store)] == [
            ("ann", ENDPOINT),
            ("bob", ENDPOINT),
        ]
        assert (await list_all(store))[0] == hers


@requirement("push:own")
async def test_logging_out_ends_the_browsers_of_that_session_and_a_newer_one_keeps_them(tmp_path: Path) -> None:
    async with open_home(tmp_path) as (found, store):
        ann, other = await found.log_in(), await found.log_in()
        await choose(ann, "https://push.example/send/1")
        await choose(other, "https://push.example/send/2")
        await ann.submit((await ann.open("/inbox")).forms[0])
        assert [known.endpoint for known in await list_all(store)] == ["https://push.example/send/2"]
        again = await found.log_in()
        csrf = (await again.open("/inbox")).form("/browsers/add").fields["csrf"]
        await again.send("/inbox/browsers/renew", {"csrf": csrf, "endpoint": ["https://push.example/send/2"]})
        await other.submit((await other.open("/inbox")).forms[0])
        assert len(await list_all(store)) == 1
        everywhere = next(form for form in (await again.open("/inbox")).forms if "everywhere" in form.fields)
        await again.submit(everywhere)
        assert await list_all(store) == []


HOSTILE = (
    *("", "push.example/x", "http://push.example/x", "ftp://push.example/x", "https:///x", "https://"),
    *("https://127.0.0.1/x", "https://[::1]/x", "https://10.0.0.1/x", "https://169.254.169.254/x"),
    *("https://[::ffff:7f00:1]/", "https://[fe80::1]/x"),
    *("https://ann:pw@push.example/x", "https://ann@push.example/x", "https://push.example/x#y"),
    *("https://push.example:22/x", "https://push.example:99999/x", "https://push.example:x/"),
    *("https://push.example/\u0141", "https://push.example/a b", "https://push.example/a\nb", "https://[::1"),
    "https://push.example/" + "x" * MAX_ENDPOINT_CHARS,
)


@requirement("push:hostile-address")
async def test_an_address_or_a_key_that_no_push_service_or_browser_has_is_refused(tmp_path: Path) -> None:
    async with open_home(tmp_path) as (found, store):
        ann = await found.log_in()
        for endpoint in HOSTILE:
            answer = await choose(ann, endpoint)
            assert answer.status == 422 and "push service" in answer.words, endpoint
            assert not endpoint or endpoint not in answer.text
        for changes in ({"p256dh": "AAAA"}, {"auth": ""}, {"auth": "x" * 100_000}):
            answer = await choose(ann, **changes)
            assert answer.status == 422 and "not the keys of a browser" in answer.words, changes
        assert await list_all(store) == [] and await list_kinds(store) == []


@requirement("push:own")
async def test_a_person_has_at_most_so_many_browsers(tmp_path: Path) -> None:
    async with open_home(tmp_path) as (found, store):
        ann = await found.log_in()
        for number in range(MAX_BROWSERS):
            assert (await choose(ann, f"https://push.example/{number}")).status == 303
        answer = await choose(ann, "https://push.example/more")
        assert answer.status == 413 and f"you have {MAX_BROWSERS} browsers" in answer.words
        assert len(await list_all(store)) == MAX_BROWSERS


@requirement("push:page")
async def test_without_the_extra_the_page_says_what_to_install_and_takes_no_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (subscribing, pages):
        monkeypatch.setattr(module, "is_push_installed", lambda: False)
    async with open_home(tmp_path) as (found, store):
        ann = await found.log_in()
        page = await ann.open("/inbox")
        assert "only while this page is open" in page.words and "pip install 'planwarden[push]'" in page.words
        assert (await choose(ann)).status == 422 and await list_all(store) == []
        csrf = page.form("/browsers/add").fields["csrf"]
        assert (await ann.send("/inbox/browsers/key", {"csrf": csrf})).status == 422


@requirement("push:page")
async def test_the_worker_is_served_at_the_top_under_the_policy_of_all_pages(tmp_path: Path) -> None:
    async with open_home(tmp_path) as (found, _):
        worker = await found.browser().open("/sw.js")
        assert (worker.status, worker.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
        assert worker.headers["cache-control"] == "no-cache" and "showNotification" in worker.text
        assert "worker-src 'self'" in worker.headers["content-security-policy"]
        assert "default-src 'none'" in worker.headers["content-security-policy"]
