"""One call of a downstream tool: checks the definition, sends the call, and says what each failure means.

A call that was certainly not sent ends in a plain error. If a call was sent, got no answer and may have changed
something, its outcome is unknown. The SDK's validation of results is bypassed, because it may list the tools again,
and a pattern that backtracks would block the event loop; `agent/common/schema.py` checks `outputSchema` instead.

When the server asks a question, a person gets it as a suspension. In older protocol revisions the call stays open for
the answer; since revision 2026-07-28, the call is made again with the same key. In that revision
(https://modelcontextprotocol.io/specification/2026-07-28, multi-round-trip requests) the server does nothing until it
returns a result; the client sends the call again with the answers and the server's state, which the client cannot read.
Time limits and cancellation come from the engine's scope; when the scope ends a call, the SDK tells the server.
"""

from collections.abc import Callable
from secrets import token_hex

import anyio
import msgspec
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from planwarden.agent.common.artifact import ResultWithArtifacts
from planwarden.agent.common.canonical import check_depth
from planwarden.agent.common.errors import LimitExceeded, OutcomeUnknown, StaleDefinition, ToolError
from planwarden.agent.core.tool import CallContext, Suspend, ToolDefinition
from planwarden.tools.downstream.connection import ServerConnection
from planwarden.tools.downstream.elicitation import Answer, BadElicitation, ServerElicitation, read_elicitation
from planwarden.tools.downstream.gated_servers import THREAD_PREFIX
from planwarden.tools.downstream.in_flight_calls import CANCEL, LOST, NOT_SENT, TOO_LARGE, InFlightCall
from planwarden.tools.downstream.listing import DownstreamTool, one_line
from planwarden.tools.downstream.results import build_result, read_error_text, read_whole_result
from planwarden.tools.downstream.sdk import mcp

IDEMPOTENCY_KEY = "planwarden/idempotencyKey"
MAX_ROUNDS = 20
MAX_QUESTIONS = 16
MAX_STATE_CHARS = 64 * 1024
MAX_ERROR_CHARS = 1_000
START_SHARE = 0.9
"""The share of a call's time limit that the wait for the server's start may use. If that wait used the whole limit, we
could not report that nothing was sent."""
RETRY_PAUSE_S = 0.1
"""The pause before a call is sent again because its answer has no question, only a state to send back."""

Outcome = JsonValue | ResultWithArtifacts | Suspend
"""The result of a call, or a question."""


class CallRound(BaseModel):
    """One round of a call whose server asks questions before it returns a result: its questions, and what to send next.

    It is stored with the suspension, so that any process can continue.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    arguments: dict[str, JsonValue]
    number: int = 1
    state: str | None = None
    """The server's own state, sent back unchanged."""
    questions: dict[str, JsonValue] = {}
    """The server's questions by its own keys, as it sent them."""
    answers: dict[str, Answer] = {}

    def next_round(self, result: "mcp.types.InputRequiredResult") -> "CallRound":
        """Return the next round, in which every question is open.

        Raises `BadElicitation`: the server asks too much, too often, or for something that we did not offer.
        """
        requests, state = result.input_requests or {}, result.request_state
        if self.number >= MAX_ROUNDS or len(requests) > MAX_QUESTIONS or len(state or "") > MAX_STATE_CHARS:
            raise BadElicitation("its server asks too much or too often")
        questions: dict[str, JsonValue] = {}
        for key, request in requests.items():
            if not isinstance(request, mcp.types.ElicitRequest):
                raise BadElicitation("its server asks for something that it was not offered (sampling or roots)")
            read_elicitation(request.params)
            questions[key] = request.params.model_dump(mode="json", by_alias=True, exclude_none=True)
        return CallRound(arguments=self.arguments, number=self.number + 1, state=state, questions=questions)

    def read_next(self, result: JsonValue) -> "CallRound":
        """Return the next round, from a result that the SDK has not parsed. Raises what `next_round` raises."""
        try:
            return self.next_round(mcp.types.InputRequiredResult.model_validate(result))
        except ValidationError:
            raise BadElicitation("its server asks for input in a way that is not the protocol's") from None

    def add_answer(self, decision: JsonValue) -> "CallRound":
        """Return the round with the decision as the answer to its first open question."""
        if (question := self.open_question()) is None:
            return self
        return self.model_copy(update={"answers": {**self.answers, question[0]: question[1].answer(decision)}})

    def open_question(self) -> tuple[str, ServerElicitation] | None:
        """Return the first question without an answer, with its key; None when all have one."""
        key = next((key for key in self.questions if key not in self.answers), None)
        if key is None:
            return None
        params = TypeAdapter[mcp.types.ElicitRequestParams](mcp.types.ElicitRequestParams)
        return key, read_elicitation(params.validate_python(self.questions[key]))


