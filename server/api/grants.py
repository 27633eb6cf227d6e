"""Makes, lists and revokes standing grants; `planwarden.agent.approval.grants` says what a grant allows.

Only a person or a program makes a grant, so no MCP tool uses this module. A person who sees a grant may revoke it.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority
from planwarden.agent.approval.grants import (
    MAKERS,
    MAX_HOURS,
    MAX_LIFE_S,
    MAX_STEP_DAYS,
    MAX_STEP_LIFE_S,
    MAX_USES,
    list_argument_names,
)
from planwarden.agent.common.canonical import check_depth, digest, is_larger, is_same_json
from planwarden.agent.common.errors import InvalidArguments, StaleDefinition, UnknownGrant, UnknownTool
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.binding.bindings import find_references
from planwarden.agent.core.execution.audit import POLICY_CHARS, AuditEntry, Kind
from planwarden.agent.core.execution.state import Call, new_execution
from planwarden.agent.core.plan.plan import Plan, PlannedCall, PlanStep, list_step_tools
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.budgets_and_keys import Grant, GrantedStep, count_uses_left, is_open
from planwarden.agent.ports.environment import new_id
from planwarden.agent.ports.policy import Requirement
from planwarden.server.api.starts import Starts
from planwarden.server.views.escaping import name_some
from planwarden.server.views.instants import to_utc

MAX_ARGUMENT_BYTES = 64 * 1024
MAX_LISTED = 200
MAX_NAMED = 20
MAX_NAME_CHARS = 64


class GrantRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that a person allows beforehand."""

    tool_name: str
    arguments: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """Values that the call must have."""
    free: tuple[str, ...] = ()
    """Names of arguments that may be absent or have any value. Arguments that are named nowhere must be absent."""
    opens_others: bool = False
    """Whether the other arguments that the tool's schema names are `free` too."""
    step: GrantedStep | None = None
    """The step that must make the calls, from `GrantService.find_step`; None if any plan may make them."""
    uses: int
    """How many calls the grant allows: in total, or on each day if it is for a step."""
    expires_in_s: float
    """How long the grant lasts: at most 8 hours, or 90 days if it is for a step."""
    owner: str | None = None
    """The principal whose executions may use the grant; None for everybody's."""
    definition_digest: str | None = None
    """The digest of the definition that the person saw; None for the tool as it is now."""


class GrantedStepView(msgspec.Struct, frozen=True, kw_only=True):
    """The step of a saved plan whose calls a grant lets through."""

    plan: str
    version: str
    """The version of the plan, as its runs record it."""
    step_id: str
    has_changed: bool
    """Whether the plan has another version now or is gone; calls of new runs then ask a person."""


class GrantView(msgspec.Struct, frozen=True, kw_only=True):
    """One grant for people and programs."""

    grant_id: str
    tool_name: str
    arguments: dict[str, JsonValue]
    """Values that the call must have."""
    free: tuple[str, ...]
    """Arguments that may be absent or have any value; all others must be absent."""
    step: GrantedStepView | None
    """The step that must make the calls; None if any plan may make them."""
    uses: int
    """The calls that the grant allows: in total, or on each calendar day in UTC if it is for a step."""
    uses_left: int
    """The calls that are left: in total, or today if the grant is for a step."""
    expires_at: datetime
    owner: str | None
    created_by: str
    assurance: str
    channel: str
    created_at: datetime
    revoked_at: datetime | None
    definition_digest: str
    is_open: bool
    """Whether the grant is still in force. It may be stale nevertheless, or used up for today if it is for a step."""
    is_stale: bool
    """Whether the tool is gone, or has changed since the grant was made."""


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the tool as the step writes it."""

    arguments: dict[str, JsonValue]
    sources: dict[str, tuple[str, ...]]
    """The sources of each value that the plan itself does not write: `inputs`, `item` of a loop, or ids of steps."""


class FoundStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a saved plan that calls a tool."""

    step: GrantedStep
    calls: tuple[StepCall, ...]
    """The calls of that tool; a loop makes each of them once for every item."""
    is_loop: bool
    attempts: int
    """The most attempts that the plan allows for each call."""


