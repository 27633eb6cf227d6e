"""Describes an MCP tool and one call of it, and turns an execution into the result of that call.

Each tool is defined beside its handler. The server checks the arguments of a call with the `McpTool` that the call
names, and then calls that tool's handler.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, Literal, cast

import msgspec
from mcp.types import CallToolResult, InputRequiredResult, ToolAnnotations
from mcp.types import Tool as Listed
from msgspec.structs import replace
from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from planwarden.agent.common.canonical import check_depth
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded, UnknownThread
from planwarden.agent.common.form import SentForm, find_form_faults
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.store import FoundId, Store
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.limits import AttemptKind
from planwarden.server.api.service import Service
from planwarden.server.auth.caller import Caller
from planwarden.server.mcp import schemas
from planwarden.server.mcp.app import META_KEY, PLAN_KEY, URI, Nonces, build_plan, build_questions
from planwarden.server.mcp.elicitation import find_usable_modes
from planwarden.server.mcp.requests import AnyContext, wait_with_progress
from planwarden.server.mcp.resources import ICONS
from planwarden.server.mcp.results import build_result
from planwarden.server.mcp.text import format_execution
from planwarden.server.views.encoding import describe_changes
from planwarden.server.views.execution import Execution, ask_for_person, find_awaited_person
from planwarden.server.views.suspension import Suspension
from planwarden.tools.delegate.child import CHAIN, DEPTH, MAX_DEPTH

_CHAIN = TypeAdapter[list[str]](
    Annotated[list[Annotated[str, Field(min_length=1, max_length=128)]], Field(max_length=16, strict=True)]
)
MAX_HOST_CHARS = 64
MAX_CANDIDATES = 3
MIN_BEGINNING_CHARS = 4
IdKind = Literal["thread", "suspension", "execution"]
_ARGUMENTS: dict[IdKind, str] = {"thread": "threadId", "suspension": "suspensionId", "execution": "executionId"}
"""The argument that holds each kind of id."""
UNCHECKED_ARGUMENTS = ("options", "plan")
"""Arguments that have checks of their own, with more helpful messages."""
MAX_FAULTS = 20
ToolResult = CallToolResult | InputRequiredResult


class ToolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool."""

    service: Service
    caller: Caller
    arguments: Mapping[str, Any]
    """The arguments as `McpTool.check_arguments` returned them."""
    context: AnyContext
    nonces: Nonces
    shows_app: bool = False
    """True when the host draws this tool's result as an app."""
    before: Execution | None = None
    """The execution as the caller saw it before the call; None if the result has to show the whole execution."""

    @property
    def principal(self) -> str:
        return self.caller.principal

    @property
    def requester(self) -> Requester:
        """Who asks for the execution that this call starts. The requester includes the chain of executions that
        delegated the call, outermost first, as the call's `_meta` states it.

        Raises:
            InvalidArguments: the list of ids in `_meta` is not valid.
            LimitExceeded: the delegation is too deep.
        """
        client = self.context.session.client_params
        host = None if client is None else (client.client_info.title or client.client_info.name)[:MAX_HOST_CHARS]
        meta: Mapping[str, Any] = dict(self.context.request_context.meta or {})
        ids, depth = meta.get(CHAIN, []), meta.get(DEPTH, 0)
        try:
            chain = _CHAIN.validate_python(ids)
        except ValidationError:
            raise InvalidArguments(f"_meta {CHAIN!r} is not a list of at most 16 ids") from None
        if type(depth) is int and depth > max(len(chain), MAX_DEPTH):
            raise LimitExceeded(f"this goal was delegated {depth} times, the limit is {MAX_DEPTH}")
        return Requester(self.principal, self.caller.client_id, host or None, tuple(chain))

    @property
    def start(self) -> StartOptions:
        """How to start the execution that this call asks for. Raises the same errors as `requester`."""
        arguments = self.arguments
        return StartOptions(
            requester=self.requester,
            thread_id=arguments.get("threadId"),
            key=arguments.get("key"),
            goal=arguments.get("goal"),
            inputs=arguments.get("inputs"),
            options=arguments.get("options"),
        )

    @property
    def thread_id(self) -> str:
        return self.arguments["threadId"]

    @property
    def suspension_id(self) -> str:
        return self.arguments["suspensionId"]

    @property
    def wait_s(self) -> float | None:
        """How many seconds the caller waits for the execution; None to wait as long as the execution's options say.

        If an earlier call with this key started the execution, that call's wait applies unless this call names a wait.
        """
        options: Mapping[str, Any] = self.arguments.get("options") or {}
        return self.arguments.get("waitSeconds", options.get("waitSeconds"))

    async def read_question(self) -> tuple[Suspension, bool]:
        """Return the question that the arguments name, and whether it is open. Raises `UnknownSuspension`."""
        return await self.service.read_question(self.thread_id, self.suspension_id, principal=self.principal)

    async def remember_before(self) -> "ToolRequest":
        """Return the request with `before` set to the execution as it was when the named question was asked.

        If that question is not open, leave `before` empty: a caller that answers again may have missed the outcome.

        Raises:
            UnknownSuspension: the principal's thread has no such suspension.
        """
        before = await self.service.view_when_asked(self.thread_id, self.suspension_id, principal=self.principal)
        return replace(self, before=before)

    async def read_execution(self, attempt: AttemptKind | None = None) -> Execution:
        """Return the execution, which says who is awaited; `attempt` counts against the limit for this question."""
        return await self.service.view_awaiting(
            self.thread_id, self.suspension_id, principal=self.principal, attempt=attempt
        )

    def find_open_suspension(self, view: Execution) -> Suspension | None:
        """Return the suspension that this call names, or None when it is no longer open."""
        return next((item for item in view.suspensions if item.suspension_id == self.suspension_id), None)

    async def wait_and_show(self, execution: ExecutionState) -> CallToolResult:
        """Wait until the execution stops running, at most as long as the caller asked, and return it as a result."""
        execution = await wait_with_progress(self.service, execution, self.wait_s, self.context)
        return await self.show(self.service.build_view(execution))

    async def show_outcome(self, view: Execution) -> CallToolResult:
        """Return the execution once it stops running or the time for which the caller waits is over."""
        if view.status == "running" and self.wait_s != 0:
            return await self.wait_and_show(await self.service.find(view.execution_id))
        return await self.show(view)

    async def show(self, view: Execution, note: str = "") -> CallToolResult:
        """Return what the call changed, as a result; for hosts that draw apps, `_meta` carries the plan.

        If only a person is awaited and this client cannot ask people, call that person to the inbox. `note` comes
        before `next_action`.
        """
        view = self.name_decision_ways(view, calls=True)
        if note:
            view = replace(view, next_action=f"{note} {view.next_action}")
        changes = describe_changes(view, self.before, self.arguments.get("suspensionId"))
        return await self.add_app_data(view, build_result(changes, format_execution))

    def name_decision_ways(self, view: Execution, *, calls: bool = False) -> Execution:
        """Return the view. If it awaits only a person and this client cannot ask people, it says where to decide.

        With `calls`, also call that person to the inbox.
        """
        waiting = None if find_usable_modes(self.context) else find_awaited_person(view)
        if calls and waiting is not None:
            self.service.show_in_browser(waiting)
        return view if waiting is None else ask_for_person(view, waiting)

    async def add_app_data(self, view: Execution, result: CallToolResult) -> CallToolResult:
        """Return the result; for hosts that draw apps, `_meta` carries the plan and its questions to a person.

        If the call names a question, the plan says what became of that question.
        """
        if not self.shows_app:
            return result
        questions = build_questions(view, self.nonces, self.principal, self.service.store.clock.now())
        plan = build_plan(await self.service.find(view.execution_id), self.arguments.get("suspensionId"))
        return result.model_copy(update={"meta": {META_KEY: questions, PLAN_KEY: plan}})

    async def describe_ids(self) -> str | None:
        """Return an explanation of what is wrong with the ids in the arguments; None if no mistake is recognised."""
        for kind in ("thread", "suspension"):
            value = self.arguments.get(_ARGUMENTS[kind])
            hint = None if value is None else await _describe_id(self.service.store, kind, value, self.principal)
            if hint is not None:
                return hint
        suspension_id, thread_id = self.arguments.get("suspensionId"), self.arguments.get("threadId")
        if suspension_id is None or thread_id is None:
            return None
        try:
            view = await self.service.get_execution(thread_id, principal=self.principal)
        except UnknownThread:
            return None
        if all(step.id != suspension_id for step in view.steps):
            return None
        open_ids = ", ".join(repr(suspension.suspension_id) for suspension in view.suspensions) or "none"
        return f"{suspension_id[:64]!r} is the id of a step, not a suspensionId; open questions: {open_ids}"


