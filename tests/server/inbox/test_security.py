"""The security of the pages: which requests are refused, and which headers limit the browser."""

import hashlib
import re
from pathlib import Path

import pytest

from planwarden.server.inbox.security_middleware import CONTENT_SECURITY_POLICY, MAX_BODY_BYTES
from planwarden.server.inbox.site import ASSETS, build_asset_url, load_assets
from tests.requirements import requirement
from tests.server.inbox.support import HOST, ORIGIN, Browser, inbox, visit
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio


async def _send_decision(browser: Browser, suspension_id: str, digest: str, **headers: str) -> int:
    """Send a decision that is valid except for what the test changes. Returns the status."""
    page = await browser.open(f"/inbox/suspensions/{suspension_id}")
    fields = {**page.form("/decision").fields, "decision": ["approve"], "digest": [digest]}
    return (await browser.send(f"/inbox/suspensions/{suspension_id}/decision", fields, **headers)).status


@requirement("inbox:cross-site")
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": f"https://{HOST}"},
        {"origin": ""},
        {"origin": ORIGIN, "sec_fetch_site": "cross-site"},
        {"origin": ORIGIN, "sec_fetch_site": "same-site"},
        {"sec_fetch_dest": "iframe"},
    ],
)
async def test_a_change_that_another_page_asks_for_is_refused(headers: dict[str, str]) -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        assert await _send_decision(browser, asked.suspension_id, asked.digest, **headers) == 403
        assert found.ledger.lines == [] and (await found.current_execution(asked)).status == "suspended"


@requirement("inbox:cross-site")
async def test_a_change_without_an_origin_counts_only_when_no_browser_sent_it_from_elsewhere() -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        page = await browser.open_question(asked)
        fields = {**page.form("/decision").fields, "decision": ["approve"]}
        body = "&".join(
            f"{name}={value[0]}" for name, value in fields.items() if name in ("csrf", "digest", "decision")
        )
        where = f"/inbox/suspensions/{asked.suspension_id}/decision"
        given = {"content-type": "application/x-www-form-urlencoded"}
        refused = await browser.client.post(where, content=body, headers={**given, "sec-fetch-site": "cross-site"})
        assert refused.status_code == 403 and found.ledger.lines == []
        taken = await browser.client.post(where, content=body, headers=given)
        assert taken.status_code == 303 and found.ledger.lines == ["erase [1, 2]"]


@requirement("inbox:get-changes-nothing")
async def test_looking_at_any_address_decides_nothing() -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        page = await browser.open_question(asked)
        csrf = page.form("/decision").fields["csrf"][0]
        query = f"?csrf={csrf}&digest={asked.digest}&decision=approve"
        for where in (f"suspensions/{asked.suspension_id}/decision", "review/decision", "end"):
            assert (await browser.open(f"/inbox/{where}{query}")).status == 403
        assert found.ledger.lines == [] and (await browser.open("/inbox")).status == 200


@requirement("inbox:csrf")
async def test_a_form_without_this_sessions_token_is_refused() -> None:
    async with inbox() as found:
        asked = await found.ask()
        browser, other = found.browser(), found.browser()
        await browser.log_in()
        await other.log_in("bob")
        page = await browser.open_question(asked)
        theirs = (await other.open(f"/inbox/suspensions/{asked.suspension_id}")).form("/decision").fields["csrf"]
        for token in (None, [""], ["0" * 64], ["é"], theirs):
            answer = await browser.submit(page.form("/decision"), press="approve", csrf=token)
            assert answer.status in (403, 422), token
        assert found.ledger.lines == []


@requirement("inbox:session-needed")
async def test_without_a_session_nothing_is_shown_and_nothing_is_taken() -> None:
    async with inbox() as found:
        asked = await found.ask()
        insider, stranger = found.browser(), found.browser()
        await insider.log_in()
        page = await insider.open(f"/inbox/suspensions/{asked.suspension_id}")
        assert (await stranger.submit(page.form("/decision"), press="approve")).status == 403
        for path in ("", "/history", "/grants", "/waiting", f"/suspensions/{asked.suspension_id}", "/review?id=x"):
            answer = await stranger.open(f"/inbox{path}")
            assert answer.status == 303 and answer.headers["location"].startswith("/inbox/pair?next=")
        fragment = await stranger.open("/inbox/waiting", hx_request="true")
        assert fragment.status == 401 and fragment.headers["hx-redirect"] == "/inbox/pair"
        assert found.ledger.lines == []


