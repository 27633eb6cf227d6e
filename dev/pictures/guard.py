"""The pictures of the guard.

The model of Claude Code, a double on this machine, wants to delete a folder; the host says that it was not run, and the
question is in the inbox.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from tests.clients.conftest import end_processes
from tests.clients.guard.hosts import HOSTS, build_env
from tests.clients.guard.scenes import build_call
from tests.clients.guard.stage import GuardStage
from tests.clients.hosts import CLAUDE_CODE, Session, claude_code_env, count_results, serve_provider
from tests.clients.stage import WIDE
from tests.server.cli.support import start_on_terminal
from tests.support.browser import log_in
from tests.support.doubles.messages import ModelReply, ModelRequest
from tests.support.doubles.wires import KEY
from tests.support.screen import Screen, run_on_screen

from dev.pictures.camera import open_page, shoot
from dev.pictures.hosts import draw

if TYPE_CHECKING:
    from playwright.async_api import Browser

HOST = HOSTS[0]
PROMPT = "Free some space: delete everything that was built."
SAID = "I did not delete anything: a person has to approve it in the inbox first."
COMMAND = "rm -rf build"
LINES = 22
CHANGE = "Give regular customers a discount, in src/price.py."
CLAIMS = ("Done: the discount is in src/price.py, and all tests pass.", "Now it is: I ran the tests, and they pass.")
PROMISE = """
[[rules]]
tool = "claude-code/*"
when = { cwd = { in = ["FOLDER"] } }
then = "allow"

[[promises]]
name = "tests"
when = { tool = ["Edit", "Write"], matches = { file_path = { under = "src" } } }
requires = { tool = "Bash", matches = { command = { prefix = "make test" } } }
because = "tests run after every change of the source"
"""


def prepare(stage: GuardStage) -> None:
    """A shop with a folder `build`, and Claude Code past its welcome, with the hook."""
    (stage.project / "build").mkdir()
    HOST.configure(stage)
    config = stage.user / ".claude.json"
    state = {
        "hasCompletedOnboarding": True,
        "lastOnboardingVersion": CLAUDE_CODE.version,
        "theme": "dark",
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(stage.project): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
    }
    config.write_text(json.dumps({**json.loads(config.read_text(encoding="utf-8")), **state}), encoding="utf-8")
    stage.install_hook(HOST.name)


async def show_sent_back(stage: GuardStage) -> str:
    """Returns the screen after the model said that it is done, was sent back, and ran the tests."""
    text = PROMISE.replace("FOLDER", str(stage.project))
    (stage.home / "planwarden.toml").write_text(text, encoding="utf-8")
    (stage.project / "Makefile").write_text("test:\n\t@echo 12 passed\n", encoding="utf-8")
    change = {"file_path": str(stage.project / "src" / "price.py"), "content": "DISCOUNT = 0.1\n"}

    def answer(request: ModelRequest) -> ModelReply:
        if not count_results(HOST.wire, request):
            return ModelReply(calls=(("Write", change),))
        if "Not done" not in str(request.body):
            return ModelReply(text=CLAIMS[0])
        if count_results(HOST.wire, request) == 1:
            return ModelReply(calls=(build_call(HOST, "make test"),))
        return ModelReply(text=CLAIMS[1])

    return await _show(stage, answer, CHANGE, CLAIMS[1])


async def show_blocked(stage: GuardStage) -> str:
    """Returns the screen of Claude Code after the call was blocked, as an HTML document."""

    def answer(request: ModelRequest) -> ModelReply:
        if count_results(HOST.wire, request):
            return ModelReply(text=SAID)
        return ModelReply(calls=(build_call(HOST, COMMAND),))

    page = await _show(stage, answer, PROMPT, SAID)
    assert (stage.project / "build").exists()
    return page


async def _show(stage: GuardStage, answer: Callable[[ModelRequest], ModelReply], prompt: str, end: str) -> str:
    def watch(session: Session) -> str:
        with run_on_screen(session.command, cwd=stage.project, env=build_env(stage, session), lines=LINES) as screen:
            return _see(screen, prompt, end)

    def answer_host(request: ModelRequest) -> ModelReply:
        # The host first asks for a title of the session, without tools.
        return answer(request) if HOST.shell in request.tools else ModelReply(text="Shop")

    async with serve_provider(HOST.wire, answer_host) as double:
        words = ["--model", "sonnet", "--permission-mode", "default"]
        session = Session([*CLAUDE_CODE.binary("claude"), *words], claude_code_env(double.url))
        return await anyio.to_thread.run_sync(watch, session)


def _see(screen: Screen, prompt: str, end: str) -> str:
    screen.expect("❯")
    # The host blocks everything until its server is there.
    screen.press("/mcp", "enter")
    screen.expect("✔ planwarden")
    screen.press("\x1b")
    screen.paste(prompt)
    screen.expect(end[:40])
    screen.settle()
    return screen.render_page(f"Claude Code {CLAUDE_CODE.version}", since=prompt[:20])


async def draw_question(stage: GuardStage, browser: "Browser", folder: Path) -> None:
    """Takes the picture of the question in the inbox."""
    [question] = stage.list_questions()
    terminal = start_on_terminal(stage.cli, "inbox", "--no-open", "--as", "ann", columns=WIDE)
    try:
        await anyio.to_thread.run_sync(lambda: (terminal.expect("code="), terminal.expect("\n")))
        link = re.findall(r"http://\S+code=\S+", terminal.text)[0]
        page = await open_page(browser, "desktop", "light")
        await log_in(page, link)
        await page.goto(f"{link.partition('/inbox')[0]}/inbox/suspensions/{question['suspensionId']}")
        await shoot(page, folder / "guard-question.png", "form.decide")
    finally:
        terminal.close()


async def take(browser: "Browser", folder: Path) -> None:
    """Take the pictures of a call that was blocked, of its question, and of a stop that was refused."""
    place = Path(tempfile.mkdtemp(prefix="guard-"))
    stage = GuardStage(place)
    try:
        prepare(stage)
        await draw({"guard-claude-code": await show_blocked(stage)}, browser, folder)
        await draw_question(stage, browser, folder)
        await draw({"done-claude-code": await show_sent_back(stage)}, browser, folder)
    finally:
        end_processes(place)
        shutil.rmtree(place, ignore_errors=True)
