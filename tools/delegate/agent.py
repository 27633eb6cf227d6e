"""One agent behind a downstream server: calls its tools and says what each failure means.

An agent that asks in the middle of such a call (elicitation) asks what our person decided. The answer is that decision,
or a cancellation.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import ToolError
from planwarden.agent.common.imports import LazyModule
from planwarden.tools.downstream.call import call_result_adapter
from planwarden.tools.downstream.connection import ServerConnection
from planwarden.tools.downstream.elicitation import BadElicitation, ServerElicitation, read_elicitation
from planwarden.tools.downstream.in_flight_calls import Answer, InFlightCall
from planwarden.tools.downstream.tools import one_line
from planwarden.tools.downstream.transports.send_check import NOT_SENT, SendCheck, checked

if TYPE_CHECKING:
    import mcp
else:
    mcp = LazyModule("mcp")

CANCEL: Answer = {"action": "cancel"}
MAX_TRIES = 3


class AgentRefused(ToolError):
    """The agent refused."""


class AgentUnreachable(ToolError):
    """The agent did not answer; it may have carried out the request."""


class AgentNotAsked(AgentUnreachable):
    """The request was certainly not sent."""


class RemoteAgent(msgspec.Struct, frozen=True):
    """A downstream server that runs goals."""

    connection: ServerConnection

    @property
    def name(self) -> str:
        return self.connection.config.name

    async def call(
        self,
        tool: str,
        arguments: dict[str, JsonValue],
        execution_id: str,
        *,
        meta: dict[str, JsonValue] | None = None,
        check: SendCheck | None = None,
        answer_elicitation: Callable[[ServerElicitation], Answer] = lambda elicitation: CANCEL,
    ) -> JsonValue:
        """Returns the result of the agent's tool: its structured content, or its text.

        `check` is called immediately before a request is sent.

        Raises:
            AgentNotAsked: the request was certainly not sent.
            AgentUnreachable: it was sent and not answered.
            AgentRefused: the agent refused.
        """

        answers: dict[str, Any] | None = None
        state: str | None = None
        for _ in range(MAX_TRIES):
            with checked(check):
                found = await self._send(tool, arguments, execution_id, meta or {}, answer_elicitation, answers, state)
            if isinstance(found, mcp.types.CallToolResult):
                return _read_result(self.name, tool, found)
            answers, state = {}, found.request_state
            requests: dict[str, object] = found.input_requests or {}
            for key, request in requests.items():
                if not isinstance(request, mcp.types.ElicitRequest):
                    raise AgentRefused(f"agent {self.name!r} asks for something that it was not offered")
                answers[key] = mcp.types.ElicitResult.model_validate(
                    _answer_request(request.params, answer_elicitation)
                )
        raise AgentRefused(f"agent {self.name!r} asked {MAX_TRIES} times without a result")

    async def open_session(self) -> Any:
        """Returns the session of the running, listed agent. Raises `AgentNotAsked`."""
        try:
            return await self.connection.session(self.connection.config.settings.start_timeout_s)
        except ToolError as error:
            raise AgentNotAsked(error.message) from None

    async def _send(
        self,
        tool: str,
        arguments: dict[str, JsonValue],
        execution_id: str,
        meta: dict[str, JsonValue],
        answer_elicitation: Callable[[ServerElicitation], Answer],
        answers: dict[str, Any] | None,
        state: str | None,
    ) -> Any:

        session = await self.open_session()
        sdk_meta: Any = meta
        params = mcp.types.CallToolRequestParams(
            name=tool, arguments=arguments, input_responses=answers, request_state=state, _meta=sdk_meta or None
        )
        call = InFlightCall(execution_id, answer_at_once=answer_elicitation)
        self.connection.begin(
            call, partial(session.send_request, mcp.types.CallToolRequest(params=params), call_result_adapter())
        )
        await call.next_elicitation()
        if isinstance(call.error, mcp.MCPError) and call.error.code in (
            mcp.types.INVALID_REQUEST,
            mcp.types.METHOD_NOT_FOUND,
            mcp.types.INVALID_PARAMS,
        ):
            raise AgentRefused(f"agent {self.name!r} refused {tool}: {one_line(call.error.message, 500)}")
        if isinstance(call.error, mcp.MCPError) and call.error.code == NOT_SENT:
            raise AgentNotAsked(f"agent {self.name!r} was not asked: {one_line(call.error.message, 500)}")
        if call.error is not None or call.result is None:
            if isinstance(call.error, mcp.MCPError) and call.error.code == mcp.types.CONNECTION_CLOSED:
                self.connection.mark_lost("the connection was closed")
            why = "the call was ended" if call.error is None else one_line(str(call.error), 500)
            raise AgentUnreachable(f"agent {self.name!r} did not answer {tool}: {why}")
        return call.result


def _answer_request(params: Any, answer_elicitation: Callable[[ServerElicitation], Answer]) -> Answer:
    try:
        return answer_elicitation(read_elicitation(params))
    except BadElicitation:
        return CANCEL


def _read_result(agent: str, tool: str, answer: Any) -> JsonValue:
    structured: JsonValue = answer.structured_content
    text = "\n".join(block.text for block in answer.content if block.type == "text")
    if answer.is_error:
        raise AgentRefused(f"agent {agent!r} refused {tool}: {one_line(text or 'it gives no reason', 500)}")
    return text if structured is None else structured