@requirement("inbox:session-ends")
async def test_logging_out_ends_the_session_and_not_only_the_cookie() -> None:
    async with inbox() as found:
        browser = found.browser()
        page = await browser.log_in()
        jar = dict(browser.client.cookies)
        left = await browser.submit(page.forms[0])
        assert left.status == 303 and "Max-Age=0" in left.headers["set-cookie"]
        again = found.browser()
        again.client.cookies.update(jar)
        assert (await again.open("/inbox")).status == 303


@requirement("inbox:session-ends")
async def test_all_sessions_are_ended_from_one_of_them() -> None:
    async with inbox() as found:
        browser, other = found.browser(), found.browser()
        page = await browser.log_in()
        await other.log_in("bob")
        [everywhere] = [form for form in page.forms if form.fields.get("everywhere")]
        await browser.submit(everywhere)
        assert [(await found_.open("/inbox")).status for found_ in (browser, other)] == [303, 303]


@requirement("inbox:headers")
@pytest.mark.parametrize("path", ["/inbox", "/inbox/pair", "/inbox/nowhere", "/inbox/static/inbox.js", "/inbox/end"])
async def test_every_answer_carries_the_policy(path: str) -> None:
    async with inbox() as found:
        browser = found.browser()
        for answer in (await browser.open(path), await browser.open(path, host="evil.example")):
            headers = answer.headers
            assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "same-origin"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            if "static" not in path:
                assert headers["cache-control"] == "no-store"
    for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert part in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY


@requirement("inbox:headers")
async def test_no_page_holds_script_or_style() -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        where = ["", "/history", "/grants", "/pair", "/nowhere", f"/suspensions/{asked.suspension_id}"]
        where += [f"/suspensions/{asked.suspension_id}/grant", f"/executions/{asked.execution_id}"]
        where += [f"/review?id={asked.suspension_id}"]
        for path in where:
            text = (await browser.open(f"/inbox{path}")).text
            assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", text), path


@requirement("inbox:headers")
@pytest.mark.parametrize("dest", ["iframe", "frame", "embed", "object", "fencedframe"])
async def test_a_page_is_not_shown_inside_another(dest: str) -> None:
    async with visit() as (_, browser):
        assert (await browser.open("/inbox", sec_fetch_dest=dest)).status == 403


@requirement("inbox:hosts")
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", f"{HOST}.evil.example", "localhost:8765"])
async def test_only_its_own_names_are_answered(host: str) -> None:
    async with visit() as (_, browser):
        assert (await browser.open("/inbox", host=host)).status == 421
        assert (await browser.open("/inbox/static/inbox.css", host=host)).status == 421


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_other_methods_are_not_known(method: str) -> None:
    async with inbox() as found:
        assert (await found.browser().client.request(method, "/inbox")).status_code == 405


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
        assert whole.status_code == 413
        streamed = await browser.client.post("/inbox/end", content=endless(), headers=given)  # pyright: ignore[reportArgumentType]
        assert streamed.status_code == 413 and sent < MAX_BODY_BYTES * 2


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (b'{"decision": "approve"}', "application/json"),
        (b"csrf=%ff%fe&decision=approve", "application/x-www-form-urlencoded"),
        (b"\xff\xfe\x00", "application/x-www-form-urlencoded"),
        (b"nonsense", "application/x-www-form-urlencoded"),
        (b"a=1&" * 3_000 + b"b=2", "application/x-www-form-urlencoded"),
        (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x"),
        (b"", "application/x-www-form-urlencoded"),
    ],
)
async def test_a_body_that_is_no_form_of_ours_is_refused(body: bytes, media: str) -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        for where in (f"/inbox/suspensions/{asked.suspension_id}/decision", "/inbox/pair"):
            given = {"content-type": media, "origin": ORIGIN}
            answer = await browser.client.post(where, content=body, headers=given)
            assert answer.status_code in (403, 422), (where, answer.status_code)


