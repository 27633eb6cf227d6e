"""Listings of downstream servers from the last time, so that a process knows its tools before it starts any server.

One file per server in the home. It is read like anything from outside: bounded, checked, ignored when it does not fit;
a listing that is wrong or old costs nothing but a question, because what is called is compared with what is there.
"""

import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue

from planwarden.agent.common.canonical import canonical_json, digest, read_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.tools.downstream.config import ServerConfig

logger = logging.getLogger(__name__)

MAX_CACHE_BYTES = 8 * 1024 * 1024
FORM = 1


class ListingCache:
    """Listings by server, in one folder; without a folder it holds nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, config: ServerConfig) -> list[JsonValue] | None:
        """The tools that the server listed when it was last reached in this way, or None."""
        path = self._path(config)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                data = file.read(MAX_CACHE_BYTES + 1)
            found = read_json(data) if len(data) <= MAX_CACHE_BYTES else None
        except (OSError, PlanwardenError):
            return None
        if not isinstance(found, dict) or found.get("form") != FORM or found.get("server") != config.fingerprint:
            return None
        tools = found.get("tools")
        return tools if isinstance(tools, list) else None

    def save(self, config: ServerConfig, tools: list[JsonValue]) -> None:
        """Keep the listing for the next process; a home that cannot be written to is no reason to fail."""
        path = self._path(config)
        if path is None or not path.parent.parent.is_dir():
            return
        text = canonical_json({"form": FORM, "server": config.fingerprint, "tools": tools})
        if len(text) > MAX_CACHE_BYTES:
            return
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _replace(path, text)
        except OSError as error:
            logger.warning("cannot keep the listing of server %r in %s: %s", config.name, path, error.strerror)

    def _path(self, config: ServerConfig) -> Path | None:
        return None if self._folder is None else self._folder / f"{file_stem(config)}.json"


def file_stem(config: ServerConfig) -> str:
    """A file name for the server; different servers have different ones also where case does not count."""
    return f"{config.slug[:40]}-{digest(config.name)[:8]}"


def _replace(path: Path, text: str) -> None:
    """Another process may read or write it at the same moment."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
