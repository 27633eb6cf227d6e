"""The SQL, by name. Every statement stands in `statements.sql` with its purpose."""

import re
from importlib.resources import files

_NAMED = re.compile(r"^-- name: (\w+)\n(?:--.*\n)*", re.MULTILINE)


def _load() -> dict[str, str]:
    text = files("planwarden.storage.sqlite").joinpath("statements.sql").read_text(encoding="utf-8")
    parts = _NAMED.split(text)
    return {name: body.strip().rstrip(";") for name, body in zip(parts[1::2], parts[2::2], strict=True)}


SQL: dict[str, str] = _load()
