"""Runs executions for a person at a terminal, and asks that person the questions of these executions.

While the person thinks, no engine runs here, and no lease or transaction is held: the question is in the store, and the
first answer wins, whichever process records it. The store stays open and downstream servers keep running, with their
state, until the command ends.
"""

import math
from argparse import Namespace
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import cast

import anyio
import msgspec

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import Expired, UsageError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState
from planwarden.agent.core.execution.verify import find_needed_tools
from planwarden.server.api.home import Home
from planwarden.server.api.service import Service
from planwarden.server.api.waiting import describe_waiting
from planwarden.server.cli.home import open_home
from planwarden.server.cli.output import DONE, FAILED, WAITING, print_json
from planwarden.server.cli.terminal import question as terminal_question
from planwarden.server.cli.terminal.lines import TerminalLine, outcome_lines
from planwarden.server.cli.terminal.terminal import ScreenUpdate, Terminal, build_terminal
from planwarden.server.settings.configuration import find_operator
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import cut_text, escape_text
from planwarden.server.views.execution import build_execution_view
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.server.views.question_text import hash_question
from planwarden.server.views.status_words import WORDS
from planwarden.server.views.suspension import Suspension, build_suspension_view

CHANNEL = "terminal"
YES_CHANNEL = "terminal --yes"
"""The channel of approvals by --yes: it tells readers of the audit that nobody read the question first."""
YES_ADVICE = (
    "--yes without a terminal is not enough for this, because a script could have given it: run the command in a "
    "terminal, or let a person approve the question there or in the inbox."
)
NEEDS_INBOX: tuple[ev.Needs, ...] = ("signed", "second")
"""The needs for which the owner's approval at a terminal is not enough."""
MODEL_ADVICE = (
    "The person at the terminal is not the model. Name one with --model PROVIDER:NAME (anthropic, openai, google, "
    "ollama, vllm) or --model scripted:FILE, or use planwarden from your assistant, which then answers itself."
)

LEFT_S = 5.0
"""How many seconds a command waits for another process to continue an execution that this process cannot run."""

Start = Callable[[Service], Awaitable[ExecutionState]]
"""A function that starts an execution, or records a decision about one, and returns the state of the execution."""


