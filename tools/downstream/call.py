"""One call of a downstream tool: checks the definition, sends the call, and says what each failure means.

A call that was certainly not sent ends in a plain error. A call that was sent and has no answer has an unknown outcome
if it may have changed something. The SDK's validation of results is bypassed, because it runs patterns that can
backtrack on the event loop and may list the tools again; `agent/common/schema.py` checks `outputSchema` instead.

When the server asks a question, a person gets it as a suspension, and the call continues with the answer: the open
call, or since 2026-07-28 the same call made again with the same key. Time limits and cancellation come from the
engine's scope; when it ends a call, the SDK tells the server.
"""

import logging
from collections.abc import Callable
from functools import cache, partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from pydantic import JsonValue, TypeAdapter, ValidationError

from planwarden.agent.common.artifact import ResultWithArtifacts
from planwarden.agent.common.canonical import check_depth
from planwarden.agent.common.errors import LimitExceeded, OutcomeUnknown, StaleDefinition, ToolError
from planwarden.agent.common.imports import LazyModule
from planwarden.agent.core.tool import CallContext, Suspend, ToolDefinition
from planwarden.tools.downstream.call_round import CallRound
from planwarden.tools.downstream.connection import ServerConnection
from planwarden.tools.downstream.elicitation import BadElicitation
from planwarden.tools.downstream.in_flight_calls import InFlightCall
from planwarden.tools.downstream.results import build_result, read_error_text
from planwarden.tools.downstream.tools import DownstreamTool, one_line
from planwarden.tools.downstream.transports.send_check import LOST, NOT_SENT, TOO_LARGE, checked

if TYPE_CHECKING:
    import mcp
else:
    mcp = LazyModule("mcp")

logger = logging.getLogger(__name__)

IDEMPOTENCY_KEY = "planwarden/idempotencyKey"
MAX_ERROR_CHARS = 1_000
START_SHARE = 0.9
"""The part of a call's time limit that may be spent on waiting for the server. A call that its limit ends there would
not know that nothing was sent."""
RETRY_PAUSE_S = 0.1
"""Before a call is sent again whose answer has no question, only a state to send back."""
_BLOCKS: TypeAdapter[list[dict[str, JsonValue]]] = TypeAdapter(list[dict[str, JsonValue]])

Outcome = JsonValue | ResultWithArtifacts | Suspend
"""The result of a call, or a question."""


class Progress(msgspec.Struct, frozen=True):
    """What a server reports about a running call."""

    server: str
    tool_name: str
    call_id: str
    progress: float
    total: float | None
    message: str | None


@cache
def call_result_adapter() -> TypeAdapter[Any]:
    """Validates the answer to a call. Built once, because building it costs more than a call."""

    return TypeAdapter(mcp.types.CallToolResult | mcp.types.InputRequiredResult)


OnProgress = Callable[[Progress], None]


def log_progress(progress: Progress) -> None:
    """The default: one line in the log."""
    total = "" if progress.total is None else f" of {progress.total:g}"
    logger.info("%s: %s is at %g%s", progress.server, progress.tool_name, progress.progress, total)


