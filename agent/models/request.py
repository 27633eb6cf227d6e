"""Builds the request to a provider from a prompt: instructions, text, tools, and the tools that the model must call.

With tool calling, the model must call one of a step's missing tools, so that it cannot answer in prose when a call is
due. A plan is the argument of one tool, which must be called. Schemas are sent unchanged and not in a provider's strict
mode, which forbids the open objects in a plan's arguments. In text mode the schemas are in the user part, and the model
has to put its answer between two markers.

The system part holds only instructions. Goals and results are data and go into the user part. A model that refuses to
be forced gets only the tools that it should call, and a free choice; the log shows whether it called them.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count

import msgspec
from msgspec.structs import replace
from pydantic_ai import ModelRequest, UserPromptPart
from pydantic_ai import ToolDefinition as SentTool
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from planwarden.agent.core.plan.revision import OPERATION_SCHEMA
from planwarden.agent.core.prompts import Prompt, fence
from planwarden.agent.core.replies import MARKER_END, MARKER_START
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.models.endpoint import Endpoint

PLAN_TOOL = "submit_plan"
REVISE_TOOL = "revise_plan"
_REVISE_DEFINITION = SentTool(
    name=REVISE_TOOL,
    description="Change steps of the plan that have not begun, if the data shows them to be wrong; answer in text too.",
    parameters_json_schema={
        "type": "object",
        "required": ["operations"],
        "properties": {"operations": {"type": "array", "items": OPERATION_SCHEMA}},
    },
    strict=False,
)
"""Not a real tool: a call of it becomes the `revise` of the reply. Models with tool calling are used to this form."""
MAX_OUTPUT_TOKENS = 16_000
"""Sent only to Anthropic's API, which has no default; a plan of fifty steps needs less than half of it."""

_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")

TEXT_MODE = f"""You call tools in text. Write exactly one JSON object, complete, between two lines:
{MARKER_START}
{{...}}
{MARKER_END}"""


class ProviderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, independent of the provider's wire format."""

    prompt: Prompt
    system: str
    text: str
    tools: tuple[SentTool, ...] = ()
    forced: tuple[str, ...] = ()
    """The sent names of the tools from which the model must call one; empty if it need not call any."""
    names: Mapping[str, str]
    """For each name that is sent: the tool's own name."""
    can_revise: bool = False
    """Whether `REVISE_TOOL` is among the tools."""

    @property
    def needs_json(self) -> bool:
        """Whether the answer has to be a JSON object: a plan or calls."""
        return self.prompt.purpose == "plan" or bool(self.prompt.required)

    def with_fault(self, fault: str) -> "ProviderRequest":
        """Return the same request with a note that says why the last answer could not be used."""
        note = f"Your last answer could not be used: {fault}. Answer again, completely."
        return replace(self, text=f"{self.text}\n\n{note}")

    def build_messages(self) -> list[ModelMessage]:
        return [ModelRequest(parts=[UserPromptPart(self.text)], instructions=self.system)]

    def build_parameters(self, *, force: bool) -> ModelRequestParameters:
        """Return the tools to send: without `force` only the `forced` ones, if any, so that no other can be called."""
        tools = self.tools if force or not self.forced else tuple(t for t in self.tools if t.name in self.forced)
        return ModelRequestParameters(function_tools=list(tools))

    def build_settings(self, endpoint: Endpoint, *, force: bool, timeout_s: float) -> ModelSettings:
        settings = ModelSettings(request_timeout=timeout_s, max_retries=0)
        if endpoint.wire == "anthropic":
            settings["max_tokens"] = MAX_OUTPUT_TOKENS
        if self.forced and force:
            settings["tool_choice"] = list(self.forced)
        return settings


def build_request(prompt: Prompt, tools: Sequence[ToolDefinition], endpoint: Endpoint) -> ProviderRequest:
    """Return the request for a prompt. `tools` are the full definitions of the offered tools."""
    return _build_in_text(prompt, tools) if endpoint.mode == "text" else _build_with_tools(prompt, tools)


def _build_with_tools(prompt: Prompt, tools: Sequence[ToolDefinition]) -> ProviderRequest:
    if prompt.purpose == "plan":
        plan = SentTool(
            name=PLAN_TOOL, description="Hand in the plan.", parameters_json_schema=prompt.answer_schema, strict=False
        )
        return ProviderRequest(
            prompt=prompt,
            system=prompt.system,
            text=prompt.text,
            tools=(plan,),
            forced=(PLAN_TOOL,),
            names={PLAN_TOOL: PLAN_TOOL},
        )
    names = _choose_sent_names(tool.name for tool in tools)
    definitions = tuple(
        SentTool(
            name=names[tool.name],
            description=tool.description,
            parameters_json_schema=dict(tool.input_schema),
            strict=False,
        )
        for tool in tools
    )
    has_form = bool(prompt.optional and not prompt.required)
    # If a tool is already named `revise_plan`, the model revises the plan in its text.
    may_revise = bool(prompt.revision) and REVISE_TOOL not in {*names, *names.values(), *prompt.optional}
    return ProviderRequest(
        prompt=prompt,
        system=prompt.system if may_revise else _build_system(prompt),
        text=f"{prompt.text}\n\n{prompt.form}" if has_form else prompt.text,
        tools=(*definitions, _REVISE_DEFINITION) if may_revise else definitions,
        can_revise=may_revise,
        forced=tuple(names[name] for name in prompt.required if name in names),
        names={name: own for own, name in names.items()},
    )


def _build_in_text(prompt: Prompt, tools: Sequence[ToolDefinition]) -> ProviderRequest:
    parts = [prompt.text]
    if tools:
        parts.append(fence("tools", "\n".join(_describe_tool(tool) for tool in tools)))
    if prompt.purpose == "plan":
        parts.append(fence("JSON Schema of the plan", json.dumps(prompt.answer_schema, separators=(",", ":"))))
    needs_json = bool(prompt.purpose == "plan" or prompt.required or tools or prompt.optional)
    if needs_json:
        parts.append(prompt.form)
    return ProviderRequest(
        prompt=prompt,
        system=f"{_build_system(prompt)}\n\n{TEXT_MODE}" if needs_json else _build_system(prompt),
        text="\n\n".join(parts),
        names={},
    )


def _build_system(prompt: Prompt) -> str:
    return f"{prompt.system}\n{prompt.revision}" if prompt.revision else prompt.system


def _describe_tool(tool: ToolDefinition) -> str:
    facts = {"toolName": tool.name, "description": tool.description, "arguments": tool.input_schema}
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":"))


def _choose_sent_names(own: Iterable[str]) -> dict[str, str]:
    """Return for each tool's own name, which may contain dots, a name that every provider accepts."""
    names: dict[str, str] = {}
    for name in own:
        legal = _ILLEGAL.sub("_", name)
        numbered = (f"{legal[:60]}_{number}" for number in count(len(names)))
        names[name] = next(each for each in chain([legal], numbered) if each not in names.values())
    return names