class GrantService:
    """The standing grants of one engine."""

    def __init__(self, starts: Starts) -> None:
        self._engine, self._starts = starts.engine, starts

    def covers(
        self, definition: ToolDefinition, arguments: dict[str, JsonValue], requirement: Requirement, principal: str
    ) -> bool:
        """Return whether a grant for calls of any plan lets the principal's call through now."""
        execution = new_execution("", "", principal)
        call = Call(call_id="", origin="", tool_name=definition.name, proposed=arguments, by_model=False)
        now, grants = self._engine.store.clock.now(), self._engine.grants
        return grants.find_covering(execution, call, definition, arguments, requirement, now) is not None

    async def list(self, *, only_open: bool = False) -> tuple[GrantView, ...]:
        """Return at most 200 grants, newest first."""
        grants = await self._engine.store.grants(only_open=only_open, limit=MAX_LISTED)
        has_steps = any(grant.step is not None for grant in grants)
        plans = (await self._starts.library.look()).plans if has_steps else ()
        versions = {plan.name: plan.digest for plan in plans}
        return tuple(self._view(grant, versions) for grant in grants)

    async def find_step(self, plan_name: str, step_id: str, tool_name: str) -> FoundStep:
        """Return the step of the saved plan, with its calls of the tool, so that a person can see what to allow.

        Raises:
            UnknownPlan, InvalidPlan, LimitExceeded: there is no such saved plan, or it cannot run.
            InvalidArguments: the plan has no such step, or the step writes no call of the tool.
        """
        version, plan = await self._starts.read_saved(plan_name)
        step = _find_step(plan, plan_name, step_id)
        calls = tuple(_describe_call(call) for call in step.tool_calls if call.tool_name == tool_name)
        if not calls:
            raise InvalidArguments(_explain_no_call(step, tool_name))
        return FoundStep(
            step=GrantedStep(plan_name=version.name, plan_digest=version.digest, step_id=step_id),
            calls=calls,
            is_loop=step.loop is not None,
            attempts=1 if step.retry is None else step.retry.attempts,
        )

    async def make(self, request: GrantRequest, authority: Authority) -> GrantView:
        """Make a grant and return its view; the grant is then in force. Raises what `prepare` raises."""
        grant = await self.prepare(request, authority)
        await self.add(grant)
        return self._view(grant, None)

    async def prepare(self, request: GrantRequest, authority: Authority, *, question_id: str | None = None) -> Grant:
        """Return the grant for `add`, and store nothing. A grant that answers a question gets the id of the question.

        Raises:
            InvalidArguments: neither a person nor a program makes the grant, or a number, name or value is unusable.
            UnknownTool: there is no such tool.
            UnknownPlan, InvalidPlan, LimitExceeded: there is no such saved plan, or it cannot run.
            StaleDefinition: the tool or the plan is not the one that the person saw.
        """
        if authority.assurance not in MAKERS:
            raise InvalidArguments(
                "only a person can allow calls beforehand: in the inbox, or with `planwarden grant add`"
            )
        request = await self.complete(request)
        now = self._engine.store.clock.now()
        return copy_fields(
            Grant,
            request,
            grant_id=question_id or new_id(),
            definition_digest=request.definition_digest or "",
            expires_at=now + request.expires_in_s,
            created_by=authority.principal,
            assurance=authority.assurance,
            channel=authority.channel,
            created_at=now,
        )

    async def add(self, grant: Grant) -> None:
        """Store the grant that `prepare` returned, with its audit row; the grant is then in force."""
        await self._engine.store.add_grant(grant, self._build_entry("grant_made", describe_grant(grant)))
        await self._engine.refresh_grants()

    async def find(self, grant_id: str) -> GrantView | None:
        """Return the grant with that id if it is among the newest 200, else None."""
        return next((grant for grant in await self.list() if grant.grant_id == grant_id), None)

    async def revoke(self, grant_id: str, authority: Authority) -> None:
        """Revoke a grant now; revoking it again changes nothing.

        Raises:
            UnknownGrant: there is no grant with that id.
        """
        facts: dict[str, JsonValue] = {
            "grant": grant_id[:64],
            "channel": authority.channel,
            "principal": authority.principal,
        }
        is_revoked = await self._engine.store.revoke_grant(grant_id, self._build_entry("grant_revoked", facts))
        await self._engine.refresh_grants()
        if not is_revoked and all(g.grant_id != grant_id for g in await self._engine.store.grants(only_open=False)):
            raise UnknownGrant(f"there is no grant {grant_id[:64]!r}; `planwarden grant list` shows them")

    def _build_entry(self, kind: Kind, facts: dict[str, JsonValue]) -> AuditEntry:
        # Another warden of the same program may share the store and have another policy.
        return AuditEntry(kind=kind, facts={**facts, "policy": self._engine.grants.policy.policy_digest[:POLICY_CHARS]})

    async def complete(self, request: GrantRequest) -> GrantRequest:
        """Return the request with all that a person should see before deciding: the digest of the current tool, the
        defaults, and the names of all free arguments. Store nothing. Raises what `make` raises, but does not check who
        makes the grant.
        """
        # Read the plan first: this waits until its servers have listed their tools.
        names = () if request.step is None else await self._check_step(request, request.step)
        definition = self._check_tool(request)
        others = list_argument_names(definition) if request.opens_others else ()
        filled, _ = self._engine.tools.complete(definition.name, request.arguments)
        if request.step is not None:
            # An argument that the plan leaves out always has its default, so the grant need not fix it.
            names = (*names, *filled)
        free = dict.fromkeys(name for name in (*request.free, *names, *others) if name not in request.arguments)
        return replace(
            request,
            definition_digest=definition.digest,
            arguments={name: value for name, value in filled.items() if name not in free},
            free=tuple(free),
            opens_others=False,
        )

    def _check_tool(self, request: GrantRequest) -> ToolDefinition:
        name, tools = request.tool_name, self._engine.tools
        definition = tools.get(name)
        if definition is None:
            hint = did_you_mean(name, [tool.name for tool in tools.definitions()])
            raise UnknownTool(f"there is no tool {name[:128]!r}{hint}; `planwarden tools` lists them")
        if request.definition_digest not in (None, definition.digest):
            raise StaleDefinition(f"{definition.name} changed since it was shown; nothing was allowed")
        if definition.is_blocking:
            raise InvalidArguments(f"{definition.name} asks a person; there is nothing to allow beforehand")
        if definition.risk == "read":
            raise InvalidArguments(f"{definition.name} has the risk 'read'; it runs without being approved")
        self._check_limits(request)
        needs = self._engine.grants.policy.requirement(definition, request.arguments)
        if request.step is not None and needs.risk == "critical":
            raise InvalidArguments(f"{definition.name} is critical; each of its calls is asked about")
        check_depth(request.arguments)
        if is_larger(request.arguments, MAX_ARGUMENT_BYTES):
            raise InvalidArguments(f"the arguments are larger than {MAX_ARGUMENT_BYTES} bytes")
        names = list_argument_names(definition)
        unknown = sorted({*request.arguments, *request.free} - {*names}) if names else []
        if unknown:
            raise InvalidArguments(f"{definition.name} has no argument {', '.join(map(repr, unknown))}")
        return definition

    def _check_limits(self, request: GrantRequest) -> None:
        if not 1 <= request.uses <= MAX_USES:
            raise InvalidArguments(f"uses is {request.uses}; it must be between 1 and {MAX_USES}")
        if not 0 < request.expires_in_s <= (MAX_LIFE_S if request.step is None else MAX_STEP_LIFE_S):
            raise InvalidArguments(
                f"a grant lasts at most {MAX_HOURS} hours, and one for a step of a saved plan {MAX_STEP_DAYS} days"
            )

    async def _check_step(self, request: GrantRequest, step: GrantedStep) -> tuple[str, ...]:
        """Check the step, and return the names of the arguments that the plan writes for its calls."""
        plan_step = await self.find_step(step.plan_name, step.step_id, request.tool_name)
        if plan_step.step != step:
            raise StaleDefinition(f"the saved plan {step.plan_name!r} changed since it was shown; nothing was allowed")
        _check_values(plan_step.calls, request.arguments)
        return tuple(name for call in plan_step.calls for name in call.arguments)

    def _view(self, grant: Grant, versions: Mapping[str, str] | None) -> GrantView:
        """Return the view of the grant. `versions` maps plan names to versions; None if no plan can have changed."""
        definition = self._engine.tools.get(grant.tool_name)
        now = self._engine.store.clock.now()
        return copy_fields(
            GrantView,
            grant,
            step=None
            if grant.step is None
            else GrantedStepView(
                plan=grant.step.plan_name,
                version=grant.step.plan_digest,
                step_id=grant.step.step_id,
                has_changed=versions is not None and versions.get(grant.step.plan_name) != grant.step.plan_digest,
            ),
            uses_left=count_uses_left(grant, now),
            expires_at=to_utc(grant.expires_at),
            created_at=to_utc(grant.created_at),
            revoked_at=None if grant.revoked_at is None else to_utc(grant.revoked_at),
            is_open=is_open(grant, now),
            is_stale=definition is None or definition.digest != grant.definition_digest,
        )


