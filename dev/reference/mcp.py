"""The MCP surface, from a live server: tools, prompts, resources."""

import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.types import Prompt, PromptArgument, Resource, ResourceTemplate, Tool, ToolAnnotations
from tests.server.mcp.support import served

from dev.reference.code import kind_of, table
from planwarden.server.mcp.server import INSTRUCTIONS
from planwarden.server.mcp.tools.listing import APP_TOOLS

MEANINGS: Mapping[str, str] = {
    "query": "Words to look for; without it all tools by name",
    "limit": "Entries of a page; 20",
    "cursor": "`nextCursor` of the page before",
    "names": "Names of tools",
    "goal": "What is wanted, in prose",
    "threadId": "The thread; to start something, the one to go on in, else a new one",
    "key": "Names this start, 1 to 200 characters, see [starting once](../concepts.md#starting-once)",
    "options": "How it runs, see [options](#options)",
    "inputs": "What the plan is given, as its `inputs` say",
    "plan": "The [plan](plans.md); without it the one of the thread, such as `create_plan` made",
    "name": "The [saved plan](plans.md#saved-plans)",
    "observationsAfter": "Also what happened after this place in the log; 0 for all",
    "stepId": "Only this step; of a loop with what its items came to, 100 at a time",
    "itemsFrom": "With `stepId`: the item, counted from 0, with which the page begins; `items.next` of the page before",
    "addressee": "To list: only questions to people (`human`) or to the caller; to ask: who should answer, a name",
    "fromStep": "The step from which it runs again; without it what is completed is kept",
    "message": "What is asked and why, at most 4,000 characters",
    "details": "Facts to decide on, shown with the question, at most 64 KiB",
    "form": "JSON Schema of the answer, an object; without it the person approves or rejects",
    "suspensionId": "The question",
    "content": "The answer, as the question's `answerSchema` says",
    "waitSeconds": "How long the call waits before it answers `running`; 25",
    "decision": "What a person decided, see [decision](#decision)",
    "digest": "The question's `digest` as shown; if it has another by now, nothing is decided (`stale_revision`)",
    "reason": "Why, in words",
    "seen": "The version that the view shows; the same again has no `_meta`",
    "nonce": "From the `_meta` of the result that the view shows",
}
"""The meaning of each argument. Descriptions in schemas cost every conversation tokens, so most schemas have none."""


@cache
def _live() -> tuple[Sequence[Tool], Sequence[Prompt], Sequence[Resource], Sequence[ResourceTemplate]]:
    async def read() -> Any:
        with tempfile.TemporaryDirectory() as home:
            async with served(Path(home)) as found, Client(found.server) as client:
                tools, prompts = (await client.list_tools()).tools, (await client.list_prompts()).prompts
                resources = (await client.list_resources()).resources
                return tools, prompts, resources, (await client.list_resource_templates()).resource_templates

    return anyio.run(read)


def tools() -> str:
    """A section for each tool."""
    live, *_ = _live()
    used: set[str] = {
        name for tool in (*live, *(tool.definition for tool in APP_TOOLS)) for name in tool.input_schema["properties"]
    }
    if used != set(MEANINGS):
        raise ValueError(f"meanings and arguments differ: {sorted(used ^ set(MEANINGS))}")
    return "\n\n".join(map(_section, live))


def app_tools() -> str:
    """Tools of the view in hosts that draw apps."""
    return "\n\n".join(_section(tool.definition) for tool in APP_TOOLS)


def _section(tool: Tool) -> str:
    schema = tool.input_schema
    required = schema.get("required", ())
    rows = (
        (f"`{name}`", kind_of(found, schema), "yes" if name in required else "", MEANINGS[name])
        for name, found in schema["properties"].items()
    )
    parts = [
        f"### {tool.name}",
        str(tool.description),
        table(("argument", "value", "required", "meaning"), rows),
        f"Hints: {_hints(tool.annotations)}.",
    ]
    return "\n\n".join(parts)


def _hints(hints: ToolAnnotations | None) -> str:
    """Return what each hint says, such as `read-only`."""
    assert hints is not None
    given = hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint
    words = ("read-only", "destructive", "idempotent", "open world")
    return ", ".join(word if holds else f"not {word}" for word, holds in zip(words, given, strict=True))


def prompts() -> str:
    """The prompts with their arguments."""
    rows = (
        (f"`{prompt.name}`", "; ".join(map(_argument, prompt.arguments or ())), str(prompt.description))
        for prompt in _live()[1]
    )
    return table(("prompt", "arguments", "what it does"), rows)


def _argument(argument: PromptArgument) -> str:
    return f"`{argument.name}`{'' if argument.required else ' (optional)'}: {argument.description}"


def resources() -> str:
    """Resources and templates."""
    _, _, whole, templates = _live()
    addresses = (*((str(found.uri), found) for found in whole), *((found.uri_template, found) for found in templates))
    rows = ((f"`{address}`", str(found.title), str(found.description)) for address, found in addresses)
    return table(("address", "what", "more"), rows)


def instructions() -> str:
    """Returns what the server tells every host about itself."""
    return "\n".join(f"> {line}".rstrip() for line in INSTRUCTIONS.splitlines())
