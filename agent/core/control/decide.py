"""What to do next, as a value: `decide(execution)` reads the folded log and nothing else.

If there is no action, the execution has not started, waits for a result or an answer, or has ended.
"""

from collections.abc import Iterator

from planwarden.agent.common.errors import count_of
from planwarden.agent.core.control.actions import (
    Action,
    AskModel,
    AskReview,
    BeginStep,
    Order,
    RevisePlan,
    WaitForModel,
)
from planwarden.agent.core.control.loops import build_rejection, decide_call, decide_items
from planwarden.agent.core.control.provider_waits import find_wait_s, has_given_up
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import (
    CALL_SETTLED,
    STEP_TERMINAL,
    Call,
    ExecutionState,
    ModelOutage,
    StepState,
)
from planwarden.agent.core.execution.verify import find_missing_tools, is_unknown_in_rehearsal, needs_result
from planwarden.agent.core.prompts import find_final_text


def decide(execution: ExecutionState) -> tuple[Action, ...]:
    """Return everything that can be done now, in plan order; empty if the execution has to wait or is over."""
    if execution.status != "running":
        return ()
    if execution.cancel_requested:
        ended = ev.ExecutionCancelled(reason=execution.cancel_reason)
        return () if _has_running_call(execution) else (ended,)
    if execution.plan is None:
        return _decide_planning(execution)
    if execution.plan_only:
        return (ev.ExecutionPlanned(),)
    if execution.revisions:
        return (RevisePlan(*execution.revisions[0]),)
    if execution.options.review is not None and not execution.is_reviewed:
        return _decide_review(execution)
    actions = tuple(_decide_steps(execution))
    budget = find_exhausted_budget(execution)
    if actions and budget is not None:
        return _stop_at_budget(execution, actions, budget)
    if actions:
        return actions
    if execution.ended_steps == len(execution.steps):
        return _end(execution, may_prompt_model=budget != "modelTokens")
    return _suspend_or_wait(execution)


def find_exhausted_budget(execution: ExecutionState) -> ev.Budget | None:
    """Return the first budget of the options that is used up, or None."""
    return next((name for name, rest in remaining_budgets(execution).items() if rest <= 0), None)


def remaining_budgets(execution: ExecutionState) -> dict[ev.Budget, float]:
    """Return what remains of each budget that the options set, by its name on the wire."""
    options, usage = execution.options, execution.usage
    limits: dict[ev.Budget, tuple[float | None, float]] = {
        "modelTokens": (options.budget_model_tokens, usage.input_tokens + usage.output_tokens),
        "toolCalls": (options.budget_tool_calls, usage.tool_calls),
        "seconds": (options.budget_seconds, execution.active_s),
    }
    return {name: limit - spent for name, (limit, spent) in limits.items() if limit is not None}


def _stop_at_budget(execution: ExecutionState, actions: tuple[Action, ...], budget: ev.Budget) -> tuple[Action, ...]:
    """Return actions that start nothing new; if there are none and no call or question is open, end the execution."""
    free = tuple(action for action in actions if not isinstance(action, Order | ev.StepStarted))
    if free or _has_running_call(execution):
        return free
    if execution.open_suspensions:
        # The questions stay open for answers. After the answers, the budget ends the execution.
        return (ev.ExecutionSuspended(),)
    return (ev.ExecutionExhausted(budget=budget),)


def _decide_planning(execution: ExecutionState) -> tuple[Action, ...]:
    if execution.model_error is not None:
        code, message = execution.model_error
        return (ev.ExecutionFailed(code=code, message=message),)
    if (questions := execution.find_suspensions("plan")) and questions[-1].is_open:
        return _suspend_or_wait(execution)
    if questions and (last := questions[-1].decision) is not None and not last.approved:
        return (ev.ExecutionRejected(),)
    if len(execution.refusals) > 1:
        return (ev.ExecutionFailed(code="invalid_plan", message=execution.refusals[-1]),)
    return _prompt_or_suspend(execution, "plan")


def _decide_review(execution: ExecutionState) -> tuple[Action, ...]:
    """Ask a person about the plan as it is now, or wait for the answer: nothing begins before an approval."""
    if (reviews := execution.find_suspensions("review")) and reviews[-1].is_open:
        return _suspend_or_wait(execution)
    if reviews and (last := reviews[-1].decision) is not None and not last.approved:
        return () if _has_running_call(execution) else (ev.ExecutionRejected(),)
    return (AskReview(),)


def _decide_steps(execution: ExecutionState) -> list[Action]:
    actions: list[Action] = []
    steps = execution.steps
    for step_id in execution.frontier if execution.stopped_by is None else steps:
        state = steps[step_id]
        if state.items is not None and state.status in ("in_progress", "suspended"):
            actions.extend(decide_items(execution, state))
        elif state.status in ("pending", "in_progress"):
            decide_step = _decide_pending if state.status == "pending" else _decide_in_progress
            if (action := decide_step(execution, state)) is not None:
                actions.append(action)
    return actions


