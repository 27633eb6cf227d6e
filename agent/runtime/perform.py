"""Performs what was committed: one tool call or one model prompt, within its time limit. Returns what to record.

Everything that happens in a tool becomes an event, and so does a cancellation that somebody asked for. A cancellation
because the process ends is not recorded: the next owner recovers the call from what the log says.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine

import anyio
import anyio.lowlevel
import msgspec

from planwarden.agent.approval.context import ApprovalContext, CallRequest, describe_change
from planwarden.agent.approval.questions import (
    ask_approval,
    ask_next_attempt,
    ask_what_tool_asks,
    decision_json,
)
from planwarden.agent.common.artifact import Artifact, ResultWithArtifacts
from planwarden.agent.common.errors import (
    LeaseLost,
    ModelError,
    OutcomeUnknown,
    PlanwardenError,
    StaleDefinition,
    ToolError,
)
from planwarden.agent.common.struct import JsonValue, copy_fields, plain_value
from planwarden.agent.core.control.decide import remaining_budgets
from planwarden.agent.core.control.provider_waits import bound_asked_s
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.question import KINDS
from planwarden.agent.core.execution.state import Call, ExecutionState
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply, build_reply_events
from planwarden.agent.core.tool import CallContext, Suspend
from planwarden.agent.ports.environment import new_id
from planwarden.agent.ports.model import AskCaller, Model, StreamingModel
from planwarden.agent.runtime.dispatch import CallJob, find_tool_question, rehearse_question
from planwarden.agent.runtime.lookups import LookupReader
from planwarden.agent.runtime.transaction_builder import JobOutcome

logger = logging.getLogger(__name__)

QUESTION_TIMEOUT_S = 60.0
"""The most seconds for a blocking tool's own function; the tool's `timeout_s` only limits the wait for the answer."""


class Performer:
    """Runs calls and prompts; holds no state of its own."""

    def __init__(self, approval: ApprovalContext, model: Model, lookups: LookupReader) -> None:
        """Take an `approval` without parts of artifacts, because none are read while a call runs."""
        self._approval = approval
        self._tools = approval.tools
        self._model = model
        self._lookups = lookups

    async def call(
        self,
        execution: ExecutionState,
        job: CallJob,
        scope: anyio.CancelScope,
        confirm_lease: Callable[[], Coroutine[object, object, None]],
    ) -> JobOutcome:
        """Return how the call ended. Cancelling `scope` stops the call and is recorded.

        `confirm_lease` is called before the tool, and raises `LeaseLost` when another process owns the execution.
        """
        call = job.call
        limit_s = QUESTION_TIMEOUT_S if job.definition.is_blocking else job.definition.timeout_s
        scope.deadline = math.inf if limit_s is None else anyio.current_time() + limit_s
        with scope:
            outcome = await self._attempt(execution, job, confirm_lease)
            event = outcome.events[0]
            if execution.options.rehearse and isinstance(event, ev.Suspended):
                # Even a tool that only reads may ask something in the middle of its call.
                return _end(call, rehearse_question(execution, call, event.question))
            return outcome
        is_late = anyio.current_time() >= scope.deadline
        why = f"gave no result within {limit_s:g} s" if is_late else "was cancelled while running"
        # A look at work that goes on elsewhere can be repeated, but a late one does not say how that work ends.
        if call.effect == "effect" or (is_late and job.definition.effect == "effect"):
            return _end(call, ev.ToolOutcomeUnknown(call_id=call.call_id, message=f"{call.tool_name} {why}"))
        return _fail(call, "timeout" if is_late else "cancelled", f"{call.tool_name} {why}")

    async def _attempt(
        self, execution: ExecutionState, job: CallJob, confirm_lease: Callable[[], Coroutine[object, object, None]]
    ) -> JobOutcome:
        call = job.call
        context = CallContext(
            execution_id=execution.execution_id,
            thread_id=execution.thread_id,
            step_id=call.step_id,
            call_id=call.call_id,
            idempotency_key=execution.idempotency_key(call),
            definition_digest=job.definition.digest,
            chain=execution.chain,
            left={**remaining_budgets(execution)},
            confirm_lease=confirm_lease,
        )
        arguments = call.arguments or {}
        try:
            await confirm_lease()
            if job.kind == "resume":
                suspension = find_tool_question(execution, execution.call(call.call_id))
                assert suspension is not None
                decision = decision_json(suspension)
                result = await self._tools.resume(call.tool_name, suspension.question.resume_payload, decision, context)
            else:
                result = await self._tools.call(call.tool_name, arguments, context)
        except StaleDefinition as error:
            return self._ask_again(execution, job, arguments, error)
        except OutcomeUnknown as error:
            return _end(call, ev.ToolOutcomeUnknown(call_id=call.call_id, message=error.message))
        except LeaseLost as error:
            text = f"{call.tool_name} was not run: {error.message}"
            return _fail(call, error.code, text, nothing_happened=True)
        except ToolError as error:
            return self._fail_or_retry(execution, job, error)
        # A tool may raise any error of planwarden, not only `ToolError`.
        except PlanwardenError as error:
            return _fail(call, error.code, error.message)
        except asyncio.CancelledError:
            # This raises if somebody cancelled the call, even if the tool ended some time later.
            await anyio.lowlevel.checkpoint_if_cancelled()
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this call: something that the tool waited for was cancelled.
            return _fail(call, "tool_error", "the tool cancelled itself")
        return self._conclude(execution, job, arguments, result)

    def _request(self, execution: ExecutionState, job: CallJob) -> CallRequest:
        return CallRequest(self._approval, execution, job.call, job.definition)

    def _conclude(
        self,
        execution: ExecutionState,
        job: CallJob,
        arguments: dict[str, JsonValue],
        result: JsonValue | ResultWithArtifacts | Suspend,
    ) -> JobOutcome:
        call = job.call
        asks = job.kind == "call" and job.definition.is_blocking and not isinstance(result, Suspend)
        if asks and not _was_approved(execution, job):
            text = result if isinstance(result, str) and result else f"{call.tool_name} waits for an answer"
            result = Suspend(message=text)
        if isinstance(result, Suspend):
            return _end(call, ask_what_tool_asks(self._request(execution, job), arguments, result))
        if isinstance(result, ResultWithArtifacts):
            event = ev.ToolReturned(
                call_id=call.call_id, value=result.value, artifact=result.whole, beside=result.beside
            )
            return _end(call, event, artifacts=result.artifacts)
        return _end(call, ev.ToolReturned(call_id=call.call_id, value=result))

    def _fail_or_retry(self, execution: ExecutionState, job: CallJob, error: ToolError) -> JobOutcome:
        """Return the tool's failure; add a wait for the next attempt if `retry` allows one and repeating is safe."""
        retry = execution.steps[job.call.step_id].step.retry
        attempts = execution.call(job.call.call_id).attempts
        is_harmless = job.call.effect != "effect" or error.retryable
        if retry is None or not is_harmless or attempts >= retry.attempts or job.kind == "resume":
            return _fail(job.call, error.code, error.message, nothing_happened=error.retryable, beside=error.beside)
        failed = ev.CallAttemptFailed(
            call_id=job.call.call_id, code=error.code, message=error.message, nothing_happened=error.retryable
        )
        wait = ask_next_attempt(self._request(execution, job), retry, attempts)
        return _end(job.call, failed, wait)

    def _ask_again(
        self, execution: ExecutionState, job: CallJob, arguments: dict[str, JsonValue], error: StaleDefinition
    ) -> JobOutcome:
        """Return a question about a call whose tool changed before the call ran, or a failure if it cannot run now."""
        call, definition = job.call, self._tools.get(job.call.tool_name)
        if job.kind == "resume" or definition is None or definition.digest == job.definition.digest:
            return _fail(call, error.code, error.message, nothing_happened=job.kind == "call")
        _, faults = self._tools.complete(call.tool_name, arguments)
        if faults:
            text = f"{error.message}; it no longer takes these arguments: {faults[0]}"
            return _fail(call, error.code, text, nothing_happened=True)
        request = CallRequest(self._approval, execution, call, definition)
        requirement = request.context.find_requirement(definition, arguments, is_full=True)
        return _end(call, ask_approval(request, arguments, requirement, (describe_change(request, job.definition),)))

    async def prompt(
        self, execution: ExecutionState, prompt: Prompt, on_text: Callable[[str], None]
    ) -> tuple[ev.Event, ...]:
        """Return the events of the reply, of the question to the caller, or of the model's failure.

        A `StreamingModel` calls `on_text` while it writes the final answer; that text is not recorded.
        """
        offered = [definition for name in prompt.offered if (definition := self._tools.get(name)) is not None]
        try:
            if prompt.purpose == "synthesize" and isinstance(self._model, StreamingModel):
                reply = await self._model.reply_streaming(prompt, offered, on_text)
            else:
                reply = await self._model.reply(prompt, offered)
            if not isinstance(reply, AskCaller):
                reply = _make_storable(reply)
        except ModelError as error:
            return (_fail_prompt(prompt, error),)
        # A model may be somebody else's code. Any exception fails the prompt, which must not be repeated forever.
        except Exception as error:
            logger.exception("the model raised on a %s prompt", prompt.purpose)
            return (_fail_prompt(prompt, ModelError(f"the model failed with {type(error).__name__}")),)
        if not isinstance(reply, AskCaller):
            return await self._lookups.resolve(
                execution,
                lambda lookups: build_reply_events(
                    reply,
                    purpose=prompt.purpose,
                    step_id=prompt.step_id,
                    plans=lookups.build_plan_intake(execution),
                ),
            )
        question = ev.Question(
            suspension_id=new_id(),
            kind=next(kind for kind, traits in KINDS.items() if traits.purpose == prompt.purpose),
            message=_request_text(prompt),
            step_id=prompt.step_id,
            prompt=prompt.question,
            offered=prompt.offered,
            instructions=prompt.instructions,
        )
        return (ev.Suspended(question=question),)


