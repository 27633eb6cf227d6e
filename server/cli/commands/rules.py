"""The commands `rules`, `rules check` and `rules replay`: what the operator's rules say, and what they would do."""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

import anyio
import msgspec
from pydantic import JsonValue

from planwarden.agent.approval.rules import UNCOUNTED, RuleBook
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.policy import Requirement, describe_denial
from planwarden.agent.runtime.real_paths import judge_with_paths
from planwarden.server.api.home import Home
from planwarden.server.api.rules import (
    ConditionVerdict,
    ReplayedCall,
    RuleReplay,
    RuleVerdict,
    explain_rules,
    list_open_ends,
    replay_rules,
)
from planwarden.server.cli.arguments import CommandParser, read_count
from planwarden.server.cli.checks.access import list_notes
from planwarden.server.cli.commands.call import read_arguments
from planwarden.server.cli.home import open_home
from planwarden.server.cli.terminal.lines import Style, TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal, write_result
from planwarden.server.settings.configuration import SETTINGS_FILE
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text, shorten_id
from planwarden.server.views.status_words import DECIDERS

DAY_S = 86_400.0
LINE_CHARS = 700
_VERDICTS: Mapping[str, tuple[str, Style]] = {
    "yes": ("matches", "good"),
    "no": ("does not match", "dim"),
    "unknown": ("cannot be evaluated, so a person is asked", "warn"),
}
_CONDITIONS: Mapping[str, tuple[str, Style]] = {
    "yes": ("holds", "good"),
    "no": ("does not hold", "bad"),
    "missing": ("the value is not there", "bad"),
    "unknown": ("cannot be evaluated", "warn"),
}
_STYLES: Mapping[str, Style] = {"deny": "bad", "allow": "good", "ask": "warn"}
_WAS = {
    "ran": "ran without a question",
    "approved": "was approved",
    "rejected": "was rejected",
    "asked": "is still asked about",
    "granted": "ran because of a grant",
    "allowed": "ran because of a rule",
    "denied": "was denied by a rule",
}
_WOULD = {"allow": "would run without a question", "ask": "would be asked about", "deny": "would be denied"}


