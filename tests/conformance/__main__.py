"""Runs the whole suite, prints a table, writes docs/conformance.md, and fails when anything fails that counts.

(a) The command `planwarden serve --http` as shipped, with the scenarios that need no fixtures, in both revisions of the
protocol. (b) The requirement sets of both revisions on the product's server object with the registered fixtures, and
every scenario of the tasks extension, which the sets run without counting it. (c) Every client scenario with the
product's client of downstream servers, see `client_leg`.
"""

import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import anyio
from anyio.streams.text import TextReceiveStream

from tests.conformance.client_leg import build_section, client_leg, find_faults
from tests.conformance.server import serve_fixtures
from tests.conformance.suite import CACHE, HERE, ROOT, Outcome, ScenarioResult, Suite, Unavailable, install_suite

DOCUMENT = ROOT / "docs" / "conformance.md"
OLD, NEW = "2025-11-25", "2026-07-28"
SHIPPED = {
    OLD: (
        "server-initialize",
        "ping",
        "tools-list",
        "resources-list",
        "prompts-list",
        "dns-rebinding-protection",
        "server-session-lifecycle",
    ),
    NEW: (
        "server-stateless",
        "caching",
        "http-header-validation",
        "tools-list",
        "resources-list",
        "prompts-list",
        "dns-rebinding-protection",
    ),
}
TASKS = (
    "tasks-capability-negotiation",
    "tasks-dispatch-and-envelope",
    "tasks-lifecycle",
    "tasks-mrtr-composition",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-request-state-removal",
    "tasks-required-task-error",
    "tasks-status-notifications",
    "tasks-wire-fields",
)
EXCUSED = frozenset({"sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400"})

INTRODUCTION = """# Conformance

The results of the protocol's own suite for planwarden. `make conformance` installs the suite and its Node, runs
everything below, writes this page and fails when something fails that counts. It is part of the check of every change.
Four parts: the server as shipped, the requirement sets for servers, the tasks extension, and planwarden as a client of
other servers.

| | version |
|---|---|
"""
ABOUT_SHIPPED = """
## The server as shipped

`planwarden serve --http`, with the scenarios that need only a server. Every scenario also checks each message against
the protocol's schema. Four checks of `server-stateless` need a tool of the suite: the two that fail here (a tool that
needs a capability) and the two that warn (tools that change a list). With the fixtures all four pass.
"""
ABOUT_SETS = """
## The requirement sets

The product's server object with the suite's tools, prompts and resources registered on it (`tests/conformance/`).
Nothing is excused.
"""
ABOUT_TASKS = """
## The tasks extension

`io.modelcontextprotocol/tasks` on the same server. The suite's tools are plans that the engine runs; `confirm_delete`
is a real suspension. The suite itself skips `tasks-status-notifications`; `tests/server/mcp/test_tasks.py` tests them.
"""
ABOUT_REST = """
## Run, not required

The sets run these without counting them, because the suite's own reference cannot pass them or because they came later.
What fails needs something that planwarden does not offer: a stream that resumes from an event store, or a tool with
exactly that schema.
"""

Row = tuple[str, ScenarioResult]
"""Revision and result."""


async def main() -> int:
    """Returns 0 when everything passed that counts. The servers log to a file next to the suite."""
    suite = await anyio.to_thread.run_sync(install_suite)
    logging.basicConfig(filename=CACHE / "server.log", filemode="w", level=logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="planwarden-conformance-") as folder:
        shipped = await _run_shipped(suite, Path(folder) / "shipped")
        sets = await _run_sets(suite, Path(folder) / "fixtures")
        clients = await client_leg(suite, Path(folder) / "clients")
    tasks = [row for row in _list_rows(sets) if row[1].scenario in TASKS]
    found = [
        *_find_faults_of_shipped(shipped),
        *_find_faults_of_sets(sets),
        *_find_faults_of_tasks(tasks),
        *find_faults(suite, clients),
    ]
    page = _build_page(suite, shipped, sets, tasks) + build_section(suite, clients)
    DOCUMENT.write_text(page, encoding="utf-8")
    print(page)
    for fault in found:
        print(f"FAILED: {fault}", file=sys.stderr)
    return 1 if found else 0


