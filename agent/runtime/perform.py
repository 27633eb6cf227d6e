"""Performing what was committed: one tool call or one model prompt, its time limit, and what to record of it.

Whatever happens in a tool becomes an event. Cancellation that was asked for is recorded too; cancellation from outside
(the process is going down) passes through, and recovery finds the call where the log left it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
from pydantic import JsonValue

from planwarden.agent.approval.questions import Questions, decision_json
from planwarden.agent.approval.staleness import Staleness
from planwarden.agent.common.artifact import Artifact, ResultWithArtifacts
from planwarden.agent.common.errors import ModelError, OutcomeUnknown, PlanwardenError, StaleDefinition
from planwarden.agent.core import events as ev
from planwarden.agent.core.decide import remaining_budgets
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import build_reply_events
from planwarden.agent.core.state import Call, ExecutionState
from planwarden.agent.core.tool import CallContext, Suspend
from planwarden.agent.ports.environment import Ids
from planwarden.agent.ports.model import AskCaller, Model, StreamingModel
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.agent.runtime.dispatch import CallJob

logger = logging.getLogger(__name__)

QUESTION_TIMEOUT_S = 60.0
"""Of a blocking tool's own function; its `timeout_s` limits the wait for the answer instead."""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How a call went."""

    events: tuple[ev.Event, ...]
    artifacts: tuple[Artifact, ...] = ()
    """What is stored with the events."""


class Performer:
    """Runs calls and prompts; holds no state of its own."""

    def __init__(
        self, tools: Toolbox, model: Model, questions: Questions, staleness: Staleness, ids: Ids, *, max_steps: int
    ) -> None:
        self._tools = tools
        self._model = model
        self._questions = questions
        self._staleness = staleness
        self._ids = ids
        self._max_steps = max_steps

    async def call(self, execution: ExecutionState, work: CallJob, scope: anyio.CancelScope) -> CallOutcome:
        """What records how the call went. Cancelling `scope` stops it and is recorded."""
        limit_s = self.limit_s(work)
        with scope:
            return await self._attempt(execution, work)
        call = work.call
        is_late = limit_s is not None and anyio.current_time() >= scope.deadline
        why = f"gave no result within {limit_s:g} s" if is_late else "was cancelled while running"
        if call.effect == "effect":
            return _tool_result_events(ev.ToolOutcomeUnknown(call_id=call.call_id, message=f"{call.tool_name} {why}"))
        code = "timeout" if is_late else "cancelled"
        return _tool_result_events(ev.ToolFailed(call_id=call.call_id, code=code, message=f"{call.tool_name} {why}"))

    def limit_s(self, work: CallJob) -> float | None:
        """Seconds that the call may take, or None."""
        return QUESTION_TIMEOUT_S if work.definition.is_blocking else work.definition.timeout_s

    async def _attempt(self, execution: ExecutionState, work: CallJob) -> CallOutcome:
        call = work.call
        context = CallContext(
            execution_id=execution.execution_id,
            step_id=call.step_id,
            call_id=call.call_id,
            idempotency_key=f"{execution.execution_id}:{call.call_id}",
            definition_digest=work.definition.digest,
            chain=execution.chain,
            left=remaining_budgets(execution),
        )
        arguments = call.arguments or {}
        try:
            if work.kind == "resume":
                question = execution.suspensions[call.suspension_id or ""]
                assert question.decision is not None
                decision = decision_json(question.decision, question.question)
                payload = question.question.resume_payload
                result = await self._tools.resume(call.tool_name, payload, decision, context)
                if isinstance(result, Suspend):
                    return _tool_result_events(self._questions.ask(execution, call, work.definition, result, arguments))
                return _returned(call, result)
            result = await self._tools.call(call.tool_name, arguments, context)
        except StaleDefinition as error:
            return _tool_result_events(self._asked_again(execution, work, arguments, error))
        except OutcomeUnknown as error:
            return _tool_result_events(ev.ToolOutcomeUnknown(call_id=call.call_id, message=error.message))
        # A tool may raise any of our errors, not only the one that is meant for it.
        except PlanwardenError as error:
            return _tool_result_events(ev.ToolFailed(call_id=call.call_id, code=error.code, message=error.message))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this call: something that the tool waited for was cancelled.
            return _tool_result_events(
                ev.ToolFailed(call_id=call.call_id, code="tool_error", message="the tool cancelled itself")
            )
        if isinstance(result, Suspend):
            return _tool_result_events(self._questions.ask(execution, call, work.definition, result, arguments))
        if work.definition.is_blocking and not _was_approved(execution, work):
            text = result if isinstance(result, str) and result else f"{call.tool_name} waits for an answer"
            suspend = Suspend(message=text)
            return _tool_result_events(self._questions.ask(execution, call, work.definition, suspend, arguments))
        return _returned(call, result)

    def _asked_again(
        self,
        execution: ExecutionState,
        work: CallJob,
        arguments: dict[str, JsonValue],
        error: StaleDefinition,
    ) -> ev.Event:
        """The tool changed on the way to it, before anything was run."""
        call, definition = work.call, self._tools.get(work.call.tool_name)
        if work.kind == "resume" or definition is None or definition.digest == work.definition.digest:
            return ev.ToolFailed(call_id=call.call_id, code=error.code, message=error.message)
        _, faults = self._tools.complete(call.tool_name, arguments)
        if faults:
            text = f"{error.message}; it does not take these arguments any more: {faults[0]}"
            return ev.ToolFailed(call_id=call.call_id, code=error.code, message=text)
        return self._staleness.again(execution, call, definition, arguments, since=work.definition)

    async def prompt(
        self,
        prompt: Prompt,
        facts: Callable[[], Mapping[str, ToolFacts]],
        on_text: Callable[[str], None] | None = None,
    ) -> tuple[ev.Event, ...]:
        """The journalled reply, or the question to the caller, or the model's failure.

        `on_text` is told how the final answer grows, by models that can be listened to; it is progress, not a record.
        """
        offered = [found for name in prompt.offered if (found := self._tools.get(name)) is not None]
        try:
            if on_text is not None and prompt.purpose == "synthesize" and isinstance(self._model, StreamingModel):
                reply = await self._model.reply_streaming(prompt, offered, on_text)
            else:
                reply = await self._model.reply(prompt, offered)
        except ModelError as error:
            return (_model_failed(prompt, error),)
        # A provider is somebody else's code: whatever it raises is a failed prompt, not one that is asked for ever.
        except Exception as error:
            logger.exception("the model raised on a %s prompt", prompt.purpose)
            return (_model_failed(prompt, ModelError(f"the model failed with {type(error).__name__}")),)
        if not isinstance(reply, AskCaller):
            return build_reply_events(
                reply, purpose=prompt.purpose, step_id=prompt.step_id, tools=facts(), max_steps=self._max_steps
            )
        kinds: dict[ev.Purpose, ev.SuspensionKind] = {"plan": "plan", "step": "step", "synthesize": "synthesis"}
        question = ev.Question(
            suspension_id=self._ids.new(),
            kind=kinds[prompt.purpose],
            addressee="caller",
            message=_request(prompt),
            step_id=prompt.step_id,
            prompt=prompt.whole,
            offered=prompt.offered,
        )
        return (ev.Suspended(question=question),)


