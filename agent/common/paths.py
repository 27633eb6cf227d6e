"""Paths as people write them."""

from pathlib import Path

from planwarden.agent.common.errors import UsageError


def expand_home(path: str | Path) -> Path:
    """Return the path with `~` or `~name` replaced. Raises `UsageError` when that user has no home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{str(path)!r} begins with the home folder of a user who has none") from error
