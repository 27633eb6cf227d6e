"""The questions that the gate asks: what exactly is stored, shown, digested and, after approval, run.

A question holds the arguments as they will be dispatched, the digest of the tool's definition, the risk and what it
needs, and an approval digest over all of it; changing anything makes a new revision with a new digest.
"""

from collections.abc import Iterable, Mapping
from copy import copy

from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.canonical import digest, is_larger
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core import events as ev
from planwarden.agent.core.alarms import build_alarms
from planwarden.agent.core.pins import describe_difference
from planwarden.agent.core.references import MAX_ARGUMENT_BYTES, ArtifactPart, PartAddress, resolve
from planwarden.agent.core.state import Call, ExecutionState
from planwarden.agent.core.tool import OnTimeout, Risk, Suspend, ToolDefinition, highest_risk
from planwarden.agent.core.verify import find_empty_lists, find_placeholders
from planwarden.agent.ports.environment import Clock, Ids
from planwarden.agent.ports.policy import Policy, Requirement
from planwarden.agent.ports.toolbox import Toolbox

POLICY_DIGITS = 8
"""Enough to tell a new policy from a question that was tampered with; the approval digest covers all of it."""
RELEASING: tuple[ev.SuspensionKind, ...] = ("approval", "confirmation", "input")
"""Questions whose approval lets a call run."""

RECONCILE_FORM: dict[str, JsonValue] = {
    "type": "object",
    "required": ["happened"],
    "properties": {
        "happened": {"type": "boolean", "description": "Did the call take effect?"},
        "result": {"description": "What it returned, if it happened."},
    },
    "additionalProperties": False,
}


