"""One run of `planwarden run-goal` against a double of each provider, as the page docs/reference/providers.md.

Nobody types the page: the transcripts are what the command printed, the requests are what the double received. Run as
`python -m benchmarks.providers`.
"""

import tempfile
from collections import defaultdict
from pathlib import Path

import anyio
from dev.page import write_parts
from tests.agent.models.runs import GOAL, WAYS, Finished, Way, make_home, run_goal
from tests.support.doubles.messages import ModelRequest
from tests.support.paths import DOCS

PAGE = DOCS / "reference" / "providers.md"


async def run_all() -> list[tuple[Way, Finished]]:
    """Return each way to ask a model with its run."""
    with tempfile.TemporaryDirectory() as folder:
        return [(way, await run_goal(way, make_home(Path(folder) / way.name))) for way in WAYS.values()]


def write_row(way: Way, run: Finished) -> str:
    """Return the line of a wire format."""
    environment = " ".join(f"`{name}={value}`" for name, value in run.environment.items())
    paths = dict.fromkeys(f"`{asked.path.partition('?')[0]}`" for asked in run.asked)
    return f"| {way.title} | {environment} | {' '.join(paths)} |"


def _request(number: int, asked: ModelRequest) -> str:
    forced = ", ".join(f"`{name}`" for name in asked.forced)
    offered = ", ".join(f"`{name}`" for name in asked.tools if name not in asked.forced)
    revision = "`revise_plan` offered" if asked.may_revise else ""
    how = "asked for in the text" if asked.in_text else "forced"
    parts = [f"{forced} {how}" if forced else "", f"{offered} offered" if offered else "", revision]
    streamed = ", streamed" if asked.is_streamed else ""
    return f"{number}. {', '.join(filter(None, parts)) or 'no tool'}{streamed}"


def list_requests(run: Finished) -> str:
    """Return what a provider was asked, in order."""
    return "\n".join(_request(number, asked) for number, asked in enumerate(run.asked, 1))


def main() -> None:
    """Run, and write the page."""
    runs = anyio.run(run_all)
    [transcript] = {run.transcript for _, run in runs}
    titles: defaultdict[str, list[str]] = defaultdict(list)
    for way, run in runs:
        titles[list_requests(run)].append(way.title)
    rows = ["| wire format | environment | paths |\n|---|---|---|", *(write_row(way, run) for way, run in runs)]
    rows += [f"\n**{', '.join(ways)}**\n\n{text}" for text, ways in titles.items()]
    command = f'```\nplanwarden run-goal "{GOAL}"\n```'
    write_parts(PAGE, {"command": command, "transcript": f"```text\n{transcript}\n```", "requests": "\n".join(rows)})


if __name__ == "__main__":
    main()
