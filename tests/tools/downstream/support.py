"""Helpers of the tests of downstream servers: homes with a test server, wardens over them, plans of one call."""

import json
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from pydantic import JsonValue

import planwarden
from planwarden.agent.ports.store import Store
from planwarden.server.settings.configuration import load_settings
from planwarden.storage.sqlite.store import MemoryStore
from tests.harness.process import poll
from tests.support.paths import DOUBLES
from tests.support.wardens import plan, tool_step

DOUBLE = DOUBLES / "hostile_server.py"
WAIT_S = 60.0


@dataclass
class Place:
    """A home, and a folder in which the test server writes its ledger and reads its tools."""

    home: Path
    settings: str = "[servers.d]\ntrusted = true\n"
    environment: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def folder(self) -> Path:
        found = self.home / "double"
        found.mkdir(exist_ok=True)
        return found

    @property
    def ledger(self) -> list[str]:
        path = self.folder / "ledger"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def serve(self, **manners: str) -> None:
        servers = {name: self.entry(manner) for name, manner in manners.items()}
        self.configure(servers)

    def entry(self, manner: str, **extra: JsonValue) -> dict[str, JsonValue]:
        return {"command": sys.executable, "args": [str(DOUBLE), manner, str(self.folder)], **extra}

    def configure(self, servers: dict[str, dict[str, JsonValue]]) -> None:
        (self.home / "planwarden.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
        (self.home / "planwarden.toml").write_text(self.settings, encoding="utf-8")

    def offer(self, *tools: Mapping[str, JsonValue]) -> None:
        (self.folder / "tools.json").write_text(json.dumps(list(tools)), encoding="utf-8")

    @asynccontextmanager
    async def warden(self, store: Store | None = None) -> AsyncGenerator[planwarden.Warden]:
        settings = load_settings(home=self.home, environment=self.environment)
        with anyio.fail_after(WAIT_S):
            async with planwarden.Warden(settings=settings, store=store or MemoryStore()) as made:
                yield made


def build_plan(tool: str, arguments: JsonValue = None) -> dict[str, JsonValue]:
    return plan(tool_step("a", tool, arguments))


async def run_call(warden: planwarden.Warden, tool: str, arguments: JsonValue = None) -> planwarden.Execution:
    """Returns the execution of a plan with this one call, when it ended or suspended."""
    return await warden.execute_plan(build_plan(tool, arguments), wait_seconds=WAIT_S)


async def approve(warden: planwarden.Warden, execution: planwarden.Execution) -> planwarden.Execution:
    [question] = execution.suspensions
    yes = planwarden.Decision(approved=True)
    return await warden.resume_execution(execution.thread_id, question.suspension_id, yes, wait_seconds=WAIT_S)


def read_error(execution: planwarden.Execution) -> str:
    [step] = execution.steps
    assert step.error is not None, step
    return step.error.message


def build_entry(name: str, **extra: JsonValue) -> dict[str, JsonValue]:
    return {"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object", "properties": {}}, **extra}


async def wait_until(happened: Callable[[], bool]) -> None:
    """Poll until `happened` is true in another process; fails after `WAIT_S`."""
    with anyio.fail_after(WAIT_S):
        await poll(happened)
