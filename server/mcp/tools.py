"""The tools of the MCP surface as data, and the check of their arguments: docs/reference/mcp.md lists them.

The server checks the arguments of a call with the `McpTool` of that name, and then calls its handler.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, cast

from mcp.types import CallToolResult, InputRequiredResult, ToolAnnotations
from mcp.types import Tool as Listed
from pydantic import JsonValue

from planwarden.agent.common.canonical import check_depth
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.form import SentForm, find_form_faults
from planwarden.server.mcp import schemas
from planwarden.server.mcp.app.view import URI
from planwarden.server.mcp.handlers import plans, suspensions
from planwarden.server.mcp.handlers.request import ToolRequest
from planwarden.server.mcp.icon import ICONS

ToolResult = CallToolResult | InputRequiredResult
UNCHECKED_ARGUMENTS = ("options", "plan")
"""Arguments with their own check, which says more."""
MAX_FAULTS = 20


@dataclass(frozen=True)
class McpTool:
    """One MCP tool."""

    name: str
    title: str
    description: str
    handler: Callable[[ToolRequest], Awaitable[ToolResult]]
    properties: schemas.JsonSchema
    required: tuple[str, ...] = ()
    output: schemas.JsonSchema = field(default_factory=lambda: schemas.EXECUTION_OUT)
    reads: bool = False
    destroys: bool = False
    repeats: bool = False
    """True when repeating the call changes nothing more."""
    shows_app: bool = False
    """True when hosts that draw apps draw the result."""
    for_app: bool = False
    """True when only the app's view calls it."""
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
                read_only_hint=self.reads,
                destructive_hint=self.destroys,
                idempotent_hint=self.reads or self.repeats,
                open_world_hint=False,
            ),
        )

    @cached_property
    def definition_with_app(self) -> Listed:
        """The entry in `tools/list` for hosts that draw apps."""
        ui: dict[str, object] = {"resourceUri": URI, **({"visibility": ["app"]} if self.for_app else {})}
        return self.definition.model_copy(update={"meta": {"ui": ui}}) if self.shows_app else self.definition

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


_THREAD: schemas.JsonSchema = {"threadId": schemas.STRING}
_ANSWERED: schemas.JsonSchema = {"threadId": schemas.STRING, "suspensionId": schemas.STRING}
_RUN: schemas.JsonSchema = {
    "threadId": {"type": "string", "description": "To continue a thread; default: a new one"},
    "key": {"type": "string", "description": "Idempotency key: sent again, it starts nothing new"},
    "options": schemas.SAME_OPTIONS,
}
_PAGE: schemas.JsonSchema = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
    "cursor": schemas.STRING,
}