def _make_storable(reply: object) -> Reply:
    """Return the reply as plain JSON values. Raise `ModelError`, with the token counts, if a value has another type.

    Later checks refuse bad values of the right type, such as NaN or deep nesting.
    """
    try:
        return msgspec.convert(msgspec.to_builtins(reply, enc_hook=plain_value, str_keys=True), Reply)
    except (TypeError, msgspec.ValidationError, RecursionError) as error:
        if isinstance(reply, Reply) and isinstance(error, RecursionError):
            return reply
        counts = (reply.input_tokens, reply.output_tokens) if isinstance(reply, Reply) else (0, 0)
        input_tokens, output_tokens = (count if type(count) is int else 0 for count in counts)
        message = f"the model's reply cannot be stored: {error}"
        raise ModelError(message, input_tokens=input_tokens, output_tokens=output_tokens) from error


def _end(call: Call, *events: ev.Event, artifacts: tuple[Artifact, ...] = ()) -> JobOutcome:
    return JobOutcome(call.call_id, events, artifacts)


def _fail(
    call: Call, code: str, message: str, *, nothing_happened: bool = False, beside: JsonValue = None
) -> JobOutcome:
    return _end(
        call,
        ev.ToolFailed(
            call_id=call.call_id, code=code, message=message, nothing_happened=nothing_happened, beside=beside
        ),
    )


def _was_approved(execution: ExecutionState, job: CallJob) -> bool:
    """Return whether the call waited for its own approval before it ran."""
    suspension = execution.suspensions.get(job.call.suspension_id or "")
    return suspension is not None and suspension.question.traits.is_about_calls


def _fail_prompt(prompt: Prompt, error: ModelError) -> ev.ModelFailed:
    logger.warning("model failed on a %s prompt: %s", prompt.purpose, error.message)
    return copy_fields(
        ev.ModelFailed, error, purpose=prompt.purpose, step_id=prompt.step_id, asked_s=bound_asked_s(error.asked_s)
    )


def _request_text(prompt: Prompt) -> str:
    if prompt.purpose == "plan":
        return "Write the plan again, corrected." if prompt.is_enforcement else "Write a plan for the goal."
    if prompt.purpose == "synthesize":
        return "Write the answer to the goal from the record."
    if prompt.is_enforcement:
        return f"Step {prompt.step_id}: the last answer did not count; call {', '.join(prompt.required)}."
    return f"Do step {prompt.step_id}: " + (f"call {', '.join(prompt.required)}." if prompt.required else "answer it.")
