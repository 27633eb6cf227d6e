"""What the pages of one inbox share: the service, who may come in, the templates, and the files beside them."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from planwarden.server.api.service import Service
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.passphrase import Passphrase
from planwarden.server.inbox.sessions import InboxAccess

MEDIA = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
ASSETS = ("inbox.css", "inbox.js", "htmx-2.0.11.min.js", "signing.js", "icon.svg")


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxSite:
    """One inbox."""

    service: Callable[[], Service]
    """Raises `StoreError` while there is none."""
    home: Path
    """Which home it is, so that cookies of several homes on one host do not mix."""
    passphrase_file: Path | None = None
    on_activity: Callable[[], None] | None = None
    """Told whenever somebody who was let in looks at something."""
    origin: str | None = None
    """Where browsers reach it by a name that keys can be bound to, such as `http://localhost:8765`; None when nowhere."""

    @property
    def cookie_name(self) -> str:
        return f"planwarden_inbox_{hashlib.sha256(str(self.home).encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"

    def access(self, *, pairing: bool = False) -> InboxAccess:
        """Codes and sessions. For `pairing` the passphrase is read; raises `UsageError` when it cannot be."""
        store = self.service().engine.store
        passphrase = None
        if pairing and self.passphrase_file is not None:
            passphrase = Passphrase.read(self.passphrase_file)
        return InboxAccess(store, passphrase)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file that pages refer to."""

    content: bytes
    media: str
    version: str


@cache
def load_assets() -> Mapping[str, Asset]:
    """By name; read once."""
    folder = files("planwarden.server.inbox").joinpath("static")
    found: dict[str, Asset] = {}
    for name in ASSETS:
        content = folder.joinpath(name).read_bytes()
        version = hashlib.sha256(content).hexdigest()[:12]
        found[name] = Asset(content, MEDIA[name.rpartition(".")[2]], version)
    return found


def build_asset_url(name: str) -> str:
    return f"{INBOX_PATH}/static/{name}?v={load_assets()[name].version}"


@cache
def _load_templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("planwarden.server.inbox", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment


def render(template: str, **values: object) -> str:
    """The page as text. Every value is escaped for HTML; what comes from outside has been made visible before."""
    return _load_templates().get_template(template).render(base=INBOX_PATH, asset=build_asset_url, **values)
