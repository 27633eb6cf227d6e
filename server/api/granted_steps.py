"""Steps of saved plans that a person allows beforehand: what such a step calls, and in which version of the plan."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.binding.bindings import find_references
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.plan.plan import Plan, PlannedCall, PlanStep, list_step_tools
from planwarden.agent.ports.grant import GrantedStep
from planwarden.server.views.escaping import name_some

MAX_LISTED = 20
MAX_NAME_CHARS = 64


ReadPlan = Callable[[str], Awaitable[tuple[ev.PlanVersion, Plan]]]
"""Returns the saved plan of a name as a run would begin with it now. Raises `UnknownPlan`, or `InvalidPlan` and
`LimitExceeded` for one that cannot run."""


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the tool as the step writes it."""

    arguments: dict[str, JsonValue]
    takes: dict[str, tuple[str, ...]]
    """What arguments take values from, by name: `inputs`, a loop's `item`, steps."""


class FoundStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a saved plan that calls a tool."""

    step: GrantedStep
    calls: tuple[StepCall, ...]
    """The calls of that tool; those of a loop are made for each item."""
    is_loop: bool
    attempts: int
    """How often each call is made at most, as far as the plan says."""


async def find_granted_step(read_plan: ReadPlan, plan_name: str, step_id: str, tool_name: str) -> FoundStep:
    """Return the step as it is in the plan now.

    Raises:
        UnknownPlan, InvalidPlan, LimitExceeded: as `ReadPlan`.
        InvalidArguments: the plan has no such step, or the step writes no call of the tool.
    """
    version, plan = await read_plan(plan_name)
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


def check_values(calls: tuple[StepCall, ...], terms: Mapping[str, JsonValue]) -> None:
    """Raise `InvalidArguments` when no call of the step can ever have the wanted values."""
    for name, value in terms.items():
        values = [call.arguments[name] for call in calls if name in call.arguments and name not in call.takes]
        if len(values) == len(calls) and all(canonical_json(other) != canonical_json(value) for other in values):
            raise InvalidArguments(f"the step never calls with this value of {name[:MAX_NAME_CHARS]!r}: it has another")


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
    sources_by_name: dict[str, tuple[str, ...]] = {}
    for name, value in call.arguments.items():
        if sources := dict.fromkeys(reference.step_id for reference in find_references(value)):
            sources_by_name[name] = tuple(sources)
    return StepCall(arguments=call.arguments, takes=sources_by_name)


def _join(names: list[str]) -> str:
    return name_some([repr(name[:MAX_NAME_CHARS]) for name in names], MAX_LISTED)
