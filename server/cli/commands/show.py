"""The command `show`: draws a thread's newest execution, and changes nothing. It finds threads of every principal."""

import sys
from argparse import Namespace
from functools import partial

from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, UnknownThread, UsageError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.execution.synopsis import list_shown_steps
from planwarden.agent.ports.store import Header, Lookups
from planwarden.agent.runtime.log_reader import fold_log, load_execution
from planwarden.server.api import tools
from planwarden.server.api.home import Home
from planwarden.server.api.limits import check_limit
from planwarden.server.api.waiting import describe_waiting
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.home import open_home
from planwarden.server.cli.output import DONE, print_json
from planwarden.server.cli.terminal import question as terminal_question
from planwarden.server.cli.terminal.lines import (
    RESULT_CHARS,
    TerminalLine,
    one_line,
    outage_lines,
    outcome_lines,
    step_lines,
    value_summary,
)
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal
from planwarden.server.views.card import Card, build_card
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.execution import Execution, build_execution_view, show_step
from planwarden.server.views.instants import format_age, format_instant, to_utc
from planwarden.server.views.observations import build_observations
from planwarden.server.views.plan_graph import build_graph, write_mermaid, write_outline
from planwarden.server.views.status_text import list_lineage_facts
from planwarden.server.views.status_words import WORDS
from planwarden.server.views.suspension import HowToAnswer
from planwarden.server.views.svg import draw_svg
from planwarden.server.views.tools import MAX_PAGE_ITEMS, LoopItem

_PLAIN_BYTES = bytes(range(0x20, 0x7F)) + b"\n\t"
"""Printable ASCII, line feed and tab. A terminal might take any other byte as a command."""
GRAPH_FORMS = ("text", "svg", "mermaid")
Moment = dict[str, JsonValue]
"""A moment in an execution: the `sequence` and `time` of an event, and the number of `events` in the log."""


def add_show(parser: CommandParser) -> None:
    parser.handle(handle_show, uses_servers=True)
    text = "a threadId, as `planwarden list` shows it, or the beginning of one; default: the newest"
    parser.declare("thread THREAD", text, nargs="?")
    parser.declare("--observations N", "also show the events after event N; 0 for all", type=int)
    text = "show the execution as it was after this event; --observations 0 shows their numbers"
    parser.declare("--at SEQUENCE", text, type=int)
    parser.declare("--step STEP", "show this step alone; for a loop, the outcome of each item, page by page")
    parser.declare("--items-from N", "with --step: begin with this item, counted from 0", type=int)
    parser.declare("--limit N", "with --step: items, at most 1000; default %(default)s", type=int, default=100)
    text = "instead write its plan as a graph with the state of each step: text, svg or mermaid; default: text"
    parser.declare("--graph FORM", text, nargs="?", const="text", choices=GRAPH_FORMS)
    parser.declare("--artifact ID", "instead write one large result, complete and unchanged, to standard output")


def handle_show(arguments: Namespace) -> int:
    if arguments.artifact is not None:
        others = (arguments.observations, arguments.at, arguments.step, arguments.items_from, arguments.graph)
        if arguments.json or any(value is not None for value in others):
            raise UsageError("--artifact writes the artifact as it is; it goes with no other option of show")
        home, is_terminal = open_home(arguments), sys.stdout.isatty()
        sys.stdout.buffer.write(read_artifact(home, arguments.thread, arguments.artifact, for_terminal=is_terminal))
        return DONE
    home = open_home(arguments)
    if arguments.step is None and arguments.items_from is not None:
        raise UsageError("--items-from needs --step, which names the loop")
    if arguments.graph is not None:
        if arguments.json or arguments.observations is not None or arguments.step is not None:
            raise UsageError("--graph writes the graph alone; leave --json, --observations and --step out")
        print(_draw_graph(home, arguments), end="")
        return DONE
    if arguments.step is not None:
        check_limit(arguments.limit, MAX_PAGE_ITEMS)
    if arguments.observations is not None and arguments.observations < 0:
        raise InvalidArguments("--observations must be 0 or more")
    document = home.read(partial(_show, home, None if arguments.json else build_terminal(arguments), arguments))
    if arguments.json:
        print_json(document)
    return DONE


