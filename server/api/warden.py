"""The Python API: planwarden inside a program, without MCP.

The program is the operator: its decisions carry the assurance `embedder` and the `principal` that it passes.
"""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import anyio.to_thread

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.common.task_groups import keep_running
from planwarden.agent.core.execution.question import Addressee
from planwarden.agent.core.execution.requester import LOCAL, Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.model import Model
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.home import Home, build_observer
from planwarden.server.api.limits import check_wait, copy_mapping
from planwarden.server.api.service import Service
from planwarden.server.api.stalls import STALLS_FILE, StallWatch
from planwarden.server.api.tools import search_tools
from planwarden.server.settings.catalogue import build_command_prefix
from planwarden.server.settings.configuration import ProcessRole, Settings, load_settings
from planwarden.server.settings.models import build_model
from planwarden.server.views.execution import Execution, ask_for_person
from planwarden.server.views.listing import SavedPlanLine
from planwarden.server.views.suspension import SuspensionPage, name_program
from planwarden.server.views.tools import ToolPage, ToolSchemas

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

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
        role: ProcessRole = "both",
        concurrency: int | None = None,
    ) -> None:
        """`home` holds the database and `planwarden.toml`; `tools` are functions decorated with `@planwarden.tool`.

        Spans and metrics go to the given providers; without any, `[otel]` and OpenTelemetry's variables decide. With
        `whole_process` they become the providers of the process, which suits a process that only serves. With the role
        `front`, the warden leaves all executions to other processes that share the store. `concurrency` limits how many
        executions of other processes the warden takes over at a time.

        Raises:
            UsageError: a setting, a tool or the model is not usable.
        """
        model_spec = model if isinstance(model, str) else None
        self.settings = settings or load_settings(home=None if home is None else Path(home), model=model_spec)
        if model is None or isinstance(model, str):
            # The program may name another model than the settings do.
            model = build_model(model_spec or self.settings.model, self.settings.environment)
            model_name = model_spec or self.settings.model
        else:
            model_name = f"custom:{type(model).__name__}"
        prefix = cache(lambda: shlex.join(build_command_prefix(self.settings)))
        program = name_program if store is not None else prefix
        self._home = Home(self.settings, tools=tools, model=model, program=program)
        self.tools = self._home.tools
        self.library = self._home.library
        """The saved plans."""
        self._store = store
        self._build_observer = partial(
            build_observer,
            self.settings.observation,
            model_name,
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            whole_process=whole_process,
        )
        self._whole_process = whole_process
        self._role: ProcessRole = role
        self._concurrency = concurrency
        # A server answers its first request while it opens, and the span of that request needs the providers.
        self._observer = self._build_observer() if whole_process else None
        self._stack = AsyncExitStack()
        self._service: Service | None = None

    @property
    def downstream(self) -> "DownstreamServers":
        """The downstream servers."""
        return self._home.downstream

    async def __aenter__(self) -> Self:
        """Open the store, take over what a dead process left running, and return the warden. Raises `StoreError`."""
        async with AsyncExitStack() as stack:
            observer = self._observer or self._build_observer()
            if observer is not None:
                stack.push_async_callback(observer.aclose)
            # Imported on another thread, so that a server can answer while it opens.
            runtime = await anyio.to_thread.run_sync(import_module, "planwarden.server.api.runtime")
            opening: AbstractAsyncContextManager[Service] = runtime.open_runtime(
                self._home, self._role, store=self._store, observer=observer, concurrency=self._concurrency
            )
            self._service = await stack.enter_async_context(opening)
            if self._whole_process:
                await stack.enter_async_context(keep_running(StallWatch(self.settings.home / STALLS_FILE).run))
            self._stack = stack.pop_all()
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
        """Plan for a goal and run the plan; return the execution when it ends or waits, or after `wait_seconds`.

        `options` are those of the MCP tool. Without `thread_id` a new thread begins; else the thread's options apply.
        With a `key` of 1 to 200 characters, only the principal's first call with that key starts an execution; later
        calls with the key, from any process, return that execution in its current state, until it is pruned.

        Raises:
            InvalidArguments: the goal, the key or an option is not usable.
            KeyConflict: the key started something else; the details name it.
            UnknownThread: the principal has no such thread.
            ThreadBusy: the thread has an unfinished execution.
        """
        check_wait(wait_seconds)
        start = StartOptions(requester=Requester(principal), thread_id=thread_id, key=key, options=options)
        return await self._wait(await self.service.run_goal(goal, start), wait_seconds, options)

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
        """Plan for a goal and stop at `planned`. To run the plan, call `execute_plan` with the `thread_id` and no plan.

        Return the execution as `run_goal` does, and raise what it raises. A `key` works as there.
        """
        check_wait(wait_seconds)
        start = StartOptions(requester=Requester(principal), thread_id=thread_id, key=key, options=options)
        return await self._wait(await self.service.run_goal(goal, start, plan_only=True), wait_seconds, options)

    async def execute_plan(
        self,
        plan: Mapping[str, JsonValue] | None = None,
        *,
        inputs: Mapping[str, JsonValue] | None = None,
        goal: str | None = None,
        thread_id: str | None = None,
        key: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        principal: str = LOCAL,
    ) -> Execution:
        """Run the plan. Without one, run the thread's `planned` or `rehearsed` plan, or continue its `incomplete` one.

        Return the execution as `run_goal` does. `inputs` are values for the `inputs` that the plan declares. A `key`
        works as in `run_goal`. Without a key, `warnings` names an unfinished execution of the same plan.

        Raises:
            InvalidPlan: the plan cannot run as written; `details["problems"]` has every fault.
            LimitExceeded: the plan has too many steps or is nested too deeply.
            InvalidArguments: the inputs, the key or an option are not usable, or there is nothing to run.
            KeyConflict: the key started something else; the details name it.
            UnknownThread: the principal has no such thread.
            ThreadBusy: the thread has an unfinished execution.
        """
        check_wait(wait_seconds)
        start = StartOptions(
            requester=Requester(principal),
            thread_id=thread_id,
            key=key,
            goal=goal,
            inputs=copy_mapping(inputs, "inputs"),
            options=options,
        )
        execution = await self.service.execute_plan(copy_mapping(plan, "plan"), start)
        return await self._wait(execution, wait_seconds, options)

    async def run_plan(
        self,
        name: str,
        inputs: Mapping[str, JsonValue] | None = None,
        *,
        thread_id: str | None = None,
        key: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        principal: str = LOCAL,
    ) -> Execution:
        """Run a saved plan as its file is now; return the execution as `run_goal` does, with the plan's version.

        A `key` works as in `run_goal`, even if the file was changed or deleted after the key was used.

        Raises:
            UnknownPlan: no file has that name, or it cannot be used; the details list the plans.
            InvalidPlan: the plan cannot run as written; `details["problems"]` has every fault.
            InvalidArguments: the inputs, the key or an option are not usable.
            KeyConflict: the key started something else; the details name it.
            UnknownThread: the principal has no such thread.
            ThreadBusy: the thread has an unfinished execution.
        """
        check_wait(wait_seconds)
        start = StartOptions(
            requester=Requester(principal),
            thread_id=thread_id,
            key=key,
            inputs=copy_mapping(inputs, "inputs"),
            options=options,
        )
        return await self._wait(await self.service.run_plan(name, start), wait_seconds, options)

    async def plans(self) -> tuple[SavedPlanLine, ...]:
        """Return the usable saved plans by name; `planwarden doctor` names the files that cannot be used."""
        return await self.service.plans()

    async def retry(
        self,
        thread_id: str,
        *,
        from_step: str | None = None,
        inputs: Mapping[str, JsonValue] | None = None,
        plan: Mapping[str, JsonValue] | None = None,
        key: str | None = None,
        wait_seconds: float | None = None,
        principal: str = LOCAL,
    ) -> Execution:
        """Continue the thread's last execution, which is over, in a new one; return the new one as `run_goal` does.

        Completed steps and calls that succeeded are taken over from the log that proves them. If nobody knows whether a
        call happened, a person is asked first. The remaining steps ask again for confirmations and approvals.
        `from_step` runs that step again and everything that depends on it, perhaps with another `plan` or other
        `inputs`; inputs that are not named keep their values. A `key` works as in `run_goal`.

        Raises:
            NotRetryable: a completed execution needs a `from_step`, a step would run twice, or the thread moved on.
            InvalidPlan: the plan cannot run as written.
            InvalidArguments: the inputs, the step or the key are not usable.
            LimitExceeded: what would be taken over is too large.
            KeyConflict: the key started something else; the details name it.
            UnknownThread: the principal has no such thread, or it was pruned.
            ThreadBusy: the execution is not over.
        """
        check_wait(wait_seconds)
        start = StartOptions(requester=Requester(principal), key=key, inputs=copy_mapping(inputs, "inputs"))
        execution = await self.service.retry(thread_id, start, from_step=from_step, plan=copy_mapping(plan, "plan"))
        return await self._wait(execution, wait_seconds)

    async def ask_person(
        self,
        message: str,
        *,
        details: JsonValue = None,
        form: Mapping[str, JsonValue] | None = None,
        addressee: str | None = None,
        key: str | None = None,
        wait_seconds: float | None = None,
        principal: str = LOCAL,
    ) -> Execution:
        """Ask a person, durably and without a plan; return the execution after the answer or after `wait_seconds`.

        `form` is a JSON Schema of an object: with it, the answer is under `content` in the result of the only step;
        without it, the person approves or rejects. The question shows the `details` and names the `addressee`, but
        anybody who may decide can answer it. A `key` works as in `run_goal`.

        Raises:
            InvalidArguments: a text is empty, or the form, the key or an option is not usable.
            LimitExceeded: the message, the details or the form are too large.
            KeyConflict: the key started something else; the details name it.
        """
        check_wait(wait_seconds)
        service, start = self.service, StartOptions(requester=Requester(principal), key=key)
        execution = await service.ask_person(
            message, start, details=details, form=copy_mapping(form, "form"), addressee=addressee
        )
        seconds = execution.options.wait_seconds if wait_seconds is None else wait_seconds
        return service.build_view(await service.wait_until_finished(execution, seconds))

    async def get_execution(
        self,
        thread_id: str,
        *,
        observations_after: int | None = None,
        step_id: str | None = None,
        items_from: int | None = None,
        items_limit: int = 100,
        principal: str = LOCAL,
    ) -> Execution:
        """Return the thread's newest execution; with `observations_after`, also the observations after that number.

        With `step_id`, the execution has only that step. A loop then has `item_results`: at most `items_limit` (1 to
        1,000) items from `items_from` (0) on. `items.next` is where the next page begins; None after the last page.

        Raises:
            UnknownThread: the principal has no such thread.
            InvalidArguments: there is no such step or item, or the limit is not usable.
        """
        return await self.service.get_execution(
            thread_id,
            observations_after=observations_after,
            step_id=step_id,
            items_from=items_from,
            items_limit=items_limit,
            principal=principal,
        )

    async def list_suspensions(
        self,
        *,
        thread_id: str | None = None,
        addressee: Addressee | None = None,
        limit: int = 20,
        cursor: str | None = None,
        principal: str = LOCAL,
    ) -> SuspensionPage:
        """Return open suspensions, oldest first, at most `limit` (1 to 100) from `cursor` on.

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
        """Answer a question to the caller with `content` that fits its `answer_schema`; return the execution.

        Raises:
            UnknownSuspension: the thread has no such question.
            InvalidArguments: the content does not fit, or the question is addressed to a person.
            AlreadyDecided: the question has another answer already.
        """
        decision = Decision(content=content)
        return await self._answer(thread_id, suspension_id, decision, "caller", principal, wait_seconds)

    async def resume_execution(
        self,
        thread_id: str,
        suspension_id: str,
        decision: Decision,
        *,
        wait_seconds: float | None = None,
        principal: str = LOCAL,
    ) -> Execution:
        """Decide a suspension and return the execution. The program is the operator, so its authority always suffices.

        Raises:
            UnknownSuspension: the thread has no such question.
            InvalidArguments: content or arguments do not fit.
            AlreadyDecided: it has another decision already; the first one counts.
            Expired: the time to answer has passed.
            StaleDefinition: the tool or the policy changed; the suspension was revised, look at it again.
        """
        return await self._answer(thread_id, suspension_id, decision, "embedder", principal, wait_seconds)

    async def _answer(
        self,
        thread_id: str,
        suspension_id: str,
        decision: Decision,
        assurance: Literal["caller", "embedder"],
        principal: str,
        wait_seconds: float | None,
    ) -> Execution:
        check_wait(wait_seconds)
        authority = Authority(assurance=assurance, channel="python", principal=principal)
        execution, is_accepted = await self.service.answer(
            thread_id, suspension_id, decision, authority, principal=principal, caller_only=assurance == "caller"
        )
        if is_accepted:
            return await self._wait(execution, wait_seconds)
        return ask_for_person(self.service.build_view(execution), suspension_id)

    async def _wait(
        self, execution: ExecutionState, wait_seconds: float | None, options: Mapping[str, JsonValue] | None = None
    ) -> Execution:
        """Return the view when the execution stops or after `wait_seconds` (default: by `options` or the execution)."""
        candidates = (wait_seconds, (options or {}).get("waitSeconds"), execution.options.wait_seconds)
        seconds = next(candidate for candidate in candidates if isinstance(candidate, int | float))
        return self.service.build_view(await self.service.wait(execution, seconds) if seconds else execution)

    async def cancel_execution(self, thread_id: str, *, reason: str | None = None, principal: str = LOCAL) -> Execution:
        """Stop the thread's execution and return it. What was done stays done; a finished execution does not change.

        Raises:
            UnknownThread: the principal has no such thread.
        """
        execution = await self.service.cancel_execution(thread_id, reason=reason, principal=principal)
        return self.service.build_view(execution)

    async def search_tools(self, query: str | None = None, *, limit: int = 20, cursor: str | None = None) -> ToolPage:
        """Return lines of the catalogue, best matches first; without a query all lines by name.

        Raises:
            InvalidArguments: the limit or the cursor is not usable.
        """
        await self.service.wait_for_catalogue()
        return search_tools(self.tools, query, limit=limit, cursor=cursor)

    async def get_tool_schemas(self, names: Sequence[str], *, principal: str = LOCAL) -> ToolSchemas:
        """Return full definitions of the named tools, and the names that no tool has.

        Raises:
            InvalidArguments: `names` is empty.
            LimitExceeded: there are more than 100 names.
        """
        await self.service.wait_for_tools(names)
        return await self.service.get_tool_schemas(names, principal=principal)
