"""The inbox behind a proxy that has TLS: browsers are at the public address, requests here come without it."""

import socket
from pathlib import Path

import anyio
import httpx2
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.site import InboxSite
from planwarden.server.inbox.web_server import serve_app
from planwarden.server.settings.configuration import Settings
from tests.requirements import requirement
from tests.support.wardens import warden

pytestmark = pytest.mark.anyio

PUBLIC = "https://plans.example"


@requirement("inbox:cross-site", "inbox:cookie")
@pytest.mark.parametrize(
    ("origin", "status"), [(PUBLIC, 303), ("http://plans.example", 403), ("https://evil.example", 403)]
)
async def test_forms_come_from_the_public_address_and_the_cookie_is_for_https(origin: str, status: int) -> None:
    async with warden() as w:
        site = InboxSite(service=lambda: w.service, settings=Settings(home=Path("/nonexistent")), origin=PUBLIC)
        transport = httpx2.ASGITransport(app=build_inbox_app(site, lambda: ["plans.example"]))
        async with httpx2.AsyncClient(transport=transport, base_url="http://plans.example") as browser:
            codes = await site.access().make_codes("ann", "terminal")
            form = {"code": codes.link, "next": "/inbox"}
            answer = await browser.post("/inbox/pair", data=form, headers={"Origin": origin})
    assert answer.status_code == status
    assert ("Secure" in answer.headers.get("set-cookie", "")) == (status == 303)


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
