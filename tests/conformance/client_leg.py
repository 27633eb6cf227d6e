"""The client leg: every client scenario of the suite over the product's client of downstream servers, and what it came to.

The two requirement sets, the scenarios for servers of an older revision, and those of an extension that no set has.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio

from tests.conformance.client import relayed
from tests.conformance.suite import Found, Outcome, Suite

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

planwarden as the client of the suite's servers (`tests/conformance/client.py`): a home whose `planwarden.json` names the server, a plan
with a step for each of its tools, a person who approves each call, accepts what the terminal's form offers, and runs `planwarden login`
when an error says so, in a browser that agrees at once. Everything that a requirement set counts has to pass, without a warning, and does without an
exception. `null` as an argument, which `http-custom-headers` wants to see left out of the headers, does not fit the schema of its own
tool, so the plan leaves the argument out.
"""
ABOUT_REST = """
### Run, not required

Older servers, and what no set counts. Where something fails or is skipped it is an extension that planwarden does not offer; anything
else that failed here would fail the run, and so would one of these that passed.
"""

Run = tuple[str, Outcome]
"""Revision and outcome."""


async def client_leg(suite: Suite, home: Path) -> list[Run]:
    """All of it; the requirement sets first, in the order of `revisions`."""
    await anyio.Path(home).mkdir()
    async with relayed(home) as command:
        runs = [
            (revision, await suite.run_client(command, "--requirements", revision))
            for revision in ("2025-11-25", "2026-07-28")
        ]
        runs.append((BACKCOMPAT, await suite.run_client(command, "--suite", "backcompat")))
        runs += [("-", await suite.run_client(command, "--scenario", scenario)) for scenario in SKILLS]
    return runs


def faults(suite: Suite, runs: Sequence[Run]) -> list[str]:
    """What fails or is warned of that should not, what was not run, and what passes though it is said that it cannot."""
    told: list[str] = []
    for revision, outcome in runs:
        if outcome.code != 0 or not outcome.found:
            told.append(f"client, {revision}, ended with {outcome.code}: {outcome.output.strip()[-2000:]}")
        missing = suite.client_scenarios(revision) - {found.scenario for found in outcome.found}
        told += [f"client, {revision} {scenario} was not run" for scenario in sorted(missing)]
        for found in outcome.found:
            if found.scenario in NOT_OFFERED and not found.failed and not found.skipped:
                told.append(f"client, {revision} {found.scenario} passes, but is documented as not offered")
            if found.scenario not in NOT_OFFERED and (found.failed or found.warned or not found.passed):
                # What the suite only warns of here is what the protocol says clients should do.
                why = ", ".join(found.failed) or (f"{found.warned} warnings" if found.warned else "nothing passed")
                told.append(f"client, {revision} {found.scenario}: {why}")
    return told


def section(suite: Suite, runs: Sequence[Run]) -> str:
    """Its part of the page."""
    required: list[str] = []
    rest: list[str] = []
    for revision, found in _rows(runs):
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


def _rows(runs: Sequence[Run]) -> Iterator[tuple[str, Found]]:
    return ((revision, found) for revision, outcome in runs for found in outcome.found)
