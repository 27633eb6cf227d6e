"""Commands that let an execution run: `run`, `approve`, `reject`.

Whoever records a decision goes on with the execution, so each of these shows it live until it is over or waits again.
While a person thinks, nothing of ours is open here: no engine, no lease, no transaction; the question lies in the store and
whoever answers first has answered. Downstream servers stay, with what they remember, until the command ends.
"""

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import anyio
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import AlreadyDecided, Expired, InvalidArguments, PlanwardenError, UsageError
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan import parse_plan, read_tool_names
from planwarden.agent.core.state import ExecutionState, SuspensionState
from planwarden.agent.models.caller import CallerModel
from planwarden.server.api.service import Service
from planwarden.server.auth.settings import LOCAL
from planwarden.server.cli.home import CliHome, RunLoop, find, watch
from planwarden.server.cli.terminal import question as terminal_question
from planwarden.server.cli.terminal.lines import OUTCOMES, TerminalLine, outcome_lines
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.settings.configuration import operator
from planwarden.server.views.facts import escape_text, shown_digest
from planwarden.server.views.suspension import Suspension, build_suspension_view

CHANNEL = "terminal"
UNASKED = "terminal --yes"
"""The channel of decisions that the operator gave before the question was asked; the log must not claim more."""
YES_COVERS: tuple[ev.SuspensionKind, ...] = ("confirmation", "approval")
MAX_PLAN_BYTES = 16 * 1024 * 1024

Start = Callable[[Service], Awaitable[ExecutionState]]


@dataclass(frozen=True, slots=True)
class CliSession:
    """Where a person sits: the home that is worked on, the terminal, and what was agreed to in advance."""

    home: CliHome
    terminal: Terminal
    says_yes: bool = False
    loop: RunLoop = asyncio.run
    """What the phases of the command run on."""
    patience_s: float = math.inf
    """How long the clock is waited for when nobody else can go on."""

    def follow(self, start: Start) -> ExecutionState:
        """Start or answer something and show it live until it is over or waits for somebody."""

        async def phase() -> ExecutionState:
            async with self.home.acting() as service:
                execution = await start(service)
                await _note_owner(service, execution, self.terminal)
                with self.terminal.live() as update:
                    return await watch(service, execution, update, patience_s=self.patience_s)

        return self.loop(phase())

    @contextmanager
    def kept(self) -> Generator["CliSession"]:
        """The desk with downstream servers that go on while a person thinks."""
        with self.home.kept() as loop:
            yield replace(self, loop=loop)

    def answer(self, suspension: Suspension, decision: Decision, channel: str = CHANNEL) -> ExecutionState:
        """Record a decision on what was shown and go on; when it comes too late, go on with the time-out instead."""

        async def start(service: Service) -> ExecutionState:
            try:
                return await _decide(service, suspension, decision, channel)
            except Expired as error:
                self.terminal.say(TerminalLine(((error.message, "warn"),), "note"))
                return await _time_out(service, suspension.suspension_id)

        return self.follow(start)

    def converse(self, execution: ExecutionState) -> ExecutionState:
        """Ask each open question of a person as it comes up, until the execution is over or an answer stays out."""
        while (asked := _next_question(execution)) is not None:
            suspension = self.view(execution, asked)
            if not self.counts(suspension, LOCAL):
                return execution
            decision, channel = self._decision(suspension)
            if decision is None:
                return execution
            execution = self.answer(suspension, decision, channel)
            if asked.question.suspension_id in {found.question.suspension_id for found in execution.open_suspensions}:
                return execution
        return execution

    def counts(self, suspension: Suspension, owner: str) -> bool:
        """Whether an approval at this terminal is worth anything; says what is needed when it is not."""
        needs = cast("ev.Needs | None", suspension.needs)
        if self.home.settings.policy.worth("human", operator(), owner, needs) is not None:
            return True
        terminal_question.show(self.terminal, suspension)
        text = "Your approval at this terminal does not suffice for it; you can reject it, or sign it in the inbox."
        self.terminal.say(TerminalLine(((text, "warn"),), "note"))
        return False

    def view(self, execution: ExecutionState, asked: SuspensionState) -> Suspension:
        return build_suspension_view(execution, asked, self.home.tools)

    def _decision(self, suspension: Suspension) -> tuple[Decision | None, str]:
        may_skip = suspension.kind in YES_COVERS and suspension.risk != "critical" and suspension.answer_schema is None
        if self.says_yes and may_skip:
            terminal_question.show(self.terminal, suspension)
            self.terminal.say(TerminalLine((("Approve? ", "plain"), ("yes (--yes)", "good"))))
            return Decision(approved=True), UNASKED
        if not self.terminal.can_ask:
            return None, CHANNEL
        terminal_question.show(self.terminal, suspension)
        return terminal_question.ask(self.terminal, suspension), CHANNEL