TOOLS: tuple[McpTool, ...] = (
    McpTool(
        name="search_tools",
        title="Search tools",
        description="Find tools for plans, one line each. Planning does this by itself; use it to write a plan.",
        handler=plans.search_tools,
        properties={"query": schemas.STRING, **_PAGE},
        output=schemas.TOOLS_OUT,
        reads=True,
    ),
    McpTool(
        name="get_tool_schemas",
        title="Get tool schemas",
        description="What named tools take and return, and whether they ask a person; for toolCalls in a plan.",
        handler=plans.get_tool_schemas,
        properties={"names": schemas.STRINGS},
        required=("names",),
        output=schemas.SCHEMAS_OUT,
        reads=True,
    ),
    McpTool(
        name="create_plan",
        title="Create a plan",
        description="Make a plan for a goal without running it; execute_plan with the threadId runs it.",
        handler=plans.create_plan,
        properties={"goal": schemas.STRING, **_RUN},
        required=("goal",),
        shows_app=True,
    ),
    McpTool(
        name="run_goal",
        title="Run a goal",
        description="Plan and run a goal durably. Do what nextAction of the result says until status is completed. "
        "Questions to the caller are yours: read prompt, answer with submit_answer.",
        handler=plans.run_goal,
        properties={"goal": schemas.STRING, **_RUN},
        required=("goal",),
        shows_app=True,
    ),
    McpTool(
        name="execute_plan",
        title="Execute a plan",
        description="Run the given plan, or without plan the planned one of threadId. A step counts as done only when "
        "its requiredTools were really called. Calls that need a person are asked about by themselves; a "
        "displayConfirmation step is for asking once before several of them.",
        handler=plans.execute_plan,
        properties={
            "plan": schemas.PLAN,
            "inputs": {"type": "object", "description": "Values for the plan's inputs"},
            "goal": schemas.STRING,
            **_RUN,
            "options": schemas.OPTIONS,
        },
        shows_app=True,
    ),
    McpTool(
        name="run_plan",
        title="Run a saved plan",
        description="Run a plan that the operator saved, by its name and with its inputs; prefer it where one fits.",
        handler=plans.run_plan,
        properties={"name": schemas.STRING, "inputs": schemas.OBJECT, **_RUN},
        required=("name",),
        shows_app=True,
    ),
    McpTool(
        name="retry_execution",
        title="Retry an execution",
        description="Go on from a thread's ended execution without repeating what is completed, perhaps with a "
        "corrected plan. fromStep is only for running that step and what follows again, also if completed.",
        handler=plans.retry_execution,
        properties={
            **_THREAD,
            "fromStep": schemas.STRING,
            "inputs": schemas.OBJECT,
            "plan": {"type": "object", "description": "The whole plan, corrected; completed steps unchanged"},
            "key": schemas.STRING,
            "waitSeconds": schemas.WAIT,
        },
        required=("threadId",),
        shows_app=True,
    ),
    McpTool(
        name="ask_person",
        title="Ask a person",
        description="Ask a person without a plan: to confirm, or to fill in form (JSON Schema of an object).",
        handler=suspensions.ask_person,
        properties={
            "message": schemas.STRING,
            "details": schemas.OBJECT,
            "form": schemas.OBJECT,
            "addressee": schemas.STRING,
            "key": schemas.STRING,
            "waitSeconds": schemas.WAIT,
        },
        required=("message",),
        shows_app=True,
    ),
    McpTool(
        name="get_execution",
        title="Get an execution",
        description="Status, steps, results and open questions of a thread. observationsAfter: 0 adds its history. "
        "stepId: only that step, a loop's items by 100 from itemsFrom. "
        "A question's needs: client, a form of yours is enough; human, only the inbox or a terminal.",
        handler=plans.get_execution,
        properties={
            **_THREAD,
            "observationsAfter": {"type": "integer", "minimum": 0},
            "stepId": schemas.STRING,
            "itemsFrom": {"type": "integer", "minimum": 0},
        },
        required=("threadId",),
        reads=True,
        shows_app=True,
    ),
    McpTool(
        name="list_suspensions",
        title="List open questions",
        description="Open questions: to people (human) and to you (caller).",
        handler=suspensions.list_suspensions,
        properties={**_THREAD, "addressee": {"type": "string", "enum": ["human", "caller"]}, **_PAGE},
        output=schemas.SUSPENSIONS_OUT,
        reads=True,
    ),
    McpTool(
        name="submit_answer",
        title="Answer your own question",
        description="Answer a question addressed to the caller. content is what its instructions ask for: a plan, "
        '{"toolCalls": [...]} or {"content": "..."}.',
        handler=suspensions.submit_answer,
        properties={**_ANSWERED, "content": schemas.OBJECT, "waitSeconds": schemas.WAIT},
        required=("threadId", "suspensionId", "content"),
        repeats=True,
    ),
    McpTool(
        name="resume_execution",
        title="Put a decision",
        description="Put a person's question to that person, or pass on their rejection. approved: true from you is "
        "only a proposal: the person is asked in a form, or has to run the command in howToAnswer. Never decide for "
        "them.",
        handler=suspensions.resume_execution,
        properties={
            **_ANSWERED,
            "decision": schemas.DECISION,
            "digest": schemas.STRING,
            "waitSeconds": schemas.WAIT,
        },
        required=("threadId", "suspensionId"),
        destroys=True,
        repeats=True,
        shows_app=True,
    ),
    McpTool(
        name="cancel_execution",
        title="Cancel an execution",
        description="Stop a thread's execution; what was done stays done.",
        handler=plans.cancel_execution,
        properties={**_THREAD, "reason": schemas.STRING},
        required=("threadId",),
        repeats=True,
    ),
)

APP_TOOLS: tuple[McpTool, ...] = (
    McpTool(
        name="app_decide",
        title="Decide in the view",
        description="For planwarden's own view only.",
        handler=suspensions.app_decide,
        properties={**_ANSWERED, "nonce": schemas.STRING, "content": schemas.OBJECT, "waitSeconds": schemas.WAIT},
        required=("threadId", "suspensionId", "nonce", "content"),
        destroys=True,
        shows_app=True,
        for_app=True,
    ),
    McpTool(
        name="app_show",
        title="Show the plan in the view",
        description="For planwarden's own view only.",
        handler=plans.app_show,
        properties={**_THREAD, "seen": schemas.STRING, "suspensionId": schemas.STRING},
        required=("threadId",),
        reads=True,
        shows_app=True,
        for_app=True,
    ),
)

TOOLS_BY_NAME: Mapping[str, McpTool] = {tool.name: tool for tool in (*TOOLS, *APP_TOOLS)}
