"""One agent behind a downstream server: its tools called with our handle, its errors told apart.

An agent that asks in the middle of such a call (elicitation) is asking whether our person has decided: it hears what was
decided here, or nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import JsonValue

from planwarden.agent.common.errors import ToolError
from planwarden.tools.downstream.call import answers_adapter
from planwarden.tools.downstream.connection import ServerConnection
from planwarden.tools.downstream.elicitations import BadQuestion, ServerElicitation, read_question
from planwarden.tools.downstream.in_flight import Answer, InFlightCall
from planwarden.tools.downstream.tools import one_line

NOTHING: Answer = {"action": "cancel"}
MAX_TRIES = 3


class AgentRefused(ToolError):
    """The agent answered, and the answer is no."""


class AgentUnreachable(ToolError):
    """The agent did not answer; what it was asked may have happened or not."""


class AgentNotAsked(AgentUnreachable):
    """The agent was surely not asked."""


@dataclass(frozen=True, slots=True)
class RemoteAgent:
    """A downstream server that runs goals."""

    link: ServerConnection

    @property
    def name(self) -> str:
        return self.link.config.name

    async def call(
        self,
        tool: str,
        arguments: dict[str, JsonValue],
        execution_id: str,
        *,
        meta: dict[str, JsonValue] | None = None,
        decided: Callable[[ServerElicitation], Answer] = lambda asked: NOTHING,
    ) -> JsonValue:
        """What the agent's tool gives: its structured content, or its text.

        Raises:
            NotSent, Unreachable, Refused: see there.
        """
        from mcp.types import CallToolResult, ElicitRequest, ElicitResult

        answers: dict[str, Any] | None = None
        state: str | None = None
        for _ in range(MAX_TRIES):
            found = await self._sent(tool, arguments, execution_id, meta or {}, decided, answers, state)
            if isinstance(found, CallToolResult):
                return _value(self.name, tool, found)
            answers, state = {}, found.request_state
            requests: dict[str, object] = found.input_requests or {}
            for key, request in requests.items():
                if not isinstance(request, ElicitRequest):
                    raise AgentRefused(f"agent {self.name!r} asks for what is not offered to it")
                answers[key] = ElicitResult.model_validate(_decided(request.params, decided))
        raise AgentRefused(f"agent {self.name!r} asks again and again")

    async def ready(self) -> Any:
        """The session of the agent, listed. Raises `AgentNotAsked`."""
        try:
            return await self.link.session(self.link.config.settings.start_timeout_s)
        except ToolError as error:
            raise AgentNotAsked(error.message) from None

    async def _sent(
        self,
        tool: str,
        arguments: dict[str, JsonValue],
        execution_id: str,
        meta: dict[str, JsonValue],
        decided: Callable[[ServerElicitation], Answer],
        answers: dict[str, Any] | None,
        state: str | None,
    ) -> Any:
        from mcp.shared.exceptions import MCPError
        from mcp.types import (
            CONNECTION_CLOSED,
            INVALID_PARAMS,
            INVALID_REQUEST,
            METHOD_NOT_FOUND,
            CallToolRequest,
            CallToolRequestParams,
        )

        session = await self.ready()
        given: Any = meta
        params = CallToolRequestParams(
            name=tool, arguments=arguments, input_responses=answers, request_state=state, _meta=given or None
        )
        talk = InFlightCall(execution_id, answers=decided)
        self.link.begin(talk, partial(session.send_request, CallToolRequest(params=params), answers_adapter()))
        await talk.heard()
        if isinstance(talk.error, MCPError) and talk.error.code in (INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS):
            raise AgentRefused(f"agent {self.name!r} refused {tool}: {one_line(talk.error.message, 500)}")
        if talk.error is not None or talk.result is None:
            if isinstance(talk.error, MCPError) and talk.error.code == CONNECTION_CLOSED:
                self.link.lose("the connection was closed")
            why = "the call was ended" if talk.error is None else one_line(str(talk.error), 500)
            raise AgentUnreachable(f"agent {self.name!r} did not answer {tool}: {why}")
        return talk.result


def _decided(params: Any, decided: Callable[[ServerElicitation], Answer]) -> Answer:
    try:
        return decided(read_question(params))
    except BadQuestion:
        return NOTHING


def _value(agent: str, tool: str, answer: Any) -> JsonValue:
    structured: JsonValue = answer.structured_content
    text = "\n".join(block.text for block in answer.content if block.type == "text")
    if answer.is_error:
        raise AgentRefused(f"agent {agent!r} refused {tool}: {one_line(text or 'it gives no reason', 500)}")
    return text if structured is None else structured