async def _find_thread_id(home: Home, store: Lookups, beginning: str | None) -> str:
    """Return the whole id of the thread whose id starts with `beginning`; None means the newest thread."""
    if beginning is not None:
        return await home.find_id(store, "thread", beginning)
    newest = await store.executions(None, 1)
    if not newest:
        raise UnknownThread(f"nothing has run here yet; `{home.command('run', 'PLAN.json')}` runs a plan")
    return newest[0].thread_id


async def _read_thread(
    home: Home, store: Lookups, arguments: Namespace
) -> tuple[tuple[Header, ...], ExecutionState, Moment | None]:
    """Return the thread's headers, its newest execution, and None; with --at, the execution as it was, and when."""
    thread_id = await _find_thread_id(home, store, arguments.thread)
    headers = await home.find_thread(store, thread_id)
    header = headers[-1]
    at: int | None = arguments.at
    if at is None:
        return headers, await load_execution(store, header), None
    recorded = await store.read(header.execution_id)
    if not 1 <= at <= len(recorded):
        raise InvalidArguments(
            f"execution {header.execution_id!r} has no event {at}; it has events 1 to {len(recorded)}"
        )
    time = format_instant(to_utc(recorded[at - 1].at))
    return headers, fold_log(header, recorded[:at]), {"sequence": at, "events": len(recorded), "time": time}


def _describe_moment(moment: Moment) -> str:
    return f"after event {moment['sequence']} of {moment['events']}, at {moment['time']}"


async def _show(home: Home, terminal: Terminal | None, arguments: Namespace, store: Lookups) -> dict[str, JsonValue]:
    """Return the document for --json, and draw the same on `terminal` unless `terminal` is None.

    With --at, the document has `at`. Otherwise it has `waitsFor` if the execution waits for a process that can run it.
    """
    headers, execution, moment = await _read_thread(home, store, arguments)
    observations = None
    if arguments.observations is not None:
        # Databases refuse numbers larger than they can store.
        recorded = await store.read(execution.execution_id, min(arguments.observations, execution.version))
        past = (entry for entry in recorded if entry.sequence <= execution.version)
        observations = list(build_observations(past, execution))
    view = build_execution_view(
        execution, home.definitions if terminal is None else None, observations, program=home.program
    )
    if arguments.step is not None:
        view = show_step(view, execution, arguments.step, arguments.items_from, arguments.limit)
    waiting = None if moment is not None else await describe_waiting(store, execution)
    if terminal is not None:
        if arguments.step is not None:
            _draw_step(terminal, home, execution, view)
        else:
            _draw_execution(terminal, home, execution, headers, store.clock.now(), moment)
        if waiting is not None:
            terminal.line((waiting, "warn"), mark="waits")
        _draw_observations(terminal, view)
    if moment is None:
        return {**to_json(view), **({} if waiting is None else {"waitsFor": waiting})}
    # Leave out how to answer: the questions may have been answered since.
    suspensions = tuple(
        replace(suspension, how_to_answer=HowToAnswer(inbox_url=None, command=None)) for suspension in view.suspensions
    )
    text = f"This is the past, {_describe_moment(moment)}; without --at the present is shown."
    return {**to_json(replace(view, suspensions=suspensions, next_action=text)), "at": moment}


def _draw_graph(home: Home, arguments: Namespace) -> str:
    """Return the plan of the thread's newest execution as a graph, in the form that --graph names."""
    _, execution, _ = home.read(lambda store: _read_thread(home, store, arguments))
    if execution.plan is None:
        raise InvalidArguments(f"execution {execution.execution_id!r} has no plan yet")
    graph = build_graph(execution.plan, execution)
    if arguments.graph == "svg":
        return draw_svg(graph, stands_alone=True)
    return write_mermaid(graph) if arguments.graph == "mermaid" else "\n".join([*write_outline(graph), ""])


