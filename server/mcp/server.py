"""The MCP server object: planwarden's tools, resources and prompts on the SDK's `MCPServer`.

Anything else that is registered on it (extensions, fixtures of a conformance suite) works as on any `MCPServer`. Each
request acts for the principal that `identify` returns: `local` over stdio and on loopback addresses, and the owner of
the bearer token where tokens are required.
"""

import json
import logging
import secrets
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from io import TextIOWrapper
from typing import Any, TextIO, cast

import anyio
import msgspec
from mcp.server.apps import client_supports_apps
from mcp.server.auth.provider import TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.server.request_state import RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolResult,
    CompleteRequestParams,
    CompleteResult,
    GetPromptResult,
    InputRequiredResult,
    Prompt,
    Resource,
    ResourceTemplate,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    TextContent,
    Tool,
    UnsubscribeRequestParams,
)
from pydantic import AnyUrl

from planwarden.agent.common.artifact import JSON_TYPE
from planwarden.agent.common.errors import (
    PlanwardenError,
    StoreError,
    UnknownArtifact,
    UnknownSuspension,
    UnknownThread,
    UnknownTool,
)
from planwarden.agent.common.suggestions import describe_unknown_keys, did_you_mean
from planwarden.server.api.warden import Warden
from planwarden.server.auth.caller import Identify, identify_bearer, identify_operator
from planwarden.server.guard.guard import answer_guard_call, build_guard
from planwarden.server.mcp import resources
from planwarden.server.mcp.app import URI, Nonces, build_suspension_app, client_shows_apps, record_app_support
from planwarden.server.mcp.frames import StandardInput, drop_malformed_trace_context
from planwarden.server.mcp.prompts import PROMPTS, complete, find_prompt_clash, list_prompts, render_prompt
from planwarden.server.mcp.requests import LazyService, ServiceContext, ServiceOpener, Turns
from planwarden.server.mcp.resources import ICONS
from planwarden.server.mcp.results import build_error_result, make_presentable
from planwarden.server.mcp.skills import SCHEME, Skills
from planwarden.server.mcp.subscriptions.legacy import LegacySubscriptions, PlanListWatch
from planwarden.server.mcp.subscriptions.listen import ListenMethod
from planwarden.server.mcp.tasks import TASK_TOOLS, Tasks, wants_tasks
from planwarden.server.mcp.tools.listing import APP_TOOLS, TOOLS, TOOLS_BY_NAME, list_in_description, list_plan_tools
from planwarden.server.mcp.tools.tool import McpTool, ToolRequest
from planwarden.server.plans.plan_file import SavedPlan
from planwarden.server.settings.configuration import Settings
from planwarden.tools.guarded.hosts import GUARD_TOOL

logger = logging.getLogger(__name__)

INSTRUCTIONS = """If you know the steps, send them to execute_plan: that is cheapest. Otherwise use run_goal. Then do \
what nextAction says until status is completed. Only a person approves; nextAction says how they are asked.

search_tools and get_tool_schemas show the tools for plans. A plan that reads, looks up each customer, mails them, and \
asks a person once for all mails, after the look-ups:
{"todoList": [
 {"id": "late", "description": "Find overdue invoices", "toolCalls": [{"toolName": "list_invoices", "arguments": \
{"status": "overdue"}}]},
 {"id": "remind", "description": "Mail each customer", "forEach": {"$from": "late", "pointer": "/invoices"},
  "toolCalls": [
  {"toolName": "get_customer", "arguments": {"name": {"$from": "item", "pointer": "/customer"}}},
  {"toolName": "send_email", "arguments": {"to": {"$from": "item", "call": 0, "pointer": "/email"}, "subject": \
"Reminder", "text": {"$text": "Invoice {no} is overdue.", "with": {"no": {"$from": "item", "pointer": "/number"}}}}}]}
]}

Questions addressed to `caller` are your part: read instructions, results and prompt, and answer with submit_answer. A \
step is done only when its required tools were really called; describing a call is not making it. Answers say what \
changed; get_execution shows everything again, also after a restart: keep threadId. status running means: call \
get_execution later. Only the user saves and schedules plans: `planwarden plans keep THREAD NAME`, then `planwarden \
schedule add NAME --cron "0 7 * * *" --timezone Europe/Berlin`."""

