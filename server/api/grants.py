"""Makes, lists and revokes standing grants; `planwarden.agent.approval.grants` says what a grant allows.

Only a person or an embedding program makes a grant: no MCP tool leads here. Whoever can see a grant may revoke it.
"""

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority
from planwarden.agent.approval.grants import MAKERS, MAX_LIFE_S, MAX_USES, is_open
from planwarden.agent.common.canonical import check_depth, digest, is_larger
from planwarden.agent.common.errors import InvalidArguments, StaleDefinition, UnknownGrant, UnknownTool
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.store import Grant
from planwarden.server.views.suspension import to_utc

# Channels import the view of a grant before there is an engine.
if TYPE_CHECKING:
    from planwarden.agent.runtime.engine import Engine

MAX_ARGUMENT_BYTES = 64 * 1024
MAX_LISTED = 200


class GrantRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that a person allows beforehand."""

    tool_name: str
    arguments: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """Values that the call must have; other arguments may have any value."""
    uses: int
    expires_in_s: float
    """At most 8 hours."""
    owner: str | None = None
    """Whose executions may use it; None for everybody's."""
    definition_digest: str | None = None
    """The definition that the person saw; None for the tool as it is now."""


class GrantView(msgspec.Struct, frozen=True, kw_only=True):
    """One grant for people and programs."""

    grant_id: str
    tool_name: str
    arguments: dict[str, JsonValue]
    uses: int
    uses_left: int
    expires_at: datetime
    owner: str | None
    created_by: str
    assurance: str
    channel: str
    created_at: datetime
    revoked_at: datetime | None
    definition_digest: str
    is_open: bool
    """A call may still use it now, unless the tool has changed."""
    is_stale: bool
    """The tool is no longer the one that it was made for."""


class GrantService:
    """The standing grants of one engine."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    async def list(self, *, only_open: bool = False) -> tuple[GrantView, ...]:
        """Returns at most 200 grants, newest first."""
        found = await self._engine.store.grants(only_open=only_open, limit=MAX_LISTED)
        return tuple(map(self._view, found))

    async def make(self, request: GrantRequest, authority: Authority) -> GrantView:
        """Makes a grant, which holds when this returns.

        Raises:
            InvalidArguments: no person or program made it, or a number, a name or a value is not usable.
            UnknownTool: there is no such tool.
            StaleDefinition: the tool is not the one that the person saw.
        """
        if authority.assurance not in MAKERS:
            raise InvalidArguments(
                "only a person can allow calls beforehand: in the inbox, or with `planwarden grant add`"
            )
        definition = self._check(request)
        now = self._engine.store.clock.now()
        grant = Grant(
            grant_id=self._engine.ids.new(),
            tool_name=definition.name,
            definition_digest=definition.digest,
            arguments=request.arguments,
            uses=request.uses,
            expires_at=now + request.expires_in_s,
            owner=request.owner,
            created_by=authority.principal,
            assurance=authority.assurance,
            channel=authority.channel,
            created_at=now,
        )
        await self._engine.store.add_grant(grant, AuditEntry(kind="grant_made", facts=describe_grant(grant)))
        await self._engine.refresh_grants()
        return self._view(grant)

    async def revoke(self, grant_id: str, authority: Authority) -> None:
        """Revokes a grant now; revoking it again changes nothing.

        Raises:
            UnknownGrant: there is no grant with that id.
        """
        facts: dict[str, JsonValue] = {
            "grant": grant_id[:64],
            "channel": authority.channel,
            "principal": authority.principal,
        }
        is_revoked = await self._engine.store.revoke_grant(grant_id, AuditEntry(kind="grant_revoked", facts=facts))
        await self._engine.refresh_grants()
        if not is_revoked and all(g.grant_id != grant_id for g in await self._engine.store.grants(only_open=False)):
            raise UnknownGrant(f"there is no grant {grant_id[:64]!r}; `planwarden grant list` shows them")

    def _check(self, request: GrantRequest) -> ToolDefinition:
        definition = self._engine.tools.get(request.tool_name)
        if definition is None:
            raise UnknownTool(f"there is no tool {request.tool_name[:128]!r}; `planwarden tools` lists them")
        if request.definition_digest not in (None, definition.digest):
            raise StaleDefinition(f"{definition.name} changed since it was shown; nothing was allowed")
        if definition.is_blocking:
            raise InvalidArguments(f"{definition.name} asks a person; there is nothing to allow beforehand")
        if definition.risk == "read":
            raise InvalidArguments(f"{definition.name} has the risk 'read'; it runs without being approved")
        if not 1 <= request.uses <= MAX_USES:
            raise InvalidArguments(f"uses is {request.uses}; it must be between 1 and {MAX_USES}")
        if not 0 < request.expires_in_s <= MAX_LIFE_S:
            raise InvalidArguments(f"a grant lasts at most {MAX_LIFE_S / 3600:.0f} hours")
        check_depth(request.arguments)
        if is_larger(request.arguments, MAX_ARGUMENT_BYTES):
            raise InvalidArguments(f"the arguments are larger than {MAX_ARGUMENT_BYTES} bytes")
        known = definition.input_schema.get("properties")
        unknown = sorted(request.arguments.keys() - known.keys()) if isinstance(known, dict) else []
        if unknown:
            raise InvalidArguments(f"{definition.name} has no argument {', '.join(map(repr, unknown))}")
        return definition

    def _view(self, grant: Grant) -> GrantView:
        definition = self._engine.tools.get(grant.tool_name)
        return GrantView(
            grant_id=grant.grant_id,
            tool_name=grant.tool_name,
            arguments=grant.arguments,
            uses=grant.uses,
            uses_left=max(0, grant.uses - grant.used),
            expires_at=to_utc(grant.expires_at),
            owner=grant.owner,
            created_by=grant.created_by,
            assurance=grant.assurance,
            channel=grant.channel,
            created_at=to_utc(grant.created_at),
            revoked_at=None if grant.revoked_at is None else to_utc(grant.revoked_at),
            definition_digest=grant.definition_digest,
            is_open=is_open(grant, self._engine.store.clock.now()),
            is_stale=definition is None or definition.digest != grant.definition_digest,
        )


def describe_grant(grant: Grant) -> dict[str, JsonValue]:
    """The facts of the row that says that the grant was made."""
    return {
        "grant": grant.grant_id,
        "tool": grant.tool_name,
        "definition": grant.definition_digest,
        "arguments": digest(grant.arguments),
        "uses": grant.uses,
        "expires": grant.expires_at,
        "owner": grant.owner,
        "assurance": grant.assurance,
        "channel": grant.channel,
        "principal": grant.created_by,
    }
