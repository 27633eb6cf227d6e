"""Hosts with a person: the real terminal program, with a double as its model, and keys that the test presses.

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

from tests.clients.host_wires import HostAnthropicWire, HostResponsesWire, HostWire, count_results
from tests.clients.hosts import (
    CLAUDE_CODE,
    CODEX,
    Session,
    build_call_reply,
    claude_code_command,
    claude_code_env,
    codex_home,
    serve_provider,
)
from tests.clients.installed import path_with_node
from tests.clients.stage import Call, Stage
from tests.server.cli.support import clean_environment
from tests.support.doubles.messages import ModelReply, ModelRequest
from tests.support.doubles.wire import KEY
from tests.support.screen import Screen, run_on_screen
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
    """Close accounts permanently."""
    _note(f"closed {len(customers)}")
    return {"closed": len(customers)}
'''
FOUND: JsonValue = {"$from": "find", "pointer": "/customers"}
FIND = tool_step("find", "find_overdue", {"days": 30}, description="Find what is overdue")
LETTER = "Your invoice is 30 days overdue. Please pay it."
SEND = tool_step("remind", "send_reminders", {"customers": FOUND, "text": LETTER}, description="Remind all of them")
REMIND = plan(FIND, SEND)
ASK = tool_step("ask", "displayConfirmation", {"action": "Remind these three?"}, confirms=["remind"])
CONFIRM = plan(FIND, ASK, SEND)
CLOSE = plan(FIND, tool_step("close", "close_accounts", {"customers": FOUND}, description="Close their accounts"))
COLUMNS, LINES = 100, 34


@dataclass(frozen=True)
class Turn:
    """A prompt that the person types, and the reaction of the model: its calls one after the other, and a sentence."""

    prompt: str
    calls: Sequence[Call | Callable[[], Call | None]]
    """A function builds its call late, because it may need ids of earlier results; it returns None for no call."""
    says: Callable[[], str]


@dataclass(frozen=True)
class Host:
    """A host that one person uses."""

    name: str
    version: str
    wire: HostWire
    prepare: Callable[[Stage, Path, str], Session]
    """Prepares a session from the stage, the start folder (its parent is the home) and the address of the provider."""
    picture: str
    """The beginning of the names of its pictures."""
    ready: str
    """On the screen when the host accepts a prompt."""


def run_with_person(
    host: Host, stage: Stage, turns: Sequence[Turn], person: Callable[[Screen], None], columns: int = COLUMNS
) -> None:
    """Starts the host and calls `person` with its screen. Raises what `person` raises."""
    anyio.run(_run_with_person, host, stage, turns, person, columns)


async def _run_with_person(
    host: Host, stage: Stage, turns: Sequence[Turn], person: Callable[[Screen], None], columns: int
) -> None:
    async with serve_provider(host.wire, lambda request: _answer(host.wire, request, turns)) as double:
        project = stage.folder / "host" / "shop"
        project.mkdir(parents=True)
        session = host.prepare(stage, project, double.url)
        env = clean_environment({"HOME": str(project.parent), "PATH": path_with_node(), **session.env})

        def watch() -> None:
            with run_on_screen(session.command, cwd=project, env=env, columns=columns, lines=LINES) as screen:
                screen.expect(host.ready)
                # Before that, the host would answer a prompt without our tools.
                screen.wait_until(lambda: stage.tools_listed > 0, "the host did not list the tools")
                person(screen)

        await anyio.to_thread.run_sync(watch)


def _answer(wire: HostWire, request: ModelRequest, turns: Sequence[Turn]) -> ModelReply:
    """Returns the next call of the turns that were typed so far, or the sentence of the last turn after all calls."""
    text = json.dumps(request.body, ensure_ascii=False)
    typed = [turn for turn in turns if turn.prompt in text]
    if not typed:
        return ModelReply(text="Shop")
    calls = [call for turn in typed for call in turn.calls]
    done_count = count_results(wire, request)
    call = calls[done_count] if done_count < len(calls) else None
    call = call() if callable(call) else call
    if call is not None:
        return build_call_reply(request, call) or ModelReply(text="Shop")
    return ModelReply(text=typed[-1].says())


def _claude_code(stage: Stage, project: Path, url: str) -> Session:
    """Returns a session past the welcome page, the question about the key and the question about the folder."""
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


CLAUDE_CODE_HOST = Host("Claude Code", CLAUDE_CODE.version, HostAnthropicWire(), _claude_code, "host-claude-code", "❯")
CODEX_HOST = Host("Codex CLI", CODEX.version, HostResponsesWire(), _codex, "host-codex", "›")
HOSTS = (CLAUDE_CODE_HOST, CODEX_HOST)
