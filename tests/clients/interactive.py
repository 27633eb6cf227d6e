"""Hosts with a person in front of them: the real terminal program, its model a double, its keys pressed by the test.

Sources of the settings: those of `tests/clients/hosts.py`, and for what a host asks on its first start
https://code.claude.com/docs/en/settings and https://developers.openai.com/codex/config-reference.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
from pydantic import JsonValue

from tests.clients.host_wires import HostAnthropicWire, HostResponsesWire, HostWire, steps_taken
from tests.clients.hosts import (
    CLAUDE_CODE,
    CODEX,
    Session,
    calling,
    claude_code_command,
    claude_code_env,
    codex_home,
    provider,
)
from tests.clients.installed import path_with_node
from tests.clients.stage import Call, Stage
from tests.server.cli.support import clean_environment
from tests.support.doubles.asked import Asked, Said
from tests.support.doubles.wire import KEY
from tests.support.screen import Screen, on_screen
from tests.support.wardens import plan, tool_step

TOOLS = '''
"""Tools of a shop, with an append-only ledger on disk."""

from pathlib import Path

import planwarden

LEDGER = Path(__file__).with_name("ledger.txt")


def _note(line: str) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(f"{line}\\n")


@planwarden.tool(risk="read", effect="read")
def find_overdue(days: int) -> dict:
    """Find invoices that are overdue."""
    _note("found")
    return {"customers": ["Acme Ltd", "Borealis", "Cobalt & Sons"], "total": 4180.5}


@planwarden.tool(risk="confirm")
def send_reminders(customers: list[str], text: str) -> dict:
    """Send a letter to customers."""
    _note(f"reminded {len(customers)}: {text}")
    return {"sent": len(customers)}


@planwarden.tool
def close_accounts(customers: list[str]) -> dict:
    """Close accounts for ever."""
    _note(f"closed {len(customers)}")
    return {"closed": len(customers)}
'''
FOUND: JsonValue = {"$from": "find", "pointer": "/customers"}
FIND = tool_step("find", "find_overdue", {"days": 30}, description="Find what is overdue")
LETTER = "Your invoice is 30 days overdue. Please pay it this week."
SEND = tool_step("remind", "send_reminders", {"customers": FOUND, "text": LETTER}, description="Remind all of them")
REMIND = plan(FIND, SEND)
ASK = tool_step("ask", "displayConfirmation", {"action": "Remind these three?"}, confirms=["remind"])
CONFIRM = plan(FIND, ASK, SEND)
CLOSE = plan(FIND, tool_step("close", "close_accounts", {"customers": FOUND}, description="Close their accounts"))
COLUMNS, LINES = 100, 34


@dataclass(frozen=True)
class Turn:
    """What the person types, and what the model does then: its calls one after the other, and a sentence."""

    prompt: str
    calls: Sequence[Call | Callable[[], Call | None]]
    """A function is called when the model gets there: ids are not known before, nor whether there is anything to call."""
    says: Callable[[], str]


@dataclass(frozen=True)
class Host:
    """A host for one person."""

    name: str
    version: str
    wire: HostWire
    prepares: Callable[[Stage, Path, str], Session]
    """From the stage, the folder in which it is started, whose parent is its home, and the address of its provider."""
    picture: str
    """How the names of its pictures begin."""
    ready: str
    """On the screen when a prompt can be typed."""


def sit_down(
    host: Host, stage: Stage, turns: Sequence[Turn], person: Callable[[Screen], None], columns: int = COLUMNS
) -> None:
    """Start the host and let the person act on its screen; raises what the person raises."""
    anyio.run(_sit_down, host, stage, turns, person, columns)


async def _sit_down(
    host: Host, stage: Stage, turns: Sequence[Turn], person: Callable[[Screen], None], columns: int
) -> None:
    async with provider(host.wire, lambda asked: _answer(host.wire, asked, turns)) as double:
        project = stage.folder / "host" / "shop"
        project.mkdir(parents=True)
        session = host.prepares(stage, project, double.url)
        env = clean_environment({"HOME": str(project.parent), "PATH": path_with_node(), **session.env})

        def watch() -> None:
            with on_screen(session.command, cwd=project, env=env, columns=columns, lines=LINES) as screen:
                screen.expect(host.ready)
                # A prompt before that is answered by a model without tools.
                screen.until(lambda: stage.tools_listed > 0, "the host did not list the tools")
                person(screen)

        await anyio.to_thread.run_sync(watch)


def _answer(wire: HostWire, asked: Asked, turns: Sequence[Turn]) -> Said:
    """The next call of the turns that were typed so far; then the sentence of the last of them."""
    heard = json.dumps(asked.body, ensure_ascii=False)
    typed = [turn for turn in turns if turn.prompt in heard]
    if not typed:
        return Said(text="Shop")
    calls = [call for turn in typed for call in turn.calls]
    taken = steps_taken(wire, asked)
    call = calls[taken] if taken < len(calls) else None
    call = call() if callable(call) else call
    if call is not None:
        return calling(asked, call) or Said(text="Shop")
    return Said(text=typed[-1].says())


def _claude_code(stage: Stage, project: Path, url: str) -> Session:
    """Past its welcome, its question whether the key may be used, and its question whether the folder is trusted."""
    state = {
        "hasCompletedOnboarding": True,
        "lastOnboardingVersion": CLAUDE_CODE.version,
        "theme": "dark",
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(project): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
    }
    (project.parent / ".claude.json").write_text(json.dumps(state), encoding="utf-8")
    words = ["--model", "sonnet", "--permission-mode", "default"]
    return Session([*claude_code_command(stage, project.parent), *words], claude_code_env(url))


def _codex(stage: Stage, project: Path, url: str) -> Session:
    trusted = f'check_for_update_on_startup = false\n\n[projects."{project}"]\ntrust_level = "trusted"\n'
    home = codex_home(stage, project.parent, url, "on-request", trusted)
    return Session([*CODEX.binary("codex")], {"CODEX_HOME": str(home), "DOUBLE_KEY": KEY})


CLAUDE_CODE_SEAT = Host("Claude Code", CLAUDE_CODE.version, HostAnthropicWire(), _claude_code, "host-claude-code", "❯")
CODEX_SEAT = Host("Codex CLI", CODEX.version, HostResponsesWire(), _codex, "host-codex", "›")
HOSTS = (CLAUDE_CODE_SEAT, CODEX_SEAT)
