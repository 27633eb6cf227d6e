"""One tool of the MCP surface as data, and the check of its arguments. Each tool is defined beside its handler.

The server checks the arguments of a call with the `McpTool` of that name, and then calls its handler.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Literal, cast

from mcp.types import CallToolResult, InputRequiredResult, ToolAnnotations
from mcp.types import Tool as Listed
from pydantic import JsonValue

from planwarden.agent.common.canonical import check_depth
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.form import SentForm, find_form_faults
from planwarden.server.mcp import schemas
from planwarden.server.mcp.app.view import URI
from planwarden.server.mcp.icon import ICONS
from planwarden.server.mcp.tools.request import ToolRequest

ToolResult = CallToolResult | InputRequiredResult
UNCHECKED_ARGUMENTS = ("options", "plan")
"""Arguments with their own check, which says more."""
MAX_FAULTS = 20


Handler = Callable[[ToolRequest], Awaitable[ToolResult]]
Trait = Literal["reads", "destroys", "repeats", "shows_app", "for_app"]
"""A tool that `repeats` changes nothing more when its call is repeated. Hosts with apps draw the result of one that
`shows_app`; only the app's view calls one that is `for_app`."""


@dataclass(frozen=True)
class McpTool:
    """One MCP tool."""

    name: str
    title: str
    description: str
    handler: Handler
    properties: schemas.JsonSchema
    required: tuple[str, ...] = ()
    output: schemas.JsonSchema = field(default_factory=lambda: schemas.EXECUTION_OUT)
    traits: frozenset[Trait] = frozenset()
    inputs: schemas.JsonSchema | None = None
    """For a saved plan as a tool: its own schema, and its arguments are the inputs of a run."""

    @cached_property
    def definition(self) -> Listed:
        """The entry in `tools/list`. `openWorldHint` is false: planwarden confirms what a plan does outside."""
        return Listed(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=self.inputs or schemas.build_arguments_schema(self.properties, self.required),
            output_schema=self.output,
            icons=ICONS,
            annotations=ToolAnnotations(
                title=self.title,
                read_only_hint="reads" in self.traits,
                destructive_hint="destroys" in self.traits,
                idempotent_hint=bool(self.traits & {"reads", "repeats"}),
                open_world_hint=False,
            ),
        )

    @cached_property
    def definition_with_app(self) -> Listed:
        """The entry in `tools/list` for hosts that draw apps."""
        ui: dict[str, object] = {"resourceUri": URI, **({"visibility": ["app"]} if "for_app" in self.traits else {})}
        return (
            self.definition.model_copy(update={"meta": {"ui": ui}}) if "shows_app" in self.traits else self.definition
        )

    def check_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments, without the nulls that some clients send for absent ones.

        Raises:
            InvalidArguments: a key is unknown or missing, or a value has the wrong type; the details have every fault.
            LimitExceeded: the arguments are nested too deeply.
        """
        if self.inputs is not None:
            # The plan checks its inputs itself.
            return {"name": self.name, "inputs": dict(arguments)}
        tidied = cast("dict[str, Any]", self._read_form.tidy(dict(arguments)))
        check_depth({key: value for key, value in tidied.items() if key not in UNCHECKED_ARGUMENTS})
        faults = list(islice(find_form_faults(tidied, self._checked_form, self.name), MAX_FAULTS))
        if faults:
            raise InvalidArguments("; ".join(faults[:5]), details={"problems": list[JsonValue](faults)})
        return tidied

    @cached_property
    def _read_form(self) -> SentForm:
        """The input schema, with the form of an answer to a question to the caller."""
        shapes = {"content": schemas.CALLER_ANSWER} if self.name == "submit_answer" else {}
        return SentForm(schemas.build_arguments_schema({**self.properties, **shapes}, self.required))

    @cached_property
    def _checked_form(self) -> schemas.JsonSchema:
        """The input schema without what has its own check."""
        anything: dict[str, schemas.JsonSchema] = {name: {} for name in UNCHECKED_ARGUMENTS if name in self.properties}
        return schemas.build_arguments_schema({**self.properties, **anything}, self.required)


def mcp_tool(
    title: str,
    description: str,
    properties: schemas.JsonSchema,
    *traits: Trait,
    required: tuple[str, ...] = (),
    output: schemas.JsonSchema = schemas.EXECUTION_OUT,
) -> Callable[[Handler], McpTool]:
    """Make a tool of the handler below, whose name it has."""

    def make(handler: Handler) -> McpTool:
        name = handler.__name__
        return McpTool(name, title, description, handler, properties, required, output, frozenset(traits))

    return make
