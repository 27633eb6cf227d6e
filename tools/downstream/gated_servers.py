"""Stores, in the home, the servers that gates have wrapped, so that a call can still be made after its gate has ended.

Each server has one small file with its command, its folder and the names of its environment variables, whose values are
not stored. The file of a server behind a URL has the URL; headers and login come from the entry in planwarden.json with
the same URL. The files count as outside input, so an invalid one is ignored.
"""

import logging
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from planwarden.agent.common.canonical import digest
from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.paths import replace_file
from planwarden.tools.downstream.config import ServerConfig, ServerSettings, build_slug
from planwarden.tools.downstream.config_file import RESERVED_SOURCES

logger = logging.getLogger(__name__)

FOLDER = "gate"
THREAD_PREFIX = "gate-"
"""The beginning of the thread ids of gated calls. Callers cannot choose the ids of their threads."""
FORM = 1
MAX_FILES = 64
MAX_FILE_BYTES = 256 * 1024
MAX_NAME_CHARS = 32
_RUNNERS = frozenset({"npx", "bunx", "uvx", "uv", "pipx", "node", "deno", "bun", "python", "python3", "pnpm", "yarn"})
_RUNNER_WORDS = frozenset({"run", "tool", "dlx", "exec", "x"})


class GatedServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of one file."""

    form: int
    name: str
    command: str
    args: tuple[str, ...]
    cwd: str
    env: tuple[str, ...]
    """Names of the variables that the host set."""
    url: str = ""
    """The address of a server without a command."""


def choose_name(command: Sequence[str]) -> str:
    """Return a name for a server that its host did not name: its program, without a runner such as `npx`."""
    words = list(command)
    if Path(words[0]).name in _RUNNERS:
        passed_over = _RUNNERS | _RUNNER_WORDS
        words = [each for each in words[1:] if not each.startswith("-") and Path(each).name not in passed_over] or words
    name = re.sub(r"@[^@/]*$", "", words[0]) if not words[0].startswith("@") else words[0].rsplit("@", 1)[0] or words[0]
    slug = build_slug(Path(name).stem or "server")[:MAX_NAME_CHARS]
    # Under a reserved name, the server's tools would be shown as planwarden's own, or as the operator's.
    return f"server-{slug}" if slug.lower() in RESERVED_SOURCES else slug


def build_gated_config(
    name: str, command: Sequence[str], cwd: Path, settings: ServerSettings, environment: Mapping[str, str]
) -> ServerConfig:
    """Return the configuration of a wrapped server. Its fingerprint covers its command and its folder."""
    return ServerConfig(
        name=name,
        command=command[0],
        args=tuple(command[1:]),
        env=dict(environment),
        cwd=cwd,
        fingerprint=digest([*command, str(cwd)], context="gated server/v1"),
        settings=settings,
        is_gated=True,
    )


def build_remote_config(name: str, url: str, settings: ServerSettings, others: Iterable[ServerConfig]) -> ServerConfig:
    """Return the configuration of a wrapped server at a URL, with the headers and login that `others` have for it."""
    twin = next((other for other in others if other.url == url and not other.is_gated), None)
    return ServerConfig(
        name=name,
        url=url,
        headers={} if twin is None else twin.headers,
        client_secret=None if twin is None else twin.client_secret,
        login_name=None if twin is None else twin.name,
        fingerprint=digest(url, context="gated server/v1"),
        settings=settings,
        is_gated=True,
    )


def describe_other_server(home: Path, config: ServerConfig) -> str | None:
    """Return the command or address if the home has another server of this name, else None. Folders may differ."""
    record, own = _read_record(_find_file(home / FOLDER, config.slug)), _build_record(config)
    if record is None or (record.command, record.args, record.url) == (own.command, own.args, own.url):
        return None
    if record.url:
        return f"{describe_address(record.url)} (query and password are not shown)"
    return shlex.join((record.command, *record.args))


def describe_address(url: str) -> str:
    """Return the address without the parts that may be secret: user name, password, query and fragment."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def save_gated_server(home: Path, config: ServerConfig) -> None:
    """Store how to reach the server. Raises `StoreError` if the home cannot be written to."""
    record = _build_record(config)
    path = _find_file(home / FOLDER, config.slug)
    try:
        replace_file(path, msgspec.json.encode(record))
    except OSError as error:
        raise StoreError(f"cannot keep server {config.name!r} in {path}: {error.strerror}") from error
    for note in describe_excess(home):
        logger.warning(note)


def describe_excess(home: Path) -> Iterator[str]:
    """Yield a sentence if the home has more wrapped servers than are read."""
    if (count := len(_list_files(home))) > MAX_FILES:
        yield (
            f"gates have wrapped {count} servers, and only the first {MAX_FILES} files of {home / FOLDER} are read: "
            "the calls of the others end with their gates; delete the files of servers that you no longer use"
        )


def _list_files(home: Path) -> list[Path]:
    return sorted((home / FOLDER).glob("*.json"))


def read_gated_servers(
    home: Path, environment: Mapping[str, str], settings: Mapping[str, ServerSettings], others: Iterable[ServerConfig]
) -> Iterator[ServerConfig]:
    """Yield the wrapped servers of the home, except those whose tools would get the same names as tools of `others`."""
    others = tuple(others)
    slugs = {config.slug for config in others}
    for path in _list_files(home)[:MAX_FILES]:
        record = _read_record(path)
        if record is None or build_slug(record.name) in slugs:
            continue
        own_settings = settings.get(record.name, ServerSettings())
        if record.url:
            yield build_remote_config(record.name, record.url, own_settings, others)
            continue
        values = {name: environment[name] for name in record.env if name in environment}
        yield build_gated_config(record.name, (record.command, *record.args), Path(record.cwd), own_settings, values)


def _read_record(path: Path) -> GatedServer | None:
    try:
        with path.open("rb") as file:
            record = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=GatedServer)
        urlsplit(record.url)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    is_usable = record.form == FORM and bool(record.command) != bool(record.url)
    return record if is_usable and _find_file(path.parent, build_slug(record.name)) == path else None


def _build_record(config: ServerConfig) -> GatedServer:
    folder = str(config.cwd or "")
    return GatedServer(
        FORM, config.name, config.command or "", config.args, folder, tuple(config.env), config.url or ""
    )


def _find_file(folder: Path, slug: str) -> Path:
    return folder / f"{slug[:40]}-{digest(slug.casefold())[:8]}.json"