QUESTION_TTL_S = 30 * 24 * 3600.0
"""How long a client may answer a question that a call returned; the store decides whether the question is open."""

_STATIC = CacheHint(ttl_ms=3_600_000, scope="public")
_WITH_PLANS_MS = 5_000
"""How long clients may cache the lists that contain saved plans."""
_DEFINITIONS = [tool.definition for tool in TOOLS]


class InternalFailure(PlanwardenError):
    """An error inside planwarden; its log has the details. The execution, if there is one, is kept."""


class BearerAuth(msgspec.Struct, frozen=True):
    """How requests over HTTP are authorized: each needs a token that `verifier` accepts."""

    settings: AuthSettings
    verifier: TokenVerifier


class PlanwardenServer(MCPServer[LazyService]):
    """Serves one service, which `opener` opens while the server runs."""

    def __init__(
        self,
        opener: ServiceOpener,
        request_state_key: bytes | None = None,
        *,
        extensions: Sequence[Extension] = (),
        warden: Warden | None = None,
        auth: BearerAuth | None = None,
    ) -> None:
        """`request_state_key` seals request states and views' nonces; without it, each server makes a new key.

        `extensions` are added to our own; a `Tasks` among them replaces ours. With a `warden`, the server lists the
        warden's saved plans and answers hosts' `guard_call`s by the warden's settings; without one, it does neither.
        """
        self.identify: Identify = identify_operator if auth is None else identify_bearer
        """The function that returns the caller of the request that is being served."""
        key = request_state_key or secrets.token_bytes(32)
        self.nonces = Nonces(key)
        """The nonces with which views decide questions."""
        self.closed = anyio.Event()
        """The event that is set when the server has stopped and has closed what it opened."""
        bus = InMemorySubscriptionBus()
        self._opener = opener
        self._warden = warden
        self.plan_watch = PlanListWatch(self._list_plans, bus)
        """The middleware that tells clients of changed lists."""
        self._turns = Turns()
        self._tasks = next((extension for extension in extensions if isinstance(extension, Tasks)), None) or Tasks()
        others = (extension for extension in extensions if extension is not self._tasks)
        self._skills = Skills(self._list_plans)
        super().__init__(
            "planwarden",
            title="planwarden",
            version=version("planwarden"),
            instructions=INSTRUCTIONS,
            icons=ICONS,
            lifespan=lambda _: self._open_service(),
            extensions=[self._tasks, self._skills, build_suspension_app(), *others],
            subscriptions=bus,
            middleware=[record_app_support, self.plan_watch, _announce_changing_lists],
            request_state_security=RequestStateSecurity(keys=[key], ttl=QUESTION_TTL_S),
            cache_hints={
                "tools/list": CacheHint(ttl_ms=_WITH_PLANS_MS, scope="private"),
                "resources/list": CacheHint(ttl_ms=_WITH_PLANS_MS, scope="private"),
                "resources/templates/list": _STATIC,
                "prompts/list": CacheHint(ttl_ms=_WITH_PLANS_MS, scope="public"),
            },
            log_level="WARNING",
            auth=None if auth is None else auth.settings,
            token_verifier=None if auth is None else auth.verifier,
        )
        # Put this before the SDK's OpenTelemetry middleware, which does nothing until the process has a provider.
        self.middleware.insert(0, drop_malformed_trace_context)
        for prompt in PROMPTS:
            self.add_prompt(prompt)
        self._listen, legacy = ListenMethod(bus, self._tasks), LegacySubscriptions(bus)
        self._core.add_request_handler("completion/complete", CompleteRequestParams, self._complete)
        self._core.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, self._listen)
        self._core.add_request_handler("resources/subscribe", SubscribeRequestParams, legacy.subscribe)
        self._core.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, legacy.unsubscribe)

    @property
    def _core(self) -> Server[LazyService]:
        """The SDK's low-level server, on which this one is built.

        In SDK 2.3, `MCPServer` has no public way to add methods whose handlers get the context of their request, nor
        to serve streams of our own.
        """
        return self._lowlevel_server

    @asynccontextmanager
    async def _open_service(self) -> AsyncGenerator[LazyService]:
        try:
            async with LazyService(self._opener, lambda: self.identify().principal).run() as lazy_service:
                yield lazy_service
        finally:
            self.closed.set()

    def end_streams(self) -> None:
        """End open `subscriptions/listen` streams properly; for transports that are about to stop."""
        self._listen.close()

    async def run_on_wire(self, wire: TextIO) -> None:
        """Serve until standard input ends, and write to `wire` instead of standard output."""
        text = TextIOWrapper(wire.buffer, encoding="utf-8", newline="\n")
        try:
            with StandardInput() as lines:
                # The SDK only iterates over this object.
                stdin = cast("anyio.AsyncFile[str]", lines)
                async with stdio_server(stdin, anyio.wrap_file(text)) as (received, sending):
                    lines.send = sending.send
                    await self._core.run(received, sending, self._core.create_initialization_options())
        finally:
            # The buffer belongs to the caller, and the garbage collector would close it with the text.
            text.detach()

    async def list_tools(self) -> list[Tool]:
        """Return our tools, each saved plan as a tool if the operator says so, and the tools that others registered.

        Hosts that draw apps also get the views of the tools, and the tools that only a view calls.
        """
        ours = [tool.definition_with_app for tool in (*TOOLS, *APP_TOOLS)] if client_shows_apps.get() else _DEFINITIONS
        others = await super().list_tools()
        plans = await self._list_plans()
        ours = [list_in_description(tool, plans) if tool.name == "run_plan" else tool for tool in ours]
        return [*ours, *(tool.definition for tool in await self._list_plan_tools()), *others]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[LazyService, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Return the result of a call. Every failure of one of our tools is a result too, and the server continues."""
        tool = TOOLS_BY_NAME.get(name)
        try:
            if name == GUARD_TOOL and self._warden is not None:
                return await self._run_guard(self._warden.settings, arguments, context)
            tool = tool or next((tool for tool in await self._list_plan_tools() if tool.name == name), None)
            if tool is not None:
                return await self._run_tool(tool, arguments, context)
            if any(tool.name == name for tool in await super().list_tools()):
                return await super().call_tool(name, arguments, context)
            raise UnknownTool(await self._explain_unknown_tool(name, context))
        except PlanwardenError as error:
            return build_error_result(error)
        # This is the outermost handler: the result says that the call failed, and the log says why.
        except Exception:
            if tool is None:
                raise
            logger.exception("tool %s failed", name)
            return build_error_result(InternalFailure())

    async def list_prompts(self) -> list[Prompt]:
        """Return our prompts, and one for each saved plan."""
        return [*await super().list_prompts(), *list_prompts(await self._list_plans())]

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Context[LazyService, Any] | None = None
    ) -> GetPromptResult | InputRequiredResult:
        """Return the prompt. Raises `MCPError` without a traceback for an unknown name or wrong arguments."""
        prompt = next((item for item in await self.list_prompts() if item.name == name), None)
        if prompt is None:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown prompt: {name[:200]}")
        missing = [item.name for item in prompt.arguments or () if item.required and item.name not in (arguments or {})]
        if missing:
            raise MCPError(code=INVALID_PARAMS, message=f"prompt {name} needs {', '.join(missing)}")
        saved = next((plan for plan in await self._list_plans() if plan.name == name), None)
        if saved is not None and find_prompt_clash(name) is None:
            return render_prompt(saved, arguments or {})
        names = [item.name for item in prompt.arguments or ()]
        if unknown := (arguments or {}).keys() - names:
            raise MCPError(code=INVALID_PARAMS, message=describe_unknown_keys(f"prompt {name}", unknown, names))
        return await super().get_prompt(name, arguments, context)

    async def list_resources(self) -> list[Resource]:
        """Return our resources, a skill for each saved plan, and all others. Only hosts that draw apps get the view."""
        others = await super().list_resources()
        return [
            *resources.RESOURCES,
            *(skill.resource for skill in await self._skills.list()),
            *(resource for resource in others if client_shows_apps.get() or resource.uri != URI),
        ]

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return [*resources.TEMPLATES, *await super().list_resource_templates()]

    async def read_resource(
        self, uri: AnyUrl | str, context: Context[LazyService, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        if str(uri).startswith(SCHEME) and (file := await self._skills.read(str(uri))) is not None:
            return [ReadResourceContents(content=file[0], mime_type=file[1])]
        resource = resources.find_resource(str(uri))
        if resource is None:
            return await super().read_resource(uri, context)
        try:
            service = await _find_lazy_service(context).service()
            document = await resources.read(service, *resource, self.identify().principal)
        except (UnknownThread, UnknownTool, UnknownArtifact, UnknownSuspension) as error:
            raise ResourceNotFoundError(error.message) from None
        except PlanwardenError as error:
            raise ResourceError(f"{error.code}: {error.message}") from None
        text = json.dumps(make_presentable(document), ensure_ascii=False)
        return [ReadResourceContents(content=text, mime_type=JSON_TYPE)]

    async def _run_tool(
        self, tool: McpTool, arguments: dict[str, Any], context: Context[LazyService, Any] | None
    ) -> CallToolResult | InputRequiredResult:
        checked = tool.check_arguments(arguments)
        caller = self.identify()
        service = await _find_lazy_service(context).service()
        assert context is not None
        request = ToolRequest(
            service=service,
            caller=caller,
            arguments=checked,
            context=context,
            nonces=self.nonces,
            shows_app="shows_app" in tool.traits and client_supports_apps(context),
        )
        try:
            if (tool.name in TASK_TOOLS or tool.inputs is not None) and wants_tasks(context):
                return await self._tasks.run(tool, request)
            async with self._turns.take(caller.principal):
                return await tool.handler(request)
        except (UnknownThread, UnknownSuspension) as error:
            starts = "options" in tool.properties
            advice = "leave threadId out to start one" if starts else "list_suspensions names threads and questions"
            hint = await request.describe_ids() or advice
            raise type(error)(f"{error.message}: {hint}", details=error.details) from None

    async def _run_guard(
        self, settings: Settings, arguments: dict[str, Any], context: Context[LazyService, Any] | None
    ) -> CallToolResult:
        """Return the answer to a host's hook."""
        assert context is not None
        service = await _find_lazy_service(context).service()
        guard, meta = build_guard(settings, service), dict[str, Any](context.request_context.meta or {})
        answer = await answer_guard_call(guard, arguments, self.identify().principal, meta)
        return CallToolResult(content=[TextContent(type="text", text=answer)])

    async def _list_plans(self) -> tuple[SavedPlan, ...]:
        """Return the saved plans; the list may be a few seconds old."""
        library = None if self._warden is None else self._warden.library
        return () if library is None else (await library.list()).plans

    async def _list_plan_tools(self) -> list[McpTool]:
        """Return a tool for each saved plan, if the operator says so."""
        if self._warden is None or not self._warden.settings.tables.plans.as_tools:
            return []
        return list_plan_tools(await self._list_plans())

    async def _complete(self, ctx: ServiceContext, params: CompleteRequestParams) -> CompleteResult:
        return await complete(ctx, params, await self._list_plans())

    async def _explain_unknown_tool(self, name: str, context: Context[LazyService, Any] | None) -> str:
        """Return why no tool has this name; models often call a tool for plans directly."""
        service = await _find_lazy_service(context).service()
        if service.tools.get(name) is not None:
            return f"{name!r} is a tool for plans; put it into a step of a plan and call execute_plan"
        if any(plan.name == name for plan in await self._list_plans()):
            return f"{name!r} is a saved plan; call run_plan with this name"
        names = [tool.name for tool in TOOLS]
        return f"there is no tool {name[:64]!r}{did_you_mean(name, names)}; the tools are {', '.join(names)}"


async def _announce_changing_lists(ctx: ServiceContext, call_next: CallNext) -> HandlerResult:
    """Announce in the handshake of older revisions that our lists change. This is a middleware because the SDK
    takes the announcement from its transports, not from the server."""
    result = await call_next(ctx)
    if ctx.method == "initialize" and isinstance(result, dict):
        capabilities: dict[str, Any] = result["capabilities"]
        for name in ("prompts", "resources", "tools"):
            capabilities[name]["listChanged"] = True
    return result


def _find_lazy_service(context: Context[LazyService, Any] | None) -> LazyService:
    if context is None:
        raise StoreError("planwarden's tools can only be called through a running server")
    return context.request_context.lifespan_context
