"""The page of a person's keys: what they have, adding one, removing one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from planwarden.agent.common.errors import UsageError
from planwarden.server.inbox.address import BASE
from planwarden.server.inbox.keys.place import obstacle, place_of
from planwarden.server.inbox.request import InboxRequest, change, page
from planwarden.server.inbox.site import InboxSite
from planwarden.server.signatures.keyring import MAX_LABEL_CHARS, Keyring
from planwarden.server.views.facts import escape_text
from planwarden.storage.ports.keys import SigningKey

PATH = f"{BASE}/keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownKey:
    key_id: str
    label: str
    rp_id: str
    created_at: datetime
    used_at: datetime | None
    revoked_at: datetime | None


def key_routes(site: InboxSite) -> Sequence[BaseRoute]:
    return (
        page(site, PATH, show_keys),
        change(site, f"{PATH}/add", add),
        change(site, f"{PATH}/{{key_id}}/remove", remove),
    )


async def show_keys(visit: InboxRequest) -> Response:
    return await _page(visit)


async def add(visit: InboxRequest) -> Response:
    """A challenge while there is no new key; then the key is added."""
    keyring, place = _keyring(visit), place_of(visit)
    try:
        if place is None:
            raise UsageError("keys cannot be used at this address")
        if visit.wants_json:
            return JSONResponse(await keyring.ask_to_add(visit.session, place))
        if not visit.given("credential"):
            raise UsageError("adding a key needs script, which did not run")
        await keyring.add(
            visit.session,
            place,
            nonce=visit.given("nonce"),
            label=visit.given("label"),
            credential=visit.given("credential"),
            text=visit.given("signature"),
        )
    except UsageError as error:
        if visit.wants_json:
            return JSONResponse({"message": error.message}, status_code=422)
        return await _page(visit, fault=error.message)
    return visit.to("/keys")


async def remove(visit: InboxRequest) -> Response:
    try:
        await _keyring(visit).remove(visit.session, visit.request.path_params["key_id"])
    except UsageError as error:
        return await _page(visit, fault=error.message)
    return visit.to("/keys")


async def _page(visit: InboxRequest, fault: str = "") -> Response:
    keys = [key for key in await _keyring(visit).all() if key.principal == visit.session.principal]
    return visit.page(
        "keys.html",
        status=422 if fault else 200,
        fault=escape_text(fault),
        usable=[_shown(key) for key in keys if key.revoked_at is None],
        over=[_shown(key) for key in keys if key.revoked_at is not None],
        obstacle=obstacle(visit, PATH),
        max_label=MAX_LABEL_CHARS,
    )


def _keyring(visit: InboxRequest) -> Keyring:
    return Keyring(visit.service.engine.store)


def _shown(key: SigningKey) -> ShownKey:
    return ShownKey(
        key_id=key.key_id,
        label=escape_text(key.label),
        rp_id=key.rp_id,
        created_at=datetime.fromtimestamp(key.created_at, UTC),
        used_at=_at(key.used_at),
        revoked_at=_at(key.revoked_at),
    )


def _at(time: float | None) -> datetime | None:
    return None if time is None else datetime.fromtimestamp(time, UTC)
