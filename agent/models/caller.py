"""A model port for callers that are models themselves: every prompt goes to the caller."""

from collections.abc import Sequence

from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.model import AskCaller


class CallerModel:
    """Answers no prompt: each becomes a suspension that the calling assistant answers."""

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | AskCaller:
        return AskCaller()