def _decide_pending(execution: ExecutionState, state: StepState) -> Action | None:
    """Start the step, skip it because of another step that has ended, or return None to wait."""
    step_id = state.step.step_id
    if execution.stopped_by is not None:
        return ev.StepSkipped(step_id=step_id, because=execution.stopped_by)
    lacking = [execution.steps[name] for name in state.needs if not _can_go_on_after(execution, state, name)]
    has_conditions = bool(state.step.when)
    for dependency in lacking:
        # A real run might have the result of a rehearsed dependency: judge the step's own conditions first.
        is_judged_first = has_conditions and is_unknown_in_rehearsal(execution, dependency)
        if dependency.status in STEP_TERMINAL and not is_judged_first:
            return ev.StepSkipped(step_id=step_id, because=dependency.step.step_id)
    if any(dependency.status not in STEP_TERMINAL for dependency in lacking):
        return None
    control = state.step.control
    is_judged = control is not None and bool(control.when or control.loop)
    return BeginStep(step_id) if is_judged else ev.StepStarted(step_id=step_id)


def _can_go_on_after(execution: ExecutionState, state: StepState, name: str) -> bool:
    """Return whether the step `name`, on which this step depends, lets this step start."""
    dependency = execution.steps[name]
    is_confirmed = state.step.step_id in dependency.step.confirms
    may_continue = dependency.status == "rejected" and dependency.step.on_reject == "continue" and not is_confirmed
    if dependency.status == "completed" or may_continue:
        return True
    if is_unknown_in_rehearsal(execution, dependency):
        return not needs_result(state.step, name)
    return _may_go_without(state, dependency)


def find_cause_of_skip(execution: ExecutionState, state: StepState) -> str | None:
    """Return the first dependency that has ended and keeps this step from starting, or None."""
    dependencies = (name for name in state.needs if execution.steps[name].status in STEP_TERMINAL)
    return next((name for name in dependencies if not _can_go_on_after(execution, state, name)), None)


def _may_go_without(state: StepState, dependency: StepState) -> bool:
    """Return whether the dependency was skipped and the step can start without a value from it."""
    if dependency.status != "skipped":
        return False
    bindings = [item for item in state.step.list_bindings() if item.reference.step_id == dependency.step.step_id]
    if not bindings:
        return dependency.condition_failed
    # Values in conditions need no default: if one is absent, its condition fails, and the step is skipped later.
    judged = [id(condition.value) for condition in state.step.when]
    return all(binding.has_default for binding in bindings if id(binding.source) not in judged)


def _decide_in_progress(execution: ExecutionState, state: StepState) -> Action | None:
    step_id, calls = state.step.step_id, state.calls
    if state.error_code is not None:
        return ev.StepFailed(step_id=step_id, code=state.error_code, message=state.error_message or state.error_code)
    failed = next((call for call in calls if call.status == "failed" and not call.by_model), None)
    if failed is not None:
        return _end_after_failed_call(state, failed)
    current = next((call for call in calls if call.status not in CALL_SETTLED), None)
    if current is not None:
        return decide_call(execution, current)
    if any(call.status == "rehearsed" for call in calls):
        # The rest of the step would need the result of a call that was not made.
        return ev.StepRehearsed(step_id=step_id)
    return _reject_after_prompt(execution, state) or _decide_without_call(execution, state)


def _end_after_failed_call(state: StepState, call: Call) -> Action:
    """End the step: a call that the plan prescribes has failed, and no model can try another way."""
    if state.step.tool_validation_mode == "advisory":
        if any(other.status == "rehearsed" for other in state.calls):
            return ev.StepRehearsed(step_id=state.step.step_id)
        return ev.StepCompleted(step_id=state.step.step_id, validation="failed")
    message = f"{call.tool_name} failed: {call.error_message}"
    return ev.StepFailed(step_id=state.step.step_id, code=call.error_code or "tool_error", message=message)


def _reject_after_prompt(execution: ExecutionState, state: StepState) -> Action | None:
    """Reject the step if the caller refused to answer its prompt."""
    prompts = [prompt for prompt in execution.find_suspensions("step") if prompt.question.step_id == state.step.step_id]
    decision = prompts[-1].decision if prompts else None
    return None if decision is None or decision.approved else build_rejection(state.step.step_id, prompts[-1])


