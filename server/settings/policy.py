"""The operator's policy: what a call of a given risk needs, and which assurance a decision has.

Risks and levels of assurance are those of docs/security.md. The policy comes only from the operator's file; its digest
is part of every approval digest and of every row of the audit.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import force_setattr, replace

from planwarden.agent.approval.business_keys import explain_missing_key
from planwarden.agent.approval.rules import RuleBook
from planwarden.agent.common.canonical import digest
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import NO_ALARMS, Schedule
from planwarden.agent.core.tool import Risk, ToolDefinition, highest_risk, is_of_host
from planwarden.agent.ports.policy import OnceRule, RealPaths, Requirement
from planwarden.server.settings.host_calls import limit_host_call

NOT_ALLOWED = "the operator does not allow it"
"""Why a rule without `because` denies."""

_NEEDS: dict[Risk, ev.Needs | None] = {
    "read": None,
    "confirm": "client",
    "dangerous": "human",
    "critical": "signed",
}

_STRENGTH: dict[ev.Assurance, int] = {
    "claimed": 0,
    "caller": 0,
    "timeout": 0,
    "client": 1,
    "human": 2,
    "signed": 3,
    "second": 4,
    "embedder": 5,
}
"""A program that embeds planwarden is the operator, so it may decide everything."""


class OperatorPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Implements the engine's `Policy` port."""

    trust_caller: bool = False
    """The calling model's own approval counts; the audit records it as `claimed`."""
    critical: Literal["signed", "second"] = "signed"
    """What a critical call needs: a signature or a person other than the owner, or only the latter."""
    quorum: int = 1
    """How many different people have to approve a critical call."""
    approvers: tuple[str, ...] = ()
    """Who may approve critical calls; if empty, anybody of sufficient assurance."""
    same_person: frozenset[str] = frozenset()
    """Names of the same person: the owner of local executions, and the operating system's user at the terminal."""
    facts: dict[str, JsonValue] = {}
    """The settings of the operator's file that the digest covers."""
    rules: RuleBook | None = None
    """The operator's rules on arguments; `facts` has what the digest covers of them."""
    once: Mapping[str, OnceRule] = {}
    """By the name of a tool; `facts` has what the digest covers of them."""
    schedules: Mapping[str, Schedule] = {}
    """Reminders of questions by the name of the tool. Not in the digest, because they decide nothing."""
    default_schedule: Schedule = NO_ALARMS
    _digest: str = ""

    def requirement(
        self, definition: ToolDefinition, arguments: Mapping[str, JsonValue], paths: RealPaths | None = None
    ) -> Requirement:
        """See the port. The definition has the operator's risk already, see `Settings.apply_to`."""
        if is_of_host(definition.name):
            return limit_host_call(self._judge, definition, arguments, paths, self.rules)
        judgement = self._judge(definition, arguments, paths)
        once = self.once.get(definition.name)
        if once is None or judgement.denied is not None:
            return judgement
        text = explain_missing_key(once, definition.name, arguments)
        if text is None:
            return judgement
        at_least = self.for_risk(highest_risk(judgement.risk, "dangerous"))
        return replace(at_least, rule=judgement.rule, found=text, has_no_key=True)

    def looks_at_arguments(self, definition: ToolDefinition) -> bool:
        if is_of_host(definition.name) or definition.name in self.once:
            return True
        return self.rules is not None and bool(self.rules.list_rules_for(definition.name))

    def find_once(self, tool_name: str) -> OnceRule | None:
        return self.once.get(tool_name)

    def _judge(
        self, definition: ToolDefinition, arguments: Mapping[str, JsonValue], paths: RealPaths | None
    ) -> Requirement:
        """Return what rules and risk ask.

        Rules never answer the question of a blocking tool, and take nothing away from a critical one.
        """
        if self.rules is None or definition.is_blocking:
            return self.for_risk(definition.risk)
        judgement = self.rules.judge(definition.name, arguments, paths)
        if judgement is None:
            return self.for_risk(definition.risk)
        risk = definition.risk
        if judgement.then == "deny":
            return replace(self.for_risk(risk), rule=judgement.rule, denied=judgement.because or NOT_ALLOWED)
        if risk == "critical":
            return self.for_risk(risk)
        if judgement.then == "allow":
            return Requirement(risk, None, rule=judgement.rule, shares=judgement.shares)
        raised = highest_risk(risk, "dangerous") if judgement.then == "ask" else judgement.risk or risk
        return replace(self.for_risk(raised), rule=judgement.rule)

    def for_risk(self, risk: Risk) -> Requirement:
        if risk == "critical":
            return Requirement(risk, self.critical, self.quorum)
        return Requirement(risk, _NEEDS[risk])

    def worth(self, assurance: ev.Assurance, principal: str, owner: str, needs: ev.Needs | None) -> ev.Assurance | None:
        """See the port. Where a signature or a second person is needed, a person other than the owner is a `second`."""
        if needs is None or assurance == "embedder" or (self.trust_caller and assurance == "claimed"):
            return assurance
        if needs in ("signed", "second"):
            if self.approvers and principal not in self.approvers:
                return None
            if assurance in ("human", "signed") and self.person(principal) != self.person(owner):
                assurance = "second"
        return assurance if _STRENGTH[assurance] >= _STRENGTH[needs] else None

    def schedule(self, tool_name: str) -> Schedule:
        return self.schedules.get(tool_name, self.default_schedule)

    def person(self, principal: str) -> str:
        return min(self.same_person) if principal in self.same_person else principal

    def __post_init__(self) -> None:
        computed = digest(
            {
                "trustCaller": self.trust_caller,
                "critical": self.critical,
                "quorum": self.quorum,
                "approvers": list[JsonValue](sorted(self.approvers)),
                **self.facts,
            },
            context="policy/v1",
        )
        force_setattr(self, "_digest", computed)

    @property
    def policy_digest(self) -> str:
        return self._digest
