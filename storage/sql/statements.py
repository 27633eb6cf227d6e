"""Statements by name. Every statement of a database stands in its `statements.sql`, with its purpose."""

import re
from importlib.resources import files

_NAMED = re.compile(r"^-- name: (\w+)\n(?:--.*\n)*", re.MULTILINE)


def load_statements(package: str) -> dict[str, str]:
    """The statements of the package's `statements.sql`."""
    text = files(package).joinpath("statements.sql").read_text(encoding="utf-8")
    parts = _NAMED.split(text)
    return {name: body.strip().rstrip(";") for name, body in zip(parts[1::2], parts[2::2], strict=True)}
