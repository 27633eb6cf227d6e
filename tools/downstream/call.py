"""One call of a downstream tool: compared, sent, waited for, and told apart in all the ways in which it can go wrong.

What was surely not sent is a plain error. What was sent and has no answer is an unknown outcome when it may have changed
something. The SDK's own validation of results is bypassed: it runs patterns that can backtrack on the event loop and
may list the tools again; `outputSchema` is checked here, by `agent/common/schema.py`. A question of the server is asked as ours, and
the call goes on with the answer: the open one, or on 2026-07-28 the same one made again, with the same key. Time limits and cancellation come from the
engine's scope; when it ends a call, the SDK tells the server.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
from pydantic import JsonValue, TypeAdapter, ValidationError

from planwarden.agent.common.canonical import check_depth
from planwarden.agent.common.errors import LimitExceeded, OutcomeUnknown, StaleDefinition, ToolError
from planwarden.agent.core.tool import CallContext, Suspend, ToolDefinition
from planwarden.tools.downstream.connection import ServerConnection
from planwarden.tools.downstream.elicitations import BadQuestion
from planwarden.tools.downstream.exchange import Around, ObservedRequest
from planwarden.tools.downstream.in_flight import InFlightCall
from planwarden.tools.downstream.results import error_text, result_json
from planwarden.tools.downstream.rounds import CallRound
from planwarden.tools.downstream.tools import DownstreamTool, one_line

if TYPE_CHECKING:
    from mcp.types import CallToolResult, InputRequiredResult

logger = logging.getLogger(__name__)

IDEMPOTENCY_KEY = "planwarden/idempotencyKey"
MAX_ERROR_CHARS = 1_000
START_SHARE = 0.9
"""Of a call's time that may be spent on waiting for its server; a limit that ends it there would not know that nothing was sent."""
AGAIN_S = 0.1
"""Before a call is sent again when the server answered with nothing but a state to come back with."""
_BLOCKS: TypeAdapter[list[dict[str, JsonValue]]] = TypeAdapter(list[dict[str, JsonValue]])


@dataclass(frozen=True, slots=True)
class Progress:
    """What a server said about a running call."""

    server: str
    tool_name: str
    call_id: str
    progress: float
    total: float | None
    message: str | None


@cache
def answers_adapter() -> TypeAdapter[Any]:
    """What a call may be answered with; made once, because making it costs more than a call."""
    from mcp.types import CallToolResult, InputRequiredResult

    return TypeAdapter(CallToolResult | InputRequiredResult)


OnProgress = Callable[[Progress], None]


def log_progress(progress: Progress) -> None:
    """The default: a sign of life in the log."""
    total = "" if progress.total is None else f" of {progress.total:g}"
    logger.info("%s: %s is at %g%s", progress.server, progress.tool_name, progress.progress, total)


