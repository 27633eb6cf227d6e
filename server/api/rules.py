"""What the operator's rules say about an imagined call or the calls in the log, and what looks wrong in the rules.

`explain_rules` looks at each condition by itself, so that a person sees why a rule decides or does not. In the end the
policy decides, as for every real call.

`replay_rules` judges each call once, in the order in which the calls were made, so that budgets fill up as they would
have. It skips calls whose arguments the log lacks, and changes nothing. A tool's risk is that of the current catalogue.
"""

from collections import deque
from collections.abc import AsyncGenerator, Container, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import cast

import msgspec

from planwarden.agent.approval.conditions import MISSING, show_value
from planwarden.agent.approval.rules import MAX_WORK, ArgumentRule, RuleBook
from planwarden.agent.common.errors import LogUnreadable, UnknownThread
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.binding.bindings import find_bindings
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.budgets_and_keys import ROUNDING
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.agent.ports.policy import Policy, RealPaths, Requirement
from planwarden.agent.ports.store import Lookups
from planwarden.agent.runtime.log_reader import find_log, fold_log
from planwarden.agent.runtime.real_paths import judge_with_paths
from planwarden.server.views.escaping import format_value

PAGE = 100
MAX_EXECUTIONS = 10_000
MAX_CALLS = 100_000
MAX_CHANGES = 50
"""The most changed calls that are listed; all of them are counted."""
ARGUMENT_CHARS = 200
_ASKED = ("approved", "rejected", "asked")


class ConditionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one condition of a rule."""

    words: str
    """What the condition wants."""
    verdict: str
    """`yes`, `no`, `missing` if there is no value, or `unknown` if the condition cannot be evaluated."""
    value: str | None
    """The value that the condition looked at, as JSON, cut if it is long; null when there is none."""


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one rule whose tool name or glob fits the tool."""

    number: int
    """The place of the rule in the file, from 1."""
    words: str
    """What the rule says, in one line."""
    verdict: str
    """`yes`, `no`, or `unknown` if the rule cannot be evaluated; then a person is asked."""
    conditions: tuple[ConditionVerdict, ...]
    """The verdicts on the conditions of the rule, in the order of the file."""


async def explain_rules(book: RuleBook, tool_name: str, arguments: Mapping[str, JsonValue]) -> tuple[RuleVerdict, ...]:
    """Return the verdicts on the rules for the tool, in the order of the file, up to the rule that decides."""
    return await judge_with_paths(partial(_explain_rules, book, tool_name, arguments))


def _explain_rules(
    book: RuleBook, tool_name: str, arguments: Mapping[str, JsonValue], paths: RealPaths
) -> tuple[RuleVerdict, ...]:
    rules: list[RuleVerdict] = []
    for rule in book.list_rules_for(tool_name):
        conditions = _explain(rule, arguments, paths)
        answers = {condition.verdict for condition in conditions}
        verdict = "no" if answers & {"no", "missing"} else "unknown" if "unknown" in answers else "yes"
        rules.append(RuleVerdict(number=rule.number, words=rule.words, verdict=verdict, conditions=conditions))
        if verdict != "no":
            break
    return tuple(rules)


def _explain(rule: ArgumentRule, arguments: Mapping[str, JsonValue], paths: RealPaths) -> tuple[ConditionVerdict, ...]:
    verdicts: list[ConditionVerdict] = []
    for condition in rule.conditions:
        value = cast("JsonValue", condition.find_value(arguments))
        if value is MISSING:
            verdicts.append(ConditionVerdict(words=condition.words, verdict="missing", value=None))
            continue
        verdict, _ = condition.judge(value, MAX_WORK, paths, loosens=rule.loosens)
        verdicts.append(ConditionVerdict(words=condition.words, verdict=verdict, value=show_value(value)))
    return tuple(verdicts)


def list_rule_notes(book: RuleBook, tools: Mapping[str, ToolDefinition], servers: tuple[str, ...]) -> Iterator[str]:
    """Yield a sentence for each thing in the rules that the operator may not have meant.

    `servers` has the prefixes of tool names that are unknown until their server has listed them.
    """
    for index, rule in enumerate(book.rules):
        if rule.loosens is not False:
            yield from list_open_ends(rule)
        shadow = next((before for before in book.rules[:index] if _is_shadowed(rule, before)), None)
        if shadow is not None:
            yield f"rule {rule.number} never decides: rule {shadow.number} matches every call of {shadow.tool} first"
        yield from _list_notes_on_tool(rule, tools, servers)


def list_open_ends(rule: ArgumentRule) -> Iterator[str]:
    """Yield a sentence for each condition with `min` alone or `max` alone."""
    for condition in rule.conditions:
        if condition.note is not None:
            yield f"rule {rule.number}: {condition.note}"


