"""What every decision about a call takes into account: the tools, the operator's policy, grants, budgets and time.

A `CallRequest` is one call to judge. This module says with which arguments the call will run, and whether its tool has
changed since somebody relied on it. If so, approvals of the old definition do not count, and a person is asked even
about calls that otherwise need no approval, until somebody approves a call of the tool as it is now.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.grants import GrantCache
from planwarden.agent.common.canonical import is_larger
from planwarden.agent.common.errors import BudgetExceeded, InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import find_binding_faults, has_bindings
from planwarden.agent.core.binding.placeholders import find_empty_lists, find_placeholders
from planwarden.agent.core.binding.pointers import MAX_ARGUMENT_BYTES, ArtifactPart, PartAddress
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.references import list_sources, resolve
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState, SuspensionState
from planwarden.agent.core.plan.pins import PIN_CHARS, describe_difference
from planwarden.agent.core.plan.plan import Plan, find_steps_before
from planwarden.agent.core.tool import ToolDefinition, highest_risk
from planwarden.agent.ports.budgets_and_keys import ROUNDING, HeldKey
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.policy import Policy, RealPaths, Requirement
from planwarden.agent.ports.toolbox import Toolbox


class BudgetTracker(msgspec.Struct):
    """The budgets that had too little left when the store refused an earlier attempt to commit the transaction."""

    refused: Mapping[str, BudgetExceeded] = {}
    """By budget: the store's refusal, which says how much is left."""
    amounts: dict[str, float] = {}
    """By budget: how much the calls of the transaction have taken so far."""

    def take(self, shares: Iterable[ev.BudgetShare]) -> None:
        """Count the shares that a call takes."""
        for share in shares:
            self.amounts[share.budget] = self.amounts.get(share.budget, 0.0) + share.amount

    def apply_to(self, requirement: Requirement, policy: Policy, definition: ToolDefinition) -> Requirement:
        """Return the requirement; if a budget of its rule has too little left, return what the tool itself needs."""
        for share in requirement.shares if self.refused and requirement.needs is None else ():
            refusal = self.refused.get(share.budget)
            if refusal is not None and self.amounts.get(share.budget, 0.0) + share.amount > refusal.left * ROUNDING:
                fallback = policy.for_risk(definition.risk)
                # If too little is left, a person is asked, even about a call that only reads.
                fallback = fallback if fallback.needs is not None else policy.for_risk("dangerous")
                return replace(fallback, rule=requirement.rule, found=_describe_spent(share, refusal))
        return requirement


