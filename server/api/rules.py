"""What the operator's rules say: about one call that somebody imagines, and about themselves.

`explain_rules` looks at each condition by itself, so that a person sees why a rule decides or does not. What decides in
the end is the policy, as for every real call.
"""

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import TypeVar, cast

import msgspec

from planwarden.agent.approval.conditions import MISSING, show_value
from planwarden.agent.approval.rules import MAX_WORK, ArgumentRule, RuleBook
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.policy import PathsNeeded, Policy, RealPaths, Requirement
from planwarden.agent.runtime.real_paths import find_real_paths

Judgement = TypeVar("Judgement")


class ConditionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one condition of a rule."""

    words: str
    """What it wants."""
    verdict: str
    """`yes`, `no`, `missing` for a value that is not there, or `unknown` when it cannot be evaluated."""
    value: str | None
    """The value that it looked at, as JSON, long ones cut; null when there is none."""


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one rule whose name or glob fits the tool."""

    number: int
    """Its place in the file, from 1."""
    words: str
    """What it says, in one line."""
    verdict: str
    """`yes`, `no`, or `unknown` when it cannot be evaluated, so that a person is asked."""
    conditions: tuple[ConditionVerdict, ...]
    """In the order of the file."""


async def find_requirement(
    policy: Policy, definition: ToolDefinition, arguments: Mapping[str, JsonValue]
) -> tuple[Requirement, RealPaths]:
    """Return what the policy asks of a call now, and where the paths in it lead, as far as rules had to know."""
    paths: dict[str, str | None] = {}
    return await _judge(lambda: policy.requirement(definition, arguments, paths), paths), paths


async def _judge(judge: Callable[[], Judgement], paths: dict[str, str | None]) -> Judgement:
    """Return the judgement, and add to the paths what it needs to know of them."""
    while True:
        try:
            return judge()
        except PathsNeeded as needed:
            paths |= await find_real_paths(needed.wanted)


async def explain_rules(book: RuleBook, tool_name: str, arguments: Mapping[str, JsonValue]) -> tuple[RuleVerdict, ...]:
    """Return the rules for the tool up to the one that decides, in the order of the file."""
    rules: list[RuleVerdict] = []
    paths: dict[str, str | None] = {}
    for rule in book.list_rules_for(tool_name):
        conditions = await _judge(partial(_explain, rule, arguments, paths), paths)
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
    """Yield what the operator may not have meant, at most one sentence for each rule and reason.

    `servers` has the beginnings of the names of tools that are unknown until their server has listed them.
    """
    for place, rule in enumerate(book.rules):
        if rule.loosens is not False:
            yield from list_open_ends(rule)
        shadow = next((before for before in book.rules[:place] if _is_shadowed(rule, before)), None)
        if shadow is not None:
            yield f"rule {rule.number} never decides: rule {shadow.number} matches every call of {shadow.tool} first"
        yield from _list_notes_on_tool(rule, tools, servers)


def list_open_ends(rule: ArgumentRule) -> Iterator[str]:
    """Yield a sentence for each condition with `min` alone or `max` alone."""
    for condition in rule.conditions:
        if condition.note is not None:
            yield f"rule {rule.number}: {condition.note}"


def _is_shadowed(rule: ArgumentRule, before: ArgumentRule) -> bool:
    # A glob is compared as text here: what fits the narrower one fits the wider one.
    return not before.conditions and fnmatchcase(rule.tool, before.tool)


def _list_notes_on_tool(
    rule: ArgumentRule, tools: Mapping[str, ToolDefinition], servers: tuple[str, ...]
) -> Iterator[str]:
    if any(char in rule.tool for char in "*?/"):
        # A name with a slash is a tool of a host itself.
        return
    definition = tools.get(rule.tool)
    if definition is None:
        if not rule.tool.startswith(servers):
            yield f"rule {rule.number} names {rule.tool!r}, and there is no such tool{did_you_mean(rule.tool, tools)}"
    elif definition.is_blocking:
        yield f"rule {rule.number} names {rule.tool!r}, which asks a person itself: rules do not answer for people"
    elif definition.risk == "critical" and rule.loosens is not False:
        yield f"rule {rule.number} takes nothing away from {rule.tool!r}, because its risk is critical"