class DownstreamCall(msgspec.Struct, frozen=True):
    """Calls one tool as it is defined. A tool that changed gets another `DownstreamCall`."""

    connection: ServerConnection
    tool: DownstreamTool
    definition: ToolDefinition
    """With the operator's settings and the digest."""
    find_definition: Callable[[str], ToolDefinition | None]
    on_progress: OnProgress

    async def __call__(self, arguments: dict[str, JsonValue], context: CallContext) -> Outcome:
        """Returns the result as JSON, or the question that the server asks first.

        Raises:
            ToolError: the call was not sent, the server refused it or failed, or the result does not fit the schema.
            OutcomeUnknown: the call was sent and may have happened.
            StaleDefinition: the server defines it differently now; nothing was sent.
        """
        return await self._send(CallRound(arguments=arguments), context)

    async def resume(self, payload: JsonValue, decision: JsonValue, context: CallContext) -> Outcome:
        """Continues after the decision on the server's question. Returns and raises as `__call__`."""
        held = payload.get("held") if isinstance(payload, dict) else None
        if not isinstance(held, str):
            call_round = CallRound.model_validate(payload).with_answer(decision)
            elicitation = call_round.open_elicitation()
            if elicitation is not None:
                return elicitation.suspend(self.connection.config.name, call_round.model_dump(mode="json"))
            return await self._send(call_round, context)
        call = self.connection.calls.take(held)
        if call is None:
            raise self._unknown_outcome(
                "asked a question and waited; the process that held the call ended, or is another one"
            )
        if call.elicitation is not None:
            call.reply(call.elicitation.answer(decision))
        return await self._wait_for_outcome(call, CallRound(arguments={}), context)

    async def _send(self, call_round: CallRound, context: CallContext) -> Outcome:
        """Send one round of the call, with the answers to what the server asked before."""
        name, limit_s = self.definition.name, self.definition.timeout_s
        start_s = self.connection.config.settings.start_timeout_s
        session = await self.connection.session(start_s if limit_s is None else min(start_s, limit_s * START_SHARE))
        known = self.find_definition(name)
        if known is None:
            raise ToolError(f"server {self.connection.config.name!r} no longer offers {name}; nothing was sent")
        if known.digest != self.definition.digest:
            raise StaleDefinition(f"{name} changed before it was called; nothing was sent")
        await context.confirm_lease()
        call = InFlightCall(context.execution_id)
        self.connection.begin(call, partial(self._request, session, call_round, context))
        return await self._wait_for_outcome(call, call_round, context)

    async def _wait_for_outcome(self, call: InFlightCall, call_round: CallRound, context: CallContext) -> Outcome:
        """Returns the result of the call, or a question; then the call is held open or can be made again."""

        asked = await call.next_elicitation()
        if asked is not None:
            held = token_hex(16)
            if self.connection.calls.hold(held, call):
                return asked.suspend(self.connection.config.name, {"held": held})
            call.reply({"action": "cancel"})
            return await self._wait_for_outcome(call, call_round, context)
        if call.error is not None:
            raise call.error
        if isinstance(call.result, mcp.types.CallToolResult):
            return self._read_result(call.result)
        if not isinstance(call.result, mcp.types.InputRequiredResult):
            raise self._unknown_outcome("did not return a result: the call was ended")
        try:
            next_round = call_round.next_round(call.result)
            elicitation = next_round.open_elicitation()
        except BadElicitation as error:
            raise ToolError(f"{self.definition.name} was not run: {error}") from None
        if elicitation is not None:
            return elicitation.suspend(self.connection.config.name, next_round.model_dump(mode="json"))
        await anyio.sleep(RETRY_PAUSE_S)
        return await self._send(next_round, context)

    async def _request(
        self, session: Any, call_round: CallRound, context: CallContext
    ) -> "mcp.types.CallToolResult | mcp.types.InputRequiredResult":

        async def report(progress: float, total: float | None, message: str | None) -> None:
            text = None if message is None else one_line(message, 200)
            server = self.connection.config.name
            self.on_progress(Progress(server, self.definition.name, context.call_id, progress, total, text))

        meta: Any = {IDEMPOTENCY_KEY: context.idempotency_key}
        params = mcp.types.CallToolRequestParams(
            name=self.tool.remote_name,
            arguments=call_round.arguments,
            input_responses={
                key: mcp.types.ElicitResult.model_validate(given) for key, given in call_round.answers.items()
            }
            or None,
            request_state=call_round.state,
            _meta=meta,
        )
        request = mcp.types.CallToolRequest(params=params)
        try:
            with checked(context.confirm_lease):
                return await session.send_request(request, call_result_adapter(), progress_callback=report)
        except mcp.MCPError as error:
            raise self._translate_error(error.code, error.message) from None
        except ValidationError:
            raise self._unknown_outcome("answered with something that is not a tool's result") from None

    def _translate_error(self, code: int, message: str) -> ToolError:
        """Returns what an error of the protocol means for the call."""
        reason = one_line(message, MAX_ERROR_CHARS)
        if code == NOT_SENT:
            return ToolError(f"{self.definition.name} was not run by server {self.connection.config.name!r}: {reason}")
        if code == mcp.types.INVALID_REQUEST and message == "Session terminated":
            self.connection.mark_lost("it ended the session")
            return ToolError(
                f"server {self.connection.config.name!r} ended the session before {self.definition.name} was run"
            )
        if code in (mcp.types.CONNECTION_CLOSED, mcp.types.REQUEST_TIMEOUT, mcp.types.PARSE_ERROR, LOST, TOO_LARGE):
            if code == mcp.types.CONNECTION_CLOSED:
                self.connection.mark_lost("the connection was closed")
                reason = self.connection.lost_reason or reason
            return self._unknown_outcome(f"did not return a result: {reason}")
        return ToolError(f"{self.definition.name} was refused by server {self.connection.config.name!r}: {reason}")

    def _unknown_outcome(self, what: str) -> ToolError:
        """Returns the error for a call that was sent; it is a plain one when the tool has no effect."""
        text = f"{self.definition.name} was sent to server {self.connection.config.name!r}, which {what}"
        return OutcomeUnknown(text) if self.definition.effect == "effect" else ToolError(text)

    def _read_result(self, answer: "mcp.types.CallToolResult") -> JsonValue | ResultWithArtifacts:
        name = self.definition.name
        content = _BLOCKS.validate_python(
            [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in answer.content]
        )
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
