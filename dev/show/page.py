"""The page, from the blocks of a transcript."""

import re
from collections.abc import Sequence

from tests.clients.saved_plans import PlanHost
from tests.support.paths import DOCS

from dev.show.legs import PROGRAM
from dev.show.stage import PLAN, SERVERS, SETTINGS
from dev.show.transcript import Transcript

PAGE = DOCS / "saved-plans.md"
BLOCK = re.compile(r"^:(\w+) (\w+):$", re.MULTILINE)
"""A line that is replaced by a fenced block: its language, and its name."""
TEXT = """# Saved plans

Write a plan into a file, and run it by its name: from an assistant, the command line, Python, a schedule or a
[hook](schedules.md#hooks). No model can change the file. All keys: [plans](reference/plans.md#saved-plans).

`make show` runs this example with real servers and writes the page. The person is Ann.

## The plan

Ann's notes are in `~/notes`, under git. Two public servers reach them, in `planwarden.json`:

:json servers:

`planwarden.toml` says [what may run unasked](downstream.md#who-must-agree):

:toml settings:

This is `plans/archive.yaml`. The files server returns JSON in a text, so `forEach` parses it.

:yaml plan:

## On the command line

`check` says what would happen and who would be asked, and draws the plan. Nothing runs.

:console look:

`planwarden run archive --input to=archive` asks once about all notes. Ann types `s` and leaves row 2 out.

:console run:

She approves the commit too, and planwarden is killed with SIGKILL before the call returns.

## After the kill

The outcome of the commit is unknown. A running server would ask by itself; without one, Ann runs `planwarden cancel`
and `planwarden retry`. No note moves again, and the commit asks. She finds none in `git log`, and types `n`:

:console retry:

## From Python

A program moves what is left. It decides as the operator. With the `key` the plan runs once, however often it starts.

:python program:

## In the inbox

Every saved plan has a page in the [inbox](inbox.md#saved-plans-and-schedules), with a form for its `inputs`:

![A form with the plan's inputs; beside it the steps, and that send_mail will ask](images/inbox-saved-plan.png)

## From Claude Code

Each saved plan is an MCP prompt with its inputs as arguments, required ones first:

:text menu:

A move is dangerous, so Claude Code shows the address of a page, and Ann decides there.

Hosts that read Agent Skills over MCP (`io.modelcontextprotocol/skills`, revision 2026-07-28) get each plan as a skill
too: `skill://tidy-ledger/SKILL.md` says how to call `run_plan` for `tidy_ledger`. `planwarden doctor` names plans
whose skills would have the same name; those are not served as skills.

## From other hosts

`make clients` runs a plan `remind`, with the inputs `customer` and `days`, from these:

HOSTS
## Every Monday

The first command runs the plan each Monday ([schedules](schedules.md)). The second lets its commit run
[unasked](schedules.md#without-asking), until somebody changes the plan:

```console
$ planwarden schedule add archive --cron '0 9 * * 1' --timezone Europe/Berlin --input to=archive
$ planwarden grant add repo_git_commit --plan archive --step commit --uses-per-day 1 --for 90d
```
"""
OFFERS = {
    "Claude Code": "a command; words fill the inputs",
    "Gemini CLI": "a command; words fill the inputs, `--customer=Acme` names one",
    "opencode": "a command; the model fills the inputs from the words",
    "Codex CLI": "no command; the model calls `run_plan`",
}
"""How each host offers a plan. Tests hold what it asks planwarden for."""


CUTS = {
    "look": ("", "\nflowchart TD"),
    "run": ("    files_move_file (row 1)", " ◐ move"),
    "retry": ("y  it happened", "╭─ completed"),
}
"""Of a long block, where the part that the page shows begins, and before what it ends."""


def cut(name: str, text: str) -> str:
    """Return the part of a block that the page shows."""
    start, end = CUTS.get(name, ("", ""))
    return text[text.index(start) : text.index(end) if end else None]


def build_page(shown: Transcript, hosts: Sequence[PlanHost]) -> str:
    """Returns the page. `hosts` are those from whose commands a plan ran."""
    given = {"servers": SERVERS, "settings": SETTINGS, "plan": PLAN, "program": PROGRAM}
    rows = ["| host | version | typed | offered as |\n|---|---|---|---|\n"]
    rows += [f"| {host.name} | {host.version} | `{host.in_terminal}` | {OFFERS[host.name]} |\n" for host in hosts]

    def fence(found: re.Match[str]) -> str:
        language, name = found.groups()
        text = given[name] if name in given else cut(name, shown.text(name))
        return f"```{language}\n{text.rstrip()}\n```"

    return BLOCK.sub(fence, TEXT).replace("HOSTS\n", f"{''.join(rows)}\n")
