"""What the pages of one inbox share: the service, access to sessions, the templates, and the static files."""

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import cast

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import escape

from planwarden.server.api.service import Service
from planwarden.server.inbox.inbox_port import INBOX_PATH
from planwarden.server.inbox.passphrase import InboxPassphrase, Passphrase
from planwarden.server.inbox.sessions import InboxAccess
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.secrets import find_secrets
from planwarden.server.views.card import format_host
from planwarden.server.views.escaping import ValueView, escape_rest, escape_text, shorten_text
from planwarden.server.views.instants import format_age, to_utc
from planwarden.server.views.svg import read_style_sheet

MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
ASSETS = ("inbox.css", "inbox.js", "htmx-2.0.11.min.js", "signing.js", "notifying.js", "icon.svg")


class InboxSite(msgspec.Struct, frozen=True, kw_only=True):
    """One inbox."""

    service: Callable[[], Service]
    """The function that returns the service; it raises `StoreError` while there is no service."""
    settings: Settings
    on_activity: Callable[[], None] | None = None
    """The function that is called for every request with an open session."""
    origin: str | None = None
    """The origin to which browsers can bind keys, such as `http://localhost:8765`; None if there is none."""

    @property
    def cookie_name(self) -> str:
        """The session cookie's name: different for each home on a host, except homes that share a PostgreSQL store."""
        scope = self.settings.store.identity if self.is_shared else str(self.settings.home)
        return f"planwarden_inbox_{hashlib.sha256(scope.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"

    @property
    def is_shared(self) -> bool:
        """Whether several processes with different homes may show this inbox."""
        return self.settings.store.path is None

    @property
    def passphrase(self) -> InboxPassphrase:
        """The passphrase that people may need in addition to a code. Raises `StoreError` while there is no service."""
        return InboxPassphrase(self.settings, find_secrets(self.settings, self.service().store))

    def access(self, passphrase: Passphrase | None = None) -> InboxAccess:
        """Return access to codes and sessions; codes can be redeemed only with the passphrase, if there is one."""
        return InboxAccess(self.service().store, passphrase)


class Asset(msgspec.Struct, frozen=True):
    """One static file."""

    content: bytes
    media_type: str
    version: str


@cache
def load_assets() -> Mapping[str, Asset]:
    """Read the static files once, and return them by name."""
    folder = files("planwarden.server.inbox").joinpath("static")
    loaded: dict[str, Asset] = {}
    for name in ASSETS:
        content = folder.joinpath(name).read_bytes()
        if name == "inbox.css":
            content += read_style_sheet().encode()
        version = hashlib.sha256(content).hexdigest()[:12]
        loaded[name] = Asset(content, MEDIA_TYPES[name.rpartition(".")[2]], version)
    return loaded


def build_asset_url(name: str) -> str:
    return f"{INBOX_PATH}/static/{name}?v={load_assets()[name].version}"


@cache
def load_templates() -> Environment:
    """Return the environment with the templates of all pages; it caches those that were used."""
    environment = Environment(
        loader=PackageLoader("planwarden.server.inbox", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_escape_rest,
    )
    names = {"base": INBOX_PATH, "asset": build_asset_url, "utc": to_utc, "whole": ValueView}
    filters = {"sent": escape, "line": escape_text, "shorten": shorten_text, "program": format_host, "age": format_age}
    # jinja declares the types of the globals and filters that it brings, although any others may be added.
    cast("dict[str, object]", environment.globals).update(names)
    cast("dict[str, object]", environment.filters).update(filters)
    return environment


def _escape_rest(value: object) -> object:
    """Escape the hidden characters of a text. The filter `sent` exempts values that a form sends back."""
    return escape_rest(value) if type(value) is str else value


def render(template: str, **values: object) -> str:
    """Return the page. Jinja escapes every value for HTML. Callers, or the filter `line`, escape hidden characters
    where a text must fit on one line or into one sentence; `_escape_rest` escapes those that are left."""
    return load_templates().get_template(template).render(**values)