def _tool_result_events(event: ev.Event) -> CallOutcome:
    return CallOutcome((event,))


def _returned(call: Call, result: JsonValue | ResultWithArtifacts) -> CallOutcome:
    if isinstance(result, ResultWithArtifacts):
        event = ev.ToolReturned(call_id=call.call_id, value=result.value, artifact=result.whole)
        return CallOutcome((event,), result.artifacts)
    return CallOutcome((ev.ToolReturned(call_id=call.call_id, value=result),))


def _was_approved(execution: ExecutionState, work: CallJob) -> bool:
    """The call already waited for a person before it ran."""
    suspension = execution.suspensions.get(work.call.suspension_id or "")
    return suspension is not None and suspension.question.kind == "approval"


def _model_failed(prompt: Prompt, error: ModelError) -> ev.ModelFailed:
    logger.warning("model failed on a %s prompt: %s", prompt.purpose, error.message)
    return ev.ModelFailed(
        purpose=prompt.purpose,
        step_id=prompt.step_id,
        code=error.code,
        message=error.message,
        input_tokens=error.input_tokens,
        output_tokens=error.output_tokens,
    )


def _request(prompt: Prompt) -> str:
    if prompt.purpose == "plan":
        return "Write the plan again, corrected." if prompt.is_enforcement else "Write a plan for the goal."
    if prompt.purpose == "synthesize":
        return "Write the answer to the goal from the record."
    if prompt.is_enforcement:
        return f"Step {prompt.step_id}: the last answer did not count; call {', '.join(prompt.required)}."
    return f"Do step {prompt.step_id}: " + (f"call {', '.join(prompt.required)}." if prompt.required else "answer it.")
