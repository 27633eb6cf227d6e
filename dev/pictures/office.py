"""An office with runs in every state, for the pictures of the inbox: questions, decisions, failures, saved plans."""

import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import JsonValue
from tests.kit import decide, start_as
from tests.support.scene import CLEAN_UP, DEPLOY, HOSTILE, LETTER, PAY, InboxScene, call_through_gate, open_scene
from tests.support.wardens import plan, tool_step

import planwarden
from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.core.execution.requester import Requester

ANN = Authority(assurance="human", channel="inbox", principal="ann")
WAIT_S = 60
IDS: JsonValue = {"$from": "find", "pointer": "/ids"}
CLOSING = (
    tool_step("find", "crm_find", {"older_than_days": 400}, description="Find accounts that are idle"),
    tool_step(
        "tell",
        "send_mail",
        {"to": "team@acme.example", "subject": "Your account will be closed", "body": "It has been idle for a year."},
        description="Tell the customer first",
        dependencies=["find"],
    ),
    tool_step("check", "crm_find", {"older_than_days": 365}, description="Look who came back", dependencies=["find"]),
    tool_step("close", "crm_delete", {"ids": IDS}, description="Close the accounts", dependencies=["tell", "check"]),
    tool_step("post", "post_letter", {"to": "Acme Ltd"}, description="Send the last bill", dependencies=["close"]),
)


@planwarden.tool(risk="read", effect="effect")
async def post_letter(to: str) -> str:
    """Send a letter by post."""
    raise planwarden.ToolError("The printer is out of paper.")


@planwarden.tool(risk="read", effect="read")
async def list_overdue(days: int) -> dict[str, JsonValue]:
    """List customers whose invoices are overdue."""
    names = {"Acme Ltd": 1840.5, "Borealis": 212.0, "Cobalt & Sons": 96.9}
    mails = ("pay@acme.example", "office@borealis.example", "cobalt@sons.example")
    return {"customers": [{"name": n, "mail": m, "due": d} for (n, d), m in zip(names.items(), mails, strict=True)]}


@dataclass
class Office:
    """A running inbox and where its pages are."""

    scene: InboxScene
    paths: dict[str, str]
    """The pages by what they show."""


@asynccontextmanager
async def open_office() -> AsyncGenerator[Office]:
    """Runs the inbox while the block runs."""
    with TemporaryDirectory(prefix="planwarden-") as folder:
        home = Path(folder, ".planwarden")
        shutil.copytree(Path(__file__).with_name("plans"), home / "plans")
        async with open_scene([post_letter, list_overdue], home=home) as scene:
            office = Office(scene, {})
            await _fill(office)
            yield office


async def _fill(office: Office) -> None:
    """Lets everything happen that the pictures show, the oldest first."""
    warden, paths = office.scene.warden, office.paths
    for name, steps, goal in (
        ("deploy", (DEPLOY,), "Release checkout 4.12"),
        ("hostile", (HOSTILE,), "Tidy up"),
        ("pay", (PAY,), "Pay what is due"),
        ("mail", (LETTER,), "Close idle accounts"),
    ):
        asked = await _run(office, *steps, goal=goal, host="Codex CLI" if name == "pay" else "Claude Code")
        paths[name] = f"/suspensions/{asked.suspensions[0].suspension_id}"
    rows = await warden.run_plan("remind", {"days": 60}, wait_seconds=WAIT_S)
    paths["rows"] = f"/suspensions/{rows.suspensions[0].suspension_id}"
    closing = await _run(office, *CLOSING, goal="Close accounts that are idle", host="Claude Code")
    await _answer(office, closing)
    paths["plan"] = f"/executions/{closing.execution_id}"
    goal = "Clean the CRM of records that nobody has touched for a year"
    asked = await _run(office, *CLEAN_UP, goal=goal, host="Claude Code")
    paths["delete"] = f"/suspensions/{asked.suspensions[0].suspension_id}"
    await _run(office, CLEAN_UP[0], goal="Who has been idle for a year?", host="Cursor")
    rejected = await _run(office, LETTER, goal="Tell Acme that its account goes", host="Claude Code")
    await _answer(office, rejected, approved=False, reason="They have logged in yesterday")
    failed = await _run(office, *CLOSING, goal="Close the accounts of last year", host="Claude Code")
    await _answer(office, failed)
    paths["outcome"] = f"/suspensions/{await _answer(office, failed)}"
    paths["grant"] = f"{paths['pay']}/grant"
    ids = [paths[name].rpartition("/")[2] for name in ("delete", "pay", "hostile")]
    paths["review"] = f"/review?{'&'.join(f'id={found}' for found in ids)}"


async def call_through_gates(office: Office) -> None:
    """Lets hosts call through a gate, and a person decide about some of it."""
    moved = {"source": "/data/report.md", "destination": "/data/archive/report.md"}
    calls: tuple[tuple[str, dict[str, str], str, bool | None], ...] = (
        ("write_file", {"path": "/data/notes.md", "content": "# Notes"}, "Claude Code", True),
        ("move_file", moved, "Codex CLI", False),
        ("write_file", {"path": "/data/report.md", "content": "# Report of 2026"}, "Claude Code", None),
    )
    for name, arguments, host, approved in calls:
        asked = await call_through_gate(office.scene.warden.service, {**arguments}, host=host, name=name)
        if approved is not None:
            await _answer(office, asked, approved=approved, reason=None if approved else "The report is still read")


async def _run(office: Office, *steps: Mapping[str, JsonValue], goal: str | None, host: str) -> planwarden.Execution:
    requester = Requester("local", host=host)
    return await start_as(office.scene.warden.service, plan(*map(dict, steps)), requester, goal=goal)


async def _answer(
    office: Office, run: planwarden.Execution, *, approved: bool = True, reason: str | None = None
) -> str:
    """Decide the question for which the run waits, and return its id."""
    question = (await office.scene.warden.get_execution(run.thread_id)).suspensions[0]
    await decide(office.scene.warden, question, Decision(approved=approved, reason=reason), ANN)
    return question.suspension_id