def read_artifact(home: Home, beginning: str | None, artifact_id: str, *, for_terminal: bool) -> bytes:
    """Return the complete content of an artifact of the thread.

    Raises:
        UnknownArtifact: there is no such artifact.
        UsageError: the content goes to a terminal and has bytes that a terminal might take as commands.
    """

    async def work(store: Lookups) -> bytes:
        thread_id = await _find_thread_id(home, store, beginning)
        return (await tools.read_artifact(store, thread_id, artifact_id, principal=None)).data

    data = home.read(work)
    if for_terminal and data.translate(None, delete=_PLAIN_BYTES):
        raise UsageError(f"artifact {artifact_id!r} is not plain text; redirect the output into a file")
    return data


def _draw_step(terminal: Terminal, home: Home, execution: ExecutionState, view: Execution) -> None:
    [step] = view.steps
    [state] = [state for state in list_shown_steps(execution) if state.step.step_id == step.id]
    lines = step_lines(execution, state)
    if step.items is None:
        terminal.say(*lines)
        return
    counts = f"{step.items.total} items: {step.items.succeeded} succeeded, {step.items.failed} failed"
    terminal.say(lines[0], TerminalLine((f"{counts}, {step.items.rejected} rejected", "dim"), indent=1))
    terminal.say(*map(_item_line, step.item_results))
    if step.items.next is not None:
        command = home.command("show", view.thread_id, "--step", step.id, "--items-from", str(step.items.next))
        terminal.line((f"more: {command}", "dim"))


def _item_line(item: LoopItem) -> TerminalLine:
    text = "" if item.result is None else f" → {value_summary(item.result)}"
    if item.error is not None:
        text = f" → {one_line(item.error.message, RESULT_CHARS * 2)}"
    words = WORDS["item"][item.status]
    return TerminalLine((f"index {item.item}  ", "dim"), words.word, (text, "dim"), mark=words.mark, indent=1)


def _draw_execution(
    terminal: Terminal,
    home: Home,
    execution: ExecutionState,
    headers: tuple[Header, ...],
    now: float,
    moment: Moment | None,
) -> None:
    # Build the cards first: this loads the operator's files, which may print into the drawing.
    cards = [
        build_card(execution, suspension, home.definitions if suspension.question.addressee == "human" else None)
        for suspension in execution.open_suspensions
    ]
    header = headers[-1]
    words = WORDS["execution"][execution.status]
    if moment is not None:
        terminal.line((f"as it was {_describe_moment(moment)}", "warn"), mark="note")
    changed = f"  changed {format_age(now - execution.updated_at)} · principal {escape_text(header.principal)}"
    terminal.line((words.word, words.tone), (changed, "dim"), mark=words.mark)
    if execution.goal:
        terminal.line(("goal: ", "dim"), one_line(execution.goal, 300))
    for fact in list_lineage_facts(execution):
        terminal.line((f"{fact.name}: ", "dim"), fact.text)
    if len(headers) > 1:
        terminal.line((f"the newest of {len(headers)} executions of this thread", "dim"))
    for state in list_shown_steps(execution):
        terminal.say(*step_lines(execution, state))
    terminal.say(*outage_lines(execution, execution.outage))
    if execution.is_finished:
        terminal.panel(words.word, outcome_lines(execution), words.tone)
    for card in cards:
        _draw_open_question(terminal, home, card, is_past=moment is not None)


def _draw_open_question(terminal: Terminal, home: Home, card: Card, *, is_past: bool) -> None:
    question = card.question
    if question.addressee == "human":
        terminal_question.show(terminal, card, is_shortened=False)
        if not is_past:
            terminal.line((home.command("approve", question.suspension_id), "bold"))
    elif question.addressee == "caller":
        terminal.line((f"the calling model has to answer: {one_line(question.message, 200)}", "warn"), mark="asks")


def _draw_observations(terminal: Terminal, view: Execution) -> None:
    for observation in view.observations or ():
        details = ", ".join(
            f"{key} {one_line(str(value), 80)}" for key, value in observation.data.items() if value is not None
        )
        step = f" {escape_text(observation.step_id)}" if observation.step_id else ""
        head = f"{observation.sequence:>4}  {observation.at:%H:%M:%S}  "
        terminal.line((head, "dim"), observation.type, (f"{step}  {details}", "dim"))
