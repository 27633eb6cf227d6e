"""An implementation of the `Model` port for callers that are models themselves: the caller gets every prompt."""

from collections.abc import Sequence

from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.model import AskCaller


class CallerModel:
    """Answers every prompt with `AskCaller`, so that it becomes a suspension that the caller answers."""

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | AskCaller:
        return AskCaller()
