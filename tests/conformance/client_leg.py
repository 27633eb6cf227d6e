"""The client leg: every client scenario of the suite with the product's client of downstream servers, and its results.

It runs the two requirement sets, the scenarios of an older revision, and those of an extension that is in no set.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio

from tests.conformance.client import run_relay
from tests.conformance.suite import Outcome, ScenarioResult, Suite

BACKCOMPAT = "2025-03-26"
SKILLS = (
    "sep-2640-client-no-prefetch",
    "sep-2640-client-verify-digest",
    "sep-2640-client-verify-size",
    "sep-2640-client-verify-frontmatter",
)
_SKILLS = "skills extension: of a server, planwarden uses the tools"
_NO_PERSON = "extension: a client that logs in without a person; give such a server a token under `headers`"
NOT_OFFERED = {
    "auth/client-credentials-jwt": _NO_PERSON,
    "auth/client-credentials-basic": _NO_PERSON,
    "auth/enterprise-managed-authorization": "extension: a login through the identity provider of an enterprise",
    "auth/dpop": "extension: tokens bound to a key, which the SDK does not have",
    "auth/dpop-nonce": "extension: tokens bound to a key, which the SDK does not have",
    "auth/wif-jwt-bearer": "extension: a login with the identity of a workload",
    **dict.fromkeys(SKILLS, _SKILLS),
}
"""Scenarios that cannot pass, and why. None of them is in a requirement set."""

ABOUT = """
## The client

planwarden as the client of the suite's servers (`tests/conformance/client.py`): a home whose `planwarden.json` names
the server, a plan with a step for each of its tools, and a person. The person approves each call, accepts the defaults
of the terminal's form, and runs `planwarden login` when an error says so, in a browser that agrees at once. Everything
that a requirement set counts has to pass without a warning, and does, without exceptions. `http-custom-headers` wants a
`null` argument to be omitted from the headers. `null` does not fit the schema of its own tool, so the plan leaves the
argument out.
"""
ABOUT_REST = """
### Run, not required

Older servers, and scenarios that no set counts. What fails or is skipped is an extension that planwarden does not
offer. Any other failure here would fail the run, and so would a pass of one of these.
"""

Run = tuple[str, Outcome]
"""Revision and outcome."""


async def client_leg(suite: Suite, home: Path) -> list[Run]:
    """Runs all client scenarios, the requirement sets first."""
    await anyio.Path(home).mkdir()
    async with run_relay(home) as command:
        runs = [
            (revision, await suite.run_client(command, "--requirements", revision))
            for revision in ("2025-11-25", "2026-07-28")
        ]
        runs.append((BACKCOMPAT, await suite.run_client(command, "--suite", "backcompat")))
        runs += [("-", await suite.run_client(command, "--scenario", scenario)) for scenario in SKILLS]
    return runs


def find_faults(suite: Suite, runs: Sequence[Run]) -> list[str]:
    """Returns unexpected failures and warnings, scenarios that did not run, and unexpected passes."""
    found_faults: list[str] = []
    for revision, outcome in runs:
        if outcome.code != 0 or not outcome.found:
            found_faults.append(f"client, {revision}, ended with {outcome.code}: {outcome.output.strip()[-2000:]}")
        missing = suite.client_scenarios(revision) - {found.scenario for found in outcome.found}
        found_faults += [f"client, {revision} {scenario} was not run" for scenario in sorted(missing)]
        for found in outcome.found:
            if found.scenario in NOT_OFFERED and not found.failed and not found.skipped:
                found_faults.append(f"client, {revision} {found.scenario} passes, but is documented as not offered")
            if found.scenario not in NOT_OFFERED and (found.failed or found.warned or not found.passed):
                # What the suite only warns of here is what the protocol says clients should do.
                why = ", ".join(found.failed) or (f"{found.warned} warnings" if found.warned else "nothing passed")
                found_faults.append(f"client, {revision} {found.scenario}: {why}")
    return found_faults


def build_section(suite: Suite, runs: Sequence[Run]) -> str:
    """Returns the section of the page."""
    required: list[str] = []
    rest: list[str] = []
    for revision, found in _list_rows(runs):
        counts = f"{found.passed} | {len(found.failed)} | {found.warned} | {found.skipped}"
        row = f"| {revision} | `{found.scenario}` | {counts} |"
        if found.scenario in suite.client_scenarios(revision) - suite.not_required(revision):
            required.append(row)
        else:
            rest.append(f"{row} {NOT_OFFERED.get(found.scenario, '')} |")
    codes = "".join(
        f"\nExit code of {revision}: {outcome.code}.\n"
        for revision, outcome in runs
        if suite.client_scenarios(revision)
    )
    head = "\n| revision | scenario | passed | failed | warnings | skipped |"
    lines = [head, "|---|---|---|---|---|---|", *required]
    others = [f"{head} why |", "|---|---|---|---|---|---|---|", *rest]
    return "".join([ABOUT, codes, "\n".join(lines), "\n", ABOUT_REST, "\n".join(others), "\n"])


def _list_rows(runs: Sequence[Run]) -> Iterator[tuple[str, ScenarioResult]]:
    return ((revision, found) for revision, outcome in runs for found in outcome.found)