async def _describe_id(store: Store, kind: IdKind, value: str, principal: str) -> str | None:
    """Return why the text is not an id of this kind; None if it is such an id, or if it resembles no known id.

    Name only ids of the principal's own threads; treat any other id as if it did not exist.
    """
    text = value.strip()
    if not text:
        return f"{_ARGUMENTS[kind]!r} is empty"
    if len(text) < MIN_BEGINNING_CHARS:
        return None
    entries = [entry for entry in await store.find_ids(text, MAX_CANDIDATES) if await _is_own(store, entry, principal)]
    entries = [entry for entry in entries if entry.id == text] or entries
    same = [entry for entry in entries if entry.kind == kind]
    if same:
        names = " or ".join(repr(entry.id) for entry in same)
        return None if value == same[0].id else f"{value[:64]!r} is not a whole id (did you mean {names}?)"
    if not entries:
        return None
    other = entries[0]
    if other.kind == "thread":
        return f"{value[:64]!r} is a threadId, not a {_ARGUMENTS[kind]}; get_execution shows its open questions"
    return f"{value[:64]!r} is the {_ARGUMENTS[other.kind]} of thread {other.thread_id!r}, not a {_ARGUMENTS[kind]}"


async def _is_own(store: Store, entry: FoundId, principal: str) -> bool:
    headers = await store.thread(entry.thread_id)
    return bool(headers) and headers[0].principal == principal