async def _run_shipped(suite: Suite, home: Path) -> list[tuple[str, str, Outcome]]:
    """Revision, scenario and outcome of each run."""
    found: list[tuple[str, str, Outcome]] = []
    async with _command(home) as url:
        for revision, scenarios in SHIPPED.items():
            for scenario in scenarios:
                excuses = ["--expected-failures", str(HERE / "shipped.yml")] if scenario == "server-stateless" else []
                run = await suite.run(url, "--scenario", scenario, "--spec-version", revision, *excuses)
                found.append((revision, scenario, run))
    return found


async def _run_sets(suite: Suite, home: Path) -> list[tuple[str, Outcome]]:
    async with serve_fixtures(home) as url:
        return [(revision, await suite.run(url, "--requirements", revision)) for revision in (OLD, NEW)]


@asynccontextmanager
async def _command(home: Path) -> AsyncGenerator[str]:
    """The address of `planwarden serve --http`, a process of its own."""
    command = [sys.executable, "-m", "planwarden.server.main", "serve", "--http", "--port", "0"]
    environment = {**os.environ, "PLANWARDEN_HOME": str(home)}
    async with await anyio.open_process(command, env=environment, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        said = ""
        found: re.Match[str] | None = None
        with anyio.fail_after(60):
            async for text in TextReceiveStream(process.stdout):
                said += text
                found = re.search(r"http://\S+/mcp\b", said)
                if found is not None:
                    break
        if found is None:
            raise Unavailable(f"the server did not start: {said[-500:]}")
        yield found[0]
        process.terminate()


def _list_rows(sets: Sequence[tuple[str, Outcome]]) -> list[Row]:
    return [(revision, found) for revision, outcome in sets for found in outcome.found]


def _find_faults_of_shipped(runs: Sequence[tuple[str, str, Outcome]]) -> list[str]:
    """A scenario that was not run at all is a fault too."""
    return [
        f"as shipped, {revision} {scenario}: {outcome.output.strip()[-500:]}"
        for revision, scenario, outcome in runs
        if outcome.code != 0 or not outcome.found or any(set(found.failed) - EXCUSED for found in outcome.found)
    ]


def _find_faults_of_sets(sets: Sequence[tuple[str, Outcome]]) -> list[str]:
    return [
        f"requirements of {revision} ended with {outcome.code}: {outcome.output.strip()[-2000:]}"
        for revision, outcome in sets
        if outcome.code != 0 or not outcome.found
    ]


def _find_faults_of_tasks(rows: Sequence[Row]) -> list[str]:
    seen = {found.scenario for _, found in rows}
    failed = [f"{found.scenario}: {', '.join(found.failed)}" for _, found in rows if found.failed]
    return [*failed, *(f"{scenario} was not run" for scenario in TASKS if scenario not in seen)]


def _build_page(
    suite: Suite, shipped: Sequence[tuple[str, str, Outcome]], sets: Sequence[tuple[str, Outcome]], tasks: list[Row]
) -> str:
    rows = [row for row in _list_rows(sets) if row[1].scenario not in TASKS]
    extras = {revision: suite.not_required(revision) for revision, _ in sets}
    required = [row for row in rows if row[1].scenario not in extras[row[0]]]
    rest = [row for row in rows if row[1].scenario in extras[row[0]]]
    versions = (
        f"| suite | `@modelcontextprotocol/conformance` {suite.version} |\n| Node | {suite.node_version} |\n"
        f"| SDK | `mcp` {version('mcp')} |\n"
    )
    codes = "".join(f"\nExit code of {revision}: {outcome.code}.\n" for revision, outcome in sets)
    as_shipped = [(revision, found) for revision, _, outcome in shipped for found in outcome.found]
    return "".join(
        [
            INTRODUCTION,
            versions,
            ABOUT_SHIPPED,
            _table(as_shipped),
            ABOUT_SETS,
            codes,
            _table(required),
            ABOUT_TASKS,
            _table(tasks),
            ABOUT_REST,
            _table(rest),
        ]
    )


def _table(rows: Sequence[Row]) -> str:
    lines = ["", "| revision | scenario | passed | failed | warnings | skipped |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {revision} | `{found.scenario}` | {found.passed} | {len(found.failed)} | {found.warned} | {found.skipped} |"
        for revision, found in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        sys.exit(anyio.run(main))
    except Unavailable as error:
        sys.exit(f"the conformance suite was not run: {error}")
