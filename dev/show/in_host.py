"""The saved plan from the command menu of Claude Code: the model of the host is a double that does what it is told."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import anyio
from tests.clients.saved_plans import ASKED
from tests.clients.scenes import CLAUDE_CODE_HOST, Turn, run_with_person
from tests.clients.stage import Stage, decide_on_page
from tests.support.screen import Screen

from dev.show.legs import expect
from dev.show.stage import COLUMNS, PLAN_NAME, Transcript

SAID = "Both notes are in the archive, and committed."


@dataclass(frozen=True)
class HostStage(Stage):
    """What the host starts is a server of the person's own home."""

    @cached_property
    def home(self) -> Path:
        return self.folder.parent / "planwarden"


def run_from_claude_code(shown: Transcript) -> None:
    """Chooses the plan from the menu, approves the moves on the page and the commit in the host's form.

    Raises:
        Unavailable: the host cannot be had here.
    """
    place = shown.place
    place.write_notes("garden.md", "hiking.md")
    folder = place.folder / "host-of-show"
    folder.mkdir()
    stage = HostStage(folder, kills=False)
    given = {"name": PLAN_NAME, "inputs": {"to": "archive"}}

    def say() -> str:
        is_done = not place.list_notes("inbox") and not place.run_git("status", "--porcelain")
        return SAID if is_done else "The plan runs; it asks you first."

    def person(screen: Screen) -> None:
        screen.press(f"/{PLAN_NAME[:4]}")
        screen.expect(f"/planwarden:{PLAN_NAME}")
        screen.settle()
        shown.add("menu", find_menu(screen))
        screen.press("\t")
        screen.expect(f"/mcp__planwarden__{PLAN_NAME}")
        screen.press("archive")
        screen.expect(f"/mcp__planwarden__{PLAN_NAME} archive")
        screen.press("enter")
        screen.expect("wants to open a URL")
        screen.settle()
        expect(len(place.list_notes("inbox")) == 2, "nothing moves before the person has decided", shown)
        [suspension_id] = stage.linked_questions
        words = anyio.run(decide_on_page, place.home, suspension_id)
        expect("row 1" in words and '"inbox/hiking.md"' in words, "the page shows every row", shown, words)
        screen.press("right", "enter")
        screen.expect("requests your input")
        screen.wait_until(lambda: "Decision" in find_chosen(screen), "the form has no decision to choose")
        screen.settle()
        screen.press("right", "enter")
        screen.expect("Decision: approve")
        go_down_to(screen, "Accept")
        screen.press("enter")
        screen.expect(SAID)

    run_with_person(CLAUDE_CODE_HOST, stage, [Turn(ASKED, [("run_plan", given)], say)], person, columns=COLUMNS)


def go_down_to(screen: Screen, word: str) -> None:
    """Presses the key down, and waits each time for what it does, until the chosen line has the word."""
    while word not in (chosen := find_chosen(screen)):
        screen.press("down")
        screen.wait_until(lambda before=chosen: find_chosen(screen) != before, "the key down does nothing")


def find_chosen(screen: Screen) -> str:
    """The lowest line with the mark of a choice; empty if there is none."""
    return next((line for line in reversed(screen.text.splitlines()) if line.lstrip().startswith("❯")), "")


def find_menu(screen: Screen) -> str:
    """The line of the menu that is chosen, and what was typed."""
    lines = screen.text.replace("\u00a0", " ").splitlines()
    return "\n".join(line for line in lines if "planwarden:" in line or line.startswith("❯ /"))