Handler = Callable[[ToolRequest], Awaitable[ToolResult]]
Trait = Literal["reads", "destroys", "repeats", "shows_app", "for_app"]
"""`repeats`: repeating a call changes nothing more. `shows_app`: hosts with apps draw the tool's result. `for_app`:
only the app's view calls the tool."""


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
    """For a saved plan that is listed as a tool: the schema of the plan's inputs, which are the tool's arguments."""

    @cached_property
    def definition(self) -> Listed:
        """The entry in `tools/list`. `openWorldHint` is false, because planwarden controls what a plan can do."""
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
        """Return the handler's arguments, without the nulls that some clients send for arguments that they leave out.

        Raises:
            InvalidArguments: a key or value is wrong, or a key is missing; the details list up to `MAX_FAULTS` faults.
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
        """The input schema for tidying arguments; for `submit_answer` it includes the shapes of answers."""
        shapes = {"content": schemas.CALLER_ANSWER} if self.name == "submit_answer" else {}
        return SentForm(schemas.build_arguments_schema({**self.properties, **shapes}, self.required))

    @cached_property
    def _checked_form(self) -> schemas.JsonSchema:
        """The input schema for checking, which admits any value for arguments that are checked elsewhere."""
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
    """Return a decorator that turns a handler into a tool of the same name."""

    def make(handler: Handler) -> McpTool:
        name = handler.__name__
        return McpTool(name, title, description, handler, properties, required, output, frozenset(traits))

    return make
