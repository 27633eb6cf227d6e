"""The operator's rules on arguments: which calls pass, which need a person, and which are refused.

The first rule that matches decides. A rule matches a call when its glob fits the tool's name and every condition holds.
When nobody can know whether a rule matches, a person is asked: the rule might refuse the call, or let it pass.
This module looks only at names of tools and at values: the policy says what a risk needs, and the store says what a
budget has left.
"""

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, cast

import msgspec
from pydantic import JsonValue

from planwarden.agent.approval.conditions import MISSING, RuleCondition, Verdict, show_value
from planwarden.agent.core.execution.events import BudgetShare
from planwarden.agent.core.execution.question import MatchedRule
from planwarden.agent.core.tool import Risk
from planwarden.agent.ports.policy import PathsNeeded, RealPaths

Then = Literal["allow", "ask", "deny"]

MAX_WORK = 2_500_000
"""The most units of work for judging one call: about 50 ms, see `planwarden.agent.common.schema_cost`."""
UNEVALUATED = "it could not be evaluated, so a person is asked"
UNCOUNTED = "its budget cannot count this call, so a person is asked"
"""This or `UNEVALUATED` is shown as the reason for a question, before the values that the rule looked at."""
MAX_CACHED = 1_000
"""The most tool names for which `RuleBook` caches the rules."""


class RuleBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on the calls that a rule allows in a rolling window: on their number, or on the sum of an argument."""

    budget: str
    """A digest of the rule's tool and conditions and of this budget."""
    condition: RuleCondition | None = None
    """Where the amount is in the arguments; None if the budget counts calls."""
    limit: float
    window_s: float


class ArgumentRule(msgspec.Struct, frozen=True, kw_only=True):
    """One `[[rules]]` table."""

    number: int
    """Its place in the file, from 1."""
    tool: str
    """A name or a glob."""
    conditions: tuple[RuleCondition, ...] = ()
    then: Then | None = None
    risk: Risk | None = None
    """The risk that replaces the tool's own; exactly one of this and `then` is set."""
    budgets: tuple[RuleBudget, ...] = ()
    because: str = ""
    words: str = ""

    @property
    def loosens(self) -> bool | None:
        """Whether the rule can only lower what a call needs; None if it sets the risk `confirm`, which lowers the needs
        of some tools and raises those of others."""
        if self.risk == "confirm":
            return None
        return self.then == "allow" or self.risk == "read"


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules say about one call."""

    then: Then | None
    """None for a rule that sets the risk."""
    risk: Risk | None = None
    rule: MatchedRule
    because: str = ""
    shares: tuple[BudgetShare, ...] = ()
    is_certain: bool = True
    """False when the rule could not be evaluated, so that a person is asked."""


class RuleBook:
    """All rules, in the order of the file."""

    def __init__(self, rules: tuple[ArgumentRule, ...] = ()) -> None:
        self.rules = rules
        self._globs = tuple(compile_glob(rule.tool) for rule in rules)
        self.list_rules_for = lru_cache(MAX_CACHED)(self._list_rules_for)

    def _list_rules_for(self, tool_name: str) -> tuple[ArgumentRule, ...]:
        return tuple(rule for rule, glob in zip(self.rules, self._globs, strict=True) if glob.fullmatch(tool_name))

    def judge(
        self, tool_name: str, arguments: Mapping[str, JsonValue], paths: RealPaths | None = None
    ) -> Judgement | None:
        """Return what the first matching rule says; None when no rule matches.

        Without `paths`, it is unknown where a path leads, so a rule with `under` asks a person.

        Raises:
            PathsNeeded: `paths` lacks a path that the rules need.
        """
        work_left, missing = MAX_WORK, set[str]()
        for rule in self.list_rules_for(tool_name):
            try:
                verdict, matched, work_left = _match(rule, arguments, work_left, paths)
            except PathsNeeded as needed:
                # The next rule may need other paths; they are all looked up at once.
                missing |= needed.keys
                continue
            if verdict == "no":
                continue
            if missing:
                break
            if verdict == "unknown":
                return _ask_instead(rule, UNEVALUATED, matched.values())
            shares = _take_shares(rule, arguments)
            if shares is None:
                return _ask_instead(rule, UNCOUNTED, matched.values())
            matched_rule = MatchedRule(number=rule.number, words=rule.words, matched=tuple(matched.values()))
            return Judgement(then=rule.then, risk=rule.risk, rule=matched_rule, because=rule.because, shares=shares)
        if missing:
            raise PathsNeeded(missing)
        return None


def _match(
    rule: ArgumentRule, arguments: Mapping[str, JsonValue], work_left: int, paths: RealPaths | None
) -> tuple[Verdict, dict[str, str], int]:
    """Return whether the rule matches, the matching or doubtful values by pointer, and the units of work left.

    One condition that fails for certain settles the verdict, so conditions on paths, which need the disk, come last.
    """
    matched, doubts = dict[str, str](), dict[str, str]()
    for condition in sorted(rule.conditions, key=lambda condition: bool(condition.folders)):
        value = condition.find_value(arguments)
        if value is MISSING:
            return "no", {}, work_left
        json_value = cast("JsonValue", value)
        answer, work = condition.judge(json_value, work_left, paths, loosens=rule.loosens)
        work_left = max(0, work_left - work)
        if answer == "no":
            return "no", {}, work_left
        facts = matched if answer == "yes" else doubts
        facts[condition.pointer] = f"{condition.pointer} = {show_value(json_value)}"
    return ("unknown", doubts, work_left) if doubts else ("yes", matched, work_left)


def _take_shares(rule: ArgumentRule, arguments: Mapping[str, JsonValue]) -> tuple[BudgetShare, ...] | None:
    """Return what the call takes from the rule's budgets; None when an amount cannot be counted."""
    shares: list[BudgetShare] = []
    for budget in rule.budgets:
        amount: object = 1.0 if budget.condition is None else budget.condition.find_value(arguments)
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            return None
        try:
            counted = float(amount)
        except OverflowError:
            return None
        # A negative amount would leave more for later calls than the operator allowed.
        if not 0 <= counted < math.inf:
            return None
        shares.append(BudgetShare(budget=budget.budget, amount=counted, limit=budget.limit, window_s=budget.window_s))
    return tuple(shares)


def _ask_instead(rule: ArgumentRule, why: str, doubts: Iterable[str]) -> Judgement:
    matched_rule = MatchedRule(number=rule.number, words=rule.words, matched=(why, *doubts))
    return Judgement(then="ask", rule=matched_rule, because=why, is_certain=False)


def compile_glob(glob: str) -> re.Pattern[str]:
    """Return the pattern of a glob: `*` matches any characters and `?` matches one."""
    # Adjacent stars mean the same as one, and would make matching slow.
    chars = re.sub(r"\*+", "*", glob)
    pattern = "".join(".*" if char == "*" else "." if char == "?" else re.escape(char) for char in chars)
    return re.compile(pattern, re.DOTALL)
