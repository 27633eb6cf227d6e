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
"""A line that stands for a fenced block: its language, and its name."""
TEXT = """# Saved plans

A plan in a file runs by its name: from an assistant's commands, the command line, Python, a schedule or a
[hook](schedules.md#hooks). The files are yours; no model writes or changes one. All keys:
[plans](reference/plans.md#saved-plans).

`make show` runs what stands here and writes the page with what was printed; ids and times are those of that run. The
person is Ann. Nothing is a double but the assistant's model, a program on the same machine that does what the prompt
says.

## The plan

Ann's notes are in `~/notes`, under git. Two public servers reach them, in `planwarden.json`:

:json servers:

`planwarden.toml` says [what may run unasked](downstream.md#who-must-agree):

:toml settings:

This is `plans/archive.yaml`. The filesystem server returns its list as JSON in a text, which the binding of `forEach`
reads. Each move is a call of its own, with its own proof.

:yaml plan:

## On the command line

`check` says what would happen and who would be asked. Nothing runs.

:console look:

`run` asks once about all notes. Ann types `s` and leaves row 2 out, so `budget.md` stays where it is. Then she
approves rows 1 and 3, and the commit.

:console run:

In this moment planwarden is killed with SIGKILL. (The show stops the git server just before, so that the call is under
way for sure, and kills it too.)

## After the kill

Everything that was acknowledged is on disk. Of the commit nobody knows, so it is not repeated unasked. A server that
runs anyway, such as an assistant's, would go on by itself, and ask. Without one, Ann cancels and retries. No note is
moved again, and the one that was left out stays. She looks into `git log`, finds no commit, and types `n`.

:console retry:

:console retried:

## From Python

On Tuesday a program moves what is left. It is the operator here, so its approval is enough. With the `key` the plan
runs once, however often the program does.

:python program:

:console python:

## In the inbox

Every saved plan has a page in the [inbox](inbox.md#saved-plans-and-schedules): a form made from its `inputs`, and
beside it what a run will do. This is another plan's:

![A form with the plan's inputs; beside it the steps, and that send_mail will ask](images/inbox-saved-plan.png)

## From Claude Code

Each saved plan is an MCP prompt with its inputs as arguments, required ones first. Ann types `/arch`, and Claude Code
offers it:

:text menu:

:text typed:

The prompt tells the model to call `run_plan` with exactly this input. A move is dangerous, so Claude Code cannot show a
form, only an address:

:text link:

Ann opens the page, sees both notes, presses *Approve*, comes back and chooses *I'm done, continue*. A commit needs no
page. Claude Code shows its form, and she accepts:

:text form:

The model reads that the plan is completed, and says so:

:text said:

## From other hosts

`make clients` runs a plan `remind`, which takes `customer` and perhaps `days`, from the commands of these:

HOSTS
## Every Monday

:console schedule:

What a [schedule](schedules.md) starts asks like anything else.

## Without a question

Ann trusts the last step of this plan. At a terminal she allows its commit once a day, for 90 days:

:console grant:

The schedule's run, started now for the show, asks about the notes. The commit goes through:

:console granted:

Then somebody edits the title in `archive.yaml`. From now on the commit asks again:

:console changed:
"""
OFFERS = {
    "Claude Code": "a command; words take the places of the inputs",
    "Gemini CLI": "a command; words take the places of the inputs, `--customer=Acme` names one",
    "opencode": "a command; planwarden never sees the words, so the model puts them into the call",
    "Codex CLI": "no commands; the model knows the plan from the description of `run_plan`",
}
"""How each host offers a plan. Tests hold what it asks planwarden for."""


def build_page(shown: Transcript, hosts: Sequence[PlanHost]) -> str:
    """Returns the page. `hosts` are those from whose commands a plan ran."""
    given = {"servers": SERVERS, "settings": SETTINGS, "plan": PLAN, "program": PROGRAM}
    rows = ["| host | version | typed | offered as |\n|---|---|---|---|\n"]
    rows += [f"| {host.name} | {host.version} | `{host.in_terminal}` | {OFFERS[host.name]} |\n" for host in hosts]

    def fence(found: re.Match[str]) -> str:
        language, name = found.groups()
        text = given[name] if name in given else shown.text(name)
        return f"```{language}\n{text.rstrip()}\n```"

    return BLOCK.sub(fence, TEXT).replace("HOSTS\n", f"{''.join(rows)}\n")
