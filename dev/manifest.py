"""The generated part of `manifest.json`: what the server lists, and a manifest line for each tool that plans can use.

`python -m dev.manifest` (a part of `make bundle`) writes the file. The format refuses schemas inside `tools`; what is
our own goes into `_meta`.

Source: https://github.com/modelcontextprotocol/mcpb/blob/main/MANIFEST.md (version 0.4).
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.types import TextResourceContents
from tests.server.mcp.support import served
from tests.support.paths import ROOT

MANIFEST = ROOT / "manifest.json"
OURS = "planwarden"
"""Our key in `_meta`."""

Document = dict[str, Any]


def read_manifest() -> Document:
    """Returns the manifest as it is in the repository."""
    document: Document = json.loads(MANIFEST.read_text(encoding="utf-8"))
    return document


async def generate_parts() -> Document:
    """Returns the parts that the live server decides, as they have to be in the manifest."""
    with tempfile.TemporaryDirectory() as home:
        async with served(Path(home)) as found, Client(found.server) as client:
            tools = [{"name": tool.name, "description": tool.description} for tool in (await client.list_tools()).tools]
            [catalogue] = (await client.read_resource("planwarden://tools")).contents
            prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
    assert isinstance(catalogue, TextResourceContents)
    # Whether web search works depends on the machine that it runs on, not on the bundle.
    lines = [
        {key: value for key, value in line.items() if key != "unavailable"}
        for line in json.loads(catalogue.text)["tools"]
    ]
    return {"tools": tools, "_meta": {OURS: {"planTools": lines, "prompts": prompts}}}


def main() -> None:
    document = {**read_manifest(), **anyio.run(generate_parts)}
    MANIFEST.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
