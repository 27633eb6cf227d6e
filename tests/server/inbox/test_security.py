"""The security of the pages: which requests are refused, and which headers limit the browser."""

import hashlib
import re
import socket
from pathlib import Path
from urllib.parse import urlencode

import anyio
import httpx2
import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from planwarden.server.inbox.app import CONTENT_SECURITY_POLICY, MAX_BODY_BYTES, build_inbox_app
from planwarden.server.inbox.site import ASSETS, InboxSite, build_asset_url, load_assets
from planwarden.server.inbox.web_server import serve_app
from tests.kit import Settings, Suspension, requirement, warden
from tests.server.inbox.support import HOST, ORIGIN, inbox, visit
from tests.support.paths import ROOT

PUBLIC = "https://plans.example"
OPEN = {"/", "/inbox/static/{name}", "/inbox/pair"}
"""The routes that need no session."""


@requirement("inbox:session-needed", "inbox:csrf", "inbox:cross-site", "inbox:get-changes-nothing")
async def test_every_route_needs_a_session_and_every_change_a_form_of_that_session() -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        csrf = (await browser.open_question(asked)).form("/decision").fields["csrf"]
        stranger, other = found.browser(), await found.log_in("bob")
        theirs = (await other.open_question(asked)).form("/decision").fields["csrf"]
        sent = {"decision": ["approve"], "digest": [asked.digest], "key": ["k" * 20], "uses": ["2"], "minutes": ["60"]}
        routes = [route for route in found.app.routes if isinstance(route, Route) and route.path not in OPEN]
        for route in routes:
            path = route.path.format_map({**dict.fromkeys(route.param_convertors, "x"), **_list_ids(asked)})
            if "POST" not in (route.methods or ()):
                page = await stranger.open(path)
                assert page.status == 303 and page.headers["location"].startswith("/inbox/pair?next="), path
                part = await stranger.open(path, hx_request="true")
                assert part.status == 401 and part.headers["hx-redirect"] == "/inbox/pair", path
                continue
            assert (await browser.open(f"{path}?{urlencode({'csrf': csrf[0], 'decision': 'approve'})}")).status == 403
            for token in ([], [""], ["0" * 64], ["é"], theirs):
                assert (await browser.send(path, {**sent, "csrf": token})).status in (403, 422), (path, token)
            assert (await stranger.send(path, {**sent, "csrf": csrf})).status == 403, path
            for headers in FOREIGN:
                assert (await browser.send(path, {**sent, "csrf": csrf}, **headers)).status == 403, (path, headers)
        assert len(routes) > 35 and found.ledger.lines == []
        assert (await found.current_execution(asked)).status == "suspended"
        assert await found.warden.service.grants.list() == ()
        assert (await browser.open("/inbox")).status == 200, "nothing ended the session"


FOREIGN: tuple[dict[str, str], ...] = (
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:9999"},
    {"origin": f"https://{HOST}"},
    {"origin": ""},
    {"origin": ORIGIN, "sec_fetch_site": "cross-site"},
    {"origin": ORIGIN, "sec_fetch_site": "same-site"},
    {"sec_fetch_dest": "iframe"},
)
"""What a browser says of a change that another page asked for."""


def _list_ids(asked: Suspension) -> dict[str, str]:
    return {"suspension_id": asked.suspension_id, "execution_id": asked.execution_id}


@requirement("inbox:cross-site")
async def test_a_change_without_an_origin_counts_only_when_no_browser_sent_it_from_elsewhere() -> None:
    async with visit() as (found, browser):
        form = (await browser.open_question(await found.ask())).form("/decision")
        body = urlencode({**{name: form.fields[name][0] for name in ("csrf", "digest")}, "decision": "approve"})
        given = {"content-type": "application/x-www-form-urlencoded"}
        for headers, status, ran in (
            ({"sec-fetch-site": "cross-site"}, 403, []),
            (dict[str, str](), 303, ["erase [1, 2]"]),
        ):
            answer = await browser.client.post(form.action, content=body, headers={**given, **headers})
            assert (answer.status_code, found.ledger.lines) == (status, ran)


@requirement("inbox:session-ends")
async def test_logging_out_ends_the_session_and_not_only_the_cookie_or_every_session() -> None:
    async with inbox() as found:
        first, second, third = [await found.log_in(name) for name in ("ann", "ann", "bob")]
        again = found.browser()
        again.client.cookies.update(dict(first.client.cookies))
        left = await first.submit((await first.open("/inbox")).forms[0])
        assert left.status == 303 and "Max-Age=0" in left.headers["set-cookie"]
        assert [(await who.open("/inbox")).status for who in (again, second, third)] == [303, 200, 200]
        [everywhere] = [form for form in (await second.open("/inbox")).forms if form.fields.get("everywhere")]
        await second.submit(everywhere)
        assert [(await who.open("/inbox")).status for who in (second, third)] == [303, 303]


HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


@requirement("inbox:headers", "inbox:hosts")
async def test_every_answer_carries_the_policy_and_only_its_own_names_are_answered() -> None:
    hosts = ("evil.example", "127.0.0.1", "127.0.0.1:1", f"{HOST}.evil.example", "localhost:8765")
    async with inbox() as found:
        browser = found.browser()
        for path in ("", "/pair", "/nowhere", "/static/inbox.css", "/end"):
            for host in (HOST, *hosts):
                answer = await browser.open(f"/inbox{path}", host=host)
                assert (answer.status == 421) == (host != HOST), (path, host)
                assert {name: answer.headers[name] for name in HEADERS} == HEADERS
                assert path.startswith("/static") or answer.headers["cache-control"] == "no-store"
    for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert part in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY


@requirement("inbox:headers")
async def test_no_page_holds_script_or_style_is_framed_or_takes_another_method() -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        where = ["", "/history", "/receipts", "/grants", "/pair", "/nowhere", f"/suspensions/{asked.suspension_id}"]
        where += [f"/suspensions/{asked.suspension_id}/grant", f"/executions/{asked.execution_id}"]
        where += [f"/review?id={asked.suspension_id}"]
        for path in where:
            text = (await browser.open(f"/inbox{path}")).text
            assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", text), path
        for frame in ("iframe", "frame", "embed", "object", "fencedframe"):
            assert (await browser.open("/inbox", sec_fetch_dest=frame)).status == 403, frame
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            assert (await browser.client.request(method, "/inbox")).status_code == 405, method


@requirement("inbox:bounded")
async def test_a_body_without_end_is_cut_off() -> None:
    async with visit() as (_, browser):
        sent = 0

        async def endless() -> object:
            nonlocal sent
            while True:
                sent += 65_536
                yield b"x" * 65_536

        given = {"content-type": "application/x-www-form-urlencoded", "origin": ORIGIN}
        whole = await browser.client.post("/inbox/end", content=b"x" * (MAX_BODY_BYTES + 1), headers=given)
        streamed = await browser.client.post("/inbox/end", content=endless(), headers=given)  # pyright: ignore[reportArgumentType]
        assert sent < MAX_BODY_BYTES * 2
        for answer in (whole, streamed):
            assert answer.status_code == 413 and f"the form is larger than {MAX_BODY_BYTES} bytes; " in answer.text
            assert "<h1>Too large</h1>" in answer.text and 'href="/inbox">To the inbox' in answer.text


FORM = "application/x-www-form-urlencoded"


