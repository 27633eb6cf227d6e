"""Pydantic AI: https://ai.pydantic.dev/deferred-tools/ and https://ai.pydantic.dev/message-history/ (stored as JSON)"""

from collections.abc import Iterator
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, Tool, ToolDenied, messages
from pydantic_ai.models.function import AgentInfo, FunctionModel
from workload import JOB, REFUSED, SENT, STEPS, Question, System, commit, reach, save_file


def script(history: list[messages.ModelMessage], info: AgentInfo) -> messages.ModelResponse:
    """Call the five tools in order, then say what came of the third."""
    results = [
        part.content for message in history for part in message.parts if isinstance(part, messages.ToolReturnPart)
    ]
    if len(results) < len(STEPS):
        return messages.ModelResponse(
            parts=[messages.ToolCallPart(list(STEPS)[len(results)], {"order": JOB}, f"call-{len(results)}")]
        )
    return messages.ModelResponse(parts=[messages.TextPart(SENT if SENT in results else REFUSED)])


AGENT: Agent[None, Any] = Agent(
    FunctionModel(script),
    output_type=[str, DeferredToolRequests],
    tools=[Tool(step, requires_approval=name == "send_refund") for name, step in STEPS.items()],
)


class Adapter(System):
    """The application around the agent."""

    async def open(self) -> None:
        self._path = self.folder / "messages.json"

    async def advance(self) -> None:
        if not self._path.exists():
            self._save(await AGENT.run(f"Refund {JOB}"))

    async def question(self) -> Question | None:
        return "approve" if self._pending() else None

    async def answer(self, yes: bool) -> None:
        if not (pending := self._pending()):
            raise LookupError("no call waits")
        results = DeferredToolResults(approvals=dict.fromkeys(pending, yes or ToolDenied("refused")))
        reach("decided")
        self._save(await AGENT.run(message_history=self._messages(), deferred_tool_results=results))

    async def result(self) -> str | None:
        return next((part.content for part in self._last() if isinstance(part, messages.TextPart)), None)

    def _messages(self) -> list[messages.ModelMessage]:
        return messages.ModelMessagesTypeAdapter.validate_json(self._path.read_bytes()) if self._path.exists() else []

    def _pending(self) -> list[str]:
        return [part.tool_call_id for part in self._last() if isinstance(part, messages.ToolCallPart)]

    def _last(self) -> Iterator[Any]:
        return (part for message in self._messages()[-1:] for part in message.parts)

    def _save(self, result: Any) -> None:
        asks = isinstance(result.output, DeferredToolRequests)
        with commit("before asking", "asked") if asks else commit():
            save_file(self._path, result.all_messages_json().decode())
