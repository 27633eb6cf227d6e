"""Retry and fork: what a new execution takes over from the log of the thread's last one, and what runs again.

A step is taken over if the log proves it complete. From other steps, the calls that succeeded are taken over. If
nobody knows whether a call happened, a person is asked first. A confirmation is asked again if calls after it are still
to be made, because its earlier answer does not hold for them. If the caller names a step to restart from, that step and
all steps that depend on it run again.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from planwarden.agent.common.canonical import canonical_json, comparable_json, is_same_json, measure_at_least
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded, NotRetryable
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.binding.bindings import INPUTS, Binding, find_bindings
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState
from planwarden.agent.core.execution.synopsis import describe_rejecter
from planwarden.agent.core.execution.verify import find_missing_tools
from planwarden.agent.core.plan.plan import Plan, PlanStep, find_item_order, find_steps_before

MAX_BYTES = 8 * 1024 * 1024
"""The most bytes of results that one execution takes over, artifacts not counted."""
RESULT_CHARS = 120
"""The most characters of a result in a sentence to a person."""
MAX_TOLD = 5
"""The most steps that a question lists one by one."""


def take_over(
    source: ExecutionState, plan: Plan, inputs: Mapping[str, JsonValue], from_step: str | None
) -> ev.StepsTakenOver:
    """Return what an execution of `plan` with `inputs` takes over from `source`, which is finished and has a plan.

    `from_step` runs again with everything that depends on it; None for a retry.

    Raises:
        InvalidArguments: the plan has no such step.
        NotRetryable: a step would, without asking a person, repeat something that was or may have been done.
        LimitExceeded: the results together exceed `MAX_BYTES`.
    """
    again, changed = find_steps_after(plan, from_step), _find_changed_inputs(source, inputs)
    for step in plan.steps:
        _refuse_unasked_repeat(source, step, changed, is_again=step.step_id in again)
    kept_ids = {
        step.step_id
        for step in plan.steps
        if step.step_id not in again and step.step_id in source.steps and _is_proven(source.steps[step.step_id])
    }
    kept_ids -= set(_find_open_confirmations(source, plan, kept_ids))
    reused_steps = [
        _take_step(source, source.steps[step.step_id], step, changed, is_kept=step.step_id in kept_ids)
        for step in plan.steps
        if step.step_id in source.steps and step.step_id not in again
    ]
    steps = tuple(reused for reused in reused_steps if reused.is_completed or reused.calls)
    if measure_at_least(list(_list_values(steps)), MAX_BYTES) > MAX_BYTES:
        raise LimitExceeded(f"together, the results to take over are larger than {MAX_BYTES // 1024 // 1024} MiB")
    rejecters: dict[str, ev.Assurance | None] = {
        step.step_id: source.suspensions[state.rejected_by].assurance
        for step in plan.steps
        if (state := source.steps.get(step.step_id)) is not None and state.rejected_by is not None
    }
    again_runs = tuple(_describe_again(source, plan, steps))
    return ev.StepsTakenOver(
        steps=steps, again=again_runs, rejected=tuple(rejecters), rejecters=tuple(rejecters.values())
    )


def keep_version(source: ExecutionState, plan: Plan) -> ev.PlanVersion | None:
    """Return which version of the saved plan to record for an execution of `plan` that continues `source`.

    None if `source` ran no saved plan or a plan other than `plan`, or if its plan was changed after it was accepted.
    """
    return None if source.is_revised or not is_same_json(source.plan, plan) else source.saved_plan


def list_artifacts(reused: ev.StepsTakenOver) -> tuple[str, ...]:
    """Return the ids of the artifacts that hold the results of reused calls, without repeats."""
    calls = (call for step in reused.steps for call in step.calls)
    return tuple(dict.fromkeys(call.artifact for call in calls if call.artifact is not None))


def describe_earlier_runs(execution: ExecutionState, step_id: str) -> Iterator[str]:
    """Yield what a person should know of earlier executions when asked about a call of the step.

    The first question to a person covers all steps that ran before; a later one covers only its own step.
    """
    if execution.retry_of is None:
        return
    if step_id in execution.rejected_before:
        how = describe_rejecter(execution.rejected_before[step_id])
        yield f"Execution {execution.retry_of!r} asked about this step before, and it was rejected{how}."
    is_first = all(suspension.question.addressee != "human" for suspension in execution.suspensions.values())
    runs = [run for run in execution.again if is_first or run.step_id == step_id]
    for run in runs[:MAX_TOLD]:
        yield (
            f"Step {run.step_id!r} of this plan already ran in execution {run.execution_id!r} and returned "
            f"{run.result}."
        )
    if len(runs) > MAX_TOLD:
        yield f"{len(runs) - MAX_TOLD} more steps of this plan already ran there."
    reused = [name for name, state in execution.steps.items() if state.taken_from is not None]
    if is_first and reused:
        more = f" and {len(reused) - MAX_TOLD} more" if len(reused) > MAX_TOLD else ""
        names = ", ".join(map(repr, reused[:MAX_TOLD]))
        yield f"This execution continues {execution.retry_of!r}: {names}{more} completed there and will not run again."


def find_steps_after(plan: Plan, from_step: str | None) -> frozenset[str]:
    """Return the step and all steps that depend on it, directly or not; empty for None. Raises `InvalidArguments`."""
    if from_step is None:
        return frozenset()
    ids = [step.step_id for step in plan.steps]
    if from_step not in ids:
        raise InvalidArguments(
            f"the plan has no step {from_step[:64]!r}; it has {', '.join(map(repr, ids[:20]))}",
            details={"steps": list[JsonValue](ids[:50])},
        )
    return frozenset(name for name in ids if from_step in {name, *find_steps_before(plan.steps, name)})


def _refuse_unasked_repeat(source: ExecutionState, step: PlanStep, changed: Collection[str], *, is_again: bool) -> None:
    """Raise `NotRetryable` if the step would, without asking, repeat something that was or may have been done."""
    earlier = source.steps.get(step.step_id)
    if earlier is None:
        return
    unknown = [call.call_id for call in earlier.calls if call.status == "outcome_unknown"]
    if earlier.reuse is not None:
        unknown += [call.call_id for call in earlier.reuse.calls if call.unknown is not None]
    takes_changed, is_other = _take_changed(step.list_bindings(), changed), not _is_same_step(earlier.step, step)
    if unknown and (is_again or takes_changed or is_other):
        raise NotRetryable(
            f"nobody knows whether call {unknown[0]!r} of execution {source.execution_id!r} happened; retry without "
            "fromStep, and leave the step of that call and its inputs unchanged; a person is then asked first",
            details={"executionId": source.execution_id, "calls": list[JsonValue](unknown[:20])},
        )
    if not is_again and earlier.status == "completed" and (is_other or takes_changed):
        reason = "is different in this plan" if is_other else "takes inputs that are different now"
        raise NotRetryable(
            f"step {step.step_id!r} was completed in execution {source.execution_id!r} and {reason}; send it as it "
            "was, or as fromStep to run it again with everything that depends on it",
            details={"executionId": source.execution_id, "step": step.step_id},
        )


def _is_same_step(earlier: PlanStep, step: PlanStep) -> bool:
    """Return whether both steps do the same; what they wait for, confirm, or do on a rejection may differ."""
    likened = replace(step, dependencies=earlier.dependencies, confirms=earlier.confirms, on_reject=earlier.on_reject)
    return is_same_json(earlier, likened)


def _find_changed_inputs(source: ExecutionState, inputs: Mapping[str, JsonValue]) -> frozenset[str]:
    before = source.inputs
    same = {name for name in before.keys() & inputs.keys() if is_same_json(before[name], inputs[name])}
    return frozenset((before.keys() | inputs.keys()) - same)


def _take_changed(bindings: Iterable[Binding], changed: Collection[str]) -> bool:
    """Return whether bindings of the new plan take an input that is different now."""
    pointers = (binding.reference.pointer for binding in bindings if binding.reference.step_id == INPUTS)
    names = (pointer.split("/")[1].replace("~1", "/").replace("~0", "~") if pointer else None for pointer in pointers)
    return bool(changed) and any(name is None or name in changed for name in names)


def _is_proven(earlier: StepState) -> bool:
    """Return whether the step completed, and the log proves the calls that it had to make."""
    if earlier.status != "completed":
        return False
    if earlier.items is not None and earlier.step.tool_validation_mode == "strict":
        statuses = ({call.status for call in earlier.list_item_calls(index)} for index in range(len(earlier.items)))
        return all(outcomes <= {"succeeded"} or "rejected" in outcomes for outcomes in statuses)
    return earlier.step.tool_validation_mode == "advisory" or not find_missing_tools(earlier)


def _find_open_confirmations(source: ExecutionState, plan: Plan, kept_ids: Collection[str]) -> Iterator[str]:
    """Yield the kept steps that asked a person whether to go on, if calls that depend on them are still to be made."""
    calling = {step.step_id for step in plan.steps if step.required_tools or step.tool_calls}.difference(kept_ids)
    for step_id in kept_ids:
        is_confirmation = bool(_find_confirming_tools(source, source.steps[step_id]))
        if is_confirmation and not calling.isdisjoint(find_steps_after(plan, step_id)):
            yield step_id


def _find_confirming_tools(source: ExecutionState, earlier: StepState) -> set[str]:
    """Return the tools with which the step only asked a person whether to go on; asking again changes nothing."""
    return {call.tool_name for call in earlier.calls if call.is_confirmation or _only_asked(source, call)}


def _only_asked(source: ExecutionState, call: Call) -> bool:
    suspension = source.suspensions.get(call.suspension_id or "")
    if suspension is None or suspension.question.call_id != call.call_id:
        return False
    return suspension.question.kind == "confirmation" and (not call.attempts or call.effect == "read")


def _take_step(
    source: ExecutionState, earlier: StepState, step: PlanStep, changed: Collection[str], *, is_kept: bool
) -> ev.TakenStep:
    confirming = _find_confirming_tools(source, earlier)
    proof = earlier.taken_from or source.execution_id
    if not is_kept:
        calls = _take_calls(source, earlier, step, changed, confirming)
        items = earlier.items if earlier.reuse is None else earlier.reuse.items
        return ev.TakenStep(step_id=step.step_id, execution_id=proof, calls=tuple(calls), items=items)
    succeeded = [call for call in earlier.calls if call.status == "succeeded"]
    # The number in the id of a loop's call says which item it is for, so these calls keep their ids.
    is_loop = earlier.items is not None
    numbered = ((call.call_id if is_loop else f"{step.step_id}:{n}", call) for n, call in enumerate(succeeded, 1))
    return ev.TakenStep(
        step_id=step.step_id,
        execution_id=proof,
        calls=tuple(_take_call(source, call, call_id, call.tool_name in confirming) for call_id, call in numbered),
        is_completed=True,
        text=earlier.turns[-1].content if earlier.turns and not succeeded else None,
        validation=earlier.validation,
        items=earlier.items,
    )


def _take_calls(
    source: ExecutionState, earlier: StepState, step: PlanStep, changed: Collection[str], confirming: Collection[str]
) -> Iterator[ev.TakenCall]:
    """Yield the reusable calls of an unkept step: planned calls get the plan's ids, a model's calls get later ids."""
    number = len(step.tool_calls)
    if step.loop is not None and _is_same_step(earlier.step, step):
        unchanged = _find_unchanged_calls(step, changed)
        # A loop that never began still has the calls that it took over; one that began has calls of its own.
        reused_before = () if earlier.reuse is None else earlier.reuse.calls
        yield from (call for call in reused_before if unchanged[call.index % len(unchanged)])
        settled = (call for call in earlier.calls if call.status in ("succeeded", "outcome_unknown"))
        lasting = (call for call in settled if unchanged[call.index % len(unchanged)])
        yield from (_take_call(source, call, call.call_id, False) for call in lasting)
    if earlier.step.loop is not None or step.loop is not None:
        return
    planned: dict[str, list[str]] = {}
    for nth, call in enumerate(step.tool_calls, 1):
        if not _take_changed(find_bindings(call.arguments), changed):
            text = comparable_json([call.tool_name, call.arguments])
            planned.setdefault(text, []).append(f"{step.step_id}:{nth}")
    for call in earlier.calls:
        if call.status not in ("succeeded", "outcome_unknown") or call.tool_name in confirming:
            continue
        if call.by_model and _is_same_step(earlier.step, step):
            number += 1
            yield _take_call(source, call, f"{step.step_id}:{number}", False)
        elif not call.by_model and (same := planned.get(comparable_json([call.tool_name, call.proposed]))):
            yield _take_call(source, call, same.pop(0), False)


def _find_unchanged_calls(step: PlanStep, changed: Collection[str]) -> list[bool]:
    """Return, for each call of an item, whether all inputs that reach it, directly or via other calls, are the same."""
    unchanged: list[bool] = []
    for planned, sources in zip(step.tool_calls, find_item_order(step.tool_calls).takes, strict=True):
        takes_changed = _take_changed(find_bindings(planned.arguments), changed)
        unchanged.append(not takes_changed and all(unchanged[other] for other in sources))
    return unchanged


def _take_call(source: ExecutionState, call: Call, call_id: str, is_confirmation: bool) -> ev.TakenCall:
    is_unknown = call.status == "outcome_unknown"
    return copy_fields(
        ev.TakenCall,
        call,
        call_id=call_id,
        origin=source.idempotency_key(call),
        is_confirmation=is_confirmation,
        unknown=(call.error_message or "its result never arrived") if is_unknown else None,
    )


def _list_values(steps: Iterable[ev.TakenStep]) -> Iterator[JsonValue]:
    for step in steps:
        yield step.text
        for call in step.calls:
            yield [call.value, call.beside, call.proposed, call.arguments]
        yield list(step.items or ())


def _describe_again(source: ExecutionState, plan: Plan, steps: Collection[ev.TakenStep]) -> Iterator[ev.EarlierRun]:
    """Yield the steps that run again although they have a result other than the answer to a confirmation."""
    origins = {call.origin for step in steps for call in step.calls}
    completed = {step.step_id for step in steps if step.is_completed}
    for step in plan.steps:
        earlier = source.steps.get(step.step_id)
        if earlier is None or step.step_id in completed:
            continue
        confirming = _find_confirming_tools(source, earlier)
        succeeded = [call for call in earlier.calls if call.status == "succeeded" and call.tool_name not in confirming]
        repeated = [call.value for call in succeeded if source.idempotency_key(call) not in origins]
        if repeated:
            text = canonical_json(repeated[0] if len(repeated) == 1 else repeated)
            result = text if len(text) <= RESULT_CHARS else f"{text[:RESULT_CHARS]}..."
            proof = earlier.taken_from or source.execution_id
            yield ev.EarlierRun(step_id=step.step_id, execution_id=proof, result=result)