class CliSession(msgspec.Struct, frozen=True):
    """The home of a command, its terminal, and what the person agreed to in advance."""

    home: Home
    terminal: Terminal
    says_yes: bool = False
    """Whether the person gave --yes."""
    patience_s: float = math.inf
    """The longest wait, in seconds, for an execution that waits only for a set time."""

    @property
    def assurance(self) -> ev.Assurance:
        """The assurance of answers given here: `human` only at a terminal; elsewhere, a script could give them."""
        return "human" if self.terminal.can_ask else "client"

    def run_and_watch(self, start: Start) -> ExecutionState:
        """Call `start`, show the execution until it ends or needs an answer, and return its last state."""

        async def work(service: Service) -> ExecutionState:
            execution = await start(service)
            await _report_other_owner(service, execution, self.terminal)
            with self.terminal.live() as update:
                return await watch_execution(service, execution, update, patience_s=self.patience_s)

        return self.home.run(work)

    def run_to_end(self, start: Start) -> ExecutionState:
        """Like `run_and_watch`, but ask the person every question of the execution."""
        return self.ask_open_questions(self.run_and_watch(start))

    def ask_open_questions(self, execution: ExecutionState) -> ExecutionState:
        """Ask each question as it comes up, until the execution ends or one is left open; return the execution."""
        while execution.status == "suspended":
            questions = (item for item in execution.open_suspensions if item.question.addressee == "human")
            question_state = next(questions, None)
            if question_state is None:
                break
            suspension = self.build_view(execution, question_state)
            if not self.can_approve(suspension, LOCAL):
                return execution
            decision, channel = self.ask(suspension)
            if decision is None:
                return execution
            execution = self.answer(suspension, decision, channel)
            if suspension.suspension_id in {other.question.suspension_id for other in execution.open_suspensions}:
                return execution
        return execution

    def answer(self, suspension: Suspension, decision: Decision, channel: str = CHANNEL) -> ExecutionState:
        """Record the decision, or the time-out if the deadline has passed; continue like `run_and_watch`."""

        async def start(service: Service) -> ExecutionState:
            try:
                return await self.record(service, suspension, decision, channel)
            except Expired as error:
                self.terminal.line((error.message, "warn"), mark="note")
                return await self.record_time_out(service, suspension.execution_id)

        return self.run_and_watch(start)

    async def record(
        self,
        service: Service,
        suspension: Suspension,
        decision: Decision,
        channel: str = CHANNEL,
        person: str | None = None,
    ) -> ExecutionState:
        """Record the decision of the operator, or of the `person` whom a one-time code named; return the execution.

        The digest proves that the decision is about the question that was shown.
        """
        authority = Authority(
            assurance=self.assurance if person is None else "human",
            channel=channel,
            principal=person or find_operator(),
            digest=suspension.digest,
            rendered=hash_question(suspension.card),
        )
        execution, _ = await service.answer(
            suspension.thread_id, suspension.suspension_id, decision, authority, principal=None
        )
        return execution

    async def record_time_out(self, service: Service, execution_id: str) -> ExecutionState:
        """Time out the question, because its deadline has passed, and return the execution. Any process may do this."""
        # This engine adopts no executions, so it times out only those that it has read.
        await service.find(execution_id)
        await service.tick()
        return await service.find(execution_id)

    def can_approve(self, suspension: Suspension, owner: str) -> bool:
        """Return whether an approval at this terminal is enough; if not, show the question and what it needs."""
        if suspension.undecidable is not None:
            terminal_question.show(self.terminal, suspension.card, is_shortened=False)
            return False
        if self._suffices("human", suspension, owner):
            return True
        terminal_question.show(self.terminal, suspension.card)
        text = "Your approval at this terminal is not enough for this; you can reject it, or sign it in the inbox."
        self.terminal.line((text, "warn"), mark="note")
        return False

    def _suffices(self, assurance: ev.Assurance, suspension: Suspension, owner: str) -> bool:
        needs = cast("ev.Needs | None", suspension.needs)
        return self.home.settings.policy.worth(assurance, find_operator(), owner, needs) is not None

    def find_faults(self, tool_name: str, arguments: dict[str, JsonValue]) -> tuple[str, ...]:
        """Return the reasons why the arguments do not fit the tool; empty for a tool that is not known here."""
        tools = self.home.tools
        return () if tools.get(tool_name) is None else tools.complete(tool_name, arguments)[1]

    def build_view(self, execution: ExecutionState, suspension: SuspensionState) -> Suspension:
        return build_suspension_view(execution, suspension, self.home.tools, program=self.home.program)

    def write_execution(self, execution: ExecutionState) -> dict[str, JsonValue]:
        """Return the execution as JSON, as it is on the wire."""
        return to_json(build_execution_view(execution, self.home.tools, program=self.home.program))

    def finish(self, arguments: Namespace, execution: ExecutionState, **facts: JsonValue) -> int:
        """Draw the outcome; with --json, also print the facts and the execution. Return the exit code."""
        self.draw_outcome(execution)
        if arguments.json:
            print_json({**facts, **self.write_execution(execution)})
        return exit_code(execution)

    def draw_outcome(self, execution: ExecutionState) -> None:
        """Draw how the execution ended, or the commands that answer its open questions."""
        if execution.is_finished:
            words = WORDS["execution"][execution.status]
            first, *rest = outcome_lines(execution)
            command = TerminalLine((self.home.command("show", execution.thread_id), "dim"))
            self.terminal.panel(words.word, [TerminalLine(*first.parts, mark=words.mark), *rest, command], words.tone)
            return
        for suspension in execution.open_suspensions:
            self.terminal.say(*self._waiting_lines(self.build_view(execution, suspension), suspension.question))

    def _waiting_lines(self, suspension: Suspension, question: ev.Question) -> list[TerminalLine]:
        if question.addressee == "caller":
            message = TerminalLine(("a model has to answer: ", "warn"), escape_text(question.message), mark="asks")
            return [message, TerminalLine(MODEL_ADVICE, indent=1)]
        if question.addressee == "human":
            card = suspension.card
            message = TerminalLine(("waits for an answer: ", "warn"), card.title, mark="asks")
            lines = (
                (TerminalLine((f"{card.label}: ", "dim"), cut_text(card.words, 200), indent=1),) if card.words else ()
            )
            approve = ("inbox",) if question.needs in NEEDS_INBOX else ("approve", question.suspension_id)
            commands = (self.home.command(*words) for words in (approve, ("reject", question.suspension_id)))
            return [message, *lines, *(TerminalLine(command, indent=1) for command in commands)]
        if question.expires_at is None:
            return []
        until = format_instant(to_utc(question.expires_at))
        server = "a planwarden server that runs then (an assistant's, or `planwarden serve`)"
        return [TerminalLine(f"waits until {until}; {server} continues it", mark="waits")]

    def ask(self, suspension: Suspension) -> tuple[Decision | None, str]:
        """Ask the person, unless --yes answers. Return the decision and its channel; None leaves the question open."""
        is_yes_or_no = suspension.kind in ("confirmation", "approval") and suspension.answer_schema is None
        if self.says_yes and is_yes_or_no and suspension.risk != "critical":
            terminal_question.show(self.terminal, suspension.card, is_shortened=False)
            if not self._suffices(self.assurance, suspension, LOCAL):
                self.terminal.line((YES_ADVICE, "warn"), mark="note")
                return None, CHANNEL
            self.terminal.line(("Approve? ", "plain"), ("yes (--yes)", "good"))
            return Decision(approved=True), YES_CHANNEL
        if not self.terminal.can_ask:
            return None, CHANNEL
        try:
            terminal_question.show(self.terminal, suspension.card, is_paged=True)
            return terminal_question.ask(self.terminal, suspension.card, self.find_faults), CHANNEL
        except KeyboardInterrupt:
            command = TerminalLine(self.home.command("approve", suspension.suspension_id), indent=1)
            self.terminal.say("", "Nothing was decided; the question stays open.", command)
            raise


