"""The Python API: planwarden inside a program, without MCP.

The program is the operator: its decisions carry the assurance `embedder` and the `principal` that it passes.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio.to_thread
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.ports.model import Model
from planwarden.agent.ports.store import Store
from planwarden.server.api.observer import build_observer
from planwarden.server.api.service import Service
from planwarden.server.auth.settings import LOCAL
from planwarden.server.settings.catalogue import build_downstream, build_registry
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.server.settings.models import build_model
from planwarden.server.views.execution import Execution
from planwarden.server.views.suspension import SuspensionPage
from planwarden.server.views.tools import ToolPage, ToolSchemas

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from planwarden.server.telemetry.telemetry import Telemetry
    from planwarden.tools.downstream.servers import DownstreamServers


class Warden:
    """Plans, runs, suspends and resumes; use as an async context manager.

    ```python
    async with planwarden.Warden(home=path, tools=[crm_find]) as warden:
        execution = await warden.execute_plan(plan, wait_seconds=30)
    ```
    """

    def __init__(
        self,
        home: Path | str | None = None,
        *,
        model: str | Model | None = None,
        tools: Sequence[object] = (),
        settings: Settings | None = None,
        store: Store | None = None,
        tracer_provider: "TracerProvider | None" = None,
        meter_provider: "MeterProvider | None" = None,
        whole_process: bool = False,
    ) -> None:
        """`home` holds the database and `planwarden.toml`; `tools` are functions decorated with `@planwarden.tool`.

        Spans and metrics go to the given providers; without any, `[otel]` and OpenTelemetry's variables decide. With
        `whole_process` they become the providers of the process, which suits a process that only serves.

        Raises:
            UsageError: a setting, a tool or the model is not usable.
        """
        folder = Path(home) if home is not None else None
        named = model if isinstance(model, str) else None
        self.settings = settings or load_settings(home=folder, model=named)
        self.tools = build_registry(self.settings, tools)
        self._model = self._choose_model(model)
        if self.settings.servers.configs:
            # Puts their tools into the catalogue, and refuses wrong settings, before anything opens.
            _ = self.downstream
        self._given = store
        self._model_name = named or (self.settings.model if model is None else f"custom:{type(model).__name__}")
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._whole_process = whole_process
        # A server answers its first request while it opens, and that request needs a span too.
        self.observer = self._build_observer() if whole_process else None
        """Observes the requests of a server; None without telemetry, or when only the engine is observed."""
        self._stack = AsyncExitStack()
        self._service: Service | None = None

    @cached_property
    def downstream(self) -> "DownstreamServers":
        """The downstream servers."""
        return build_downstream(self.settings, self.tools)

    def _build_observer(self) -> "Telemetry | None":
        return build_observer(
            self.settings.observation,
            self._model_name,
            tracer_provider=self._tracer_provider,
            meter_provider=self._meter_provider,
            whole_process=self._whole_process,
        )

    def _choose_model(self, model: str | Model | None) -> Model:
        if model is None or isinstance(model, str):
            return build_model(model or self.settings.model, self.settings.environment)
        return model

    async def __aenter__(self) -> Self:
        """Opens the store and takes over what a dead process left running. Raises `StoreError`."""
        try:
            return await self._open()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _open(self) -> Self:
        # On another thread, so that a server can answer while it opens.
        opening = await anyio.to_thread.run_sync(_import_opening)
        store = self._given
        if store is None:
            store = await opening.open_store(self._stack, self.settings)
        self._service = await opening.open_service(
            self._stack,
            self.settings,
            store=store,
            tools=self.tools,
            downstream=self.downstream,
            model=self._model,
            observer=self.observer or self._build_observer(),
        )
        if self._whole_process:
            from planwarden.server.api.stalls import watch_stalls

            await self._stack.enter_async_context(watch_stalls(self.settings.home))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._service = None
        await self._stack.__aexit__(kind, error, traceback)

    @property
    def service(self) -> Service:
        """The methods that take an explicit authority, for channels other than this one."""
        if self._service is None:
            raise StoreError("the warden is not open; use `async with planwarden.Warden(...) as warden`")
        return self._service

    async def run_goal(
        self,
        goal: str,
        *,
        thread_id: str | None = None,
        key: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        principal: str = LOCAL,
    ) -> Execution:
        """Plans for a goal and runs the plan; returns the execution when it ends, waits, or after `wait_seconds`.

        `options` are those of the MCP tool. Without `thread_id` a new thread begins; else the thread's options hold.
        With a `key` of 1 to 200 characters, only the first of the principal's calls starts something: each later one
        returns that execution as it is then, from any process, until it is pruned.

        Raises:
            InvalidArguments: the goal, the key or an option is not usable.
            KeyConflict: the key started something else; the details name it.
            UnknownThread: the principal has no such thread.
            ThreadBusy: the thread has an unfinished execution.
        """
        return await self.service.run_goal(
            goal, thread_id=thread_id, key=key, options=options, wait_seconds=wait_seconds, principal=principal
        )

    async def create_plan(
        self,
        goal: str,
        *,
        thread_id: str | None = None,
        key: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        principal: str = LOCAL,
    ) -> Execution:
        """Plans for a goal and stops at `planned`; `execute_plan` with its `thread_id` and no plan runs the plan.

        A `key` works as in `run_goal`.

        Raises:
            InvalidArguments: the goal, the key or an option is not usable.
            KeyConflict: the key started something else; the details name it.
            UnknownThread: the principal has no such thread.
            ThreadBusy: the thread has an unfinished execution.
        """
        return await self.service.run_goal(
            goal,
            thread_id=thread_id,
            key=key,
            options=options,
            wait_seconds=wait_seconds,
            principal=principal,
            plan_only=True,
        )

    async def execute_plan(
        self,
        plan: Mapping[str, JsonValue] | None = None,
        *,
        goal: str | None = None,
        thread_id: str | None = None,
        key: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        principal: str = LOCAL,
    ) -> Execution:
        """Runs a plan, or without one the planned one of the thread; returns the execution as `run_goal` does.

        A `key` works as in `run_goal`. Without one, `warnings` names an unfinished execution of the same plan.

        Raises:
            InvalidPlan: the plan cannot run as written; `details["problems"]` has every fault.
            LimitExceeded: it has too many steps or is nested too deeply.
            InvalidArguments: the key or an option is not usable, or there is nothing to run.
            KeyConflict: the key started something else; the details name it.
            UnknownThread: the principal has no such thread.
            ThreadBusy: the thread has an unfinished execution.
        """
        return await self.service.execute_plan(
            dict(plan) if plan is not None else None,
            goal=goal,
            thread_id=thread_id,
            key=key,
            options=options,
            wait_seconds=wait_seconds,
            principal=principal,
        )

    async def get_execution(
        self, thread_id: str, *, observations_after: int | None = None, principal: str = LOCAL
    ) -> Execution:
        """Returns the thread's newest execution; with `observations_after` also what happened after that place.

        Raises:
            UnknownThread: the principal has no such thread.
        """
        return await self.service.get_execution(thread_id, observations_after=observations_after, principal=principal)

    async def list_suspensions(
        self,
        *,
        thread_id: str | None = None,
        addressee: ev.Addressee | None = None,
        limit: int = 20,
        cursor: str | None = None,
        principal: str = LOCAL,
    ) -> SuspensionPage:
        """Returns open suspensions, oldest first, at most `limit` (1 to 100) from `cursor` on.

        Raises:
            InvalidArguments: the limit or the cursor is not usable.
            UnknownThread: the principal has no such thread.
        """
        return await self.service.list_suspensions(
            thread_id=thread_id, addressee=addressee, limit=limit, cursor=cursor, principal=principal
        )

    async def submit_answer(
        self,
        thread_id: str,
        suspension_id: str,
        content: JsonValue,
        *,
        wait_seconds: float | None = None,
        principal: str = LOCAL,
    ) -> Execution:
        """Answers a question to the caller with `content` that fits its `answer_schema`; the execution continues.

        Raises:
            UnknownSuspension: the thread has no such question.
            InvalidArguments: the content does not fit, or the question is addressed to a person.
            AlreadyDecided: the question has another answer already.
        """
        return await self.service.answer(
            thread_id,
            suspension_id,
            Decision(content=content),
            Authority(assurance="caller", channel="python", principal=principal),
            wait_seconds=wait_seconds,
            principal=principal,
            caller_only=True,
        )

    async def resume_execution(
        self,
        thread_id: str,
        suspension_id: str,
        decision: Decision,
        *,
        wait_seconds: float | None = None,
        principal: str = LOCAL,
    ) -> Execution:
        """Decides a suspension; the execution continues. The program is the operator, so its authority always suffices.

        Raises:
            UnknownSuspension: the thread has no such question.
            InvalidArguments: content or arguments do not fit.
            AlreadyDecided: it has another decision already; the first one stands.
            Expired: the time to answer has passed.
            StaleDefinition: the tool or the policy changed; the suspension was revised, look at it again.
        """
        return await self.service.answer(
            thread_id,
            suspension_id,
            decision,
            Authority(assurance="embedder", channel="python", principal=principal),
            wait_seconds=wait_seconds,
            principal=principal,
        )

    async def cancel_execution(self, thread_id: str, *, reason: str | None = None, principal: str = LOCAL) -> Execution:
        """Stops the thread's execution; what was done stays done. Returns a finished execution unchanged.

        Raises:
            UnknownThread: the principal has no such thread.
        """
        return await self.service.cancel_execution(thread_id, reason=reason, principal=principal)

    async def search_tools(self, query: str | None = None, *, limit: int = 20, cursor: str | None = None) -> ToolPage:
        """Returns lines of the catalogue, best matches first; without a query all lines by name.

        Raises:
            InvalidArguments: the limit or the cursor is not usable.
        """
        await self.service.wait_for_catalogue()
        return self.service.search_tools(query, limit=limit, cursor=cursor)

    async def get_tool_schemas(self, names: Sequence[str]) -> ToolSchemas:
        """Returns full definitions of the named tools, and the names that no tool has.

        Raises:
            InvalidArguments: `names` is empty.
            LimitExceeded: there are more than 100.
        """
        await self.service.wait_for_tools(names)
        return self.service.get_tool_schemas(names)


def _import_opening():
    from planwarden.server.api import opening

    return opening