def _is_shadowed(rule: ArgumentRule, before: ArgumentRule) -> bool:
    # Here, the other rule's name or glob is matched as text: a wider glob matches the text of a narrower one.
    return not before.conditions and fnmatchcase(rule.tool, before.tool)


def _list_notes_on_tool(
    rule: ArgumentRule, tools: Mapping[str, ToolDefinition], servers: tuple[str, ...]
) -> Iterator[str]:
    if any(char in rule.tool for char in "*?/"):
        # A name with a slash is a host's own tool.
        return
    definition = tools.get(rule.tool)
    if definition is None:
        if not rule.tool.startswith(servers):
            yield f"rule {rule.number} names {rule.tool!r}, and there is no such tool{did_you_mean(rule.tool, tools)}"
    elif definition.is_blocking:
        yield f"rule {rule.number} names {rule.tool!r}, which asks a person itself: rules do not answer for people"
    elif definition.risk == "critical" and rule.loosens is not False:
        yield f"rule {rule.number} cannot loosen {rule.tool!r}, because its risk is critical"


class ReplayedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the rules would now treat differently."""

    at: float
    """When the call was made, else when it was asked about, else when its execution last changed; Unix seconds."""
    thread_id: str
    """The thread of the call."""
    tool_name: str
    """The tool that was called."""
    arguments: str
    """The arguments of the call as JSON, cut if they are long."""
    was: str
    """`ran`, `approved`, `rejected`, `asked`, `granted`, `allowed` or `denied`."""
    would: str
    """`allow`, `ask` or `deny`."""
    rule: int | None = None
    """The number of the rule that would decide; null if no rule matches."""


class RuleCount(msgspec.Struct, kw_only=True):
    """How often one rule would decide."""

    rule: int | None = None
    """The number of the rule; null for calls that no rule matches."""
    allow: int = 0
    """Calls that would run without a question."""
    ask: int = 0
    """Calls that a person would be asked about."""
    deny: int = 0
    """Calls that would be refused."""
    spent: int = 0
    """The calls in `ask` that the rule would allow if its budget had not been used up."""


class RuleReplay(msgspec.Struct, kw_only=True):
    """What the rules would have done."""

    executions: int = 0
    """Executions that were looked at."""
    calls: int = 0
    """Calls that were judged."""
    unreadable: int = 0
    """Executions whose log cannot be read."""
    is_whole: bool = True
    """Whether the replay looked at all executions and calls in the period, and not only at the newest."""
    counts: tuple[RuleCount, ...]
    """The counts of the rules that would decide about a call, in the order of the file; last, calls without a rule."""
    asked_less: int = 0
    """Calls that a person was asked about and that would have run without a question."""
    asked_more: int = 0
    """Calls that ran without a question and that a person would be asked about."""
    denied: int = 0
    """Calls that ran, or were asked about, and would be refused."""
    changes: tuple[ReplayedCall, ...]
    """The newest calls that would have ended differently."""


class _PastCall(msgspec.Struct, frozen=True):
    at: float
    thread_id: str
    call: Call
    arguments: dict[str, JsonValue]
    was: str
    is_undone: bool
    """Whether the call failed and nothing happened, so that it gave back its shares of budgets."""


class _BudgetMemory:
    """What the allowed calls took from each budget within its rolling window."""

    def __init__(self) -> None:
        self._taken: dict[str, deque[tuple[float, float]]] = {}
        self._sums: dict[str, float] = {}

    def take(self, requirement: Requirement, call: _PastCall) -> bool:
        """Return whether the call fits all budgets of the rule. If so, take its shares, unless they were given back."""
        at = call.at
        for share in requirement.shares:
            uses = self._taken.setdefault(share.budget, deque())
            while uses and uses[0][0] <= at - share.window_s:
                self._sums[share.budget] -= uses.popleft()[1]
            if self._sums.setdefault(share.budget, 0.0) + share.amount > share.limit * ROUNDING:
                return False
        for share in () if call.is_undone else requirement.shares:
            self._taken[share.budget].append((at, share.amount))
            self._sums[share.budget] += share.amount
        return True


async def replay_rules(store: Lookups, policy: Policy, tools: Mapping[str, ToolDefinition], since: float) -> RuleReplay:
    """Return what the current policy says about calls from `since` on. Raises `StoreError` if the store cannot be
    read."""
    report = RuleReplay(counts=(), changes=())
    past_calls = [call async for call in _list_calls(store, tools, since, report)]
    past_calls.sort(key=lambda item: item.at)
    counts: dict[int | None, RuleCount] = {}
    budgets = _BudgetMemory()
    changes = deque[ReplayedCall](maxlen=MAX_CHANGES)
    for call in past_calls:
        definition = tools.get(call.call.tool_name)
        if definition is None:
            definition = ToolDefinition(name=call.call.tool_name, description="", input_schema={})
        if definition.is_blocking:
            continue
        requirement = await judge_with_paths(partial(policy.requirement, definition, call.arguments))
        report.calls += 1
        number = None if requirement.rule is None else requirement.rule.number
        count = counts.setdefault(number, RuleCount(rule=number))
        would = _add(count, requirement, has_room=budgets.take(requirement, call))
        if (changed := _compare(report, call, would, number)) is not None:
            changes.append(changed)
    report.counts = tuple(sorted(counts.values(), key=lambda item: (item.rule is None, item.rule or 0)))
    report.changes = tuple(reversed(changes))
    return report


def _add(count: RuleCount, requirement: Requirement, *, has_room: bool) -> str:
    """Count the call under its new outcome, and return this outcome as in `ReplayedCall.would`."""
    if requirement.denied is not None:
        count.deny += 1
        return "deny"
    if requirement.needs is None and has_room:
        count.allow += 1
        return "allow"
    count.ask += 1
    count.spent += requirement.needs is None
    return "ask"


def _compare(report: RuleReplay, past_call: _PastCall, would: str, number: int | None) -> ReplayedCall | None:
    """Return and count the call if it would end differently; otherwise return None."""
    before = "deny" if past_call.was == "denied" else "ask" if past_call.was in _ASKED else "allow"
    if would == before:
        return None
    report.denied += would == "deny"
    report.asked_more += would == "ask" and before == "allow"
    report.asked_less += would == "allow" and before == "ask"
    return ReplayedCall(
        at=past_call.at,
        thread_id=past_call.thread_id,
        tool_name=past_call.call.tool_name,
        arguments=format_value(past_call.arguments, ARGUMENT_CHARS),
        was=past_call.was,
        would=would,
        rule=number,
    )


async def _list_calls(
    store: Lookups, tools: Mapping[str, ToolDefinition], since: float, report: RuleReplay
) -> AsyncGenerator[_PastCall]:
    cursor: str | None = None
    count = 0
    while True:
        page = await store.list_executions(ExecutionFilter(), limit=PAGE, cursor=cursor)
        for row in page.rows:
            if row.active_at < since:
                return
            if report.executions >= MAX_EXECUTIONS or count >= MAX_CALLS:
                report.is_whole = False
                return
            report.executions += 1
            try:
                log = await find_log(store, row.execution_id)
                execution = fold_log(log.header, log.recorded)
            except (UnknownThread, LogUnreadable):
                report.unreadable += 1
                continue
            for past_call in _list_made(execution, _list_undone(log.recorded), tools, since):
                count += 1
                yield past_call
        cursor = page.next_cursor
        if cursor is None:
            return


def _list_undone(recorded: Sequence[ev.Recorded]) -> set[str]:
    """Return the ids of the calls whose last attempt failed without an effect."""
    undone: set[str] = set()
    for event in (each.event for each in recorded):
        if isinstance(event, ev.ToolCallIntended):
            undone.discard(event.call_id)
        elif isinstance(event, ev.ToolFailed | ev.CallAttemptFailed) and event.nothing_happened:
            undone.add(event.call_id)
    return undone


def _list_made(
    execution: ExecutionState, undone: Container[str], tools: Mapping[str, ToolDefinition], since: float
) -> Iterator[_PastCall]:
    for state in execution.steps.values():
        for call in state.calls:
            arguments = call.arguments
            if arguments is None and call.error_code == "denied" and not any(find_bindings(call.proposed)):
                # The call was denied after its defaults were filled in, and the log lacks those defaults.
                definition, arguments = tools.get(call.tool_name), call.proposed
                if definition is not None and not execution.options.is_literal:
                    arguments, _ = Schema(definition.input_schema, is_known=True).complete(arguments)
            if arguments is None or call.origin or call.rehearsed is not None:
                continue
            suspension = execution.suspensions.get(call.suspension_id or "")
            at = call.intended_at or (suspension.created_at if suspension is not None else execution.updated_at)
            if at >= since:
                was, is_undone = _describe_past(execution, call), call.call_id in undone
                yield _PastCall(at, execution.thread_id, call, arguments, was, is_undone)


def _describe_past(execution: ExecutionState, call: Call) -> str:
    """Return what became of the call, as in `ReplayedCall.was`."""
    if call.error_code == "denied":
        return "denied"
    if call.grant_id is not None:
        return "granted"
    if call.rule is not None:
        return "allowed"
    suspension = execution.suspensions.get(call.suspension_id or "")
    if suspension is None or suspension.question.addressee == "clock":
        return "ran"
    if suspension.is_open:
        return "asked"
    is_approved = call.status != "rejected" and suspension.decision is not None and suspension.decision.approved
    return "approved" if is_approved else "rejected"
