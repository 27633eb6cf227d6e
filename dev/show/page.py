"""docs/saved-plans.md: one saved plan over real servers, from everywhere: `python -m dev.show.page` (`make show`).

The page itself has the plan, the settings and the program. `legs` and `in_host` are what a person does, one thing after
the other, and what they printed replaces parts of the page, unless only ids and times would change.
"""

import sys
import tempfile
from pathlib import Path

from tests.clients.conftest import end_processes
from tests.clients.installed import Unavailable
from tests.clients.saved_plans import PLAN_HOSTS

from dev.page import fill_parts, write_table
from dev.show.in_host import run_from_claude_code
from dev.show.legs import grant, look_at_plan, retry, run_and_be_killed, run_from_python, schedule
from dev.show.stage import PAGE, Place, Transcript, mask

OFFERS = {
    "Claude Code": "a command; words fill the inputs",
    "Gemini CLI": "a command; words fill the inputs, `--customer=Acme` names one",
    "opencode": "a command; the model fills the inputs from the words",
    "Codex CLI": "no command; the model calls `run_plan`",
}
"""How each host offers a plan. Tests hold what it asks planwarden for."""


CUTS = {
    "look": ("", "\nflowchart TD"),
    "run": ('    files_move_file, server "files" (row 3)', " ◐ move"),
    "retry": ("y  it happened", "╭─ completed"),
}
"""Of a long block, where the part that the page shows begins, and before what it ends."""


def run_show(folder: Path) -> str:
    """Return the page; nothing is left running.

    Raises:
        Unavailable: a server or a host cannot be had here.
        WentWrong: something happened that the page does not tell.
    """
    place = Place(folder / "ann")
    shown = Transcript(place)
    try:
        place.prepare()
        look_at_plan(shown)
        run_and_be_killed(shown)
        retry(shown)
        run_from_python(shown)
        run_from_claude_code(shown)
        grant(shown, schedule(shown))
    finally:
        end_processes(folder)
    rows = [(host.name, host.version, f"`{host.in_terminal}`", OFFERS[host.name]) for host in PLAN_HOSTS]
    hosts = write_table(("host", "version", "typed", "offered as"), rows, below="---")
    parts = {name: f"```console\n{cut(name, shown.text(name)).rstrip()}\n```" for name in CUTS}
    parts |= {"menu": f"```text\n{shown.text('menu').rstrip()}\n```", "hosts": hosts}
    return fill_parts(PAGE.read_text(encoding="utf-8"), parts)


def cut(name: str, text: str) -> str:
    """Return the part of a long block that the page shows."""
    start, end = CUTS[name]
    return text[text.index(start) : text.index(end)]


def main() -> int:
    """Run the show, and write the page."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            page = run_show(Path(folder))
        except Unavailable as error:
            print(f"cannot be shown here: {error}", file=sys.stderr)
            return 1
    if mask(PAGE.read_text(encoding="utf-8")) != mask(page):
        PAGE.write_text(page, encoding="utf-8")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
