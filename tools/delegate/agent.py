"""Calls the tools of one agent, which is a downstream server, and says what each failure means.

An agent may ask a question in the middle of such a call (elicitation). The agent gets the decision that a person
here has already made, or a cancellation.
"""

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import ToolError
from planwarden.tools.downstream.config import ServerSettings
from planwarden.tools.downstream.connection import ServerConnection
from planwarden.tools.downstream.elicitation import Answer, BadElicitation, ServerElicitation, read_elicitation
from planwarden.tools.downstream.in_flight_calls import CANCEL, NOT_SENT, InFlightCall, SendCheck
from planwarden.tools.downstream.listing import one_line
from planwarden.tools.downstream.sdk import mcp

MAX_TRIES = 3
MAX_REASON_CHARS = 500
AnswerElicitation = Callable[[ServerElicitation], Answer]


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

    @property
    def settings(self) -> ServerSettings:
        return self.connection.config.settings

    async def connect(self) -> None:
        """Start the agent if necessary, and wait until it has listed its tools. Raises `AgentNotAsked` on failure."""
        try:
            await self.connection.connect(self.settings.start_timeout_s)
        except ToolError as error:
            raise AgentNotAsked(error.message) from None

    async def call(
        self,
        tool: str,
        arguments: dict[str, JsonValue],
        execution_id: str,
        *,
        meta: dict[str, JsonValue] | None = None,
        check: SendCheck | None = None,
        answer_elicitation: AnswerElicitation = lambda elicitation: CANCEL,
    ) -> JsonValue:
        """Return the result of the agent's tool: its structured content, or its text.

        `check` is called immediately before a request is sent. Each request has the server's time limit.

        Raises:
            AgentNotAsked: the request was certainly not sent.
            AgentUnreachable: the request may have been sent, and there is no usable answer in time.
            AgentRefused: the agent refused, asked for what we do not offer, or gave no result in `MAX_TRIES` tries.
        """
        answers: dict[str, Answer] = {}
        state: str | None = None
        for _ in range(MAX_TRIES):
            await self.connect()
            call = InFlightCall(execution_id, answer_at_once=answer_elicitation)
            try:
                self.connection.begin(call, tool, arguments, meta or {}, answers=answers, state=state, check=check)
            except ToolError as error:
                raise AgentNotAsked(error.message) from None
            limit_s = self.settings.timeout_s
            with anyio.move_on_after(limit_s) as waiting:
                await call.next_elicitation()
            if waiting.cancelled_caught:
                raise AgentUnreachable(f"agent {self.name!r} did not answer {tool} within {limit_s:g} s")
            if call.error is not None or call.result is None:
                raise self._translate_error(tool, call.error)
            if isinstance(call.result, mcp.types.CallToolResult):
                return self._read_result(tool, call.result)
            requests: dict[str, object] = call.result.input_requests or {}
            answers = {key: self._answer(request, answer_elicitation) for key, request in requests.items()}
            state = call.result.request_state
        raise AgentRefused(f"agent {self.name!r} asked {MAX_TRIES} times without a result")

    def _translate_error(self, tool: str, error: Exception | None) -> ToolError:
        reason = "the call was ended" if error is None else one_line(str(error), MAX_REASON_CHARS)
        if isinstance(error, mcp.MCPError):
            reason = one_line(error.message, MAX_REASON_CHARS)
            if error.code in (mcp.types.INVALID_REQUEST, mcp.types.METHOD_NOT_FOUND, mcp.types.INVALID_PARAMS):
                return AgentRefused(f"agent {self.name!r} refused {tool}: {reason}")
            if error.code == NOT_SENT:
                return AgentNotAsked(f"agent {self.name!r} was not asked: {reason}")
            if error.code == mcp.types.CONNECTION_CLOSED:
                self.connection.mark_lost("the connection was closed")
        return AgentUnreachable(f"agent {self.name!r} did not answer {tool}: {reason}")

    def _answer(self, request: object, answer_elicitation: AnswerElicitation) -> Answer:
        if not isinstance(request, mcp.types.ElicitRequest):
            raise AgentRefused(f"agent {self.name!r} asks for something that it was not offered")
        try:
            return answer_elicitation(read_elicitation(request.params))
        except BadElicitation:
            return CANCEL

    def _read_result(self, tool: str, answer: Any) -> JsonValue:
        structured: JsonValue = answer.structured_content
        text = "\n".join(block.text for block in answer.content if block.type == "text")
        if answer.is_error:
            reason = one_line(text or "it gives no reason", MAX_REASON_CHARS)
            raise AgentRefused(f"agent {self.name!r} refused {tool}: {reason}")
        return text if structured is None else structured
