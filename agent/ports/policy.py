"""What the engine asks of the operator's policy."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from planwarden.agent.common.errors import Needed
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import Schedule
from planwarden.agent.core.tool import Risk, ToolDefinition


class Requirement(msgspec.Struct, frozen=True, gc=False):
    """What the policy asks of one call."""

    risk: Risk
    needs: ev.Needs | None
    """None lets the call run without a question."""
    quorum: int = 1
    """How many different people have to approve."""
    rule: ev.MatchedRule | None = None
    """The operator's rule that decided it."""
    denied: str | None = None
    """Why no call like it may run, even if somebody approves it; None when one may."""
    shares: tuple[ev.BudgetShare, ...] = ()
    """What it takes of the budgets of the rule, if it runs because of the rule."""
    found: str | None = None
    """Why a person is asked, in a sentence, where the rule alone does not say it."""
    has_no_key: bool = False
    """The call happens once, and its arguments lack the business key: no grant lets it through."""

    @property
    def effective_risk(self) -> Risk:
        """`read` for a call that a rule lets pass, whatever its tool's risk is."""
        return "read" if self.needs is None else self.risk


def describe_denial(requirement: Requirement) -> str:
    """Return why the operator's rule refuses, as a sentence that the model reads."""
    number = "" if requirement.rule is None else f" {requirement.rule.number}"
    return f"rule{number} of the operator denies it: {requirement.denied}"


RealPaths = Mapping[str, str | None]
"""Where a path really leads when all links are followed, by the path; None where that cannot be found out."""


class PathsNeeded(Needed):
    """The caller has to find out where these paths lead before a rule can be evaluated."""

    keys: frozenset[str]


class OnceRule(msgspec.Struct, frozen=True):
    """Calls of a tool with equal values at these places happen once."""

    pointers: tuple[str, ...]
    """JSON pointers into the arguments, at least one."""
    keep_s: float
    """Seconds for which a call keeps its key."""


class Policy(Protocol):
    """The operator's policy. Tools, models and callers have no say in it."""

    def requirement(
        self, definition: ToolDefinition, arguments: Mapping[str, JsonValue], paths: RealPaths | None = None
    ) -> Requirement:
        """Return what one call needs. Without `paths`, a rule that has to know where a path leads asks.

        Raises:
            PathsNeeded: `paths` lacks some that the rules need.
        """
        ...

    def looks_at_arguments(self, definition: ToolDefinition) -> bool:
        """Return whether calls of the tool may need more or less by their arguments; False if all of them need the
        same."""
        ...

    def find_once(self, tool_name: str) -> OnceRule | None:
        """Return by what a repeated call of the tool is recognised; None for most tools."""
        ...

    def for_risk(self, risk: Risk) -> Requirement:
        """Return what a call of that risk needs."""
        ...

    def worth(self, assurance: ev.Assurance, principal: str, owner: str, needs: ev.Needs | None) -> ev.Assurance | None:
        """Return what an approval by `principal` is worth for an execution of `owner`; None when it is less than
        `needs`."""
        ...

    def person(self, principal: str) -> str:
        """Return the name of the person behind the principal; principals of the same person have the same name."""
        ...

    def schedule(self, tool_name: str) -> Schedule:
        """Return when to remind people of questions about that tool; the empty name is for questions about no tool."""
        ...

    @property
    def policy_digest(self) -> str: ...
