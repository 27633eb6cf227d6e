"""The generated parts of the documentation: what the code decides is written from the code.

Pages below `docs/` hold blocks between `<!-- generated: NAME -->` and `<!-- end -->`; the rest is written by hand.
`python -m dev.reference` (a part of `make docs`) fills them in; a test fails when a block says something else.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.paths import DOCS

from dev.reference import commands, limits, mcp, python, settings, values

BLOCKS: Mapping[str, Callable[[], str]] = {
    **commands.BLOCKS,
    **limits.BLOCKS,
    **mcp.BLOCKS,
    **python.BLOCKS,
    **settings.BLOCKS,
    **values.BLOCKS,
}
_BLOCK = re.compile(r"<!-- generated: ([^\n]+?) -->\n.*?<!-- end -->", re.DOTALL)


def pages() -> list[Path]:
    """Returns every page of the documentation, in the order of their paths."""
    return sorted(DOCS.rglob("*.md"))


def block_names(text: str) -> list[str]:
    """Returns the names of the blocks of a page, in order."""
    return [found[1] for found in _BLOCK.finditer(text)]


def fill(text: str) -> str:
    """Returns the page with every block as the code has it now. Raises `KeyError` for a name that nothing generates."""
    return _BLOCK.sub(lambda found: f"<!-- generated: {found[1]} -->\n{BLOCKS[found[1]]().strip()}\n<!-- end -->", text)


def main() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if fill(text) != text:
            page.write_text(fill(text), encoding="utf-8")
