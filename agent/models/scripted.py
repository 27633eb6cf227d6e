"""A model that answers from a script: deterministic, and without a network.

Each prompt is answered by the first unused entry whose `when` fits the prompt. The log of an execution says which
entries it has used, so a restart continues at the same place in the script.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, ModelError, PlanwardenError
from planwarden.agent.common.form import list_pydantic_faults
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.plan.plan_input import CallInput
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.model import AskCaller


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class _When(_Part):
    purpose: Literal["plan", "step", "synthesize"] | None = None
    stepId: str | None = None


class _Call(CallInput):
    model_config = ConfigDict(extra="forbid")


class _Reply(_Part):
    content: str | None = None
    toolCalls: list[_Call] = Field(default_factory=list[_Call])
    plan: JsonValue = None
    revise: JsonValue = None
    inputTokens: Annotated[int, Field(ge=0)] = 0
    outputTokens: Annotated[int, Field(ge=0)] = 0


class _Entry(_Part):
    when: _When = Field(default_factory=_When)
    reply: _Reply


class _Script(_Part):
    replies: list[_Entry]


class ScriptedModel:
    """Answers from a list of entries and uses each entry once."""

    def __init__(self, script: JsonValue) -> None:
        """Raise `InvalidArguments` if the script does not have the form in docs/reference/plans.md."""
        try:
            self._entries = _Script.model_validate(script).replies
        except ValidationError as error:
            # Cut off the example after `; send`, because it is meant for plans.
            fault = list_pydantic_faults(error, "script")[0].partition("; send ")[0]
            raise InvalidArguments(f"the model script is not valid: {fault}") from None
        self._used: set[str] = set()

    @classmethod
    def from_file(cls, path: Path) -> "ScriptedModel":
        """Return a model for a script file. Raises `InvalidArguments` if it cannot be read or is not a script."""
        try:
            return cls(read_json(path.read_bytes()))
        except OSError as error:
            raise InvalidArguments(f"cannot read the model script {str(path)!r}: {error.strerror}") from error
        except PlanwardenError as error:
            raise InvalidArguments(f"{str(path)!r}: {error.message}") from error

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | AskCaller:
        for number, entry in enumerate(self._entries):
            source, when = f"entry {number}", entry.when
            is_meant = when.purpose in (None, prompt.purpose) and when.stepId in (None, prompt.step_id)
            if source in self._used or source in prompt.used_sources or not is_meant:
                continue
            self._used.add(source)
            answer = entry.reply
            return Reply(
                content=answer.content,
                calls=tuple(ev.ProposedCall(tool_name=c.toolName, arguments=c.arguments) for c in answer.toolCalls),
                plan=answer.plan,
                revise=answer.revise,
                input_tokens=answer.inputTokens,
                output_tokens=answer.outputTokens,
                source=source,
            )
        where = f" of step {prompt.step_id!r}" if prompt.step_id else ""
        raise ModelError(f"the model script has no unused entry for a {prompt.purpose!r} prompt{where}")
