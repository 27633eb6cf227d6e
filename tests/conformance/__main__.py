"""Runs the whole suite, writes the tables of docs/reference/conformance.md, and fails when anything fails that counts.

(a) The command `planwarden serve --http` as shipped and a saved plan, with the scenarios that need no fixtures, in both
revisions of the protocol, and those of the skills extension. (b) The requirement sets of both revisions on the
product's server object with the registered fixtures, and every scenario of the tasks extension, which the sets run
without counting it. (c) Every client scenario with the product's client of downstream servers: the requirement sets, an
older revision, and an extension that is in no set.
"""

import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import anyio
from anyio.streams.text import TextReceiveStream
from dev.page import write_parts, write_table

from tests.clients.installed import Unavailable
from tests.conformance.client import run_relay
from tests.conformance.fixtures import serve_fixtures
from tests.conformance.suite import CACHE, HERE, Outcome, ScenarioResult, Suite, install_suite
from tests.support.paths import DOCS

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
SERVED_SKILLS = ("sep-2640-skills-directory", "sep-2640-skills-enumeration", "sep-2640-skills-manifest")
PLAN = """\
description: Find the overdue invoices.
inputs: {properties: {year: {type: integer}}, required: [year]}
todoList: [{id: find, description: Find them}]
"""
EXCUSED = frozenset({"sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400"})
BACKCOMPAT = "2025-03-26"
SKILLS = (
    "sep-2640-client-no-prefetch",
    "sep-2640-client-verify-digest",
    "sep-2640-client-verify-size",
    "sep-2640-client-verify-frontmatter",
)
NOT_OFFERED = frozenset(
    {
        *("auth/client-credentials-jwt", "auth/client-credentials-basic", "auth/enterprise-managed-authorization"),
        *("auth/dpop", "auth/dpop-nonce", "auth/wif-jwt-bearer", *SKILLS),
    }
)
"""Scenarios that cannot pass; the page says why. None of them is in a requirement set."""

Run = tuple[str, Outcome]
"""Revision and outcome."""
Row = tuple[str, ScenarioResult]
"""Revision and result."""


async def main() -> int:
    """Returns 0 when everything passed that counts. The servers log to a file next to the suite."""
    suite = await anyio.to_thread.run_sync(install_suite)
    logging.basicConfig(filename=CACHE / "server.log", filemode="w", level=logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="planwarden-conformance-") as folder:
        shipped = await _run_shipped(suite, Path(folder) / "shipped")
        async with serve_fixtures(Path(folder) / "fixtures") as url:
            sets = [(revision, await suite.run(url, "--requirements", revision)) for revision in (OLD, NEW)]
        clients = await _run_clients(suite, Path(folder) / "clients")
    faults = [
        f"{what}, {revision}, ended with {outcome.code}: {outcome.output.strip()[-2000:]}"
        for what, runs in (("as shipped", shipped), ("requirements", sets), ("client", clients))
        for revision, outcome in runs
        if outcome.code != 0 or not outcome.found
    ]
    faults += find_server_faults(shipped, sets) + find_client_faults(suite, clients)
    _write_page(suite, shipped, sets, clients)
    for fault in faults:
        print(f"FAILED: {fault}", file=sys.stderr)
    return 1 if faults else 0


async def _run_shipped(suite: Suite, home: Path) -> list[Run]:
    found: list[Run] = []
    plans = home / "plans"
    plans.mkdir(parents=True)
    (plans / "find_invoices.yaml").write_text(PLAN, encoding="utf-8")
    async with _command(home) as url:
        for revision, scenarios in SHIPPED.items():
            for scenario in scenarios:
                excuses = ["--expected-failures", str(HERE / "shipped.yml")] if scenario == "server-stateless" else []
                run = await suite.run(url, "--scenario", scenario, "--spec-version", revision, *excuses)
                found.append((revision, run))
        found += [("-", await suite.run(url, "--scenario", scenario)) for scenario in SERVED_SKILLS]
    return found


@asynccontextmanager
async def _command(home: Path) -> AsyncGenerator[str]:
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