def read_plan(path: str) -> JsonValue:
    """The JSON in the file, or on standard input for `-`. Raises `UsageError` naming the file."""
    where = "standard input" if path == "-" else repr(path)
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_PLAN_BYTES + 1)
        else:
            with Path(path).expanduser().open("rb") as file:
                data = file.read(MAX_PLAN_BYTES + 1)
    except OSError as error:
        raise InvalidArguments(f"cannot read the plan {where}: {error.strerror}") from error
    if len(data) > MAX_PLAN_BYTES:
        raise InvalidArguments(f"the plan in {where} is larger than {MAX_PLAN_BYTES // 1024 // 1024} MiB")
    try:
        return read_json(data)
    except PlanwardenError as error:
        raise InvalidArguments(f"the plan in {where} is {error.message}") from error


def run_plan(desk: CliSession, document: JsonValue) -> ExecutionState:
    """Run a plan to its end or to the first question that nobody answers here."""

    async def start(service: Service) -> ExecutionState:
        await service.tools_known(read_tool_names(document))
        _check_thinking(desk.home, service, document)
        view = await service.execute_plan(document, wait_seconds=0, principal=LOCAL)
        execution = await service.engine.find(view.execution_id)
        return execution

    with desk.kept() as kept:
        return kept.converse(kept.follow(start))


def run_goal(desk: CliSession, goal: str) -> ExecutionState:
    """Plan for a goal with the configured model and run the plan as `run_plan` does.

    Raises:
        UsageError: no model is configured; the person at the terminal is not asked to think for one.
    """
    if isinstance(desk.home.model, CallerModel):
        raise UsageError(f"a goal has to be planned, so a model has to think. {_NO_MODEL}")

    async def start(service: Service) -> ExecutionState:
        view = await service.run_goal(goal, wait_seconds=0, principal=LOCAL)
        execution = await service.engine.find(view.execution_id)
        return execution

    with desk.kept() as kept:
        return kept.converse(kept.follow(start))


def approve(desk: CliSession, suspension_id: str) -> ExecutionState:
    """Ask the person at the terminal about one question and go on with its execution.

    Raises:
        UsageError: nobody can be asked here, or the question cannot be answered in a terminal.
    """
    execution, asked = anyio.run(_look_up, desk.home, suspension_id)
    if not asked.is_open:
        return _go_on(desk, execution, asked, approved=True)
    if asked.question.addressee != "human":
        whom = "the clock" if asked.question.addressee == "clock" else "the calling model, which uses submit_answer"
        raise UsageError(f"suspension {suspension_id!r} is not for a person; it waits for {whom}")
    if asked.question.expires_at is not None and asked.question.expires_at <= time.time():
        desk.terminal.say(TerminalLine((("The time to answer has passed.", "warn"),), "note"))
        return desk.follow(lambda service: _time_out(service, suspension_id))
    if not desk.terminal.can_ask:
        raise UsageError(
            "approving needs a terminal where a person can read the question and type the answer, and there is none "
            "here; run it in a terminal, decide in the inbox, or give --code and --digest"
        )
    check_tools(desk.home, execution)
    suspension = desk.view(execution, asked)
    if not desk.counts(suspension, anyio.run(_owner_of, desk.home, suspension_id)):
        return execution
    terminal_question.show(desk.terminal, suspension)
    decision = terminal_question.ask(desk.terminal, suspension)
    if decision is None:
        desk.terminal.say("Nothing was decided; the question stays open.")
        return execution
    _hide_settled(desk.terminal, execution)
    return desk.answer(suspension, decision)


