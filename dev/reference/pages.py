"""The generated parts of the documentation: what the code decides is written from the code.

Pages below `docs/` hold blocks between `<!-- generated: NAME -->` and `<!-- end -->`; the rest is written by hand.
`python -m dev.reference` (a part of `make docs`) fills them in; a test fails when a block says something else.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.support.paths import DOCS

from dev.reference import commands, limits, mcp, python, settings, values
from planwarden.agent.core.plan.plan_input import CallInput, StepInput
from planwarden.server.cli.hosts import CLIENTS
from planwarden.tools.downstream.config_file import ServerEntry

BLOCKS: Mapping[str, Callable[[], str]] = {
    "flags": commands.everywhere,
    "commands": commands.commands,
    "exit codes": commands.exit_codes,
    **{f"config {name}": partial(commands.config, name) for name in CLIENTS},
    "limits": limits.limits,
    "tools": mcp.tools,
    "app tools": mcp.app_tools,
    "options": settings.options,
    "prompts": mcp.prompts,
    "resources": mcp.resources,
    "instructions": mcp.instructions,
    "python": python.everything,
    "warden": python.opening,
    "verbs": python.verbs,
    "decorator": python.decorator,
    "words": python.words,
    **{f"attributes {kind.__name__}": partial(values.attributes, kind) for kind in python.STRUCTS},
    "planwarden.toml": settings.toml,
    "planwarden.json": partial(settings.model_table, ServerEntry),
    "environment": settings.environment,
    "providers": settings.providers,
    **{f"fields {kind.__name__}": partial(values.fields, kind) for kind in values.find_views()},
    "errors": values.errors_raised,
    "errors in logs": values.errors_in_logs,
    "observations": values.observed,
    "step": partial(settings.model_table, StepInput),
    "call": partial(settings.model_table, CallInput),
    "built-in tools": values.built_in,
}
"""What fills each block, by the name of the block."""
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
        if (filled := fill(text)) != text:
            page.write_text(filled, encoding="utf-8")
