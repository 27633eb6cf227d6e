"""The suite: its Node, its package at the version of the lock file, one run of it, and the results of a run.

The package is installed into `.conformance/`, without install scripts.
"""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio

from tests.clients.installed import find_node, find_npm, install, path_with_node
from tests.support.paths import ROOT

HERE = Path(__file__).parent
CACHE = ROOT / ".conformance"
PACKAGE = "@modelcontextprotocol/conformance"
LIMIT_S = 900
CLIENT_LIMIT_MS = 120_000
"""For one client scenario; the suite starts all of them at once."""
_RESULTS = re.compile(r"(server-)?(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    scenario: str
    passed: int
    failed: tuple[str, ...]
    """Their ids."""
    warned: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    """0 when everything passed that counts."""
    found: tuple[ScenarioResult, ...]
    """By scenario, sorted by name."""
    output: str


@dataclass(frozen=True, slots=True)
class Suite:
    node: Path
    script: Path
    version: str
    node_version: str

    def not_required(self, revision: str) -> frozenset[str]:
        """Scenarios that the revision's requirement set runs without counting them."""
        return frozenset(re.findall(r"^ +- scenario: (\S+)", self._requirements(revision), re.MULTILINE))

    def client_scenarios(self, revision: str) -> frozenset[str]:
        """Client scenarios that the revision's requirement set counts; none where there is no set."""
        listed = re.search(r"^client:\n((?: +- .*\n)+)", self._requirements(revision), re.MULTILINE)
        return frozenset(re.findall(r"^ +- (\S+)$", listed[1], re.MULTILINE)) if listed is not None else frozenset()

    def _requirements(self, revision: str) -> str:
        path = self.script.parent.parent / "requirements" / f"{revision}.yaml"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    async def run(self, url: str, *arguments: str) -> Outcome:
        return await self._run("server", "--url", url, *arguments)

    async def run_client(self, command: str, *arguments: str) -> Outcome:
        """Runs the suite with the client that `command` starts; the suite adds the address of its server."""
        return await self._run("client", "--command", command, "--timeout", str(CLIENT_LIMIT_MS), *arguments)

    async def _run(self, *arguments: str) -> Outcome:
        results = CACHE / "results"
        shutil.rmtree(results, ignore_errors=True)
        command = [str(self.node), str(self.script), *arguments, "--output-dir", str(results)]
        with anyio.fail_after(LIMIT_S):
            done = await anyio.run_process(
                command, cwd=CACHE, check=False, stderr=subprocess.STDOUT, env={**os.environ, "PATH": path_with_node()}
            )
        return Outcome(done.returncode, tuple(_read_results(results)), done.stdout.decode(errors="replace"))


def install_suite() -> Suite:
    """Returns the suite, and installs exactly what the lock file says if necessary. Raises `Unavailable`."""
    node = find_node()
    lock = (HERE / "package-lock.json").read_bytes()
    copied, script = CACHE / "package-lock.json", CACHE / "node_modules" / PACKAGE / "dist" / "index.js"
    if not script.exists() or not copied.exists() or copied.read_bytes() != lock:
        shutil.rmtree(CACHE, ignore_errors=True)
        CACHE.mkdir()
        shutil.copy(HERE / "package.json", CACHE)
        (CACHE / "npm-shrinkwrap.json").write_bytes(lock)
        install([str(node), str(find_npm()), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], CACHE)
        # Last, so that a partial installation is repeated.
        copied.write_bytes(lock)
    version = json.loads((script.parent.parent / "package.json").read_text(encoding="utf-8"))["version"]
    node_version = subprocess.run([str(node), "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return Suite(node, script, version, node_version)


def _read_results(results: Path) -> Iterator[ScenarioResult]:
    for checks in sorted(results.rglob("checks.json")):
        # The name of a scenario can contain a slash, and is then a path.
        match = _RESULTS.fullmatch(checks.parent.relative_to(results).as_posix())
        if match is None:
            continue
        entries: list[dict[str, str]] = json.loads(checks.read_text(encoding="utf-8"))
        counts = Counter(entry["status"] for entry in entries)
        yield ScenarioResult(
            scenario=match["scenario"],
            passed=counts["SUCCESS"],
            failed=tuple(entry["id"] for entry in entries if entry["status"] == "FAILURE"),
            warned=counts["WARNING"],
            skipped=counts["SKIPPED"],
        )
