"""What a double was asked and what it says, in terms that no wire format has.

`Asked` is read from a request alone; a double knows nothing that a provider would not know. Its `plan` is the exception:
it is what the double would plan, whatever the goal.
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
class Asked:
    """One request."""

    number: int
    """How many requests this double has had, this one included."""
    system: str
    text: str
    tools: Mapping[str, Body] = field(default_factory=dict[str, Body])
    """JSON Schemas of the arguments by name, in the order of the request."""
    forced: tuple[str, ...] = ()
    """One of these has to be called; none when the choice is free."""
    body: Body = field(default_factory=dict[str, Any])
    """As sent."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    path: str = ""
    may_revise: bool = False
    """It may call `REVISE_TOOL` besides; that is not among `tools`."""
    in_text: bool = False
    """Tools stand in the text and calls go there too."""
    plan: Body = field(default_factory=dict[str, Any])

    @property
    def wants_plan(self) -> bool:
        return PLAN_TOOL in self.tools or (not self.tools and '"todoList"' in self.text)

    @property
    def is_streamed(self) -> bool:
        """The answer is wanted as server-sent events."""
        return bool(self.body.get("stream")) or "stream" in self.path

    @property
    def wanted(self) -> tuple[str, ...]:
        """What an obedient model would call now."""
        return self.forced or tuple(self.tools)

    @property
    def is_enforced(self) -> bool:
        """The engine said that the last answer proved nothing."""
        return "did not count" in self.text

    @property
    def is_repeated(self) -> bool:
        """The last answer could not be read."""
        return "could not be used" in self.text

    def sample(self, tool: str) -> Arguments:
        """Arguments that fit the tool's schema and look real."""
        if tool == PLAN_TOOL:
            return self.plan
        schema = self.tools.get(tool, {})
        required: list[str] = schema.get("required", [])
        return {name: _value(name, schema["properties"][name]) for name in required}


SAMPLES: Body = {"expression": "6 * 7"}
"""For the tools that ship with planwarden: what a made-up value would not do for."""


def _value(name: str, schema: Body) -> Any:
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
class Said:
    """One answer, or what happens to the connection instead of one."""

    text: str | None = None
    calls: tuple[tuple[str, Any], ...] = ()
    """Tool names with arguments; a string is sent in their place as it is, whatever it holds."""
    is_cut_short: bool = False
    """The model ran out of tokens."""
    is_refused: bool = False
    """A content filter stopped the answer."""
    status: int = 200
    message: str = "the double was told to fail"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    raw: bytes | None = None
    """Sent instead of an answer in the wire's format."""
    breaks_off: bool = False
    """The connection closes in the middle of the body."""
    stalls: bool = False
    """A streamed answer stops in the middle, without an end."""
    goes_on: anyio.Event | None = None
    """A streamed answer stops in the middle until this is set."""
    hangs: bool = False
    """There is no answer at all."""

    def as_text(self) -> "Said":
        """The calls written into the text, between the markers; broken arguments break the JSON."""
        if not self.calls:
            return self
        listed = ", ".join(
            f'{{"toolName": {json.dumps(name)}, "arguments": {a if isinstance(a, str) else json.dumps(a)}}}'
            for name, a in self.calls
        )
        return replace(
            self, text=f'{self.text or "Sure."}\n{MARKERS[0]}\n{{"toolCalls": [{listed}]}}\n{MARKERS[1]}', calls=()
        )


def set_revision_apart(asked: Asked) -> Asked:
    """The request without the tool that is not one: obedient models call tools, and revise nothing."""
    tools = {name: schema for name, schema in asked.tools.items() if name != REVISE_TOOL}
    return replace(asked, tools=tools, may_revise=len(tools) < len(asked.tools))


def read_text_mode(asked: Asked) -> Asked:
    """The request with the tools that its text describes, when it offers none by other means."""
    found = _TOOLS.search(asked.text)
    if asked.tools or (MARKERS[0] not in asked.system and found is None):
        return asked
    tools: dict[str, Body] = {}
    for line in found.group(1).splitlines() if found else ():
        facts = json.loads(line)
        tools[facts["toolName"]] = facts["arguments"]
    return replace(asked, tools=tools, forced=called_for(asked.text, tools), in_text=True)


def called_for(text: str, tools: Mapping[str, Body]) -> tuple[str, ...]:
    """Tools that the text asks to call."""
    asked = " ".join(re.findall(r"(?:Required now: call|Call) ([^\n]*?)(?: now)?\.(?:\n|$)", text))
    return tuple(name for name in tools if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", asked))
