"""Adds settings of tools to the text of `planwarden.toml`, and changes nothing else in it.

The new text is parsed before it is used: it must say what the old text said, plus the additions. Where added lines
cannot do that, as in an inline table, nothing is changed, and the person is told which lines to add.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from planwarden.agent.common.errors import UsageError
from planwarden.agent.common.paths import replace_file

Additions = Mapping[str, Mapping[str, str]]
"""Keys and values by the name of a tool."""


def format_additions(additions: Additions) -> str:
    """Return the additions as tables of TOML."""
    tables = (
        "\n".join([f"[tools.{quote(name)}]", *(f"{key} = {quote(value)}" for key, value in keys.items())])
        for name, keys in additions.items()
    )
    return "\n\n".join(tables) + "\n"


def add_to_text(text: str, additions: Additions, comment: str) -> str:
    """Return the text with the additions: below the table of a tool where there is one, otherwise at the end.

    Raises:
        UsageError: it cannot be done by adding lines; the message has the lines for the person.
    """
    end = "\r\n" if "\r\n" in text else "\n"
    lines, remaining = text.splitlines(keepends=True), dict(additions)
    for index, name in reversed([*_find_tables(lines, additions)]):
        keys = remaining.pop(name, {})
        lines[index] = lines[index].rstrip("\r\n") + end
        lines[index + 1 : index + 1] = [f"{key} = {quote(value)}{end}" for key, value in keys.items()]
    changed = "".join(lines)
    if remaining:
        gap = "" if not changed else end if changed.endswith("\n") else end * 2
        changed += gap + f"# {comment}{end}" + format_additions(remaining).replace("\n", end)
    expected = tomllib.loads(text)
    try:
        for name, keys in additions.items():
            expected.setdefault("tools", {}).setdefault(name, {}).update(keys)
        is_right = tomllib.loads(changed) == expected
    except (tomllib.TOMLDecodeError, AttributeError):
        is_right = False
    if not is_right:
        raise UsageError(
            "planwarden.toml is written so that lines cannot be added; nothing was changed. Add these yourself:\n"
            + format_additions(additions).rstrip()
        )
    return changed


def replace_text(path: Path, before: str, after: str) -> None:
    """Replace the file's text in one step, with the mode that it has; a new file is private. Without text, delete it.

    Raises:
        UsageError: the file is not as it was read before.
        OSError: it cannot be written.
    """
    if read_text(path) != before:
        raise UsageError(f"{str(path.resolve())!r} has been changed; nothing was written, so run the command again")
    if not after:
        path.unlink()
        return
    path = path.resolve()
    replace_file(path, after.encode(), mode=path.stat().st_mode & 0o777 if path.exists() else 0o600)


def read_text(path: Path) -> str:
    """Return the text with its line ends as they are; empty where there is no file."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""


def _find_tables(lines: list[str], additions: Additions) -> Iterator[tuple[int, str]]:
    """Yield the number of each line that begins the table of one of the tools, and the tool."""
    for index, line in enumerate(lines):
        if line.lstrip().startswith("["):
            # A line inside a longer text may look like one; `add_to_text` parses the result.
            with suppress(tomllib.TOMLDecodeError):
                header = tomllib.loads(line)
                yield from ((index, name) for name in additions if header == {"tools": {name: {}}})


def quote(text: str) -> str:
    """Return a string that TOML and YAML both read: both accept the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False)
