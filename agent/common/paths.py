"""Paths as people write them, and files that are read and written as a whole."""

import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from planwarden.agent.common.errors import StoreError, UsageError


def expand_home(path: str | Path) -> Path:
    """Return the path with `~` or `~name` replaced by a home folder. Raises `UsageError` if that user has none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{str(path)!r} begins with the home folder of a user who has none") from error


def replace_file(path: Path, content: bytes, mode: int = 0o600, *, is_first: bool = False) -> None:
    """Write a whole file at once, so that no reader sees half of it. With `is_first`, keep an existing file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{token_hex(8)}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        if is_first:
            with suppress(FileExistsError):
                os.link(temporary, path)
        else:
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_text(path: Path, before: str, after: str) -> None:
    """Replace the file's text in one step, keeping its mode; a new file is private. An empty `after` deletes the file.

    Raises:
        UsageError: the file's text is no longer `before`.
        StoreError: the file cannot be written.
    """
    try:
        if read_text(path) != before:
            raise UsageError(f"{str(path.resolve())!r} has been changed; nothing was written, so run the command again")
        if not after:
            path.unlink()
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()
        replace_file(target, after.encode(), mode=target.stat().st_mode & 0o777 if target.exists() else 0o600)
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    """Return the file's text with its line ends unchanged; empty if there is no file."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
