"""Starts executions in threads, once for each key that a caller sends, and checks their plans.

A question that a caller asks without a plan becomes a plan of one step.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from planwarden.agent.common.canonical import check_depth, digest, exceeds, is_same_json
from planwarden.agent.common.errors import (
    InvalidArguments,
    InvalidPlan,
    KeyConflict,
    KeyUsed,
    LimitExceeded,
    ThreadBusy,
    UnknownThread,
    UsageError,
)
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import Path, replace_bindings_by_null
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import FINISHED, ExecutionState, new_execution
from planwarden.agent.core.execution.thread_effects import format_effects, list_thread_effects
from planwarden.agent.core.plan.inputs import complete_inputs
from planwarden.agent.core.plan.plan import Plan, ToolFacts
from planwarden.agent.core.plan.plan_parser import read_tool_names
from planwarden.agent.core.prompts import summarize
from planwarden.agent.ports.environment import new_id
from planwarden.agent.ports.store import Header, StartRequest
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.lookups import LookedUp
from planwarden.agent.runtime.new_execution import ParsedPlan, PreparedThread, StartOptions
from planwarden.server.api.limits import check_key, check_text
from planwarden.server.plans.library import PlanLibrary
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.options import combine_options
from planwarden.tools.builtin.human import MAX_ADDRESSEE_CHARS
from planwarden.tools.downstream.servers import DownstreamServers

PLAN_DIGITS = 16

CreateRun = Callable[[StartRequest | None], Awaitable[ExecutionState]]
"""Starts or continues an execution, and returns it; takes the request that the store has to keep, if any."""

STEP_ID = "ask"
MAX_MESSAGE_CHARS = 4_000
MAX_VALUES = 5_000
MAX_BYTES = 64 * 1024
"""The most bytes in the details, and also in the form."""


def build_request(
    key: str | None, content: dict[str, JsonValue], call: Mapping[str, object] | None = None
) -> StartRequest | None:
    """Return the record of a request with this content for the store; None without a key. A rehearsal and the real run
    are different requests, so one key cannot start both.

    Raises:
        InvalidArguments: the key is not usable, or the content is not JSON.
        LimitExceeded: the content is nested too deeply.
    """
    for value in content.values():
        check_depth(value)
    if key is None:
        return None
    check_key(key)
    described = {**content, "rehearse": True} if call and call.get("rehearse") else content
    return StartRequest(key=str(key), request=digest(described, context="start"))


def build_plan_request(start: StartOptions, plan: JsonValue, call: Mapping[str, object]) -> StartRequest | None:
    """Return the record of a caller's plan and inputs for the store; None without a key. Raises like
    `build_request`."""
    if start.key is None:
        # Without a key nothing is stored, and parsing checks the depth.
        return None
    document = _join_inputs(plan, start)
    check_depth(document)
    return build_request(start.key, {"goal": start.goal, "plan": digest(document, context="plan")}, call)


def add_plan(
    request: StartRequest | None, start: StartOptions, plan: JsonValue, call: Mapping[str, object]
) -> StartRequest:
    """Return the request with the digest by which the store finds unfinished runs of the plan.

    A rehearsal does not count as a second run of the plan, and does not warn of one.
    """
    if call.get("rehearse"):
        return request or StartRequest()
    # A few digits are enough: only warnings use them, and every unfinished execution stores them twice.
    digits = digest(_join_inputs(plan, start), context="plan")[:PLAN_DIGITS]
    return StartRequest(plan=digits, is_only=True) if request is None else replace(request, plan=digits)


def _is_to_run(execution: ExecutionState, thread_id: str | None) -> bool:
    """Return whether the request asks to run a plan that its key has made and that has not begun."""
    return thread_id is not None and execution.status == "planned"


def _runs_as(execution: ExecutionState, start: StartOptions) -> bool:
    """Return whether the execution has this request's inputs, and both or neither are rehearsals."""
    schema, is_rehearsal = execution.plan and execution.plan.inputs, bool((start.options or {}).get("rehearse"))
    try:
        is_same = is_same_json(complete_inputs(schema, start.inputs), execution.inputs)
        return is_same and is_rehearsal == execution.options.rehearse
    except UsageError:
        return False


def _join_inputs(plan: JsonValue, start: StartOptions) -> JsonValue:
    return [plan, dict(start.inputs)] if start.inputs else plan


