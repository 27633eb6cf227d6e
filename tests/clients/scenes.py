"""Hosts with a person: the real terminal program, with a double as its model, and keys that the test presses.

Sources of the settings: those of `tests/clients/hosts.py`, and for what a host asks on its first start
https://code.claude.com/docs/en/settings and https://developers.openai.com/codex/config-reference.

Each scene asserts that no call behind the question ran before the person decided, and that the audit records who
decided. It calls `capture` whenever the screen shows something of interest.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from pydantic import JsonValue

from tests.clients import hosts
from tests.clients.installed import path_with_node
from tests.clients.stage import Call, Stage
from tests.server.cli.support import Cli, clean_environment
from tests.support.doubles.messages import ModelReply, ModelRequest
from tests.support.doubles.wires import KEY
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
ALL: JsonValue = {"$from": "find", "pointer": "/customers"}
FIND = tool_step("find", "find_overdue", {"days": 30}, description="Find what is overdue")
LETTER = "Please pay."
SEND = tool_step("remind", "send_reminders", {"customers": ALL, "text": LETTER}, description="Remind all of them")
REMIND = plan(FIND, SEND)
ASK = tool_step("ask", "displayConfirmation", {"action": "Remind these three?"}, confirms=["remind"])
CONFIRM = plan(FIND, ASK, SEND)
CLOSE = plan(FIND, tool_step("close", "close_accounts", {"customers": ALL}, description="Close their accounts"))
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
    name: str
    version: str
    wire: hosts.HostWire
    prepare: Callable[[Stage, Path, str], hosts.Session]
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
    async with hosts.serve_provider(host.wire, lambda request: _answer(host.wire, request, turns)) as double:
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


def _answer(wire: hosts.HostWire, request: ModelRequest, turns: Sequence[Turn]) -> ModelReply:
    """Returns the next call of the turns that were typed so far, or the sentence of the last turn after all calls."""
    text = json.dumps(request.body, ensure_ascii=False)
    typed = [turn for turn in turns if turn.prompt in text]
    if not typed:
        return ModelReply(text="Shop")
    calls = [call for turn in typed for call in turn.calls]
    done_count = hosts.count_results(wire, request)
    call = calls[done_count] if done_count < len(calls) else None
    call = call() if callable(call) else call
    if call is not None:
        return hosts.build_call_reply(request, call) or ModelReply(text="Shop")
    return ModelReply(text=typed[-1].says())


def _claude_code(stage: Stage, project: Path, url: str) -> hosts.Session:
    """Returns a session past the welcome page, the question about the key and the question about the folder."""
    state = {
        "hasCompletedOnboarding": True,
        "lastOnboardingVersion": hosts.CLAUDE_CODE.version,
        "theme": "dark",
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(project): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
    }
    (project.parent / ".claude.json").write_text(json.dumps(state), encoding="utf-8")
    words = ["--model", "sonnet", "--permission-mode", "default"]
    return hosts.Session([*hosts.claude_code_command(stage, project.parent), *words], hosts.claude_code_env(url))


def _codex(stage: Stage, project: Path, url: str) -> hosts.Session:
    trusted = f'check_for_update_on_startup = false\n\n[projects."{project}"]\ntrust_level = "trusted"\n'
    home = hosts.codex_home(stage, project.parent, url, "on-request", trusted)
    return hosts.Session([*hosts.CODEX.binary("codex")], {"CODEX_HOME": str(home), "DOUBLE_KEY": KEY})


CLAUDE_CODE_HOST = Host(
    "Claude Code", hosts.CLAUDE_CODE.version, hosts.HostAnthropicWire(), _claude_code, "host-claude-code", "❯"
)
CODEX_HOST = Host("Codex CLI", hosts.CODEX.version, hosts.HostResponsesWire(), _codex, "host-codex", "›")
HOSTS = (CLAUDE_CODE_HOST, CODEX_HOST)


Capture = Callable[[str, Screen], None]
"""Called with the name of a picture and the screen that shows it."""

Scene = Callable[[Stage, Capture], None]

FOUND, SENT, CLOSED = "found", f"reminded 3: {LETTER}", "closed 3"
CUSTOMERS = 'customers=["Acme Ltd", "Borealis", "Cobalt & Sons"]'
TOOL_FORM = (
    "Run this call? send_reminders (risk: confirm)",
    'customers=["Acme Ltd", "Borealis", "Cobalt & Sons"] (from the result of',
    f'| find at /customers), text="{LETTER}"',
    "The agent says (unverified): Remind all of them",
)
CONFIRMATION = (
    'Confirm? displayConfirmation (risk: confirm); action="Remind these three?"',
    'covers 1: send_reminders(customers=["Acme Ltd", "Borealis", "Cobalt &',
    f'| Sons"] (from the result of find at /customers), text="{LETTER}")',
    "The agent says (unverified): the same as action",
)
NARROW = 80
"""Columns of a terminal that must still show these lines completely."""


def form_in_claude_code(stage: Stage, capture: Capture) -> None:
    """The form appears by itself with all facts; the person fills it in with keys, and the plan continues."""
    prompt = "Remind the customers whose invoices are overdue. Ask me before anything is sent."
    turn = _remind(stage, prompt, ("execute_plan", {"plan": REMIND}))
    _answer_in_claude_code(stage, capture, ("form", "approved"), turn, TOOL_FORM, COLUMNS)


def confirmation_in_claude_code(stage: Stage, capture: Capture) -> None:
    """Also a narrow terminal shows every call that the decision releases, and no call is asked about again."""
    prompt = "Remind the customers whose invoices are overdue, but let me see them first."
    turn = _remind(stage, prompt, ("execute_plan", {"plan": CONFIRM}))
    _answer_in_claude_code(stage, capture, ("confirmation",), turn, CONFIRMATION, NARROW)


def _remind(stage: Stage, prompt: str, call: Call) -> Turn:
    open_text = "The plan runs; you are asked before it sends."
    return Turn(prompt, [call], lambda: "The reminders are out." if SENT in stage.ledger else open_text)


def _answer_in_claude_code(
    stage: Stage, capture: Capture, names: Sequence[str], turn: Turn, facts: tuple[str, ...], columns: int
) -> None:
    def person(screen: Screen) -> None:
        screen.paste(turn.prompt)
        _read_form(screen, facts)
        assert stage.ledger == [FOUND]
        capture(f"host-claude-code-{names[0]}", screen)
        _approve_in_claude_code(screen, "down", "down")
        screen.expect("The reminders are out.")
        for name in names[1:]:
            screen.settle()
            capture(f"host-claude-code-{name}", screen)

    run_with_person(CLAUDE_CODE_HOST, stage, [turn], person, columns=columns)
    assert stage.ledger == [FOUND, SENT]
    assert decided_by(stage) == (True, "client")


def page_in_claude_code(stage: Stage, capture: Capture) -> None:
    """The host offers the page of a dangerous call by itself; continuing without a decision decides nothing."""
    turn = Turn(
        "Close the accounts of everybody who is overdue.",
        [("execute_plan", {"plan": CLOSE})],
        lambda: "The accounts are closed." if CLOSED in stage.ledger else "The plan runs.",
    )

    def person(screen: Screen) -> None:
        screen.paste(turn.prompt)
        screen.expect("wants to open a URL")
        for fact in ("Run this call? close_accounts (risk: dangerous)", CUSTOMERS, "accepting here only opens it."):
            screen.expect(fact)
        screen.expect("/inbox/suspensions/")
        screen.settle()
        capture("host-claude-code-link", screen)
        [suspension_id] = stage.linked_questions
        screen.press("right", "enter")
        screen.wait_until(lambda: stage.update_count > 0, "the host did not say that the page was opened")
        assert stage.ledger == [FOUND]
        stage.approve(suspension_id)
        screen.expect("The accounts are closed.")

    run_with_person(CLAUDE_CODE_HOST, stage, [turn], person)
    assert stage.ledger == [FOUND, CLOSED]
    assert decided_by(stage) == (True, "human")


def form_in_codex(stage: Stage, capture: Capture) -> None:
    """The host first asks about its own tool call; then it shows our form, field by field."""
    turn = Turn(
        "Remind the customers whose invoices are overdue. Ask me before anything is sent.",
        [("execute_plan", {"plan": REMIND}), lambda: build_resume_call(stage)],
        lambda: "The reminders are out." if SENT in stage.ledger else "It waits for your decision.",
    )

    def person(screen: Screen) -> None:
        screen.paste(turn.prompt)
        screen.expect('run tool "resume_execution"?')
        screen.press("enter")
        for fact in TOOL_FORM:
            screen.expect(fact)
        screen.press("next")
        screen.expect("1. approve")
        screen.settle()
        assert stage.ledger == [FOUND]
        capture("host-codex-form", screen)
        screen.press("enter")
        screen.expect("Reason (optional)")
        screen.paste("all three, yes")
        screen.expect("The reminders are out.")
        screen.settle()
        capture("host-codex-approved", screen)

    run_with_person(CODEX_HOST, stage, [turn], person)
    assert stage.ledger == [FOUND, SENT]
    assert decided_by(stage) == (True, "client")


def _read_form(screen: Screen, lines: tuple[str, ...]) -> None:
    screen.expect("requests your input")
    for line in lines:
        screen.expect(line)
    screen.settle()
    assert "more lines" not in screen.text, screen.text


def _approve_in_claude_code(screen: Screen, *to_accept: str) -> None:
    screen.press("right", "enter")
    screen.expect("Decision: approve")
    screen.press(*to_accept, "enter")


def read_question(stage: Stage) -> dict[str, Any]:
    """Returns the open question as the model of the host received it."""
    answers = [*stage.results_of("execute_plan"), *stage.results_of("list_suspensions")]
    [question] = answers[-1]["suspensions"]
    # An execution's answer has the thread once, beside its questions.
    return {"threadId": answers[-1].get("threadId"), **question}


def build_resume_call(stage: Stage) -> Call:
    question = read_question(stage)
    place = {"threadId": question["threadId"], "suspensionId": question["suspensionId"]}
    return "resume_execution", {**place, "decision": {"approved": True}}


def decided_by(stage: Stage) -> tuple[bool, str]:
    """Returns the verdict and the assurance of the one decision in the audit."""
    rows = Cli(stage.home).spawn("audit", "show", "--json").json["rows"]
    [facts] = [row["facts"] for row in rows if row["kind"] == "decided"]
    return facts["approved"], facts["assurance"]


SCENES: tuple[Scene, ...] = (form_in_claude_code, confirmation_in_claude_code, page_in_claude_code, form_in_codex)
