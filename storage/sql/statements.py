"""Statements by name. Every statement of a database stands in its `statements.sql`, with its purpose."""

import re
from pathlib import Path

_NAMED = re.compile(r"^-- name: (\w+)\n(?:--.*\n)*", re.MULTILINE)


def load_statements(folder: Path) -> dict[str, str]:
    """The statements of the folder's `statements.sql`."""
    text = (folder / "statements.sql").read_text(encoding="utf-8")
    parts = _NAMED.split(text)
    return {name: body.strip().rstrip(";") for name, body in zip(parts[1::2], parts[2::2], strict=True)}
