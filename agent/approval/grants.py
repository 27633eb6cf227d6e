"""Standing grants: "this tool with these arguments, at most so often, until then", decided by a person beforehand.

A grant is bound to the exact definition of the tool, to values of some or all arguments, to a number of uses, and to a
time. It is worth what its maker's assurance is worth: a grant made at `human` lets no critical call through. The store
counts a use in the transaction that records the intent, so several processes together cannot use a grant more often
than it says. This module only holds a copy to choose from.
"""

from collections.abc import Iterable, Mapping

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core import events as ev
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.policy import Policy, Requirement
from planwarden.agent.ports.store import Grant

MAX_HOURS = 8
MAX_LIFE_S = MAX_HOURS * 3600.0
MAX_USES = 1_000
MAKERS: frozenset[ev.Assurance] = frozenset({"human", "signed", "second", "embedder"})


class GrantCache(msgspec.Struct):
    """The grants that are open as far as this process knows."""

    policy: Policy
    _open: tuple[Grant, ...] = ()

    def fill(self, grants: Iterable[Grant]) -> None:
        """Replace the copy with what the store has now."""
        self._open = tuple(grants)

    def drop(self, grant_id: str) -> None:
        """Do not choose this grant again until the next `fill`, because the store refused it."""
        self._open = tuple(grant for grant in self._open if grant.grant_id != grant_id)

    def find_covering(
        self,
        definition: ToolDefinition,
        arguments: Mapping[str, JsonValue],
        requirement: Requirement,
        owner: str,
        now: float,
    ) -> str | None:
        """The id of a grant that lets this call through, the one that ends first; None when there is none."""
        if not self._open or requirement.quorum > 1 or definition.is_blocking:
            return None
        found = [
            grant
            for grant in self._open
            if is_open(grant, now)
            and has_terms_for(grant, definition, arguments, owner)
            and self.policy.worth(grant.assurance, grant.created_by, owner, requirement.needs) is not None
        ]
        return min(found, key=lambda grant: grant.expires_at).grant_id if found else None

    def has_any_for(self, definition: ToolDefinition, owner: str, now: float) -> bool:
        """True when a grant lets some call of the tool through for that owner."""
        return any(
            grant.tool_name == definition.name
            and grant.definition_digest == definition.digest
            and grant.owner in (None, owner)
            and is_open(grant, now)
            for grant in self._open
        )


def is_open(grant: Grant, now: float) -> bool:
    return grant.revoked_at is None and grant.used < grant.uses and now < grant.expires_at


def has_terms_for(grant: Grant, definition: ToolDefinition, arguments: Mapping[str, JsonValue], owner: str) -> bool:
    """True for exactly the pinned tool, the owner it was made for, and equal values of all arguments that it names."""
    return (
        grant.tool_name == definition.name
        and grant.definition_digest == definition.digest
        and grant.owner in (None, owner)
        and all(
            name in arguments and canonical_json(arguments[name]) == canonical_json(value)
            for name, value in grant.arguments.items()
        )
    )
