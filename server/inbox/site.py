"""What the pages of one inbox share: the service, access to sessions, the templates, and the static files."""

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from planwarden.server.api.service import Service
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.passphrase import Passphrase
from planwarden.server.inbox.sessions import InboxAccess

MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
ASSETS = ("inbox.css", "inbox.js", "htmx-2.0.11.min.js", "signing.js", "icon.svg")


class InboxSite(msgspec.Struct, frozen=True, kw_only=True):
    """One inbox."""

    service: Callable[[], Service]
    """Returns the service; raises `StoreError` while there is none."""
    home: Path
    """The home folder; it keeps the cookies of several homes on one host apart."""
    passphrase_file: Path | None = None
    on_activity: Callable[[], None] | None = None
    """Called for every request with an open session."""
    origin: str | None = None
    """The origin to which browsers can bind keys, such as `http://localhost:8765`; None if there is none."""

    @property
    def cookie_name(self) -> str:
        return f"planwarden_inbox_{hashlib.sha256(str(self.home).encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"

    def access(self, *, pairing: bool = False) -> InboxAccess:
        """Codes and sessions. With `pairing`, also reads the passphrase file; raises `UsageError` if it cannot."""
        store = self.service().engine.store
        passphrase = None
        if pairing and self.passphrase_file is not None:
            passphrase = Passphrase.read(self.passphrase_file)
        return InboxAccess(store, passphrase)


class Asset(msgspec.Struct, frozen=True):
    """One static file."""

    content: bytes
    media_type: str
    version: str


@cache
def load_assets() -> Mapping[str, Asset]:
    """The static files by name, read once."""
    folder = files("planwarden.server.inbox").joinpath("static")
    loaded: dict[str, Asset] = {}
    for name in ASSETS:
        content = folder.joinpath(name).read_bytes()
        version = hashlib.sha256(content).hexdigest()[:12]
        loaded[name] = Asset(content, MEDIA_TYPES[name.rpartition(".")[2]], version)
    return loaded


def build_asset_url(name: str) -> str:
    return f"{INBOX_PATH}/static/{name}?v={load_assets()[name].version}"


@cache
def _load_templates() -> Environment:
    return Environment(
        loader=PackageLoader("planwarden.server.inbox", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: object) -> str:
    """The page as text. Jinja escapes every value for HTML; callers escape hidden characters in foreign text before."""
    return _load_templates().get_template(template).render(base=INBOX_PATH, asset=build_asset_url, **values)
