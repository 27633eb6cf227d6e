"""The operator's policy: what a call of a given risk needs, and whose decision is enough.

Levels of assurance and risks are those of docs/security.md. The policy comes from the operator's file and from nowhere
else; its digest is part of every approval digest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from planwarden.agent import events as ev
from planwarden.agent.canonical import digest
from planwarden.agent.ports import Requirement
from planwarden.agent.tool import Risk, ToolDefinition

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
    "embedder": 4,
    "signed": 3,
    "second": 3,
}
"""A program that embeds planwarden is the operator; it decides about everything."""

_REQUIRED: dict[ev.Needs, int] = {"client": 1, "human": 2, "signed": 3, "second": 3}


@dataclass(frozen=True)
class Policy:
    """Implements the engine's `Gate` port."""

    trust_caller: bool = False
    """The operator lets the calling model's own word count; audited as `claimed`."""
    terminal_decides_critical: bool = True
    """Until signatures and second approvers exist, the command line is the only door to critical calls."""
    facts: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """What the operator's file says, for the digest."""
    _digest: str = field(init=False, repr=False, compare=False, default="")

    def requirement(self, definition: ToolDefinition, arguments: Mapping[str, JsonValue]) -> Requirement:
        """Risk and needs of one call. The definition's risk is already the operator's, see `configuration`."""
        return self.for_risk(definition.risk)

    def for_risk(self, risk: Risk) -> Requirement:
        return Requirement(risk, _NEEDS[risk])

    def suffices(self, assurance: ev.Assurance, needs: ev.Needs | None) -> bool:
        if needs is None or (self.trust_caller and assurance == "claimed"):
            return True
        if self.terminal_decides_critical and assurance == "human":
            return True
        return _STRENGTH[assurance] >= _REQUIRED[needs]

    def __post_init__(self) -> None:
        found = digest({"trustCaller": self.trust_caller, **self.facts}, context="policy/v1")
        object.__setattr__(self, "_digest", found)

    @property
    def policy_digest(self) -> str:
        return self._digest
