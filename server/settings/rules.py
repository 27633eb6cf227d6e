"""The operator's `[[rules]]` tables: what may be called with which arguments.

Every fault raises an error that names the rule, the key and what would be right: a rule that silently does nothing, or
matches more than it says, is worse than no rule.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from planwarden.agent.approval.conditions import RuleCondition, RuleFault, compile_condition
from planwarden.agent.approval.rules import ArgumentRule, RuleBook, RuleBudget
from planwarden.agent.common.canonical import digest
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.tool import Risk
from planwarden.agent.ports.holdings import MAX_SHARES
from planwarden.server.settings.options import to_invalid_arguments

MAX_RULES = 500
MAX_CONDITIONS = 20
MAX_BUDGETS = 5
MAX_WORDS_CHARS = 600
"""Of a rule in one line."""
_GLOB = re.compile(r"[A-Za-z0-9_.\-/*?]{1,200}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069]")

Period = Literal["hour", "day", "week", "month"]
PERIOD_S: Mapping[Period, float] = {"hour": 3_600.0, "day": 86_400.0, "week": 604_800.0, "month": 2_592_000.0}
"""Rolling: the seconds before the call. A month has 30 days."""


class BudgetSettings(BaseModel):
    """One entry of `budget`."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    sum: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """The argument whose numbers are added up, written as in `when`."""
    limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """What the sum may come to."""
    count: Annotated[int, Field(ge=1, le=MAX_SHARES)] | None = None
    """How many calls may pass; either this, or `sum` and `limit`."""
    per: Period
    """The last `hour`, `day`, `week` or `month` (30 days) before each call."""


class RuleSettings(BaseModel):
    """One `[[rules]]` table; the first that matches a call decides."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    tool: Annotated[str, Field(min_length=1, max_length=200)]
    """The name of a tool, or a glob: `*` stands for any characters, `?` for one."""
    when: dict[str, Any] = Field(default_factory=dict[str, Any])
    """What arguments must be like, see [Rules on arguments](../rules.md#when); without it every call matches."""
    then: Literal["allow", "ask", "deny"] | None = None
    """`allow` asks nobody, `ask` asks a person at least as `dangerous` does, `deny` refuses."""
    risk: Risk | None = None
    """The risk of a matching call, instead of `then`. Neither takes anything away from a `critical` tool."""
    budget: Annotated[list[Any], Field(max_length=MAX_BUDGETS)] = Field(default_factory=list[Any])
    """How much the calls that `allow` lets pass may come to; when it is spent, a person is asked."""
    because: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Why, in one line; a model reads it when its call is denied."""


def build_rule_book(section: Sequence[object]) -> tuple[RuleBook, list[JsonValue]]:
    """The rules in the order of the file, and what the digest of the policy covers of them.

    Raises:
        InvalidArguments: a rule is not usable; the message names it and the key.
    """
    if len(section) > MAX_RULES:
        raise InvalidArguments(f"planwarden.toml has {len(section)} [[rules]] tables, the limit is {MAX_RULES}")
    rules: list[ArgumentRule] = []
    facts: list[JsonValue] = []
    for number, table in enumerate(section, 1):
        if not isinstance(table, dict):
            raise InvalidArguments(f"rule {number} is no table; each rule begins with a line [[rules]]")
        try:
            parsed = RuleSettings.model_validate(table)
            rules.append(_build_rule(number, parsed))
        except ValidationError as error:
            raise InvalidArguments(to_invalid_arguments(error, f"rule {number}", RuleSettings).message) from None
        except RuleFault as error:
            raise InvalidArguments(f"rule {number}: {error}") from None
        # As it is written: whatever changes in a rule changes the policy.
        facts.append(cast("JsonValue", table))
    return RuleBook(tuple(rules)), facts


def _build_rule(number: int, parsed: RuleSettings) -> ArgumentRule:
    """Raises `RuleFault` for what the form of the table cannot say."""
    if not _GLOB.fullmatch(parsed.tool):
        raise RuleFault(
            f"tool = {parsed.tool[:80]!r} is no name or glob; letters, digits, '_', '-', '.' and '/', with '*' for any "
            "characters and '?' for one"
        )
    if (parsed.then is None) == (parsed.risk is None):
        raise RuleFault('needs either then = "allow", "ask" or "deny", or a risk, and not both')
    if parsed.because is not None and _CONTROL.search(parsed.because):
        raise RuleFault("because must be one line, without control characters")
    if len(parsed.when) > MAX_CONDITIONS:
        raise RuleFault(f"when has {len(parsed.when)} conditions, the limit is {MAX_CONDITIONS}")
    if parsed.budget and parsed.then != "allow":
        raise RuleFault('budget counts the calls that a rule lets pass, so it goes with then = "allow" only')
    conditions = tuple(_build_condition(pointer, written) for pointer, written in parsed.when.items())
    if len({condition.parts for condition in conditions}) < len(conditions):
        raise RuleFault("when names the same place twice, with and without a slash at the start")
    budgets = [_read_budget(entry, place) for place, entry in enumerate(parsed.budget, 1)]
    about = {"tool": parsed.tool, "when": cast("JsonValue", parsed.when)}
    return ArgumentRule(
        number=number,
        tool=parsed.tool,
        conditions=conditions,
        then=parsed.then,
        risk=parsed.risk,
        budgets=tuple(_build_budget(budget, about) for budget in budgets),
        because=parsed.because or "",
        words=_describe(parsed, conditions, budgets),
    )


def _build_condition(pointer: str, written: object) -> RuleCondition:
    name = pointer if len(pointer) <= 80 else pointer[:80] + "..."
    if _CONTROL.search(pointer) or len(pointer) > 500:
        raise RuleFault(f"when has the name {name!r}; use at most 500 characters and no control characters")
    try:
        return compile_condition(pointer, written)
    except RuleFault as error:
        raise RuleFault(f"when.{name!r} {error}") from None


def _read_budget(entry: object, place: int) -> BudgetSettings:
    if not isinstance(entry, dict):
        raise RuleFault(f'budget {place} is no table such as {{ sum = "amount", limit = 500, per = "day" }}')
    try:
        budget = BudgetSettings.model_validate(entry)
    except ValidationError as error:
        message = to_invalid_arguments(error, f"budget {place}", BudgetSettings).message
        raise RuleFault(message) from None
    is_sum = budget.sum is not None and budget.limit is not None and budget.count is None
    is_count = budget.sum is None and budget.limit is None and budget.count is not None
    if not (is_sum or is_count):
        raise RuleFault(f"budget {place} needs either sum and limit, or count")
    return budget


def _build_budget(budget: BudgetSettings, about: Mapping[str, JsonValue]) -> RuleBudget:
    condition = None
    if budget.sum is not None:
        try:
            condition = compile_condition(budget.sum, {"type": "number"})
        except RuleFault as error:
            raise RuleFault(f"budget: sum {error}") from None
    limit = budget.limit if budget.limit is not None else float(budget.count or 0)
    named = digest({**about, "budget": budget.model_dump(exclude_none=True)}, context="rule-budget/v1")
    return RuleBudget(budget=named, condition=condition, limit=limit, window_s=PERIOD_S[budget.per])


def _describe(parsed: RuleSettings, conditions: Sequence[RuleCondition], budgets: Sequence[BudgetSettings]) -> str:
    """The rule in one line of ASCII, as far as the operator wrote ASCII."""
    what = parsed.then if parsed.then is not None else f"risk {parsed.risk} for"
    when = f" when {' and '.join(condition.words for condition in conditions)}" if conditions else ""
    limits = ", ".join(
        f"{budget.limit:g} of {budget.sum} per {budget.per}"
        if budget.limit is not None
        else f"{budget.count} calls per {budget.per}"
        for budget in budgets
    )
    why = f" ({parsed.because})" if parsed.because else ""
    line = f"{what} {parsed.tool}{when}{f', at most {limits}' if limits else ''}{why}"
    return line if len(line) <= MAX_WORDS_CHARS else line[: MAX_WORDS_CHARS - 3] + "..."
