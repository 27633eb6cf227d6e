"""Requests to a model and its replies, independent of wire formats.

`ModelRequest` comes from the HTTP request alone, because a double knows nothing that a provider would not know. Its
`plan` is the exception: the plan that the double makes for every goal.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

Arguments = dict[str, Any]
Body = dict[str, Any]

PLAN_TOOL = "submit_plan"
REVISE_TOOL = "revise_plan"
MARKERS = ("---JSON_OUTPUT_START---", "---JSON_OUTPUT_END---")
_TOOLS = re.compile(r"--- tools \(data, not instructions\) ---\n(.*?)\n--- end ---", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    number: int
    """The number of requests so far, including this one."""
    system: str
    text: str
    tools: Mapping[str, Body] = field(default_factory=dict[str, Body])
    """JSON Schemas of the arguments by tool name, in the order of the request."""
    forced: tuple[str, ...] = ()
    """The model must call one of these; empty when it may choose."""
    body: Body = field(default_factory=dict[str, Any])
    """The body as it was sent."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    path: str = ""
    may_revise: bool = False
    """The model may also call `REVISE_TOOL`, which is not among `tools`."""
    in_text: bool = False
    """The request describes tools in its text, and the reply writes calls into its text."""
    plan: Body = field(default_factory=dict[str, Any])

    @property
    def wants_plan(self) -> bool:
        return PLAN_TOOL in self.tools or (not self.tools and '"todoList"' in self.text)

    @property
    def is_streamed(self) -> bool:
        """Whether the client wants the reply as server-sent events."""
        return bool(self.body.get("stream")) or "stream" in self.path

    @property
    def tools_to_call(self) -> tuple[str, ...]:
        """The tools that an obedient model would call now."""
        return self.forced or tuple(self.tools)

    @property
    def is_enforced(self) -> bool:
        """Whether the engine says that the last reply proved nothing."""
        return "did not count" in self.text

    @property
    def is_repeated(self) -> bool:
        """Whether the engine says that it could not read the last reply."""
        return "could not be used" in self.text or self.is_plan_refused

    @property
    def is_plan_refused(self) -> bool:
        """Whether the engine says that the last plan has faults."""
        return "Your last plan was refused" in self.text

    def find_error(self, tool: str) -> str:
        """Returns what the engine says about the last call without arguments; empty text if it says nothing."""
        return " ".join(re.findall(rf"^{re.escape(tool)}\(\{{\}}\) -> (.*)$", self.text, re.MULTILINE)[-1:])

    def sample_arguments(self, tool: str) -> Arguments:
        if tool == PLAN_TOOL:
            return self.plan
        schema = self.tools.get(tool, {})
        required: list[str] = schema.get("required", [])
        return {name: _sample_value(name, schema["properties"][name]) for name in required}


SAMPLES: Body = {"expression": "6 * 7"}
"""Arguments of planwarden's own tools for which an invented value would not work."""


def _sample_value(name: str, schema: Body) -> Any:
    if name in SAMPLES:
        return SAMPLES[name]
    match schema.get("type"):
        case "integer" | "number":
            return 7
        case "boolean":
            return True
        case "array":
            return [7]
        case "object":
            return {}
        case _:
            return f"the {name}"


@dataclass(frozen=True, kw_only=True)
class ModelReply:
    """One reply, or what happens to the connection instead."""

    text: str | None = None
    calls: tuple[tuple[str, Any], ...] = ()
    """Tool names with arguments. Arguments that are a string are sent unchanged, even if they are not JSON."""
    is_cut_short: bool = False
    """The model ran out of tokens."""
    is_refused: bool = False
    """A content filter stopped the reply."""
    status: int = 200
    message: str = "this double fails on purpose"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    raw: bytes | None = None
    """Sent instead of a reply in the wire format."""
    breaks_off: bool = False
    """The connection closes in the middle of the body."""
    stalls: bool = False
    """A streamed reply stops in the middle and does not end."""
    goes_on: anyio.Event | None = None
    """A streamed reply pauses in the middle until this is set."""
    hangs: bool = False
    """There is no reply at all."""

    def with_calls_as_text(self) -> "ModelReply":
        """Returns the reply with its calls in the text, between the markers; broken arguments break the JSON."""
        if not self.calls:
            return self
        listed = ", ".join(
            f'{{"toolName": {json.dumps(name)}, "arguments": {a if isinstance(a, str) else json.dumps(a)}}}'
            for name, a in self.calls
        )
        return replace(
            self, text=f'{self.text or "Sure."}\n{MARKERS[0]}\n{{"toolCalls": [{listed}]}}\n{MARKERS[1]}', calls=()
        )


def fence_json(value: Body) -> str:
    return f"```json\n{json.dumps(value)}\n```"


def exclude_revision_tool(request: ModelRequest) -> ModelRequest:
    """Returns the request without `REVISE_TOOL`: obedient models call tools and revise nothing."""
    tools = {name: schema for name, schema in request.tools.items() if name != REVISE_TOOL}
    return replace(request, tools=tools, may_revise=len(tools) < len(request.tools))


def read_tools_from_text(request: ModelRequest) -> ModelRequest:
    """Returns the request with the tools that its text describes, unless it offers tools in the wire format."""
    found = _TOOLS.search(request.text)
    if request.tools or (MARKERS[0] not in request.system and found is None):
        return request
    tools: dict[str, Body] = {}
    for line in found.group(1).splitlines() if found else ():
        facts = json.loads(line)
        tools[facts["toolName"]] = facts["arguments"]
    return replace(request, tools=tools, forced=find_requested_tools(request.text, tools), in_text=True)


def find_requested_tools(text: str, tools: Mapping[str, Body]) -> tuple[str, ...]:
    request = " ".join(re.findall(r"REQUIRED TOOLS that still have to answer: ([^\n]*?)\.(?:\n|$)", text))
    return tuple(name for name in tools if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", request))
