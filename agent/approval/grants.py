"""Standing grants: "this tool with these arguments, this often at most, until this time", as a person decided before.

A grant fixes the exact definition of the tool, the names of all arguments, the values of some or all of them, a
number of uses, and an end. So no granted call has an argument that the grant's maker did not see. A grant is worth as
much as an approval by its maker: if a run's owner made it as `human`, it lets no critical call of that run through. The
store counts a use in the transaction that records the intent, so several processes together cannot use a grant more
often than it says. This module only holds a copy of the open grants and chooses among them.

A grant for a step of a saved plan lives longer, so it demands more: the run must follow exactly that version of the
plan from its beginning, with nothing changed, and the call must be in the plan, not added by a model. A retry or a fork
cannot use such a grant, and no critical call can, even if an operator made it.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from planwarden.agent.approval.answers import can_decide
from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.errors import count_of
from planwarden.agent.common.schema_defaults import read_properties
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.budgets_and_keys import Grant, GrantedStep, count_uses_left, is_open
from planwarden.agent.ports.policy import Policy, Requirement

MAX_HOURS = 8
MAX_LIFE_S = MAX_HOURS * 3600.0
MAX_STEP_DAYS = 90
MAX_STEP_LIFE_S = MAX_STEP_DAYS * 86_400.0
"""The longest life of a grant for a step of a saved plan, in seconds."""
MAX_USES = 1_000
"""The most uses of a grant: in all, or on each day if it is for a step of a saved plan."""
REFUSED_S = 60.0
"""Seconds for which a grant with a daily limit is not chosen after the store has refused it."""
MAX_REASONS = 3
"""The most sentences that explain why grants for a step do not let one of its calls through."""
VERSION_DIGITS = 12
"""How many digits of a plan's version people see."""
MAKERS: frozenset[ev.Assurance] = frozenset({"human", "signed", "second", "embedder"})


class GrantCache(msgspec.Struct):
    """The grants that are open as far as this process knows."""

    policy: Policy
    _open: tuple[Grant, ...] = ()
    _refused: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """By id, the time until which a grant is not chosen."""

    def fill(self, grants: Iterable[Grant]) -> None:
        """Replace the copy with what the store has now."""
        self._open = tuple(grants)
        self._refused.clear()

    def refuse(self, grant_id: str, now: float) -> None:
        """Do not choose this grant again until the next `fill`, because the store refused it.

        A grant with a daily limit is chosen again after `REFUSED_S`: another day may have begun by then.
        """
        open_grant = next((grant for grant in self._open if grant.grant_id == grant_id), None)
        if open_grant is not None and open_grant.step is not None:
            self._refused[grant_id] = now + REFUSED_S
        else:
            self._open = tuple(grant for grant in self._open if grant.grant_id != grant_id)

    def find_covering(
        self,
        execution: ExecutionState,
        call: Call,
        definition: ToolDefinition,
        arguments: Mapping[str, JsonValue],
        requirement: Requirement,
        now: float,
        *,
        uses: Mapping[str, int] | None = None,
    ) -> str | None:
        """Return the id of the grant that lets this call through, the first to end if several do; None if none does.

        `uses` counts, for each grant, the uses that a forecast has already assigned to other calls.
        """
        if not self._open or requirement.quorum > 1 or definition.is_blocking or requirement.has_no_key:
            return None
        owner = execution.principal
        matches = [
            grant
            for grant in self._open
            if has_terms_for(grant, definition, arguments, owner)
            and is_open(grant, now)
            and count_uses_left(grant, now) > (uses or {}).get(grant.grant_id, 0)
            and self._refused.get(grant.grant_id, now) <= now
            and (grant.step is None or (requirement.risk != "critical" and is_from_step(grant.step, execution, call)))
            and can_decide(self.policy, execution, requirement.needs, grant.created_by, grant.assurance) is not None
        ]
        return min(matches, key=lambda grant: grant.expires_at).grant_id if matches else None

    def explain_no_grant(
        self, execution: ExecutionState, call: Call, definition: ToolDefinition, now: float
    ) -> Iterator[str]:
        """Yield why the tool's grants do not let this call through, as sentences for the person who is asked."""
        grants = [
            grant
            for grant in self._open
            if grant.tool_name == definition.name
            and grant.definition_digest == definition.digest
            and grant.owner in (None, execution.principal)
            and is_open(grant, now)
        ]
        if any(grant.step is None for grant in grants):
            yield f"A person allowed calls of {call.tool_name} beforehand, but this call is not among them."
        reasons = (
            self._explain_step(grant, grant.step, execution, call, now) for grant in grants if grant.step is not None
        )
        yield from islice(dict.fromkeys(reason for reason in reasons if reason is not None), MAX_REASONS)

    def _explain_step(
        self, grant: Grant, step: GrantedStep, execution: ExecutionState, call: Call, now: float
    ) -> str | None:
        """Return why the grant does not let the call through; None if the grant is for another plan or step."""
        saved = execution.saved_plan
        if saved is None or (saved.name, call.step_id) != (step.plan_name, step.step_id):
            return None
        allowed = f"A person allowed calls of {call.tool_name} in this step of the saved plan {step.plan_name!r}"
        if saved.digest != step.plan_digest:
            versions = f"{step.plan_digest[:VERSION_DIGITS]}, and this is version {saved.digest[:VERSION_DIGITS]}"
            return f"{allowed} as it was in version {versions}."
        if not is_from_step(step, execution, call):
            return f"{allowed}, but no call that a model writes, and none in a run whose plan or calls were changed."
        if count_uses_left(grant, now) == 0 or self._refused.get(grant.grant_id, now) > now:
            return f"{allowed}, {describe_uses_a_day(grant.uses)}, and today's are used up."
        return f"{allowed}, but this call is not among them."


def describe_uses_a_day(uses: int) -> str:
    """Return the limit in words, such as `3 calls a day (UTC)`."""
    return f"{count_of(uses, 'call')} a day (UTC)"


def has_terms_for(grant: Grant, definition: ToolDefinition, arguments: Mapping[str, JsonValue], owner: str) -> bool:
    """Return whether the grant's tool, owner and fixed values match, and the grant names all arguments of the call.

    An argument whose value is not known yet matches no fixed value.
    """
    return (
        grant.tool_name == definition.name
        and grant.definition_digest == definition.digest
        and grant.owner in (None, owner)
        and all(name in arguments and is_same_json(arguments[name], value) for name, value in grant.arguments.items())
        and arguments.keys() <= {*grant.arguments, *grant.free}
    )


def list_argument_names(definition: ToolDefinition) -> tuple[str, ...]:
    """Return the argument names that the schema declares; it may allow other arguments that it does not name."""
    return tuple(read_properties(definition.input_schema))


def is_from_step(step: GrantedStep, execution: ExecutionState, call: Call) -> bool:
    """Return whether the plan itself has this call in the step, and the run follows exactly that version of it."""
    return (
        not call.by_model
        and call.step_id == step.step_id
        and is_same_version(step, execution)
        and execution.is_as_saved
    )


def is_same_version(step: GrantedStep, execution: ExecutionState) -> bool:
    saved = execution.saved_plan
    return saved is not None and (saved.name, saved.digest) == (step.plan_name, step.plan_digest)