def build_question_plan(
    message: str, details: JsonValue, form: JsonValue, addressee: str | None
) -> dict[str, JsonValue]:
    """Return a plan that asks for a confirmation or, with a form, for an answer that fits it.

    Raises:
        InvalidArguments: a text is empty, the form is not a JSON Schema of an object, or something is not JSON.
        LimitExceeded: a text, the details or the form is too large.
    """
    check_text(message, "message", MAX_MESSAGE_CHARS)
    if addressee is not None:
        check_text(addressee, "addressee", MAX_ADDRESSEE_CHARS)
    for name, value in (("details", details), ("form", form)):
        _check_value(value, name)
    arguments: dict[str, JsonValue] = {"action" if form is None else "message": message}
    if form is not None:
        _check_form(form)
        arguments["form"] = form
    arguments |= {name: value for name, value in (("details", details), ("addressee", addressee)) if value is not None}
    tool = "displayConfirmation" if form is None else "requestInput"
    step: JsonValue = {
        "id": STEP_ID,
        "description": message,
        "requiredTools": [tool],
        "toolCalls": [{"toolName": tool, "arguments": arguments}],
    }
    return {"todoList": [step]}


def _check_value(value: JsonValue, name: str) -> None:
    check_depth(value)
    if exceeds(value, MAX_VALUES, MAX_BYTES):
        raise LimitExceeded(f"'{name}' has more than {MAX_VALUES} values or {MAX_BYTES // 1024} KiB")
    bound: list[Path] = []
    replace_bindings_by_null(value, bound)
    if bound:
        raise InvalidArguments(f"'{name}' has a '$from' or '$text', which only plans have; send the values themselves")


def _check_form(form: JsonValue) -> None:
    if not isinstance(form, dict) or form.get("type") != "object":
        raise InvalidArguments("'form' must be a JSON Schema with type 'object' and a property for each answer")
    try:
        Schema(form)
    except ValueError as error:
        raise InvalidArguments(f"'form' is not a usable JSON Schema: {str(error).splitlines()[0]}") from None


_CONTEXT_EXECUTIONS = 3
"""The most executions of the thread that the planning model is told about."""
_CONTEXT_EFFECTS = 20
"""The most effects of the thread that the planning model is told about."""


