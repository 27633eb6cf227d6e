"""The whole show, from an empty folder to the page."""

from pathlib import Path

from tests.clients.conftest import end_processes
from tests.clients.saved_plans import PLAN_HOSTS

from dev.show.in_host import run_from_claude_code
from dev.show.legs import grant, look_at_plan, retry, run_and_be_killed, run_from_python, schedule
from dev.show.page import build_page
from dev.show.stage import Place
from dev.show.transcript import Transcript


def run_show(folder: Path) -> str:
    """Returns the page; nothing is left running.

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
        return build_page(shown, PLAN_HOSTS)
    finally:
        end_processes(folder)