class DownstreamCall(msgspec.Struct, frozen=True):
    """A callable for one definition of a tool. When the definition changes, the tool gets another `DownstreamCall`."""

    connection: ServerConnection
    tool: DownstreamTool
    find_definition: Callable[[str], ToolDefinition | None]

    async def __call__(self, arguments: dict[str, JsonValue], context: CallContext) -> Outcome:
        """Return the result as JSON, or the question that the server asks first.

        Raises:
            ToolError: the call was not sent, the server refused it or failed, or the result does not fit the schema.
            OutcomeUnknown: the call was sent and may have happened.
            StaleDefinition: the server defines the tool differently now; nothing was sent.
        """
        # While the host's own connection to the server lives, a gated call goes over it.
        gated_caller = self.connection.gated_callers.get(context.thread_id)
        if gated_caller is not None:
            return await gated_caller(self.tool, arguments, context)
        return await self._send(CallRound(arguments=arguments), context)

    async def resume(self, payload: JsonValue, decision: JsonValue, context: CallContext) -> Outcome:
        """Continue after the decision on the server's question. Return and raise the same as `__call__`."""
        hold_id = payload.get("held") if isinstance(payload, dict) else None
        if not isinstance(hold_id, str):
            return await self._ask_or_send(CallRound.model_validate(payload).add_answer(decision), context)
        call = self.connection.calls.take(hold_id)
        if call is None:
            raise self._unknown_outcome(
                "asked a question and waited; the process that held the call ended, or is not this one"
            )
        if call.elicitation is not None:
            call.reply(call.elicitation.answer(decision))
        return await self._wait_for_outcome(call, CallRound(arguments={}), context)

    async def _ask_or_send(self, call_round: CallRound, context: CallContext) -> Outcome:
        """Return the round's open question, or send the round when it has none."""
        if (question := call_round.open_question()) is not None:
            return question[1].suspend(self.connection.config.name, call_round.model_dump(mode="json"))
        if not call_round.questions:
            await anyio.sleep(RETRY_PAUSE_S)
        return await self._send(call_round, context)

    async def _send(self, call_round: CallRound, context: CallContext) -> Outcome:
        """Send one round of the call, with the answers to what the server asked before, and return the outcome."""
        name, server, limit_s = self.tool.definition.name, self.connection.config.name, self.tool.definition.timeout_s
        start_s = self.connection.config.settings.start_timeout_s
        await self.connection.connect(start_s if limit_s is None else min(start_s, limit_s * START_SHARE))
        definition = self.find_definition(name)
        if definition is None:
            raise ToolError(f"server {server!r} no longer offers {name}; nothing was sent")
        if definition.digest != self.tool.definition.digest:
            raise StaleDefinition(f"{name} changed before it was called; nothing was sent")
        await context.confirm_lease()

        call = InFlightCall(context.execution_id, name)
        self.connection.begin(
            call,
            self.tool.remote_name,
            call_round.arguments,
            {IDEMPOTENCY_KEY: context.idempotency_key},
            answers=call_round.answers,
            state=call_round.state,
            check=context.confirm_lease,
        )
        return await self._wait_for_outcome(call, call_round, context)

    async def _wait_for_outcome(self, call: InFlightCall, call_round: CallRound, context: CallContext) -> Outcome:
        """Return the result or a question; the call is held open for the answer, or is made again with the answer."""
        while (question := await call.next_elicitation()) is not None:
            hold_id = token_hex(16)
            if self.connection.calls.hold(hold_id, call):
                return question.suspend(self.connection.config.name, {"held": hold_id})
            call.reply(CANCEL)
        if call.error is not None:
            raise self._translate_error(call.error)
        if isinstance(call.result, mcp.types.CallToolResult):
            return self._read_result(call.result, context)
        if not isinstance(call.result, mcp.types.InputRequiredResult):
            raise self._unknown_outcome("did not return a result: the call was ended")
        try:
            return await self._ask_or_send(call_round.next_round(call.result), context)
        except BadElicitation as error:
            raise ToolError(f"{self.tool.definition.name} was not run: {error}") from None

    def _translate_error(self, error: Exception) -> Exception:
        """Return the exception that says what an error of the request means for the call."""
        if isinstance(error, ValidationError):
            return self._unknown_outcome("answered with something that is not a tool's result")
        if not isinstance(error, mcp.MCPError):
            return error
        name, server, code = self.tool.definition.name, self.connection.config.name, error.code
        reason = one_line(error.message, MAX_ERROR_CHARS)
        if code == NOT_SENT:
            return ToolError(f"{name} was not run by server {server!r}: {reason}")
        if code == mcp.types.INVALID_REQUEST and error.message == "Session terminated":
            self.connection.mark_lost("it ended the session")
            return ToolError(f"server {server!r} ended the session before {name} was run")
        if code == mcp.types.CONNECTION_CLOSED:
            self.connection.mark_lost("the connection was closed")
            reason = self.connection.lost_reason or reason
        if code in (mcp.types.CONNECTION_CLOSED, mcp.types.REQUEST_TIMEOUT, mcp.types.PARSE_ERROR, LOST, TOO_LARGE):
            return self._unknown_outcome(f"did not return a result: {reason}")
        return ToolError(f"{name} was refused by server {server!r}: {reason}")

    def _unknown_outcome(self, what: str) -> ToolError:
        """Return the error for a sent call: `OutcomeUnknown`, or a plain `ToolError` if the call may be repeated."""
        text = f"{self.tool.definition.name} was sent to server {self.connection.config.name!r}, which {what}"
        return OutcomeUnknown(text) if self.tool.definition.effect == "effect" else ToolError(text)

    def _read_result(self, answer: "mcp.types.CallToolResult", context: CallContext) -> JsonValue | ResultWithArtifacts:
        name = self.tool.definition.name
        if self.connection.config.is_gated or context.thread_id.startswith(THREAD_PREFIX):
            return read_whole_result(name, answer.model_dump(mode="json", by_alias=True, exclude_unset=True))
        content = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in answer.content]
        if answer.is_error:
            raise ToolError(f"{name} reports an error: {one_line(read_error_text(content), MAX_ERROR_CHARS)}")
        structured: JsonValue = answer.structured_content
        try:
            check_depth(structured)
        except LimitExceeded as error:
            raise ToolError(f"{name} ran, but its result is not usable: {error.message}") from None
        if self.tool.output is not None:
            faults = ("it has none",) if structured is None else self.tool.output.find_faults(structured)
            if faults:
                text = one_line("; ".join(faults[:3]), MAX_ERROR_CHARS)
                raise ToolError(f"{name} ran, but its structured content does not fit its output schema: {text}")
        return build_result(content, structured)
