"""The servers that gates have wrapped, kept in the home, so that a call can be made when the gate is gone.

Each has one small file with its command, its folder and the names of its variables; their values stay with the host.
A file counts as outside input, and one that does not fit is ignored.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from planwarden.agent.common.canonical import digest
from planwarden.agent.common.errors import StoreError
from planwarden.tools.downstream.config import ServerConfig, ServerSettings
from planwarden.tools.downstream.config_file import build_slug
from planwarden.tools.downstream.listing_cache import replace_file

FOLDER = "gate"
FORM = 1
MAX_FILES = 64
MAX_FILE_BYTES = 256 * 1024
MAX_NAME_CHARS = 32
_RUNNERS = frozenset({"npx", "bunx", "uvx", "uv", "pipx", "node", "deno", "bun", "python", "python3", "pnpm", "yarn"})
_RUNNER_WORDS = frozenset({"run", "tool", "dlx", "exec", "x"})


class GatedServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one file holds."""

    form: int
    name: str
    command: str
    args: tuple[str, ...]
    cwd: str
    env: tuple[str, ...]
    """Names of the variables that the host set."""


def choose_name(command: Sequence[str]) -> str:
    """Return what a server is called whose host gave no name: its program, without what starts it."""
    words = list(command)
    if Path(words[0]).name in _RUNNERS:
        words = [word for word in words[1:] if not word.startswith("-") and word not in _RUNNER_WORDS] or words
    name = re.sub(r"@[^@/]*$", "", words[0]) if not words[0].startswith("@") else words[0].rsplit("@", 1)[0] or words[0]
    return build_slug(Path(name).stem or "server")[:MAX_NAME_CHARS]


def build_gated_config(
    name: str, command: Sequence[str], cwd: Path, settings: ServerSettings, environment: Mapping[str, str]
) -> ServerConfig:
    """Return the configuration of a wrapped server; what makes it that server is its command and its folder."""
    return ServerConfig(
        name=name,
        slug=build_slug(name),
        command=command[0],
        args=tuple(command[1:]),
        env=dict(environment),
        cwd=cwd,
        fingerprint=digest([*command, str(cwd)], context="gated server/v1"),
        settings=settings,
        is_gated=True,
    )


def save_gated_server(home: Path, config: ServerConfig) -> None:
    """Store how the server is started. Raises `StoreError`: the home cannot be written to."""
    record = GatedServer(FORM, config.name, config.command or "", config.args, str(config.cwd), tuple(config.env))
    path = _find_file(home / FOLDER, config.slug)
    try:
        replace_file(path, msgspec.json.encode(record))
    except OSError as error:
        raise StoreError(f"cannot keep server {config.name!r} in {path}: {error.strerror}") from error


def read_gated_servers(
    home: Path, environment: Mapping[str, str], settings: Mapping[str, ServerSettings], slugs: Collection[str]
) -> Iterator[ServerConfig]:
    """Yield the wrapped servers of the home, without those whose names would be those of one of the `slugs`."""
    for path in sorted((home / FOLDER).glob("*.json"))[:MAX_FILES]:
        try:
            with path.open("rb") as file:
                record = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=GatedServer)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        slug = build_slug(record.name)
        if record.form != FORM or not record.command or _find_file(home / FOLDER, slug) != path or slug in slugs:
            continue
        values = {name: environment[name] for name in record.env if name in environment}
        command = (record.command, *record.args)
        yield build_gated_config(
            record.name, command, Path(record.cwd), settings.get(record.name, ServerSettings()), values
        )


def _find_file(folder: Path, slug: str) -> Path:
    return folder / f"{slug[:40]}-{digest(slug.casefold())[:8]}.json"
