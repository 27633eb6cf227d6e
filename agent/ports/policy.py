"""The interface through which the engine consults the operator's policy."""

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from planwarden.agent.common.errors import Needed
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import Schedule
from planwarden.agent.core.tool import Risk, ToolDefinition


class Requirement(msgspec.Struct, frozen=True, gc=False):
    """What the policy requires for one call."""

    risk: Risk
    needs: ev.Needs | None
    """The assurance that an approval must have; None lets the call run without a question."""
    quorum: int = 1
    """How many different people have to approve."""
    rule: ev.MatchedRule | None = None
    """The operator's rule that set this requirement."""
    denied: str | None = None
    """Why the call may not run even if somebody approves it; None if it may run."""
    shares: tuple[ev.BudgetShare, ...] = ()
    """The shares of the rule's budgets that the call uses up, if it runs because of the rule."""
    found: str | None = None
    """A sentence that says why a person is asked, if that is not clear from the rule alone."""
    has_no_key: bool = False
    """Whether the arguments lack the business key that a call of this tool needs; no grant then lets it through."""

    @property
    def effective_risk(self) -> Risk:
        """`read` for a call that may run without a question, whatever the risk of its tool; otherwise `risk`."""
        return "read" if self.needs is None else self.risk


def describe_denial(requirement: Requirement) -> str:
    """Return a sentence for the model that says why the operator's rule refuses the call."""
    number = "" if requirement.rule is None else f" {requirement.rule.number}"
    return f"rule{number} of the operator denies it: {requirement.denied}"


RealPaths = Mapping[str, str | None]
"""For each path, where it really leads once all links are followed; None if that cannot be found out."""


class PathsNeeded(Needed):
    """The caller has to find out where these paths lead before a rule can be evaluated."""

    keys: frozenset[str]


class OnceRule(msgspec.Struct, frozen=True):
    """A rule for one tool: of all calls with equal values at these places in the arguments, only one may happen."""

    pointers: tuple[str, ...]
    """JSON pointers into the arguments, at least one."""
    keep_s: float
    """Seconds for which a call keeps its key."""


class Policy(Protocol):
    """The operator's policy. Tools, models and callers have no say in it."""

    def requirement(
        self, definition: ToolDefinition, arguments: Mapping[str, JsonValue], paths: RealPaths | None = None
    ) -> Requirement:
        """Return what one call needs. Without `paths`, a rule that depends on where a path leads asks a person.

        Raises:
            PathsNeeded: the rules need to know about paths that `paths` lacks.
        """
        ...

    def looks_at_arguments(self, definition: ToolDefinition, names: Collection[str] | None = None) -> bool:
        """Return whether the requirement for a call of the tool depends on its arguments, or on those with these names;
        False if it is the same whatever they are."""
        ...

    def find_once(self, tool_name: str) -> OnceRule | None:
        """Return the rule that recognises a repeated call of the tool; None for most tools."""
        ...

    def for_risk(self, risk: Risk) -> Requirement:
        """Return what a call of that risk needs."""
        ...

    def worth(self, assurance: ev.Assurance, principal: str, owner: str, needs: ev.Needs | None) -> ev.Assurance | None:
        """Return the assurance that counts if `principal` approves with `assurance` in an execution of `owner`; None if
        it is less than `needs`."""
        ...

    def person(self, principal: str) -> str:
        """Return the name of the person behind the principal; principals of the same person have the same name."""
        ...

    def schedule(self, tool_name: str) -> Schedule:
        """Return when to remind people of questions about that tool; the empty name is for questions about no tool."""
        ...

    @property
    def policy_digest(self) -> str: ...