class Starts:
    """Starts the executions of one engine: finds their threads, and parses plans as a new run would use them.

    A thread of another principal looks as if it did not exist.
    """

    def __init__(
        self, engine: Engine, settings: Settings, library: PlanLibrary, downstream: DownstreamServers | None
    ) -> None:
        self.engine = engine
        self._options = settings.options
        self._downstream = downstream
        self.library = library

    async def start_once(
        self, start: StartOptions, request: StartRequest | None, create: CreateRun, *, thread_id: str | None = None
    ) -> ExecutionState:
        """Return the execution that the key started before; if there is none, start it with `create`. Only a request to
        run a thread's planned execution sets `thread_id`; it may repeat the key that made the plan.

        Raises:
            KeyConflict: the key belongs to another goal, plan or inputs.
        """
        if request is None or request.key is None:
            return await create(request)
        execution = await self._find_started(start, request, thread_id)
        if execution is not None and not _is_to_run(execution, thread_id):
            return execution
        try:
            return await create(request if execution is None else None)
        except (KeyUsed, UsageError):
            # If the same request came twice at once, the other one may have been faster.
            execution = await self._find_started(start, request, thread_id)
            if execution is None or _is_to_run(execution, thread_id):
                raise
            return execution

    async def _find_started(
        self, start: StartOptions, request: StartRequest, thread_id: str | None
    ) -> ExecutionState | None:
        earlier = await self.engine.store.find_start(start.requester.principal, str(request.key))
        if earlier is None:
            return None
        execution = await self.engine.find(earlier.execution_id)
        # The key that made a plan may run it, and then belongs to that run too.
        is_same = earlier.request == request.request or (
            earlier.thread_id == thread_id and (execution.status == "planned" or _runs_as(execution, start))
        )
        if not is_same:
            raise KeyConflict(
                f"key {request.key!r} started execution {earlier.execution_id!r} (thread {earlier.thread_id!r}) with "
                "another goal, plan or inputs; get_execution shows that one, and another key starts this one",
                details={"executionId": earlier.execution_id, "threadId": earlier.thread_id},
            )
        return execution

    async def read_headers(self, thread_id: str, principal: str) -> tuple[Header, ...]:
        """Return the headers of the thread's executions, oldest first.

        Raises:
            UnknownThread: the principal has no such thread.
        """
        headers = await self.engine.store.thread(thread_id)
        if not headers or headers[0].principal != principal:
            raise UnknownThread(f"there is no thread {thread_id[:64]!r}")
        return headers

    async def load_newest(self, thread_id: str, principal: str) -> ExecutionState:
        """Return the thread's newest execution. Raises `UnknownThread`."""
        headers = await self.read_headers(thread_id, principal)
        return await self.engine.find(headers[-1].execution_id)

    async def prepare(
        self, start: StartOptions, call: Mapping[str, object], *, makes_plan: bool = False
    ) -> PreparedThread:
        """Return the thread for a new execution; with `makes_plan`, also the context for the model that makes the plan.

        A goal has a final text by default; later executions of the thread have one only if the caller asked for it.

        Raises:
            UnknownThread: the principal has no such thread.
            ThreadBusy: the thread has an unfinished execution.
        """
        headers, newest = (), None
        if start.thread_id is not None:
            headers = await self.read_headers(start.thread_id, start.requester.principal)
            newest = await self.engine.find(headers[-1].execution_id)
            if newest.status not in FINISHED:
                raise _build_busy_error(start.thread_id, newest)
        options = combine_options(self._options, None if newest is None else newest.options, call)
        if makes_plan and "synthesize" not in (start.options or {}):
            options = replace(options, explicit=tuple(name for name in options.explicit if name != "synthesize"))
        if newest is None:
            return PreparedThread(new_id(), options)
        effects = list_thread_effects(newest)
        context = await self._summarize(headers, effects) if makes_plan else None
        return PreparedThread(newest.thread_id, options, context, effects)

    async def check(self, plan: JsonValue, *, thread_id: str | None = None, principal: str) -> ParsedPlan:
        """Return the plan as it would run now on the thread; wait a limited time for tools of downstream servers.

        Raises:
            InvalidPlan, LimitExceeded: the plan cannot run.
            UnknownThread: the principal has no such thread.
        """
        if thread_id is not None:
            await self.read_headers(thread_id, principal)
        names = read_tool_names(plan)
        if missing := names - self.engine.tool_facts().keys():
            await self.wait_for_tools(missing)
            self.check_servers(names)
        return await self.parse(plan, new_execution("", thread_id or "", principal))

    async def parse(
        self,
        document: JsonValue,
        asking: ExecutionState,
        tools: Mapping[str, ToolFacts] | None = None,
        earlier_plan: Plan | None = None,
    ) -> ParsedPlan:
        """Return the plan and the results that it takes from its thread. `asking` is the execution that will run it.

        The plan may name these `tools`; None means the tools that exist now.
        """

        def read(lookups: LookedUp) -> ParsedPlan:
            plans = lookups.build_plan_intake(asking, tools)
            plan, warnings = plans.read(document, author="caller", earlier_plan=earlier_plan)
            return ParsedPlan(plan, warnings, plans.list_results(plan))

        return await self.engine.lookups.resolve(asking, read)

    async def read_saved(self, name: str) -> tuple[ev.PlanVersion, Plan]:
        """Return the saved plan as a run that begins now would use it. Raises `UnknownPlan`, or as `check` does."""
        saved = await self.library.find(name)
        checked_plan = await self.check(saved.document, principal="")
        return ev.PlanVersion(name=saved.name, digest=saved.digest), checked_plan.plan

    async def wait_for_tools(self, names: Iterable[str]) -> None:
        """Wait a limited time for the downstream servers behind the unknown names to list their tools."""
        if self._downstream is not None:
            await self._downstream.wait_until_listed(names)

    def check_servers(self, names: Iterable[str]) -> None:
        """Raise `InvalidPlan`, with the reason, if a tool is missing because its server is not available."""
        if self._downstream is None:
            return
        faults = {name: why for name in sorted(names) if (why := self._downstream.unavailable_reason(name)) is not None}
        if faults:
            text = "; ".join(f"{name[:128]!r} is not available: {why}" for name, why in list(faults.items())[:10])
            missing: list[JsonValue] = [name[:128] for name in faults]
            raise InvalidPlan(f"the plan needs tools that are not available: {text}", details={"unknownTools": missing})

    async def _summarize(self, headers: Sequence[Header], effects: Sequence[ev.ThreadEffect]) -> str:
        parts: list[str] = []
        for header in headers[-_CONTEXT_EXECUTIONS:]:
            execution = await self.engine.find(header.execution_id)
            outcome = execution.synthesis or summarize(execution)
            parts.append(f"goal: {(execution.goal or 'a given plan')[:300]}\n{execution.status}\n{outcome[:1500]}")
        if effects:
            parts.append("completed, do not repeat:\n" + format_effects(effects, _CONTEXT_EFFECTS))
        return "\n\n".join(parts)


def _build_busy_error(thread_id: str, execution: ExecutionState) -> ThreadBusy:
    pending: list[JsonValue] = [
        {
            "suspensionId": suspension.question.suspension_id,
            "kind": suspension.question.public_kind,
            "message": suspension.question.message[:200],
        }
        for suspension in execution.open_suspensions
    ]
    what = "waits for an answer" if pending else f"is {execution.status}"
    advice = (
        "execute_plan without a plan runs it"
        if execution.status == "planned"
        else "get_execution shows what it waits for; start without threadId"
    )
    return ThreadBusy(
        f"thread {thread_id!r} has an unfinished execution that {what}; {advice}, or cancel_execution, "
        "after which retry_execution with a plan goes on from what is completed",
        details={"executionId": execution.execution_id, "status": execution.status, "pending": pending},
    )
