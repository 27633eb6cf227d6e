"""The model that is whoever called: it answers no prompt itself."""

from collections.abc import Sequence

from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.model import AskCaller


class CallerModel:
    """The assistant that called does the thinking; every prompt becomes a suspension addressed to it."""

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | AskCaller:
        return AskCaller()