def _describe_spent(share: ev.BudgetShare, refusal: BudgetExceeded) -> str:
    text = (
        f"The operator's rule lets such calls pass for {_write(share.limit)} in {_write(share.window_s / 3600)} hours; "
        f"{_write(refusal.left)} is left, and this call takes {_write(share.amount)}."
    )
    if refusal.room_at is None:
        return text
    at = datetime.fromtimestamp(refusal.room_at, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
    return f"{text} The budget has room again at {at}."


def _write(number: float) -> str:
    return f"{number:.15g}"


class DecidedRows(msgspec.Struct, frozen=True):
    """A question about several calls, with its answer."""

    suspension: SuspensionState
    plan: Plan | None
    """The plan of the execution, which the digest of a review covers."""
    rows: Mapping[str, ev.CoveredCall]
    """The rows by the ids of their calls. All are calls of a loop; other covered calls are stored without ids."""
    approved: frozenset[str]
    is_intact: bool
    """Whether the stored question is the one that was asked and decided, and the policy has not changed since."""


class ApprovalContext(msgspec.Struct, frozen=True, kw_only=True):
    """The tools, policy and caches of one engine. Functions of this folder take it, or a copy, and keep no state."""

    tools: Toolbox
    policy: Policy
    clock: Clock
    grants: GrantCache
    parts: Mapping[PartAddress, ArtifactPart] | None = {}
    """The parts of artifacts that were read for references. None while a call runs, because no parts are read then."""
    holders: Mapping[str, HeldKey | None] = {}
    """The holder of each business key looked up for this transaction, by the key's digest; None if the key is free."""
    budgets: BudgetTracker = msgspec.field(default_factory=BudgetTracker)
    """The budgets that had too little left at an earlier attempt to commit this transaction."""
    paths: RealPaths | None = None
    """Where the paths looked up so far lead. None if paths are not looked up: rules about paths then ask a person."""
    decided_rows: dict[str, DecidedRows] = {}
    """Answered questions by id, kept because checking the whole question again for each row would take too long."""

    def find_requirement(
        self, definition: ToolDefinition, arguments: Mapping[str, JsonValue], *, is_full: bool = False
    ) -> Requirement:
        """Return what the policy and the operator's rules ask of a call with these arguments.

        With `is_full`, return at least what `confirm` and the tool's own risk need. Pass it for changed definitions and
        unknown outcomes, for which the operator wrote no rule.

        Raises:
            PathsNeeded: as `Policy.requirement`.
        """
        base = self.policy.requirement(definition, arguments, self.paths)
        base = self.budgets.apply_to(base, self.policy, definition)
        if not is_full:
            return base
        risk = highest_risk("confirm", definition.risk, base.risk)
        decides = base.needs is not None and risk == base.risk
        full = replace(self.policy.for_risk(risk), rule=base.rule if decides else None, denied=base.denied)
        return replace(full, found=base.found, has_no_key=base.has_no_key)


class CallRequest(msgspec.Struct, frozen=True, gc=False):
    """One call to judge, with its execution and with its tool as it is now."""

    context: ApprovalContext
    execution: ExecutionState
    call: Call
    definition: ToolDefinition

    @property
    def state(self) -> StepState:
        """The step that makes the call."""
        return self.execution.steps[self.call.step_id]


def complete_arguments(request: CallRequest) -> dict[str, JsonValue]:
    """Return the arguments with which the call will run.

    Raises:
        InvalidArguments: with the first ten faults.
        PartsNeeded: parts of artifacts have to be read first.
    """
    context, execution, call, state = request.context, request.execution, request.call, request.state
    if call.by_model:
        # The arguments in a plan were checked when the plan was accepted.
        faults = [*find_binding_faults(call.proposed), *find_placeholders(call.proposed, execution.goal_and_inputs)]
        faults.extend(find_empty_lists(call.proposed, _list_results(execution, state)))
        # Only bindings without a fault can be resolved.
        _raise_faults(request, faults)
    resolved = call.proposed
    if not execution.options.is_literal and has_bindings(resolved):
        item = state.find_item(call)
        item_calls = () if item is None else state.list_item_calls(item[1])
        resolved = resolve(resolved, list_sources(execution, context.parts, item, item_calls))
    check_arguments_size(resolved)
    completed, invalid = context.tools.complete(call.tool_name, resolved)
    _raise_faults(request, [_mention_template(fault, call.proposed) for fault in invalid])
    if execution.options.is_literal or completed is resolved:
        return resolved
    check_arguments_size(completed)
    return completed


def _mention_template(fault: str, arguments: Mapping[str, JsonValue]) -> str:
    """Return the fault; if a binding gives a value that is not text where text is expected, add how to convert it."""
    source = arguments.get(fault.partition(": ")[0].removeprefix("/"))
    if not fault.endswith('is not of type "string"') or not (isinstance(source, dict) and "$from" in source):
        return fault
    return f"{fault}; {json.dumps({'$text': '{value}', 'with': {'value': source}})} makes text of it"


def _raise_faults(request: CallRequest, faults: Sequence[str]) -> None:
    if faults:
        raise InvalidArguments("; ".join(faults[:10]), details={"inputSchema": request.definition.input_schema})


def _list_results(execution: ExecutionState, state: StepState) -> Iterator[JsonValue]:
    """Yield the results of this step's calls and of all steps that it waits for; a loop's results are one list."""
    before = find_steps_before((other.step for other in execution.steps.values()), state.step.step_id)
    for other in (*map(execution.steps.__getitem__, before), state):
        if other.items is not None:
            yield other.result
        yield from (call.value for call in other.calls if call.status == "succeeded")


def check_arguments_size(arguments: dict[str, JsonValue]) -> None:
    """Raise `InvalidArguments` for arguments larger than `MAX_ARGUMENT_BYTES`."""
    if is_larger(arguments, MAX_ARGUMENT_BYTES):
        raise InvalidArguments(f"the arguments are larger than {MAX_ARGUMENT_BYTES} bytes")


def has_changed_since_plan(execution: ExecutionState, definition: ToolDefinition) -> bool:
    """Return whether the tool has changed since the plan was accepted, without an approval of the tool as it is now."""
    pinned = execution.pins.get(definition.name)
    if not pinned or definition.digest.startswith(pinned):
        return False
    return not any(
        suspension.decision is not None and suspension.decision.approved and _has_shown(suspension, definition)
        for suspension in execution.suspensions.values()
    )


def describe_change(request: CallRequest, since: ev.Question | ToolDefinition | None) -> str:
    """Return one sentence that says how the tool changed.

    `since` is what somebody relied on: an earlier question, a definition, or None for the accepted plan.
    """
    definition, tools = request.definition, request.context.tools
    match since:
        case ToolDefinition():
            when, before = "while it was called", since
        case ev.Question():
            when = "after it was approved" if since.traits.is_about_calls else "since it was asked about"
            before = tools.find_former(since.definition_digest)
        case None:
            when = "since the plan was accepted"
            before = tools.find_former(request.execution.pins.get(definition.name, "")[:PIN_CHARS])
    return f"{definition.name} changed {when}: {describe_difference(before, definition)}."


def _has_shown(approved: SuspensionState, definition: ToolDefinition) -> bool:
    """Return whether the question's own call, or one that it covers, was a call of the tool as it is now."""
    question = approved.question
    definitions = [(covered.tool_name, covered.definition_digest) for covered in approved.covered]
    if question.traits.releases == "call":
        definitions.append((question.tool_name or "", question.definition_digest))
    return (definition.name, definition.digest) in definitions
