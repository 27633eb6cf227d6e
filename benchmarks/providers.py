"""One run of `planwarden run-goal` against a double of each provider, as the page docs/providers.md.

Nobody types the page: the transcripts are what the command printed, the requests are what the double received. Run as
`python -m benchmarks.providers`.
"""

import tempfile
from pathlib import Path

import anyio
from tests.agent.models.runs import GOAL, WAYS, Finished, Way, make_home, run_goal
from tests.support.doubles.messages import ModelRequest
from tests.support.paths import DOCS

PAGE = DOCS / "providers.md"
INTRODUCTION = f"""# Providers

Written by `make providers`. Each transcript is what

```
planwarden run-goal "{GOAL}"
```

printed, as a process of its own, with a home that has two tools and the environment that is shown. `THREAD`, `PORT`
and `KEY` stand for thread ids, port and key.

**No provider was asked.** The other end is a double on a loopback port. It speaks the provider's wire format and
refuses what the provider would refuse: a wrong key, an unknown model, a forced tool that was not offered. It answers
like an obedient model, with made-up arguments. So this page shows that requests and answers go over the wire as the
provider's own client writes and reads them, and that the tools really ran. It does not show what a real model would
answer. `python -m tests.support.doubles WIRE MANNER [PLAN.json]` starts a double to try by hand.
"""


async def runs() -> list[tuple[Way, Finished]]:
    found: list[tuple[Way, Finished]] = []
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS.values():
            found.append((way, await run_goal(way, make_home(Path(folder) / way.name))))
    return found


def section(way: Way, run: Finished) -> str:
    lines = [
        f"## {way.title}",
        "",
        "```text",
        *(f"export {name}={value}" for name, value in run.environment.items()),
        "```",
        f"Exit code {run.code}, and on standard output:",
        "```text",
        run.transcript,
        "```",
        "",
        "| request | tools in it | forced |",
        "|---|---|---|",
        *(_request(number, asked) for number, asked in enumerate(run.asked, 1)),
        "",
        f"Ledger of the tools: {', '.join(f'`{line}`' for line in run.ledger)}.",
        "",
    ]
    return "\n".join(lines)


def _request(number: int, asked: ModelRequest) -> str:
    where = " in the text" if asked.in_text else ""
    tools = ", ".join(f"`{name}`" for name in (*asked.tools, *(("revise_plan",) if asked.may_revise else ()))) or "none"
    forced = "asked for" if asked.in_text and asked.forced else ", ".join(f"`{name}`" for name in asked.forced) or "no"
    streamed = ", streamed" if asked.is_streamed else ""
    path = asked.path.partition("?")[0]
    return f"| {number}. `{path}`{streamed} | {tools}{where if asked.tools else ''} | {forced} |"


def page(found: list[tuple[Way, Finished]]) -> str:
    return "\n".join([INTRODUCTION, *(section(way, run) for way, run in found)])


def main() -> None:
    text = page(anyio.run(runs))
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