def describe_grant(grant: Grant) -> dict[str, JsonValue]:
    """Return the facts of the audit row that records that the grant was made."""
    step = grant.step
    facts: dict[str, JsonValue] = {
        "grant": grant.grant_id,
        "tool": grant.tool_name,
        "definition": grant.definition_digest,
        "arguments": digest({"values": grant.arguments, "free": list[JsonValue](grant.free)}),
        "free": list[JsonValue](grant.free),
        "uses": grant.uses,
        "expires": grant.expires_at,
        "owner": grant.owner,
        "assurance": grant.assurance,
        "channel": grant.channel,
        "principal": grant.created_by,
    }
    if step is not None:
        facts |= {"per": "day", "plan": step.plan_name, "version": step.plan_digest, "step": step.step_id}
    return facts


def _check_values(calls: tuple[StepCall, ...], terms: Mapping[str, JsonValue]) -> None:
    """Raise `InvalidArguments` if no call of the step can have a value of the grant."""
    for name, value in terms.items():
        values = [call.arguments[name] for call in calls if name in call.arguments and name not in call.sources]
        if len(values) == len(calls) and not any(is_same_json(other, value) for other in values):
            raise InvalidArguments(f"the step never calls with this value of {name[:MAX_NAME_CHARS]!r}; it has another")


