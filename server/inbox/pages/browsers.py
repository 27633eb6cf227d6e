"""A person's browsers that are notified: the section on the page of what waits, and its buttons."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from planwarden.agent.common.errors import UsageError
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.request import InboxRequest, NotFound, form_route
from planwarden.server.inbox.site import InboxSite
from planwarden.server.notifications.browsers import NOT_INSTALLED, is_push_installed
from planwarden.server.notifications.subscribing import (
    add_browser,
    list_browsers,
    name_browser,
    remove_browser,
    renew_browser,
)
from planwarden.server.settings.secrets import find_secrets
from planwarden.storage.ports.browsers import HasBrowsers, NotifiedBrowser

BROWSERS_PATH = f"{INBOX_PATH}/browsers"


class ListedBrowser(msgspec.Struct, frozen=True, kw_only=True):
    browser_id: str
    label: str
    mark: str
    """SHA-256 of its address, by which the script knows the browser that it runs in."""
    created_at: datetime
    failures: int


class BrowserSection(msgspec.Struct, frozen=True, kw_only=True):
    browsers: tuple[ListedBrowser, ...]
    obstacle: str
    """What to do to be notified when no page is open; empty where that works."""


def build_browser_routes(site: InboxSite) -> Sequence[BaseRoute]:
    return (
        form_route(site, f"{BROWSERS_PATH}/key", give_key),
        form_route(site, f"{BROWSERS_PATH}/add", add),
        form_route(site, f"{BROWSERS_PATH}/renew", renew),
        form_route(site, f"{BROWSERS_PATH}/{{browser_id}}/remove", remove),
    )


async def give_key(request: InboxRequest) -> Response:
    """The home's public key, for the script; a browser lets only what is signed with the other half reach it.

    Not part of the page, because the first one who asks makes it, and a GET changes nothing.
    """
    if not is_push_installed():
        raise UsageError(NOT_INSTALLED)
    from planwarden.server.notifications.web_push import encode_public_key, load_push_key

    secrets = find_secrets(request.site.settings, request.service.engine.store)
    return JSONResponse({"key": encode_public_key(await load_push_key(secrets))})


async def add(request: InboxRequest) -> Response:
    await add_browser(
        request.service.engine.store,
        request.session,
        endpoint=request.form_value("endpoint"),
        p256dh=request.form_value("p256dh"),
        auth=request.form_value("auth"),
        label=name_browser(request.http.headers.get("user-agent", "")),
    )
    return request.redirect("#browsers")


async def renew(request: InboxRequest) -> Response:
    """The script sends it once in a session; the answer says nothing about whose browser it is."""
    await renew_browser(request.service.engine.store, request.session, request.form_value("endpoint"))
    return Response(status_code=204)


async def remove(request: InboxRequest) -> Response:
    if not await remove_browser(request.service.engine.store, request.session, request.http.path_params["browser_id"]):
        raise NotFound("you have no such browser; it may have been stopped before")
    return request.redirect("#browsers")


async def build_browser_section(request: InboxRequest) -> BrowserSection:
    """What the section shows to this person."""
    store = request.service.engine.store
    if not isinstance(store, HasBrowsers):
        return BrowserSection(browsers=(), obstacle="use a store that keeps browsers")
    browsers = await list_browsers(store, request.session.principal)
    return BrowserSection(
        browsers=tuple(map(_build_listed, browsers)), obstacle="" if is_push_installed() else NOT_INSTALLED
    )


def _build_listed(browser: NotifiedBrowser) -> ListedBrowser:
    return ListedBrowser(
        browser_id=browser.browser_id,
        label=browser.label,
        mark=hashlib.sha256(browser.endpoint.encode()).hexdigest(),
        created_at=datetime.fromtimestamp(browser.created_at, UTC),
        failures=browser.failures,
    )
