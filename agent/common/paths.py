"""Paths as people write them, and files that are written as a whole."""

import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from planwarden.agent.common.errors import UsageError


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