class Questions:
    """Builds questions for calls; holds no state of its own."""

    def __init__(self, tools: Toolbox, gate: Policy, clock: Clock, ids: Ids) -> None:
        self._tools = tools
        self._gate = gate
        self._clock = clock
        self._ids = ids
        self._parts: Mapping[PartAddress, ArtifactPart] = {}

    def knowing(self, parts: Mapping[PartAddress, ArtifactPart]) -> "Questions":
        """The same, with parts of artifacts that references may take."""
        known = copy(self)
        known._parts = parts
        return known

    def arguments(self, execution: ExecutionState, call: Call) -> dict[str, JsonValue]:
        """What will run, or `InvalidArguments` with every fault; `PartsNeeded` when parts of artifacts have to be read."""
        definition = self._tools.get(call.tool_name)
        schema = definition.input_schema if definition else {}
        faults = [*find_placeholders(call.proposed)]
        if call.by_model:
            step = execution.steps[call.step_id].step
            faults.extend(find_empty_lists(call.proposed, tuple(execution.steps[d].result for d in step.dependencies)))
        resolved = resolve(call.proposed, execution.steps, self._parts)
        completed, invalid = self._tools.complete(call.tool_name, resolved)
        faults.extend(invalid)
        if faults:
            raise InvalidArguments("; ".join(faults[:10]), details={"inputSchema": schema})
        if is_larger(completed, MAX_ARGUMENT_BYTES):
            raise InvalidArguments(f"the arguments are larger than {MAX_ARGUMENT_BYTES} bytes")
        return completed

    def ask(
        self,
        execution: ExecutionState,
        call: Call,
        definition: ToolDefinition,
        suspend: Suspend,
        arguments: dict[str, JsonValue],
    ) -> ev.Suspended:
        """The question of a blocking tool as an event."""
        requirement = self._gate.requirement(definition, arguments)
        covers = self._covered(execution, call) if definition.is_blocking and suspend.addressee == "human" else ()
        risk = highest_risk("confirm", requirement.risk, *_risks(covers), suspend.risk or "read")
        required = self._gate.for_risk(risk)
        wait_s = suspend.timeout_s if suspend.timeout_s is not None else definition.answer_within_s
        if wait_s is None and definition.is_blocking:
            wait_s = definition.timeout_s
        is_clock = suspend.addressee == "clock"
        kind: ev.SuspensionKind = "input" if suspend.form is not None else "confirmation"
        if is_clock or suspend.is_delegated:
            kind = "wait" if is_clock else "delegated"
        return ev.Suspended(
            question=self._opened(
                execution,
                ev.Question(
                    suspension_id=self._ids.new(),
                    kind=kind,
                    addressee=suspend.addressee,
                    message=suspend.message,
                    step_id=call.step_id,
                    call_id=call.call_id,
                    tool_name=call.tool_name,
                    arguments=arguments,
                    definition_digest=definition.digest,
                    risk=None if is_clock else risk,
                    needs=None if is_clock else required.needs,
                    quorum=1 if is_clock else required.quorum,
                    expires_at=None if wait_s is None else self._clock.now() + wait_s,
                    on_timeout="approve"
                    if is_clock
                    else _on_timeout(risk, suspend.on_timeout or definition.on_timeout),
                    form=suspend.form,
                    resume_payload=suspend.resume_payload,
                    covers=tuple(covered for covered, _ in covers),
                    asker=suspend.asker,
                ),
            )
        )

    def approval(
        self,
        execution: ExecutionState,
        call: Call,
        definition: ToolDefinition,
        arguments: dict[str, JsonValue],
        requirement: Requirement,
    ) -> ev.Suspended:
        wait_s = definition.answer_within_s
        return ev.Suspended(
            question=self._opened(
                execution,
                ev.Question(
                    suspension_id=self._ids.new(),
                    kind="approval",
                    addressee="human",
                    message=f"Run {call.tool_name}? {execution.steps[call.step_id].step.description}"[:500],
                    step_id=call.step_id,
                    call_id=call.call_id,
                    tool_name=call.tool_name,
                    arguments=arguments,
                    definition_digest=definition.digest,
                    risk=requirement.risk,
                    needs=requirement.needs,
                    quorum=requirement.quorum,
                    expires_at=None if wait_s is None else self._clock.now() + wait_s,
                    on_timeout=_on_timeout(requirement.risk, definition.on_timeout),
                ),
            )
        )

    def reconcile(self, execution: ExecutionState, call: Call, definition: ToolDefinition) -> ev.Suspended:
        requirement = self._gate.requirement(definition, call.arguments or {})
        risk = highest_risk("confirm", requirement.risk)
        required = self._gate.for_risk(risk)
        return ev.Suspended(
            question=self._opened(
                execution,
                ev.Question(
                    suspension_id=self._ids.new(),
                    kind="reconcile",
                    addressee="human",
                    message=f"{call.error_message}. Did it happen? Answer with happened true and the result, with happened "
                    "false to run it (again), or reject to give the step up.",
                    step_id=call.step_id,
                    call_id=call.call_id,
                    tool_name=call.tool_name,
                    arguments=call.arguments,
                    definition_digest=definition.digest,
                    risk=risk,
                    needs=required.needs,
                    quorum=required.quorum,
                    form=RECONCILE_FORM,
                ),
            )
        )

    def _opened(self, execution: ExecutionState, question: ev.Question) -> ev.Question:
        """A new question with the alarms of its tool's schedule, sealed; nobody is reminded of a clock."""
        found: tuple[ev.Alarm, ...] = ()
        if question.addressee == "human":
            schedule = self._gate.schedule(question.tool_name or "")
            found = build_alarms(schedule, self._clock.now(), question.expires_at)
        short = self._gate.policy_digest[:POLICY_DIGITS]
        approval_digest = self.approval_digest(execution, question)
        return replace(question, alarms=found, digest=approval_digest, policy=short)

    def sealed(self, execution: ExecutionState, question: ev.Question) -> ev.Question:
        """The question with its approval digest and the policy that it is asked under."""
        short = self._gate.policy_digest[:POLICY_DIGITS]
        return replace(question, digest=self.approval_digest(execution, question), policy=short)

    def approval_digest(self, execution: ExecutionState, question: ev.Question) -> str:
        """Over everything a decision is bound to, as the policy is now."""
        facts: dict[str, JsonValue] = {
            "owner": execution.principal,
            "execution": execution.execution_id,
            "step": question.step_id,
            "call": question.call_id,
            "revision": question.revision,
            "kind": question.kind,
            "tool": question.tool_name,
            "definition": question.definition_digest,
            "arguments": digest(question.arguments),
            "form": None if question.form is None else digest(question.form),
            "needs": [question.needs, question.quorum],
            "covers": [
                [covered.step_id, covered.tool_name, covered.definition_digest, digest(covered.arguments)]
                for covered in question.covers
            ],
            "policy": self._gate.policy_digest,
            "expires": question.expires_at,
        }
        if question.asker:
            # What is answered here is somebody else's question: its words are what the answer is about.
            facts["asker"] = [question.asker, digest(question.message)]
        return digest(facts, context="approval/v1")

    def current(self, execution: ExecutionState, question: ev.Question) -> tuple[ev.Question, str] | None:
        """The next revision and why, when the tool, a covered tool or the policy is not what the question showed.

        None when the question still says what would run, and for questions that release nothing.
        """
        definition = self._tools.get(question.tool_name or "")
        if definition is None or question.call_id is None or question.kind not in RELEASING:
            return None
        covers = tuple(map(self._covered_now, question.covers))
        covered_now = tuple(covered for covered, _ in covers)
        if definition.digest != question.definition_digest:
            if self._tools.complete(definition.name, question.arguments or {})[1]:
                # It could not run as it was shown, whoever looks at it again; the dispatcher says so.
                return None
            before = self._tools.earlier(question.definition_digest)
            reason = f"{definition.name} changed after it was shown: {describe_difference(before, definition)}"
        elif covered_now != question.covers:
            reason = "a tool that it covers changed after it was shown"
        elif question.policy != self._gate.policy_digest[:POLICY_DIGITS]:
            reason = "the operator's policy changed after it was asked"
        else:
            # Whatever else is different was changed in the store; the digest does not fit it, and nothing will run.
            return None
        requirement = self._gate.requirement(definition, question.arguments or {})
        risk = highest_risk(*(("confirm",) if question.kind != "approval" else ()), requirement.risk, *_risks(covers))
        required = self._gate.for_risk(risk)
        # A sentence begins with a capital letter, but not with a name that nothing has.
        began = reason if reason.startswith(definition.name) else f"{reason[:1].upper()}{reason[1:]}"
        said = f"{began}. {question.message}"[:500] if question.kind == "approval" else question.message
        changed = replace(
            question,
            definition_digest=definition.digest,
            covers=covered_now,
            risk=risk,
            needs=required.needs or question.needs,
            quorum=required.quorum,
            revision=question.revision + 1,
            message=said,
        )
        return self.sealed(execution, changed), reason

    def revised(self, execution: ExecutionState, question: ev.Question, arguments: dict[str, JsonValue]) -> ev.Question:
        """The next revision of a question with edited arguments.

        Raises:
            InvalidArguments: they do not fit the tool's schema, or the tool is gone.
        """
        if question.asker:
            raise InvalidArguments("the call has begun, so its arguments cannot be modified any more")
        definition = self._tools.get(question.tool_name or "")
        if definition is None or question.arguments is None:
            raise InvalidArguments("this question has no arguments that could be modified")
        completed, faults = self._tools.complete(definition.name, arguments)
        faults = (*faults, *find_placeholders(arguments))
        if faults:
            raise InvalidArguments(
                f"modifiedArgs do not fit {definition.name}: {'; '.join(faults[:5])}",
                details={"problems": list[JsonValue](faults), "inputSchema": definition.input_schema},
            )
        risk = highest_risk(question.risk or "read", self._gate.requirement(definition, completed).risk)
        requirement = self._gate.for_risk(risk)
        changed = replace(
            question,
            arguments=completed,
            risk=requirement.risk,
            needs=requirement.needs or question.needs,
            quorum=requirement.quorum,
            revision=question.revision + 1,
        )
        return self.sealed(execution, changed)

    def _covered_now(self, covered: ev.CoveredCall) -> tuple[ev.CoveredCall, Risk]:
        """The same call as its tool is now, with its risk."""
        definition = self._tools.get(covered.tool_name)
        if definition is None:
            return covered, "dangerous"
        risk = self._gate.requirement(definition, covered.arguments).risk
        return replace(covered, definition_digest=definition.digest), risk

    def _covered(self, execution: ExecutionState, call: Call) -> tuple[tuple[ev.CoveredCall, Risk], ...]:
        """The later calls whose arguments are already known, with the risk of each."""
        found: list[tuple[ev.CoveredCall, Risk]] = []
        for step_id in execution.steps[call.step_id].step.confirms:
            for planned in execution.steps[step_id].calls:
                definition = self._tools.get(planned.tool_name)
                if definition is None or definition.is_blocking or planned.status != "proposed":
                    continue
                try:
                    arguments = self.arguments(execution, planned)
                except InvalidArguments:
                    continue
                covered = ev.CoveredCall(
                    step_id=step_id,
                    tool_name=planned.tool_name,
                    arguments=arguments,
                    definition_digest=definition.digest,
                )
                found.append((covered, self._gate.requirement(definition, arguments).risk))
        return tuple(found)


def decision_json(decision: ev.RecordedDecision, question: ev.Question) -> JsonValue:
    """The decision as the result of the call that asked: the shape of `decision` on the wire, without empty fields."""
    if question.kind == "wait":
        return {"waited": True}
    found: dict[str, JsonValue] = {"approved": decision.approved}
    if decision.reason is not None:
        found["reason"] = decision.reason
    if decision.modified_args is not None:
        found["modifiedArgs"] = decision.modified_args
    if decision.content is not None:
        found["content"] = decision.content
    return found


def _risks(covers: Iterable[tuple[ev.CoveredCall, Risk]]) -> list[Risk]:
    return [risk for _, risk in covers]


def _on_timeout(risk: Risk, wanted: OnTimeout) -> OnTimeout:
    """Nothing above `confirm` is ever approved by waiting."""
    return wanted if risk == "confirm" else "reject"
