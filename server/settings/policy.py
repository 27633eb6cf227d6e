"""The operator's policy: what a call of a given risk needs, and what whose decision is worth.

Levels of assurance and risks are those of docs/security.md. The policy comes from the operator's file and from nowhere
else; its digest is part of every approval digest and of every row of the audit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from planwarden.agent.common.canonical import digest
from planwarden.agent.core import events as ev
from planwarden.agent.core.alarms import NO_ALARMS, Schedule
from planwarden.agent.core.tool import Risk, ToolDefinition
from planwarden.agent.ports.policy import Requirement

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
"""A program that embeds planwarden is the operator; it decides about everything."""

_REQUIRED: dict[ev.Needs, int] = {"client": 1, "human": 2, "signed": 3, "second": 4}


@dataclass(frozen=True)
class OperatorPolicy:
    """Implements the engine's `Policy` port."""

    trust_caller: bool = False
    """The operator lets the calling model's own word count; audited as `claimed`."""
    critical: Literal["signed", "second"] = "signed"
    """What a critical call needs: a signature or somebody other than the owner, or only the latter."""
    quorum: int = 1
    """How many different people have to approve a critical call."""
    approvers: tuple[str, ...] = ()
    """Who may approve critical calls; empty for anybody of sufficient assurance."""
    same_person: frozenset[str] = frozenset()
    """Names of one person: the owner of what runs here, and the operating system's user at the terminal."""
    facts: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """What the operator's file says, for the digest."""
    schedules: Mapping[str, Schedule] = field(default_factory=dict[str, Schedule])
    """When to remind of questions about a tool, by its name. Not in the digest: it decides nothing."""
    default_schedule: Schedule = NO_ALARMS
    _digest: str = field(init=False, repr=False, compare=False, default="")

    def requirement(self, definition: ToolDefinition, arguments: Mapping[str, JsonValue]) -> Requirement:
        """Risk and needs of one call. The definition's risk is already the operator's, see `configuration`."""
        return self.for_risk(definition.risk)

    def for_risk(self, risk: Risk) -> Requirement:
        if risk == "critical":
            return Requirement(risk, self.critical, self.quorum)
        return Requirement(risk, _NEEDS[risk])

    def worth(self, assurance: ev.Assurance, principal: str, owner: str, needs: ev.Needs | None) -> ev.Assurance | None:
        """See the port. A person other than the owner is a `second`, where a second or a signature is needed."""
        if needs is None or assurance == "embedder" or (self.trust_caller and assurance == "claimed"):
            return assurance
        if needs in ("signed", "second"):
            if self.approvers and principal not in self.approvers:
                return None
            if assurance in ("human", "signed") and self.person(principal) != self.person(owner):
                assurance = "second"
        return assurance if _STRENGTH[assurance] >= _REQUIRED[needs] else None

    def schedule(self, tool_name: str) -> Schedule:
        return self.schedules.get(tool_name, self.default_schedule)

    def person(self, principal: str) -> str:
        return min(self.same_person) if principal in self.same_person else principal

    def __post_init__(self) -> None:
        found = digest(
            {
                "trustCaller": self.trust_caller,
                "critical": self.critical,
                "quorum": self.quorum,
                "approvers": list[JsonValue](sorted(self.approvers)),
                **self.facts,
            },
            context="policy/v1",
        )
        object.__setattr__(self, "_digest", found)

    @property
    def policy_digest(self) -> str:
        return self._digest
