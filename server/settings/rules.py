"""The operator's `[[rules]]` tables: what may be called with which arguments.

Every fault raises an error that names the rule, the key and what would be right: a rule that silently does nothing, or
matches more than it says, is worse than no rule.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from pydantic import Field, JsonValue, model_validator

from planwarden.agent.approval.conditions import RuleCondition, RuleFault, compile_condition
from planwarden.agent.approval.rules import ArgumentRule, RuleBook, RuleBudget
from planwarden.agent.common.canonical import digest
from planwarden.agent.common.errors import count_of
from planwarden.agent.core.tool import Risk
from planwarden.agent.ports.budgets_and_keys import MAX_SHARES
from planwarden.server.settings.faults import Table, read_tables

MAX_RULES = 500
MAX_CONDITIONS = 20
MAX_BUDGETS = 5
MAX_WORDS_CHARS = 600
"""The most characters of a rule's description, which is one line."""
_GLOB = re.compile(r"[A-Za-z0-9_.\-/*?]{1,200}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069]")

Period = Literal["hour", "day", "week", "month"]
PERIOD_S: Mapping[Period, float] = {"hour": 3_600.0, "day": 86_400.0, "week": 604_800.0, "month": 2_592_000.0}
"""The length of each period in seconds; each period ends at the moment of the call. A month has 30 days."""


class BudgetSettings(Table):
    """One entry of `budget`."""

    sum: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """The argument whose numbers are added up, written as in `when`."""
    limit: Annotated[float, Field(gt=0)] | None = None
    """The most that the sum may reach."""
    count: Annotated[int, Field(ge=1, le=MAX_SHARES)] | None = None
    """How many calls may pass; either this, or `sum` and `limit`."""
    per: Period
    """The last `hour`, `day`, `week` or `month` (30 days) before each call."""

    @model_validator(mode="after")
    def _check_together(self) -> "BudgetSettings":
        is_sum = self.sum is not None and self.limit is not None and self.count is None
        is_count = self.sum is None and self.limit is None and self.count is not None
        if not (is_sum or is_count):
            raise RuleFault("needs either sum and limit, or count")
        self.build_condition()
        return self

    def build_condition(self) -> RuleCondition | None:
        """Return the condition on the argument that is added up; None where calls are counted.

        Raises:
            RuleFault: `sum` names no argument.
        """
        if self.sum is None:
            return None
        try:
            return compile_condition(self.sum, {"type": "number"})
        except RuleFault as error:
            raise RuleFault(f"sum {error}") from None

    @property
    def words(self) -> str:
        """The budget as one line of text."""
        if self.limit is not None:
            return f"{self.limit:g} of {self.sum} per {self.per}"
        return f"{count_of(self.count or 0, 'call')} per {self.per}"


class RuleSettings(Table):
    """One `[[rules]]` table; the first that matches a call decides."""

    tool: Annotated[str, Field(min_length=1, max_length=200)]
    """The name of a tool, or a glob: `*` matches any characters, `?` matches one."""
    when: Annotated[dict[str, Any], Field(max_length=MAX_CONDITIONS)] = Field(default_factory=dict[str, Any])
    """Conditions on arguments, see [Rules on arguments](../rules.md#when); without this key, every call matches."""
    then: Literal["allow", "ask", "deny"] | None = None
    """`allow` asks nobody, `ask` asks a person at least as `dangerous` does, `deny` refuses."""
    risk: Risk | None = None
    """The risk of a matching call, instead of `then`. Neither lowers what a `critical` tool needs."""
    budget: Annotated[list[BudgetSettings], Field(max_length=MAX_BUDGETS)] = Field(default_factory=list[BudgetSettings])
    """Limits on the number of calls that `allow` lets pass, or on a sum; once one is spent, a person is asked."""
    because: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Why, in one line; a model reads it when its call is denied."""

    @model_validator(mode="after")
    def _check_together(self) -> "RuleSettings":
        if not _GLOB.fullmatch(self.tool):
            raise RuleFault(
                f"tool = {self.tool[:80]!r} is neither a name nor a glob; letters, digits, '_', '-', '.' and '/', "
                "with '*' for any characters and '?' for one"
            )
        if (self.then is None) == (self.risk is None):
            raise RuleFault('needs either then = "allow", "ask" or "deny", or a risk, and not both')
        if self.because is not None and _CONTROL.search(self.because):
            raise RuleFault("because must be one line, without control characters")
        if self.budget and self.then != "allow":
            raise RuleFault('budget counts the calls that a rule lets pass, so it goes with then = "allow" only')
        if len({condition.parts for condition in self.conditions}) < len(self.conditions):
            raise RuleFault("when names the same place twice, with and without a slash at the start")
        return self

    @cached_property
    def conditions(self) -> tuple[RuleCondition, ...]:
        """The conditions that `when` states."""
        return tuple(_build_condition(pointer, matcher) for pointer, matcher in self.when.items())


class _RuleTables(Table):
    rules: Annotated[list[RuleSettings], Field(max_length=MAX_RULES)]


def build_rule_book(section: Sequence[object]) -> RuleBook:
    """Return the rules in the order of the file.

    Raises:
        InvalidArguments: a rule is not usable; the message names the rule and the key.
    """
    return build_rules(read_tables({"rules": section}, _RuleTables, "planwarden.toml").rules)


def build_rules(tables: Sequence[RuleSettings]) -> RuleBook:
    """Return the rules in the given order, numbered from 1."""
    return RuleBook(tuple(_build_rule(number, table) for number, table in enumerate(tables, 1)))


def _build_rule(number: int, table: RuleSettings) -> ArgumentRule:
    about = {"tool": table.tool, "when": cast("JsonValue", table.when)}
    return ArgumentRule(
        number=number,
        tool=table.tool,
        conditions=table.conditions,
        then=table.then,
        risk=table.risk,
        budgets=tuple(_build_budget(budget, about) for budget in table.budget),
        because=table.because or "",
        words=_describe(table),
    )


def _build_condition(pointer: str, matcher: object) -> RuleCondition:
    name = pointer if len(pointer) <= 80 else pointer[:80] + "..."
    if _CONTROL.search(pointer) or len(pointer) > 500:
        raise RuleFault(f"when has the name {name!r}; use at most 500 characters and no control characters")
    try:
        return compile_condition(pointer, matcher)
    except RuleFault as error:
        raise RuleFault(f"when.{name!r} {error}") from None


def _build_budget(budget: BudgetSettings, about: Mapping[str, JsonValue]) -> RuleBudget:
    limit = budget.limit if budget.limit is not None else float(budget.count or 0)
    name = digest({**about, "budget": budget.model_dump(exclude_none=True)}, context="rule-budget/v1")
    return RuleBudget(budget=name, condition=budget.build_condition(), limit=limit, window_s=PERIOD_S[budget.per])


def _describe(table: RuleSettings) -> str:
    """Return the rule in one line, which is ASCII unless the operator wrote other characters."""
    what = table.then if table.then is not None else f"risk {table.risk} for"
    when = f" when {' and '.join(condition.words for condition in table.conditions)}" if table.conditions else ""
    limits = ", ".join(budget.words for budget in table.budget)
    why = f" ({table.because})" if table.because else ""
    line = f"{what} {table.tool}{when}{f', at most {limits}' if limits else ''}{why}"
    return line if len(line) <= MAX_WORDS_CHARS else line[: MAX_WORDS_CHARS - 3] + "..."