class _CheckedCall(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules say about one call: each rule for the call's tool up to the rule that decides, and the outcome."""

    tool_name: str
    arguments: dict[str, JsonValue]
    rules: tuple[RuleVerdict, ...]
    decision: str
    needs: str | None
    because: str
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def add_rules(parser: CommandParser) -> None:
    parser.handle(handle_list)
    check = parser.add_command("check", handle_check, "Say which rule decides about a call, and why. Nothing runs.")
    check.declare("tool TOOL", "name of the tool, or HOST/TOOL for a tool of a host")
    check.declare("--arg NAME=VALUE", "same as for `call`", action="append", default=[])
    check.declare("--json-args JSON", "same as for `call`")
    text = "Say what the present rules would have done with the calls in the log. Nothing runs."
    replay = parser.add_command("replay", handle_replay, text)
    replay.declare("--days N", "calls of the last N days; default %(default)s", type=read_count, default=30)


def handle_list(arguments: Namespace) -> int:
    home = open_home(arguments)
    book = home.settings.policy.rules or RuleBook()
    notes = list_notes(home, book)
    document: dict[str, JsonValue] = {
        "rules": [
            {
                "number": rule.number,
                "tool": rule.tool,
                "then": rule.then,
                "risk": rule.risk,
                "because": rule.because or None,
                "words": rule.words,
            }
            for rule in book.rules
        ],
        "notes": list[JsonValue](notes),
    }
    return write_result(arguments, document, draw_rules, book, notes)


def handle_check(arguments: Namespace) -> int:
    home = open_home(arguments)
    checked = anyio.run(check_call, home, arguments)
    return write_result(arguments, to_json(checked), draw_check, checked)


def handle_replay(arguments: Namespace) -> int:
    home = open_home(arguments)
    tools = {definition.name: definition for definition in home.tools.definitions()}
    policy, days = home.settings.policy, arguments.days
    with home.stay_open():
        report = home.read(lambda store: replay_rules(store, policy, tools, store.clock.now() - days * DAY_S))
    return write_result(arguments, to_json(report), draw_replay, report, arguments.days)


async def check_call(home: Home, arguments: Namespace) -> _CheckedCall:
    """Return what the rules say about the call, as if a plan made it now. Raises `InvalidArguments` for bad options."""
    name: str = arguments.tool
    tool = home.tools.get(name)
    definition = tool or ToolDefinition(name=name, description="", input_schema={})
    call_arguments = read_arguments(arguments)(definition)
    hint = did_you_mean(name, (other.name for other in home.tools.definitions()))
    unknown = f"there is no such tool{hint}; its risk is taken as dangerous"
    problems: tuple[str, ...] = (unknown,) if "/" not in name else ()
    if tool is not None:
        call_arguments, problems = home.tools.complete(name, call_arguments)
    book = home.settings.policy.rules or RuleBook()
    verdicts = await explain_rules(book, name, call_arguments) if not definition.is_blocking else ()
    requirement = await judge_with_paths(partial(home.settings.policy.requirement, definition, call_arguments))
    looked_at = {verdict.number for verdict in verdicts}
    notes = [note for rule in book.rules if rule.number in looked_at for note in list_open_ends(rule)]
    decision = "deny" if requirement.denied is not None else "allow" if requirement.needs is None else "ask"
    return _CheckedCall(
        tool_name=name,
        arguments=call_arguments,
        rules=verdicts,
        decision=decision,
        needs=None if decision == "deny" else requirement.needs,
        because=_explain(definition, requirement, verdicts),
        problems=problems,
        notes=tuple(notes),
    )


def _explain(definition: ToolDefinition, requirement: Requirement, verdicts: Sequence[RuleVerdict]) -> str:
    if definition.is_blocking:
        return "it asks a person itself, and rules do not answer for people"
    if requirement.denied is not None:
        return describe_denial(requirement)
    if requirement.rule is None:
        critical = ", which no rule can lower" if definition.risk == "critical" else ""
        return f"no rule decides; the risk of the tool is {definition.risk}{critical}"
    if requirement.needs is not None and verdicts and verdicts[-1].verdict == "unknown":
        return f"rule {requirement.rule.number} cannot be evaluated"
    if requirement.needs is not None and requirement.rule.matched[:1] == (UNCOUNTED,):
        return f"rule {requirement.rule.number} matches, and its budget cannot count this call"
    shares = "; ".join(f"it takes {share.amount:g} of {share.limit:g}" for share in requirement.shares)
    budgets = f"; {shares}, and asks a person when less is left" if shares else ""
    return f"rule {requirement.rule.number} decides{budgets}"


def draw_rules(terminal: Terminal, book: RuleBook, notes: list[str]) -> None:
    if not book.rules:
        terminal.say(f"no rules; [[rules]] in {SETTINGS_FILE} adds them, and docs/rules.md says how")
    for rule in book.rules:
        terminal.line((f"{rule.number:>3}  ", "bold"), one_line(rule.words, LINE_CHARS))
    terminal.say(*_note_lines(notes))


def draw_check(terminal: Terminal, checked: _CheckedCall) -> None:
    for verdict in checked.rules:
        text, style = _VERDICTS[verdict.verdict]
        terminal.line((f"rule {verdict.number} ", "bold"), (text, style))
        terminal.line((one_line(verdict.words, LINE_CHARS), "dim"), indent=1)
        terminal.say(*(_condition_line(condition) for condition in verdict.conditions))
    does = "is denied" if checked.decision == "deny" else "runs without a question"
    if checked.needs is not None:
        does = f"asks {DECIDERS[checked.needs]}"
    style = _STYLES[checked.decision]
    name = one_line(checked.tool_name, 128)
    terminal.line((name, "bold"), " ", (does, style), f": {one_line(checked.because, LINE_CHARS)}")
    problems = [f"the call would fail: {problem}" for problem in checked.problems]
    terminal.say(*_note_lines([*problems, *checked.notes]))


def _condition_line(condition: ConditionVerdict) -> TerminalLine:
    word, style = _CONDITIONS[condition.verdict]
    value = f"  (it is {condition.value})" if condition.value is not None else ""
    return TerminalLine(f"{one_line(condition.words, 300)}: ", (word, style), (value, "dim"), indent=2)


def draw_replay(terminal: Terminal, report: RuleReplay, days: int) -> None:
    terminal.say(f"{report.calls} calls of {report.executions} executions in the last {days} days")
    if not report.is_whole:
        terminal.line(("there are more; only the newest were looked at", "warn"), mark="note")
    if report.unreadable:
        terminal.line((f"{report.unreadable} logs could not be read", "warn"), mark="note")
    for count in report.counts:
        name = "no rule" if count.rule is None else f"rule {count.rule}"
        spent = f" ({count.spent} because a budget is spent)" if count.spent else ""
        text = f"{count.allow} would run without a question, {count.ask} would be asked about{spent}"
        terminal.line((f"{name}: ", "bold"), f"{text}, {count.deny} would be denied")
    terminal.say(
        f"of those that were asked about, {report.asked_less} would run without a question; of those that ran without "
        f"one, {report.asked_more} would be asked about; {report.denied} would be denied"
    )
    terminal.say(*map(_change_line, report.changes))


def _change_line(change: ReplayedCall) -> TerminalLine:
    when = datetime.fromtimestamp(change.at, UTC).strftime("%Y-%m-%d %H:%M")
    rule = "no rule matches" if change.rule is None else f"rule {change.rule}"
    return TerminalLine(
        (f"{when}  ", "dim"),
        f"{escape_text(change.tool_name)} {change.arguments} {_WAS[change.was]}, {_WOULD[change.would]} ({rule})",
        (f"  thread {escape_text(shorten_id(change.thread_id))}", "dim"),
        indent=1,
    )


def _note_lines(notes: list[str]) -> Iterator[TerminalLine]:
    for note in notes:
        yield TerminalLine((one_line(note, LINE_CHARS), "warn"), mark="note")