@requirement("inbox:cookie")
async def test_the_cookie_stays_in_this_browser_and_under_this_path() -> None:
    async with inbox() as found:
        browser = found.browser()
        page = await browser.open(f"/inbox/pair?code={(await found.site.access().make_codes('ann', 'terminal')).link}")
        cookie = (await browser.submit(page.form("/pair"))).headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and "path=/inbox" in cookie
        assert "secure" not in cookie and "domain" not in cookie
        secure = found.browser(f"https://{HOST}")
        code = (await found.site.access().make_codes("ann", "terminal")).link
        form = (await secure.open(f"/inbox/pair?code={code}")).form("/pair")
        answer = await secure.send(form.action, form.fields, origin=f"https://{HOST}")
        assert answer.status == 303 and "secure" in answer.headers["set-cookie"].lower()


@requirement("inbox:code-once")
async def test_opening_a_link_does_not_use_it_up() -> None:
    async with inbox() as found:
        code = (await found.site.access().make_codes("ann", "terminal")).link
        pages = [await found.browser().open(f"/inbox/pair?code={code}") for _ in range(3)]
        assert [page.status for page in pages] == [200] * 3
        page = pages[0]
        browser = found.browser()
        assert (await browser.submit(page.form("/pair"))).status == 303
        refused = await found.browser().submit(page.form("/pair"))
        assert refused.status == 422 and "not valid" in refused.words and "set-cookie" not in refused.headers


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example",
        "//evil.example",
        "/inbox/../mcp",
        "/inbox//evil.example",
        "/mcp",
        "/inbox/pair?x",
        "\\x",
        "",
    ],
)
async def test_a_login_redirects_only_to_pages_of_the_inbox(target: str) -> None:
    async with inbox() as found:
        browser = found.browser()
        code = (await found.site.access().make_codes("ann", "terminal")).link
        page = await browser.open(f"/inbox/pair?code={code}")
        answer = await browser.submit(page.form("/pair"), next=target)
        assert (answer.status, answer.headers["location"]) == (303, "/inbox")


async def test_a_login_redirects_to_the_question() -> None:
    async with inbox() as found:
        asked = await found.ask()
        browser = found.browser()
        where = f"/inbox/suspensions/{asked.suspension_id}"
        first = await browser.open(where)
        form = (await browser.open(first.headers["location"])).form("/pair")
        typed = (await found.site.access().make_codes("ann", "terminal")).typed
        answer = await browser.submit(form, code=typed)
        assert (answer.status, answer.headers["location"]) == (303, where)
        assert (await browser.open(first.headers["location"])).headers["location"] == where


async def test_a_link_from_another_site_loads_itself_again_so_that_the_cookie_goes_with_it() -> None:
    async with inbox() as found:
        page = await found.browser().open("/inbox/history", sec_fetch_site="cross-site")
        assert page.status == 200 and 'content="0; url=/inbox/history"' in page.text


@requirement("inbox:lockout")
async def test_guessing_at_the_page_is_cut_off() -> None:
    async with inbox() as found:
        codes = await found.site.access().make_codes("ann", "terminal")
        browser = found.browser()
        form = (await browser.open("/inbox/pair")).form("/pair")
        statuses = [(await browser.submit(form, code=f"AAAA-AAAA-AAA{n}")).status for n in range(7)]
        assert statuses == [422] * 5 + [429] * 2
        assert (await browser.submit(form, code=codes.typed)).status == 429
        assert (await browser.submit(form, code=codes.link)).status == 303


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


async def test_the_vendored_file_is_the_one_that_its_note_names() -> None:
    folder = ROOT / "server" / "inbox" / "static"
    digest = hashlib.sha256((folder / "htmx-2.0.11.min.js").read_bytes()).hexdigest()
    note = (folder / "htmx-LICENSE.txt").read_text()
    assert digest in note and "Zero-Clause BSD" in note