@dataclass(frozen=True, slots=True)
class DownstreamCall:
    """Calls one tool as it is defined; a tool that changed has another caller."""

    link: ServerConnection
    tool: DownstreamTool
    definition: ToolDefinition
    """With the operator's settings, and its digest."""
    current: Callable[[str], ToolDefinition | None]
    on_progress: OnProgress
    around: Around

    async def __call__(self, arguments: dict[str, JsonValue], context: CallContext) -> JsonValue | Suspend:
        """The result as JSON, or the question that the server asks first.

        Raises:
            ToolError: it was not sent, or the server refused or failed it, or its result does not fit.
            OutcomeUnknown: it was sent and may have happened.
            StaleDefinition: the server defines it differently now; nothing was sent.
        """
        return await self._sent(CallRound(arguments=arguments), context)

    async def resume(self, payload: JsonValue, decision: JsonValue, context: CallContext) -> JsonValue | Suspend:
        """As `__call__`, after the decision on the server's question. Raises the same errors."""
        held = payload.get("held") if isinstance(payload, dict) else None
        if not isinstance(held, str):
            made = CallRound.model_validate(payload).answered(decision)
            following = made.question()
            if following is not None:
                return following.suspend(self.link.config.name, made.model_dump(mode="json"))
            return await self._sent(made, context)
        talk = self.link.talks.take(held)
        if talk is None:
            raise self._unknown("asked a question and waited; the process that held the call ended, or is another one")
        if talk.asked is not None:
            talk.reply(talk.asked.answer(decision))
        return await self._outcome(talk, CallRound(arguments={}), context)

    async def _sent(self, made: CallRound, context: CallContext) -> JsonValue | Suspend:
        """Send the call, again and with the answers when the server asked before."""
        name, limit_s = self.definition.name, self.definition.timeout_s
        start_s = self.link.config.settings.start_timeout_s
        session = await self.link.session(start_s if limit_s is None else min(start_s, limit_s * START_SHARE))
        known = self.current(name)
        if known is None:
            raise ToolError(f"server {self.link.config.name!r} does not offer {name} any more; nothing was sent")
        if known.digest != self.definition.digest:
            raise StaleDefinition(f"{name} changed before it was called; nothing was sent")
        talk = InFlightCall(context.execution_id)
        self.link.begin(talk, partial(self._answer, session, made, context))
        return await self._outcome(talk, made, context)

    async def _outcome(self, talk: InFlightCall, made: CallRound, context: CallContext) -> JsonValue | Suspend:
        """What the call came to: its result, or a question, in which case it is kept or can be made again."""
        from mcp.types import CallToolResult, InputRequiredResult

        asked = await talk.heard()
        if asked is not None:
            held = token_hex(16)
            if self.link.talks.hold(held, talk):
                return asked.suspend(self.link.config.name, {"held": held})
            talk.reply({"action": "cancel"})
            return await self._outcome(talk, made, context)
        if talk.error is not None:
            raise talk.error
        if isinstance(talk.result, CallToolResult):
            return self._result(talk.result)
        if not isinstance(talk.result, InputRequiredResult):
            raise self._unknown("did not give a result: the call was ended")
        try:
            following = made.following(talk.result)
            question = following.question()
        except BadQuestion as error:
            raise ToolError(f"{self.definition.name} was not run: {error}") from None
        if question is not None:
            return question.suspend(self.link.config.name, following.model_dump(mode="json"))
        await anyio.sleep(AGAIN_S)
        return await self._sent(following, context)

    async def _answer(
        self, session: Any, made: CallRound, context: CallContext
    ) -> "CallToolResult | InputRequiredResult":
        from mcp.shared.exceptions import MCPError
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult, ElicitResult

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            text = None if message is None else one_line(message, 200)
            server = self.link.config.name
            self.on_progress(Progress(server, self.definition.name, context.call_id, progress, total, text))

        meta: Any = {IDEMPOTENCY_KEY: context.idempotency_key}
        params = CallToolRequestParams(
            name=self.tool.told_name,
            arguments=made.arguments,
            input_responses={key: ElicitResult.model_validate(given) for key, given in made.answers.items()} or None,
            request_state=made.state,
            _meta=meta,
        )
        request = CallToolRequest(params=params)
        try:
            with self.around(self._exchange(session.protocol_version)) as ended:
                answer = await session.send_request(request, answers_adapter(), progress_callback=heard)
                ended(isinstance(answer, CallToolResult) and bool(answer.is_error))
                return answer
        except MCPError as error:
            raise self._failure(error.code, error.message) from None
        except ValidationError:
            raise self._unknown("answered with what is not a result of a tool") from None

    def _exchange(self, protocol_version: str | None) -> ObservedRequest:
        parts = urlsplit(self.link.config.url or "")
        return ObservedRequest(
            server=self.link.config.name,
            method="tools/call",
            catalogue_name=self.definition.name,
            tool_name=self.tool.told_name,
            protocol_version=protocol_version,
            address=parts.hostname,
            port=parts.port or {"http": 80, "https": 443}.get(parts.scheme),
        )

    def _failure(self, code: int, message: str) -> ToolError:
        """What an error of the protocol means for the call."""
        from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST, PARSE_ERROR, REQUEST_TIMEOUT

        from planwarden.tools.downstream.transports.http import LOST, NOT_SENT
        from planwarden.tools.downstream.transports.stdio import TOO_LARGE

        told = one_line(message, MAX_ERROR_CHARS)
        if code == NOT_SENT:
            return ToolError(f"{self.definition.name} was not run by server {self.link.config.name!r}: {told}")
        if code == INVALID_REQUEST and message == "Session terminated":
            self.link.lose("it ended the session")
            return ToolError(
                f"server {self.link.config.name!r} ended the session before {self.definition.name} was run"
            )
        if code in (CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR, LOST, TOO_LARGE):
            if code == CONNECTION_CLOSED:
                self.link.lose("the connection was closed")
                told = self.link.loss or told
            return self._unknown(f"did not give a result: {told}")
        return ToolError(f"{self.definition.name} was refused by server {self.link.config.name!r}: {told}")

    def _unknown(self, what: str) -> ToolError:
        """The call was sent; whether that matters depends on what it may have changed."""
        text = f"{self.definition.name} was sent to server {self.link.config.name!r}, which {what}"
        return OutcomeUnknown(text) if self.definition.effect == "effect" else ToolError(text)

    def _result(self, answer: "CallToolResult") -> JsonValue:
        name = self.definition.name
        content = _BLOCKS.validate_python(
            [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in answer.content]
        )
        if answer.is_error:
            raise ToolError(f"{name} reports an error: {one_line(error_text(content), MAX_ERROR_CHARS)}")
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
        return result_json(content, structured)