def _decide_without_call(execution: ExecutionState, state: StepState) -> Action | None:
    """Complete the step if the log proves that no call is missing; otherwise ask the model, within the limits."""
    step, missing = state.step, find_missing_tools(state)
    last = state.turns[-1] if state.turns else None
    may_reply = state.iterations < execution.options.max_iterations
    if not missing and (step.required_tools or (last is not None and not last.call_ids)):
        if last is not None and last.revision_refused and not last.call_ids and may_reply:
            return _prompt(execution, "step", state.outage, step.step_id)
        return ev.StepCompleted(step_id=step.step_id, validation="passed" if step.required_tools else "skipped")
    if last is not None and not last.call_ids and not state.enforcing:
        return _enforce_calls(execution, state, missing)
    if not state.enforcing and not may_reply:
        if step.tool_validation_mode == "advisory":
            return ev.StepCompleted(step_id=step.step_id, validation="failed")
        tail = f"; never called successfully: {', '.join(missing)}" if missing else ""
        message = f"step {step.step_id!r} was not done after {state.iterations} model replies{tail}"
        return ev.StepFailed(step_id=step.step_id, code="iterations_exhausted", message=message)
    return _prompt(execution, "step", state.outage, step.step_id)


def _prompt(
    execution: ExecutionState, purpose: ev.Purpose, outage: ModelOutage | None, step_id: str | None = None
) -> Action | None:
    """Return `AskModel`, or `WaitForModel` after a failure; None while that wait lasts, or once patience is used up."""
    if outage is None:
        return AskModel(purpose, step_id)
    if outage.suspension_id is not None:
        return None if execution.suspensions[outage.suspension_id].is_open else AskModel(purpose, step_id)
    wait_s = find_wait_s(outage, execution.options.model_patience_s)
    return None if wait_s is None else WaitForModel(step_id, outage.attempts + 1, outage.failed_at + wait_s)


def _prompt_or_suspend(execution: ExecutionState, purpose: ev.Purpose) -> tuple[Action, ...]:
    action = _prompt(execution, purpose, execution.outage)
    return _suspend_or_wait(execution) if action is None else (action,)


def _enforce_calls(execution: ExecutionState, state: StepState, missing: tuple[str, ...]) -> Action:
    """Demand the missing calls from a model that wrote text instead, or end the step after the last retry."""
    step = state.step
    if step.tool_validation_mode == "advisory":
        if not state.warned:
            return ev.ValidationFailed(step_id=step.step_id, missing=missing, mode="advisory", enforced=False)
        return ev.StepCompleted(step_id=step.step_id, validation="failed")
    if state.retries < execution.options.taef_max_retries:
        return ev.ValidationFailed(step_id=step.step_id, missing=missing, mode="strict", enforced=True)
    failed = [name for name in missing if any(call.tool_name == name for call in state.calls)]
    message = (
        f"step {step.step_id!r} required {', '.join(missing)}; "
        + (f"no call of {', '.join(failed)} succeeded, and " if failed else "")
        + f"the model wrote text instead of calling {'it' if len(missing) == 1 else 'them'}"
        + f"{' again' if len(failed) == len(missing) else ''}, even after {count_of(state.retries, 'more prompt')}"
    )
    return ev.StepFailed(step_id=step.step_id, code="tools_not_called", message=message)


def find_running_calls(execution: ExecutionState) -> Iterator[Call]:
    """Yield the calls that were dispatched and have no recorded result."""
    for state in execution.steps.values():
        if state.status in ("in_progress", "suspended"):
            yield from (call for call in state.list_open_calls() if call.status == "running")


def _has_running_call(execution: ExecutionState) -> bool:
    return any(True for _ in find_running_calls(execution))


def _end(execution: ExecutionState, *, may_prompt_model: bool) -> tuple[Action, ...]:
    if execution.options.rehearse:
        # Nothing happened, so no model writes a final text about it.
        return (ev.ExecutionRehearsed(),)
    synthesis = _synthesize(execution) if may_prompt_model else None
    if synthesis is not None:
        return synthesis
    failed = (state for state in execution.steps.values() if state.status == "failed")
    faults = ((state.error_code or "tool_error", state.error_message or "a step failed") for state in failed)
    if (fault := next(faults, execution.model_error)) is not None:
        return (ev.ExecutionFailed(code=fault[0], message=fault[1]),)
    if any(s.status == "rejected" and s.step.on_reject != "continue" for s in execution.steps.values()):
        return (ev.ExecutionRejected(),)
    return (ev.ExecutionCompleted(),)


def _synthesize(execution: ExecutionState) -> tuple[Action, ...] | None:
    """Return what to do to get the final text; None if it is not wanted, already written, or no longer obtainable."""
    if not execution.options.synthesize or execution.synthesis is not None or execution.model_error is not None:
        return None
    if "synthesize" not in execution.options.explicit and find_final_text(execution) is not None:
        return None
    questions = execution.find_suspensions("synthesis")
    if questions:
        return _suspend_or_wait(execution) if questions[-1].is_open else None
    return _prompt_or_suspend(execution, "synthesize")


def _suspend_or_wait(execution: ExecutionState) -> tuple[Action, ...]:
    """Wait while a call runs, suspend while a question is open, and end if the patience with a provider is used up."""
    if _has_running_call(execution):
        return ()
    if execution.open_suspensions:
        return (ev.ExecutionSuspended(),)
    return (ev.ExecutionExhausted(budget="modelPatience"),) if has_given_up(execution) else ()
