"""Asks the person who uses the host about a gated call, if the host can show a form or open a link.

The host gets the question during the call, in the call's result, or in a task. A form decides only if the policy
accepts forms. A link only opens the page on which the person decides. If no person decides, or the host itself closes
the form, the question stays open in the inbox.
"""

from collections.abc import Mapping

import anyio
from mcp.shared.exceptions import MCPError
from mcp.types import ClientCapabilities
from pydantic import ValidationError

from planwarden.agent.common.errors import InvalidArguments, PlanwardenError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.api.service import Service
from planwarden.server.gate.frames import Client
from planwarden.server.gate.relay import TASK_PREFIX, Relay
from planwarden.server.mcp.elicitation import ElicitationForm
from planwarden.server.mcp.task_state import (
    TaskInput,
    TaskQuestion,
    build_input_request,
    build_task_document,
    read_task_status,
)

CHANNEL = "gate"

Questions = Mapping[str, TaskQuestion]


class HostQuestions:
    """Asks questions through one host."""

    def __init__(self, service: Service, relay: Relay, principal: str) -> None:
        self._service = service
        self._principal = principal
        self._relay = relay
        self._input = TaskInput(CHANNEL)

    async def find(self, execution: ExecutionState, client: Client) -> Questions:
        """Return the execution's open questions that the client can show and that no host has answered yet."""
        if not execution.open_suspensions:
            return {}
        try:
            capabilities = ClientCapabilities.model_validate(client.capabilities)
        except ValidationError:
            return {}
        return await self._input.find_questions(self._service, self._service.build_view(execution), capabilities)

    def build_requests(self, questions: Questions) -> dict[str, JsonValue]:
        """Return the questions as `inputRequests`."""
        return {key: build_input_request(elicitation) for key, (_, elicitation) in questions.items()}

    async def apply(self, execution: ExecutionState, client: Client, responses: Mapping[str, JsonValue]) -> None:
        """Record the client's answers; recording the same answers again changes nothing.

        Raises `InvalidArguments`: an answer does not fit its question, which stays open.
        """
        try:
            questions = await self.find(execution, client)
            await self._input.apply_responses(self._service, self._principal, questions, responses)
        except MCPError as error:
            raise InvalidArguments(error.error.message) from None

    async def push(
        self, execution: ExecutionState, client: Client, questions: Questions, waiting: anyio.CancelScope, s: float
    ) -> None:
        """Ask a host of a revision before 2026-07-28, and record its answers. Then wait at most `s` seconds."""
        try:
            for key, (suspension, elicitation) in questions.items():
                params: dict[str, JsonValue] = build_input_request(elicitation)["params"]
                if not isinstance(elicitation, ElicitationForm):
                    params |= {"elicitationId": suspension.suspension_id}
                answer = await self._relay.host.ask("elicitation/create", params)
                await self.apply(execution, client, {key: answer})
        except PlanwardenError:
            # A missing, unusable or unstored answer decides nothing, and ends the asking. Earlier answers count.
            pass
        finally:
            waiting.deadline = min(waiting.deadline, anyio.current_time() + s)

    async def build_task(self, execution: ExecutionState, client: Client, message: str) -> dict[str, JsonValue]:
        """Return the task for the call, without the result of the call."""
        status, questions = read_task_status(execution), await self.find(execution, client)
        task = build_task_document(
            self._service, execution, "input_required" if questions else status, progress=message
        )
        task |= {"taskId": f"{TASK_PREFIX}{execution.execution_id}", "statusMessage": message}
        return task | ({"inputRequests": self.build_requests(questions)} if questions else {})