async def test_a_body_that_is_no_form_of_ours_is_refused() -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        for body, media in (
            (b'{"decision": "approve"}', "application/json"),
            (b"csrf=%ff%fe&decision=approve", FORM),
            (b"\xff\xfe\x00", FORM),
            (b"a=1&" * 3_000 + b"b=2", FORM),
            (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x"),
            (b"", FORM),
        ):
            for where in (f"/inbox/suspensions/{asked.suspension_id}/decision", "/inbox/pair"):
                given = {"content-type": media, "origin": ORIGIN}
                answer = await browser.client.post(where, content=body, headers=given)
                assert answer.status_code in (403, 422), (where, answer.status_code)


async def test_a_login_redirects_only_to_pages_of_the_inbox() -> None:
    hostile = ("https://evil.example", "//evil.example", "/inbox/../mcp", "/inbox//evil.example", "/mcp", "\\x", "")
    async with inbox() as found:
        for target in (*hostile, "/inbox?x\r\ny: z"):
            browser = found.browser()
            code = (await found.site.access().make_codes("ann", "terminal")).link
            page = await browser.open(f"/inbox/pair?code={code}")
            answer = await browser.submit(page.form("/pair"), next=target)
            assert (answer.status, answer.headers["location"]) == (303, "/inbox"), target


async def test_a_login_leads_to_the_whole_address_that_was_opened() -> None:
    async with inbox() as found:
        root = await found.browser().open("/")
        assert (root.status, root.headers["location"]) == (303, "/inbox")
        browser = found.browser()
        asked = await browser.open("/inbox/plans?q=a%26b&state=failed")
        code = (await found.site.access().make_codes("ann", "terminal")).link
        form = (await browser.open(asked.headers["location"])).form("/pair")
        answer = await browser.submit(form, code=code)
        assert (answer.status, answer.headers["location"]) == (303, "/inbox/plans?q=a%26b&state=failed")


async def test_a_link_from_another_site_loads_itself_again_so_that_the_cookie_goes_with_it() -> None:
    async with inbox() as found:
        page = await found.browser().open("/inbox/receipts?session=a", sec_fetch_site="cross-site")
        assert page.status == 200 and 'content="0; url=/inbox/receipts?session=a"' in page.text


@requirement("inbox:passphrase")
async def test_the_page_asks_for_the_passphrase_and_a_missing_file_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    async with inbox(passphrase_file=file) as found:
        browser = found.browser()
        code = (await found.site.access().make_codes("ann", "terminal")).link
        form = (await browser.open(f"/inbox/pair?code={code}")).form("/pair")
        assert "passphrase" in form.fields
        closed = await browser.submit(form, passphrase="correct horse")
        assert closed.status == 422 and "set-passphrase" in closed.words
        await found.site.passphrase.replace("correct horse")
        wrong = await browser.submit(form, passphrase="battery")
        assert wrong.status == 422 and wrong.form("/pair").fields["code"] == [code]
        assert (await browser.submit(wrong.form("/pair"), passphrase="correct horse")).status == 303


async def test_files_beside_the_pages_are_named_by_their_content() -> None:
    async with inbox() as found:
        browser = found.browser()
        for name in ASSETS:
            answer = await browser.client.get(build_asset_url(name))
            assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"]
            assert answer.content == load_assets()[name].content
        assert (await browser.open("/inbox/static/htmx-LICENSE.txt")).status == 404
        assert (await browser.open("/inbox/static/..%2finbox.py")).status == 404
    folder = ROOT / "server" / "inbox" / "static"
    digest = hashlib.sha256((folder / "htmx-2.0.11.min.js").read_bytes()).hexdigest()
    assert digest in (folder / "htmx-LICENSE.txt").read_text()


@requirement("inbox:cookie", "inbox:code-once")
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_opened_link_lets_in_who_sends_its_form_first_with_a_cookie_for_this_path(scheme: str) -> None:
    async with inbox() as found:
        where = f"/inbox/suspensions/{(await found.ask()).suspension_id}"
        codes = await found.site.access().make_codes("ann", "terminal")
        pages = [await found.browser().open(f"/inbox/pair?code={codes.link}") for _ in range(3)]
        assert [page.status for page in pages] == [200] * 3
        browser = found.browser(f"{scheme}://{HOST}")
        led = (await browser.open(where)).headers["location"]
        form = (await browser.open(led)).form("/pair")
        sent = {**form.fields, "code": [codes.link]}
        answer = await browser.send(form.action, sent, origin=f"{scheme}://{HOST}")
        assert (answer.status, answer.headers["location"]) == (303, where)
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and "path=/inbox" in cookie
        assert ("secure" in cookie) == (scheme == "https") and "domain" not in cookie
        refused = await found.browser().submit(pages[0].form("/pair"))
        assert refused.status == 422 and "not valid" in refused.words and "set-cookie" not in refused.headers


@requirement("inbox:cross-site", "inbox:cookie")
async def test_behind_a_proxy_forms_come_from_the_public_address_and_the_cookie_is_for_https() -> None:
    async with warden() as w:
        site = InboxSite(service=lambda: w.service, settings=Settings(home=Path("/nonexistent")), origin=PUBLIC)
        transport = httpx2.ASGITransport(app=build_inbox_app(site, lambda: ["plans.example"]))
        async with httpx2.AsyncClient(transport=transport, base_url="http://plans.example") as browser:
            codes = await site.access().make_codes("ann", "terminal")
            form = {"code": codes.link, "next": "/inbox"}
            for origin in ("http://plans.example", "https://evil.example", PUBLIC):
                answer = await browser.post("/inbox/pair", data=form, headers={"Origin": origin})
                assert answer.status_code == (303 if origin == PUBLIC else 403)
    assert "Secure" in answer.headers["set-cookie"]


@requirement("inbox:cross-site")
async def test_what_a_request_says_about_a_proxy_is_not_believed() -> None:
    schemes = list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        schemes.append(scope["scheme"])
        await PlainTextResponse("seen")(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with anyio.create_task_group() as tasks, httpx2.AsyncClient() as client:
            tasks.start_soon(serve_app, app, listener)
            with anyio.fail_after(60):
                await client.get(address, headers={"X-Forwarded-Proto": "https"})
            tasks.cancel_scope.cancel()
    assert schemes == ["http"]
