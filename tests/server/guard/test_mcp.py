"""`guard_call` over MCP: one block of text for the hook, no place in the list, and nothing for a model."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp.types import CallToolResult, TextContent

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.server.api.service import Service
from planwarden.server.api.warden import Warden
from planwarden.server.guard.install.hook_files import GUARD_TOOL as INSTALLED_TOOL
from planwarden.server.mcp.handlers.guard import MODELS_ID
from planwarden.server.mcp.lazy_service import build_service_opener
from planwarden.server.mcp.server import GUARD_TOOL, build_server
from planwarden.server.settings.configuration import load_settings
from tests.kit import Client, MemoryStore, requirement
from tests.server.mcp.support import ERAS, Era

pytestmark = pytest.mark.anyio
Document = dict[str, Any]


@dataclass(frozen=True)
class Hook:
    """A host's hook on its own connection."""

    client: Client
    service: Service
    folder: str

    async def send(self, command: object = "rm -rf build", meta: Document | None = None, **changes: object) -> Document:
        """What the hook gets, as Claude Code fills it in: `tool_input` is the text of the object."""
        arguments = {
            "host": "claude-code",
            "tool_name": "Bash",
            "tool_input": json.dumps({"command": command}),
            "cwd": self.folder,
            **changes,
        }
        result = await self.client.session.call_tool(GUARD_TOOL, arguments, meta=meta)  # pyright: ignore[reportArgumentType]
        assert isinstance(result, CallToolResult)
        [block] = result.content
        assert isinstance(block, TextContent)
        assert not result.is_error
        assert result.structured_content is None
        return json.loads(block.text)

    async def approve(self, said: Document) -> None:
        page = await self.service.list_suspensions(principal=None)
        [question] = [found for found in page.suspensions if found.suspension_id in json.dumps(said)]
        person = Authority(assurance="human", channel="inbox", principal="ann")
        await self.service.answer(
            question.thread_id, question.suspension_id, Decision(approved=True), person, wait_seconds=60, principal=None
        )


@asynccontextmanager
async def hooked(home: Path, era: Era = "auto") -> AsyncGenerator[Hook]:
    settings = load_settings(home=home, environment={})
    warden = Warden(settings=settings, store=MemoryStore())
    server = build_server(build_service_opener(warden), guard_settings=settings)
    async with Client(server, mode=era) as client:
        await client.session.call_tool("list_suspensions", {})
        yield Hook(client, warden.service, "/")


def decision(said: Document) -> str:
    return said["hookSpecificOutput"]["permissionDecision"]


@pytest.mark.parametrize("era", ERAS)
@requirement("guard:once")
async def test_a_hook_is_told_to_deny_then_once_to_allow_by_a_tool_that_no_list_has(tmp_path: Path, era: Era) -> None:
    async with hooked(tmp_path, era) as hook:
        asked = await hook.send()
        assert decision(asked) == "deny"
        assert GUARD_TOOL not in [tool.name for tool in (await hook.client.session.list_tools()).tools]
        await hook.approve(asked)
        assert decision(await hook.send("rm -rf /")) == "deny"
        assert decision(await hook.send()) == "allow"
        assert decision(await hook.send()) == "deny"
        assert await hook.send(tool_name="Read", tool_input='{"file_path": "/etc/hosts"}') == {}
    assert GUARD_TOOL == INSTALLED_TOOL


@requirement("guard:no-model")
async def test_a_model_that_calls_it_gets_nothing_and_takes_nothing(tmp_path: Path) -> None:
    async with hooked(tmp_path) as hook:
        await hook.approve(await hook.send())
        by_model = await hook.send(meta={MODELS_ID: "toolu_1"})
        assert decision(by_model) == "deny"
        assert decision(await hook.send()) == "allow"
        through_hook = await hook.send(tool_name="mcp__planwarden__guard_call", tool_input="{}")
        assert decision(through_hook) == "deny"


@requirement("guard:fails-closed")
async def test_odd_arguments_are_denied_in_the_hooks_own_form(tmp_path: Path) -> None:
    odd: dict[str, tuple[Any, ...]] = {
        "host": ("nobody", None),
        "tool_name": ("", None),
        "tool_input": ("", "garbage", "[1]", 1, "[" * 100_000),
        "cwd": ("", None),
    }
    async with hooked(tmp_path) as hook:
        for name, value in ((name, value) for name, values in odd.items() for value in values):
            assert decision(await hook.send(**{name: value})) == "deny", name