async def _run_clients(suite: Suite, home: Path) -> list[Run]:
    await anyio.Path(home).mkdir()
    async with run_relay(home) as command:
        runs = [(revision, await suite.run_client(command, "--requirements", revision)) for revision in (OLD, NEW)]
        runs.append((BACKCOMPAT, await suite.run_client(command, "--suite", "backcompat")))
        runs += [("-", await suite.run_client(command, "--scenario", scenario)) for scenario in SKILLS]
    return runs


def _list_rows(runs: Sequence[Run]) -> list[Row]:
    return [(revision, found) for revision, outcome in runs for found in outcome.found]


def find_server_faults(shipped: Sequence[Run], sets: Sequence[Run]) -> list[str]:
    """Returns failures as shipped that are not excused, and those of the tasks extension, which no set counts."""
    failed = [
        f"{revision} {found.scenario}: {', '.join(found.failed)}"
        for revision, found in [*_list_rows(shipped), *(row for row in _list_rows(sets) if row[1].scenario in TASKS)]
        if set(found.failed) - EXCUSED
    ]
    seen = {found.scenario for _, found in _list_rows(sets)}
    return [*failed, *(f"{scenario} was not run" for scenario in TASKS if scenario not in seen)]


def find_client_faults(suite: Suite, runs: Sequence[Run]) -> list[str]:
    """Returns unexpected failures and warnings, scenarios that did not run, and unexpected passes."""
    faults: list[str] = []
    for revision, outcome in runs:
        missing = suite.client_scenarios(revision) - {found.scenario for found in outcome.found}
        faults += [f"client, {revision} {scenario} was not run" for scenario in sorted(missing)]
        for found in outcome.found:
            if found.scenario in NOT_OFFERED and not found.failed and not found.skipped:
                faults.append(f"client, {revision} {found.scenario} passes, but is documented as not offered")
            if found.scenario not in NOT_OFFERED and (found.failed or found.warned or not found.passed):
                # What the suite only warns of here is what the protocol says clients should do.
                why = ", ".join(found.failed) or (f"{found.warned} warnings" if found.warned else "nothing passed")
                faults.append(f"client, {revision} {found.scenario}: {why}")
    return faults


def _write_page(suite: Suite, shipped: Sequence[Run], sets: Sequence[Run], clients: Sequence[Run]) -> None:
    def counts(revision: str, found: ScenarioResult) -> bool:
        return found.scenario in suite.client_scenarios(revision) - suite.not_required(revision)

    def is_extra(revision: str, found: ScenarioResult) -> bool:
        return found.scenario in suite.not_required(revision)

    others = [row for row in _list_rows(sets) if row[1].scenario not in TASKS]
    tables = {
        "shipped": _table(_list_rows(shipped)),
        "sets": _table(row for row in others if not is_extra(*row)),
        "tasks": _table(row for row in _list_rows(sets) if row[1].scenario in TASKS),
        "rest": _table(row for row in others if is_extra(*row)),
        "client": _table(row for row in _list_rows(clients) if counts(*row)),
        "client-rest": _table(row for row in _list_rows(clients) if not counts(*row)),
        "versions": f"| | version |\n|---|---|\n| suite | `@modelcontextprotocol/conformance` {suite.version} |\n"
        f"| Node | {suite.node_version} |\n| SDK | `mcp` {version('mcp')} |",
    }
    write_parts(DOCS / "reference" / "conformance.md", tables)


def _table(rows: Iterable[Row]) -> str:
    lines: list[tuple[object, ...]] = []
    counts: dict[str, dict[str, tuple[int, ...]]] = {}
    for revision, found in rows:
        figures = found.passed, len(found.failed), found.warned, found.skipped
        counts.setdefault(revision, {})[found.scenario] = figures
    for revision, scenarios in counts.items():
        shown = {f"all {len(scenarios)}": tuple(map(sum, zip(*scenarios.values(), strict=True)))}
        shown |= {f"`{name}`": f for name, f in scenarios.items() if any(f[1:]) and name not in NOT_OFFERED}
        lines += [(revision, name, *figures) for name, figures in shown.items()]
    return write_table(("revision", "scenarios", "passed", "failed", "warnings", "skipped"), lines, below="---")


if __name__ == "__main__":
    try:
        sys.exit(anyio.run(main))
    except Unavailable as error:
        sys.exit(f"the conformance suite was not run: {error}")