def reject(desk: CliSession, suspension_id: str, reason: str | None) -> ExecutionState:
    """Reject one question, which needs no authority beyond being the operator, and go on with its execution.

    Where tools of the execution are not known the rejection is recorded and whoever has them goes on.
    """
    execution, asked = anyio.run(_look_up, desk.home, suspension_id)
    if not asked.is_open:
        return _go_on(desk, execution, asked, approved=False)
    suspension = desk.view(execution, asked)
    decision = Decision(approved=False, reason=reason)
    _hide_settled(desk.terminal, execution)
    try:
        check_tools(desk.home, execution)
    except UsageError:
        return anyio.run(_only_record, desk.home, suspension, decision)
    return desk.answer(suspension, decision)


async def _only_record(home: CliHome, suspension: Suspension, decision: Decision) -> ExecutionState:
    async with home.acting(follows=False) as service:
        return await _decide(service, suspension, decision, CHANNEL)


async def _decide(service: Service, suspension: Suspension, decision: Decision, channel: str) -> ExecutionState:
    """Record the decision; the digest makes sure that it is about the question that was shown."""
    row, _ = await find(service, suspension.suspension_id)
    authority = Authority(
        assurance="human",
        channel=channel,
        principal=operator(),
        digest=suspension.digest,
        rendered=shown_digest(suspension),
    )
    view = await service.answer(
        row.thread_id, row.suspension_id, decision, authority, wait_seconds=0, principal=row.principal
    )
    execution = await service.engine.find(view.execution_id)
    return execution


async def _time_out(service: Service, suspension_id: str) -> ExecutionState:
    """Let the question's deadline pass, as any process that sees it does."""
    await find(service, suspension_id)
    await service.engine.tick()
    return (await find(service, suspension_id))[1]


def conclude(desk: CliSession, execution: ExecutionState) -> None:
    """The last lines of a command: how it ended, or what has to happen now."""
    terminal, home = desk.terminal, desk.home
    if execution.is_finished:
        mark, style = OUTCOMES[execution.status]
        lines = [*outcome_lines(execution), TerminalLine(((home.command("show", execution.thread_id), "dim"),))]
        terminal.panel(execution.status, [TerminalLine(lines[0].parts, mark), *lines[1:]], style)
        return
    for found in execution.open_suspensions:
        question = found.question
        if question.addressee == "caller":
            terminal.say(
                TerminalLine((("a model has to answer: ", "warn"), escape_text(question.message)), "asks"),
                TerminalLine((_NO_MODEL,), indent=1),
            )
        elif question.addressee == "human":
            terminal.say(TerminalLine((("waits for an answer: ", "warn"), escape_text(question.message)[:200]), "asks"))
            approves = ("inbox",) if question.needs in _NOT_HERE else ("approve", question.suspension_id)
            terminal.say(TerminalLine((home.command(*approves),), indent=1))
            terminal.say(TerminalLine((home.command("reject", question.suspension_id),), indent=1))
        elif question.expires_at is not None:
            until = datetime.fromtimestamp(question.expires_at, UTC).isoformat(timespec="seconds")
            text = f"waits until {until}; a planwarden server that runs then (an assistant's, or `planwarden serve`) goes on"
            terminal.say(TerminalLine((text,), "waits"))


_NOT_HERE: tuple[ev.Needs, ...] = ("signed", "second")
"""What the owner's approval at a terminal is never worth."""

