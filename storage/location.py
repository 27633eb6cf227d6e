"""Where a store is: in a SQLite file on this machine, or in a PostgreSQL database. Also the mark that a move leaves."""

import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import msgspec

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.paths import expand_home

POSTGRES = ("postgresql", "postgres")
SQLITE = "sqlite"
FORMS = "postgresql://USER@HOST/DATABASE or sqlite:///FILE"
MARKED = 1_000_000
"""The schema version of a store that a move has marked, so that no process opens it."""
MARK_TABLE = "move_mark"
"""The table that holds the mark in its only row."""
MAX_PORT = 65_535
_HOST = re.compile(r"(\[[^]]*\]|[^][:]*)(?::(\d{0,5}))?", re.ASCII)
"""Matches one server in a URL: its host, and its port if there is one."""
PORT = 5432
"""The port of a PostgreSQL server if the URL names no port."""


class StoreLocation(msgspec.Struct, frozen=True):
    """The place of one store. `str` names it without user and password."""

    path: Path | None = None
    """The SQLite file; None for PostgreSQL."""
    url: str = ""
    """The URL of the PostgreSQL database, perhaps with a password; empty for a file."""
    control_url: str = ""
    """A URL of the same database that bypasses a connection pooler; empty if `url` itself does so."""

    @property
    def is_made(self) -> bool:
        """Whether the store's file exists; always True for PostgreSQL."""
        return self.path is None or self.path.exists()

    @property
    def has_password(self) -> bool:
        """True if a URL contains a password, so that the URL itself is a secret."""
        return any(
            ":" in _split(url)[1].rpartition("@")[0] or "password=" in url for url in (self.url, self.control_url)
        )

    @property
    def safe_url(self) -> str:
        """The location as `--store` takes it, without a password."""
        if self.path is not None:
            return f"{SQLITE}://{self.path}"
        scheme, netloc, path, query = _split(self.url)
        user, at, host = netloc.rpartition("@")
        query = "&".join(part for part in query.split("&") if "password=" not in part.lower())
        return f"{scheme}://{user.partition(':')[0]}{at}{host}{path}{query and f'?{query}'}"

    @property
    def identity(self) -> str:
        """A text that is the same for all users of the store, however their URLs spell its servers and its database."""
        if self.path is not None:
            return str(self.path)
        _, netloc, path, query = _split(self.url)
        # libpq prefers what comes after the question mark.
        user, _, netloc = netloc.rpartition("@")
        options = dict(parse_qsl(query))
        pairs = [match.groups("") for match in map(_HOST.fullmatch, netloc.split(",")) if match]
        hosts = options["host"].split(",") if "host" in options else [unquote(host) for host, _ in pairs]
        ports = options["port"].split(",") if "port" in options else [port for _, port in pairs]
        ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
        servers = {
            f"{host if host.startswith('/') else host.strip('[]').lower()}:{port or PORT}"
            for host, port in zip(hosts, ports, strict=True)
        }
        database = options.get("dbname") or unquote(path.strip("/") or user.partition(":")[0])
        return "\n".join([*sorted(servers), database])

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path)
        scheme, netloc, path, _ = _split(self.url)
        return f"{scheme}://{netloc.rpartition('@')[2]}{path}"

    def __repr__(self) -> str:
        return f"StoreLocation({str(self)!r})"


def read_location(text: str, control: str = "") -> StoreLocation:
    """Return the location that a URL names; `control` is a second URL of the same PostgreSQL database.

    Raises:
        InvalidArguments: a URL does not name a store of a known kind.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in (*POSTGRES, SQLITE):
        # Only the scheme is repeated, because the rest may hold a password.
        problem = f"{scheme[:32]!r} is not a kind of store" if separator else "the store is not named by a URL"
        raise InvalidArguments(f"{problem}; use {FORMS}")
    if scheme == SQLITE:
        path = expand_home(Path(rest.removeprefix("/"))) if rest.startswith("/~") else Path(rest)
        if not path.is_absolute() or path.name == "" or "\0" in rest:
            raise InvalidArguments("the URL of a SQLite file has three slashes and the whole path: sqlite:///FILE")
        return StoreLocation(path=path)
    for noun, url in (("URL", text), ("control URL", control or text)):
        if not _is_postgres_url(url):
            raise InvalidArguments(
                f"the {noun} of the store is not one of PostgreSQL; use {FORMS}, with every special character of the "
                "user and the password percent-encoded, for example @ as %40"
            )
    return StoreLocation(url=text, control_url=control)


def _split(url: str) -> tuple[str, str, str, str]:
    """Return the scheme, servers, path and query. `urlsplit` refuses several servers if one is an IPv6 address."""
    match = re.fullmatch(r"([a-z]+)://([^/?#]*)([^?#]*)\??([^#]*)", url)
    return ("", "", "", "") if match is None else (match[1], match[2], match[3], match[4])


def _is_postgres_url(text: str) -> bool:
    scheme, netloc, _, _ = _split(text)
    user, _, servers = netloc.rpartition("@")
    hosts = [_HOST.fullmatch(host) for host in servers.split(",")]
    are_hosts = all(host is not None and int(host[2] or 0) <= MAX_PORT for host in hosts)
    # A raw @, /, ? or # in a user or password would make the rest of it look like a part of the URL that may be shown.
    is_encoded = text.count("@") == netloc.count("@") <= 1 and re.search(r"[][]", user) is None
    return scheme in POSTGRES and is_encoded and are_hosts


class MoveMark(msgspec.Struct, frozen=True):
    """The mark that a move leaves in each of its two stores."""

    move_id: str
    is_source: bool
    """True if this store was moved away; False if it was filled by a move that is not finished."""
    location: str
    """The other store, as a URL without a password."""

    def explain(self, name: str) -> str:
        """Return why the store called `name` may not be used, and what to do about it."""
        if self.is_source:
            return f"{name} was moved to {self.location}; set PLANWARDEN_STORE to that"
        return (
            f"a move from {self.location} to {name} is under way or interrupted; run `planwarden --store URL move --to "
            "URL` with these two again"
        )
