"""Adds settings of tools to the text of `planwarden.toml`, and changes nothing else in it.

The new text is parsed before it is used: it must have the old settings plus the additions. If adding lines cannot
achieve that, for example in an inline table, nothing is changed, and the person is told which lines to add.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from planwarden.agent.common.errors import StoreError, UsageError
from planwarden.agent.common.paths import replace_file

BYTE_ORDER_MARK = "\ufeff"
"""The mark with which some editors on Windows begin a file; TOML does not know it."""

Additions = Mapping[str, Mapping[str, str]]
"""For each tool, by its name: the keys to add to its table, with their values."""


def format_additions(additions: Additions) -> str:
    """Return the additions as TOML tables."""
    tables = (
        "\n".join([f"[tools.{quote(name)}]", *(f"{key} = {quote(value)}" for key, value in keys.items())])
        for name, keys in additions.items()
    )
    return "\n\n".join(tables) + "\n"


def add_to_text(text: str, additions: Additions, comment: str) -> str:
    """Return the text with the additions: below the header of a tool's table, or at the end if there is no such table.

    Raises:
        UsageError: the text is such that no lines can be added; the message shows what the person has to add.
    """
    if text.startswith(BYTE_ORDER_MARK):
        return BYTE_ORDER_MARK + add_to_text(text.removeprefix(BYTE_ORDER_MARK), additions, comment)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines, remaining = text.splitlines(keepends=True), dict(additions)
    for index, name in reversed([*_find_tables(lines, additions)]):
        keys = remaining.pop(name, {})
        lines[index] = lines[index].rstrip("\r\n") + newline
        lines[index + 1 : index + 1] = [f"{key} = {quote(value)}{newline}" for key, value in keys.items()]
    changed = "".join(lines)
    if remaining:
        gap = "" if not changed else newline if changed.endswith("\n") else newline * 2
        changed += gap + f"# {comment}{newline}" + format_additions(remaining).replace("\n", newline)
    expected = tomllib.loads(text)
    try:
        for name, keys in additions.items():
            expected.setdefault("tools", {}).setdefault(name, {}).update(keys)
        is_right = tomllib.loads(changed) == expected
    except (tomllib.TOMLDecodeError, AttributeError):
        is_right = False
    if not is_right:
        raise UsageError(
            "lines cannot be added to planwarden.toml the way it is written; nothing was changed. Add these yourself:\n"
            + format_additions(additions).rstrip()
        )
    return changed


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


def _find_tables(lines: list[str], additions: Additions) -> Iterator[tuple[int, str]]:
    """Yield the index of each line that begins the table of one of the tools, with the tool's name."""
    for index, line in enumerate(lines):
        if line.lstrip().startswith("["):
            # A line of a multi-line string may look like a header; the check in `add_to_text` notices that.
            with suppress(tomllib.TOMLDecodeError):
                header = tomllib.loads(line)
                yield from ((index, name) for name in additions if header == {"tools": {name: {}}})


def quote(text: str) -> str:
    """Return the text as a quoted string for TOML and YAML, which both accept the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False)
