"""The inbox behind a proxy that has TLS: browsers are at the public address, requests here come without it."""

from pathlib import Path

import httpx2
import pytest

from planwarden.server.inbox import inbox_app
from planwarden.server.inbox_site import Site
from tests.requirements import requirement
from tests.support import warden

pytestmark = pytest.mark.anyio

PUBLIC = "https://plans.example"


@requirement("inbox:cross-site", "inbox:cookie")
@pytest.mark.parametrize(
    ("origin", "status"), [(PUBLIC, 303), ("http://plans.example", 403), ("https://evil.example", 403)]
)
async def test_forms_come_from_the_public_address_and_the_cookie_is_for_https(origin: str, status: int) -> None:
    """ours: `X-Forwarded-Proto` is not read, `[http] public_url` says it"""
    async with warden() as w:
        site = Site(service=lambda: w.service, home=Path("/nonexistent"), origin=PUBLIC)
        transport = httpx2.ASGITransport(app=inbox_app(site, lambda: ["plans.example"]))
        async with httpx2.AsyncClient(transport=transport, base_url="http://plans.example") as browser:
            codes = await site.access().make_codes("ann", "terminal")
            form = {"code": codes.link, "next": "/inbox"}
            answer = await browser.post("/inbox/pair", data=form, headers={"Origin": origin})
    assert answer.status_code == status
    assert ("Secure" in answer.headers.get("set-cookie", "")) == (status == 303)