def _find_step(plan: Plan, plan_name: str, step_id: str) -> PlanStep:
    ids = [step.step_id for step in plan.steps]
    if step_id in ids:
        return plan.step(step_id)
    hint = did_you_mean(step_id, ids) or f"; it has {_join(ids)}"
    raise InvalidArguments(f"the saved plan {plan_name!r} has no step {step_id[:MAX_NAME_CHARS]!r}{hint}")


def _explain_no_call(step: PlanStep, tool_name: str) -> str:
    label, tools = repr(tool_name[:MAX_NAME_CHARS]), list_step_tools(step)
    if tool_name in tools:
        return (
            f"a model writes the calls of {label} in step {step.step_id!r}, and only calls that the plan itself writes "
            "as toolCalls can be allowed for longer than 8 hours"
        )
    called = f"it calls {_join(list(tools))}" if tools else "it calls nothing"
    return f"step {step.step_id!r} does not call {label}{did_you_mean(tool_name, tools)}; {called}"


def _describe_call(call: PlannedCall) -> StepCall:
    references = {name: find_references(value) for name, value in call.arguments.items()}
    sources = {name: tuple(dict.fromkeys(each.step_id for each in listed)) for name, listed in references.items()}
    return StepCall(arguments=call.arguments, sources={name: ids for name, ids in sources.items() if ids})


def _join(names: list[str]) -> str:
    return name_some([repr(name[:MAX_NAME_CHARS]) for name in names], MAX_NAMED)