def check_tools(home: Home, execution: ExecutionState) -> None:
    """Raise `UsageError` if the remaining steps need tools that this process lacks, because their calls would fail. On
    a shared store, do nothing: a process that has the tools makes the calls.
    """
    if home.settings.store.path is None:
        return
    tool_names, tools = sorted(set(find_needed_tools(execution))), home.tools
    missing = [name for name in tool_names if tools.get(name) is None and not home.downstream.owns(name)]
    if missing:
        raise UsageError(
            f"this execution needs tools that are not known here: {', '.join(map(repr, missing))}; name "
            "their file in [tools] python of planwarden.toml, or decide in the program that has them"
        )


@contextmanager
def open_session(
    arguments: Namespace, *, says_yes: bool = False, patience_s: float = math.inf
) -> Generator[CliSession]:
    """Yield the session of a command, in which everything shares one open store.

    Raises:
        UsageError: the settings, a tool or the model are not usable.
    """
    home = open_home(arguments)
    home.check()
    with home.stay_open():
        yield CliSession(home, build_terminal(arguments), says_yes=says_yes, patience_s=patience_s)


async def watch_execution(
    service: Service, execution: ExecutionState, update: ScreenUpdate, *, patience_s: float = math.inf
) -> ExecutionState:
    """Show every change until the execution ends or needs an answer, and return its last state.

    If the execution waits only for a set time, watch until that time, unless it is more than `patience_s` away. If only
    other processes can run the execution, give up when nothing has changed for `LEFT_S` and none of them runs it.

    Raises:
        StoreError: the storage fails, or has been unable for a while to store what the execution does.
    """
    while True:
        update(execution, service.streamed_text(execution.execution_id))
        wakes_at = execution.wakes_at
        is_patient = wakes_at is not None and wakes_at - service.store.clock.now() <= patience_s
        if execution.status != "running" and not is_patient:
            return execution
        runs_elsewhere = execution.status == "running" and not service.may_run(execution)
        with anyio.move_on_after(LEFT_S if runs_elsewhere else math.inf) as waiting:
            execution = await service.wait_for_change(execution)
            service.check_recording(execution)
        if waiting.cancelled_caught and await describe_waiting(service.store, execution) is not None:
            return execution


async def _report_other_owner(service: Service, execution: ExecutionState, terminal: Terminal) -> None:
    header = await service.store.header(execution.execution_id)
    if header is None or header.owner in (None, service.owner) or header.status != "running":
        return
    if header.leased_until > service.store.clock.steady():
        terminal.line(("Another planwarden process runs this execution; watching it.", "dim"))


def exit_code(execution: ExecutionState) -> int:
    """Return the exit code of a command that ran this execution."""
    if execution.status in ("completed", "planned"):
        return DONE
    if execution.status == "rehearsed":
        return FAILED if any(state.status == "failed" for state in execution.steps.values()) else DONE
    return WAITING if execution.status in ("running", "suspended") else FAILED
