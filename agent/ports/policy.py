"""What the engine asks of the operator's policy."""

from collections.abc import Mapping
from typing import Protocol

import msgspec
from pydantic import JsonValue

from planwarden.agent.core import events as ev
from planwarden.agent.core.alarms import Schedule
from planwarden.agent.core.tool import Risk, ToolDefinition


class Requirement(msgspec.Struct, frozen=True):
    """What the policy asks of one call."""

    risk: Risk
    needs: ev.Needs | None
    """None lets the call run without a question."""
    quorum: int = 1
    """How many different people have to approve."""


class Policy(Protocol):
    """The operator's policy. Tools, models and callers have no say in it."""

    def requirement(self, definition: ToolDefinition, arguments: Mapping[str, JsonValue]) -> Requirement: ...

    def for_risk(self, risk: Risk) -> Requirement:
        """What a call of that risk needs."""
        ...

    def worth(self, assurance: ev.Assurance, principal: str, owner: str, needs: ev.Needs | None) -> ev.Assurance | None:
        """What an approval by `principal` is worth for an execution of `owner`; None when it is less than `needs`."""
        ...

    def person(self, principal: str) -> str:
        """The name of the person behind the principal; principals of the same person have the same name."""
        ...

    def schedule(self, tool_name: str) -> Schedule:
        """When to remind people of questions about that tool; the empty name is for questions about no tool."""
        ...

    @property
    def policy_digest(self) -> str: ...
