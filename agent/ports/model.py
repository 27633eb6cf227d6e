"""What the engine needs of a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.core.tool import ToolDefinition


@dataclass(frozen=True, slots=True)
class AskCaller:
    """The model is whoever called: the prompt becomes a suspension."""


class Model(Protocol):
    """Answers planning, step and synthesis prompts."""

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | AskCaller:
        """`tools` are the full definitions of the offered tools. Raises `ModelError` when there is no usable answer."""
        ...


@runtime_checkable
class StreamingModel(Model, Protocol):
    """A model that can be listened to while it writes; a model need not be one."""

    async def reply_streaming(
        self, prompt: Prompt, tools: Sequence[ToolDefinition], on_text: Callable[[str], None]
    ) -> Reply | AskCaller:
        """Like `reply`. `on_text` is told the text so far, from its beginning; it may begin anew when an attempt is
        repeated, and what counts is the reply.
        """
        ...
