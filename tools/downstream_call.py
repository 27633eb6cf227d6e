"""One call of a downstream tool: compared, sent, waited for, and told apart in all the ways in which it can go wrong.

What was surely not sent is a plain error. What was sent and has no answer is an unknown outcome when it may have changed
something. The SDK's own validation of results is bypassed: it runs patterns that can backtrack on the event loop and
may list the tools again; `outputSchema` is checked here, by `agent/schema.py`. Time limits and cancellation come from the
engine's scope; when it ends a call, the SDK tells the server.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from planwarden.agent.canonical import check_depth
from planwarden.agent.errors import LimitExceeded, OutcomeUnknown, StaleDefinition, ToolError
from planwarden.agent.tool import CallContext, ToolDefinition
from planwarden.tools.downstream_link import Link
from planwarden.tools.downstream_results import error_text, result_json
from planwarden.tools.downstream_tools import DownstreamTool, one_line

if TYPE_CHECKING:
    from mcp.types import CallToolResult

logger = logging.getLogger(__name__)

IDEMPOTENCY_KEY = "planwarden/idempotencyKey"
MAX_ERROR_CHARS = 1_000
START_SHARE = 0.9
"""Of a call's time that may be spent on waiting for its server; a limit that ends it there would not know that nothing was sent."""
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
def _answers() -> TypeAdapter[Any]:
    """What a call may be answered with; made once, because making it costs more than a call."""
    from mcp.types import CallToolResult, InputRequiredResult

    return TypeAdapter(CallToolResult | InputRequiredResult)


OnProgress = Callable[[Progress], None]


def log_progress(progress: Progress) -> None:
    """The default: a sign of life in the log."""
    total = "" if progress.total is None else f" of {progress.total:g}"
    logger.info("%s: %s is at %g%s", progress.server, progress.tool_name, progress.progress, total)


@dataclass(frozen=True, slots=True)
class Caller:
    """Calls one tool as it is defined; a tool that changed has another caller."""

    link: Link
    tool: DownstreamTool
    definition: ToolDefinition
    """With the operator's settings, and its digest."""
    current: Callable[[str], ToolDefinition | None]
    on_progress: OnProgress

    async def __call__(self, arguments: dict[str, JsonValue], context: CallContext) -> JsonValue:
        """The result as JSON.

        Raises:
            ToolError: it was not sent, or the server refused or failed it, or its result does not fit.
            OutcomeUnknown: it was sent and may have happened.
            StaleDefinition: the server defines it differently now; nothing was sent.
        """
        name, limit_s = self.definition.name, self.definition.timeout_s
        start_s = self.link.config.settings.start_timeout_s
        session = await self.link.session(start_s if limit_s is None else min(start_s, limit_s * START_SHARE))
        known = self.current(name)
        if known is None:
            raise ToolError(f"server {self.link.config.name!r} does not offer {name} any more; nothing was sent")
        if known.digest != self.definition.digest:
            raise StaleDefinition(f"{name} changed before it was called; nothing was sent")
        return self._result(await self._answer(session, arguments, context))

    async def _answer(self, session: Any, arguments: dict[str, JsonValue], context: CallContext) -> "CallToolResult":
        from mcp.shared.exceptions import MCPError
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult, InputRequiredResult

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            text = None if message is None else one_line(message, 200)
            server = self.link.config.name
            self.on_progress(Progress(server, self.definition.name, context.call_id, progress, total, text))

        meta: Any = {IDEMPOTENCY_KEY: context.idempotency_key}
        params = CallToolRequestParams(name=self.tool.told_name, arguments=arguments, _meta=meta)
        request = CallToolRequest(params=params)
        try:
            answer = await session.send_request(request, _answers(), progress_callback=heard)
        except MCPError as error:
            raise self._failure(error.code, error.message) from None
        except ValidationError:
            raise self._unknown("answered with what is not a result of a tool") from None
        if isinstance(answer, InputRequiredResult):
            raise ToolError(
                f"{self.definition.name} asks a question of its own, which cannot be passed on; it was not run"
            )
        assert isinstance(answer, CallToolResult)
        return answer

    def _failure(self, code: int, message: str) -> ToolError:
        """What an error of the protocol means for the call."""
        from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST, PARSE_ERROR, REQUEST_TIMEOUT

        from planwarden.tools.downstream_http import LOST, NOT_SENT
        from planwarden.tools.downstream_stdio import TOO_LARGE

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
            faults = ("it has none",) if structured is None else self.tool.output.faults(structured)
            if faults:
                text = one_line("; ".join(faults[:3]), MAX_ERROR_CHARS)
                raise ToolError(f"{name} ran, but its structured content does not fit its output schema: {text}")
        return result_json(content, structured)
