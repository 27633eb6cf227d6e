"""One run of `planwarden run-goal` against a double of each provider, as the page docs/reference/providers.md.

Nobody types the page: the transcripts are what the command printed, the requests are what the double received. Run as
`python -m benchmarks.providers`.
"""

import tempfile
from collections import defaultdict
from pathlib import Path

import anyio
from tests.agent.models.runs import GOAL, WAYS, Finished, Way, make_home, run_goal
from tests.support.doubles.messages import ModelRequest
from tests.support.paths import DOCS

PAGE = DOCS / "reference" / "providers.md"
INTRODUCTION = """# Providers

Which requests does planwarden send to a provider's model? `make providers` runs

```
planwarden run-goal "{goal}"
```

once for each wire format, with two tools, and writes this page. Every run printed the same:

```text
{transcript}
```

**No provider was asked.** The other end is a double on a loopback port. It refuses a wrong key, an unknown model and a
forced tool that was not offered, and answers as an obedient model would. The page shows that the requests and answers
fit the wire format and that the tools ran, not what a real model answers. To start a double by hand:
`python -m tests.support.doubles WIRE MANNER [PLAN.json]`.
"""


async def runs() -> list[tuple[Way, Finished]]:
    found: list[tuple[Way, Finished]] = []
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS.values():
            found.append((way, await run_goal(way, make_home(Path(folder) / way.name))))
    return found


def write_row(way: Way, run: Finished) -> str:
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
    return "\n".join(_request(number, asked) for number, asked in enumerate(run.asked, 1))


def page(found: list[tuple[Way, Finished]]) -> str:
    [transcript] = {run.transcript for _, run in found}
    head = "| wire format | environment | paths |\n|---|---|---|"
    lines = [INTRODUCTION.format(goal=GOAL, transcript=transcript), head]
    lines += [write_row(way, run) for way, run in found]
    requests: defaultdict[str, list[str]] = defaultdict(list)
    for way, run in found:
        requests[list_requests(run)].append(way.title)
    lines += [f"\n**{', '.join(titles)}**\n\n{text}" for text, titles in requests.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    text = page(anyio.run(runs))
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