_NO_MODEL = (
    "The person at the terminal is not the model. Name one with --model PROVIDER:NAME (anthropic, openai, google, "
    "ollama, vllm) or --model scripted:FILE, or hand it to your assistant: its run_goal and execute_plan ask the "
    "assistant itself."
)


async def _look_up(home: CliHome, suspension_id: str) -> tuple[ExecutionState, SuspensionState]:
    async with home.looking() as service:
        row, execution = await find(service, suspension_id)
        return execution, execution.suspensions[row.suspension_id]


async def _owner_of(home: CliHome, suspension_id: str) -> str:
    async with home.looking() as service:
        return (await find(service, suspension_id))[0].principal


def _go_on(desk: CliSession, execution: ExecutionState, asked: SuspensionState, *, approved: bool) -> ExecutionState:
    """The same decision again gives what became of it, and goes on if that was interrupted; any other is refused."""
    question, decision = asked.question, asked.decision
    if decision is None or decision.approved != approved:
        verdict = "approved" if decision is not None and decision.approved else "rejected"
        if decision is None or asked.status != "decided":
            verdict = asked.status.replace("_", " ")
        raise AlreadyDecided(
            f"suspension {question.suspension_id!r} was {verdict} before, and its execution is {execution.status}; "
            f"see `{desk.home.command('show', execution.thread_id)}`"
        )
    desk.terminal.say(f"It was {'approved' if approved else 'rejected'} before; the first answer stands.")
    if execution.status != "running":
        return execution
    check_tools(desk.home, execution)
    _hide_settled(desk.terminal, execution)
    same = Decision(approved=approved, modified_args=decision.modified_args, content=decision.content)
    return desk.answer(desk.view(execution, asked), same)


def _next_question(execution: ExecutionState) -> SuspensionState | None:
    if execution.status != "suspended":
        return None
    return next((found for found in execution.open_suspensions if found.question.addressee == "human"), None)


async def _note_owner(service: Service, execution: ExecutionState, terminal: Terminal) -> None:
    header = await service.engine.store.header(execution.execution_id)
    if header is None or header.owner in (None, service.engine.owner) or header.status != "running":
        return
    if header.leased_until > service.engine.store.clock.now():
        terminal.say(TerminalLine((("Another planwarden process runs this execution; watching it.", "dim"),)))


def _hide_settled(terminal: Terminal, execution: ExecutionState) -> None:
    """What was over before this command began is `show`'s to tell."""
    settled = (name for name, state in execution.steps.items() if state.status in ("completed", "failed", "skipped"))
    terminal.screen.shown |= {(execution.execution_id, name) for name in settled}


def _check_thinking(home: CliHome, service: Service, document: JsonValue) -> None:
    """Refuse before anything runs when steps need a model and there is none."""
    if not isinstance(home.model, CallerModel):
        return
    plan, _ = parse_plan(
        document, author="caller", tools=service.engine.tool_facts(), max_steps=home.settings.max_steps
    )
    thinking = [
        step.step_id
        for step in plan.steps
        if not step.tool_calls or set(step.required_tools) - {call.tool_name for call in step.tool_calls}
    ]
    if thinking:
        named = ", ".join(repr(step_id) for step_id in thinking[:10])
        raise UsageError(f"step(s) {named} have no toolCalls for all they need, so a model has to think. {_NO_MODEL}")


def check_tools(home: CliHome, execution: ExecutionState) -> None:
    """Refuse to go on with an execution whose tools live elsewhere: here its calls would fail."""
    named = {
        name
        for state in execution.steps.values()
        if state.status in ("pending", "in_progress", "suspended")
        for name in (*state.step.required_tools, *(call.tool_name for call in state.step.tool_calls))
    }
    missing = sorted(name for name in named if home.tools.get(name) is None and not home.downstream.owns(name))
    if missing:
        raise UsageError(
            f"this execution needs the tool(s) {', '.join(map(repr, missing))}, which are not known here; name their file "
            "in [tools] python of planwarden.toml, or decide in the program that has them"
        )
