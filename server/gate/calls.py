"""Decides whether a call from a host passes through to the server or becomes an execution with one step.

Identical calls of one principal share a thread, which has at most one unfinished execution. So a later identical call
waits for the same question and the same result, even from another session or after a restart.
"""

import json
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw, UnsetType

from planwarden.agent.common.canonical import canonical_json, digest, is_larger, read_json
from planwarden.agent.common.errors import (
    InvalidArguments,
    PlanwardenError,
    StartRefused,
    ThreadBusy,
    ToolError,
    UnknownThread,
)
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.pointers import MAX_ARGUMENT_BYTES
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.pins import PIN_CHARS
from planwarden.agent.core.plan.plan import PlannedCall
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.policy import Requirement
from planwarden.agent.ports.watchers import Commit
from planwarden.agent.runtime.log_reader import list_open_questions
from planwarden.agent.runtime.new_execution import PreparedThread
from planwarden.agent.runtime.real_paths import judge_with_paths
from planwarden.server.api.service import Service
from planwarden.server.gate import answers, frames
from planwarden.server.gate.answers import Answer, Result, build_text, has_run
from planwarden.server.gate.frames import Client, Frame, RequestId, read_client
from planwarden.server.gate.relay import TASK_PREFIX, Relay
from planwarden.server.gate.tools import GatedTools
from planwarden.server.guard.calls import build_single_call
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.instants import format_age
from planwarden.storage.hosts import Deliveries, TrustedDefinition, TrustedDefinitions
from planwarden.storage.sessions import RunningInboxes
from planwarden.tools.downstream.config import LoginLocation
from planwarden.tools.downstream.gated_servers import THREAD_PREFIX, describe_address

if TYPE_CHECKING:
    from planwarden.server.gate.asking import HostQuestions, Questions

MAX_OPEN = 50
"""How many questions about gated calls of one principal may be open at the same time."""
SAME_ANSWER_S = 60.0
"""For how many seconds after its first delivery a result also answers identical calls, because hosts may try again."""
REJECTED_S = 600.0
"""For how many seconds a person's rejection, or the end of an abandoned call, also answers identical calls."""
HEARTBEAT_S = 3.0
ATTEMPTS = 20
"""How many times the gate tries to decide about a call while identical calls keep changing the thread."""
MAX_WHERE_CHARS = 2_000
PARAMETERS = ("name", "arguments", "_meta", "inputResponses", "requestState", "task")


class HostCall(msgspec.Struct, frozen=True):
    """One call, as the host sent it."""

    request_id: RequestId | None
    name: str
    arguments: dict[str, JsonValue]
    meta: dict[str, JsonValue]
    client: Client
    responses: dict[str, JsonValue]
    """The person's answers to the questions in an earlier reply. The host repeats the call with these answers."""


class GatedCalls:
    """Judges the calls that one host makes to one server for one principal."""

    def __init__(self, service: Service, settings: Settings, relay: Relay, tools: GatedTools, principal: str) -> None:
        """`principal` owns the calls; callers with another principal do not see them."""
        self._principal = principal
        self._service = service
        self._settings = settings
        self._relay = relay
        self.tools = tools
        self._deliveries = Deliveries(service.store)
        self._undelivered: dict[RequestId | None, str] = {}
        """By request id, the execution whose result answers the request and is being written to the host."""
        self._trusted = TrustedDefinitions(service.store)
        self._trusted_by_tool: dict[str, TrustedDefinition] = {}
        """By the key of a tool, the newest definition that people rely on and that this process has read or stored."""
        self._inboxes = RunningInboxes(service.store)
        self._questions: HostQuestions | None = None
        """None until a host is first asked, because the import of the class is slow."""

    async def handle(self, frame: Frame) -> bytes | None:
        """Return the line that answers a call or a request about a task; None if the call passes through."""
        result = await (self.answer(frame) if frame.method == "tools/call" else self.answer_task(frame))
        if result is None:
            return None
        if read_client(frame, self._relay.host.greeted_client).envelope:
            result = {"resultType": "complete", **result}
        return frames.build_result(frame.request_id, result)

    async def find_login(self) -> LoginLocation | None:
        downstream = self._service.downstream
        return None if downstream is None else downstream.login_location(self._relay.config)

    async def answer(self, frame: Frame) -> Answer | None:
        """Return the result of a call; None for a call that passes through.

        Raises:
            InvalidArguments: the message is not a call, or the server lists no such tool.
            ToolError: the server cannot be asked for its tools.
        """
        call = self._read_call(frame)
        tool = await self.tools.find(call.name)
        definition = None if tool is None else self._service.tools.get(tool.definition.name)
        if tool is None or definition is None:
            raise InvalidArguments(self.tools.explain_missing(call.name))
        if faults := tool.input.find_faults(call.arguments):
            return build_text(f"Not run, because the arguments do not fit the tool's schema: {'; '.join(faults)}")
        properties = definition.input_schema.get("properties")
        if _has_twins(call.arguments, properties if isinstance(properties, dict) else ()):
            return build_text("Not run, because an argument's name differs only in case from another or the schema's")
        requirement = await judge_with_paths(partial(self._settings.policy.requirement, definition, call.arguments))
        current = self._build_trusted_definition(call.name, definition)
        trusted = self._trusted_by_tool.get(current.tool)
        if trusted is None:
            trusted = self._trusted_by_tool[current.tool] = await self._trusted.find_or_add(current)
        has_changed = trusted.origin != definition.origin
        if _only_reads(definition, requirement) and not has_changed:
            return None
        needs_person = has_changed or (
            requirement.needs is not None
            and not self._service.grants.covers(definition, call.arguments, requirement, self._principal)
        )
        pin = trusted.digest if has_changed else definition.digest
        try:
            if is_larger(call.arguments, MAX_ARGUMENT_BYTES) or is_larger(call.meta, MAX_ARGUMENT_BYTES):
                raise InvalidArguments(f"the arguments, or _meta, are larger than {MAX_ARGUMENT_BYTES} bytes")
            return await self._run(call, definition, pin[:PIN_CHARS], needs_person=needs_person)
        except PlanwardenError as error:
            return answers.refuse(error.message, error.code)

    async def record_delivery(self, frame: Frame) -> None:
        """Record that the host has the result. If the process ends before, the next identical call gets the result."""
        if (execution_id := self._undelivered.pop(frame.request_id, None)) is not None:
            with suppress(PlanwardenError):
                await self._deliveries.note(execution_id)

    async def answer_task(self, frame: Frame) -> Result:
        """Return the result of a request about a task of the gate.

        Raises:
            InvalidArguments: an answer does not fit its question.
            UnknownThread: the principal has no such task of this server.
        """
        params = frames.read_members(read_json(bytes(frame.params)) if isinstance(frame.params, Raw) else None)
        with suppress(UnknownThread):
            execution = await self._service.find(str(params.get("taskId")).removeprefix(TASK_PREFIX))
            own_call, slug = execution.only_call, f"{self._relay.config.slug}_"
            is_own = execution.principal == self._principal and execution.thread_id.startswith(THREAD_PREFIX)
            if own_call is not None and is_own and own_call.tool_name.startswith(slug):
                name = own_call.tool_name.removeprefix(slug)
                return await self._answer_task(frame, execution, name, params.get("inputResponses"))
        raise UnknownThread("Failed to retrieve task: Task not found")

    async def _answer_task(self, frame: Frame, execution: ExecutionState, name: str, responses: JsonValue) -> Result:
        questions, client = await self._open_questions(), read_client(frame, self._relay.host.greeted_client)
        if frame.method == "tasks/cancel":
            # If the call was approved before the host withdrew it, the call still runs.
            await self._service.cancel(execution, "the host withdrew the call", if_undecided=True)
            return {}
        if frame.method == "tasks/update":
            if not isinstance(responses, dict):
                raise InvalidArguments("inputResponses are an object")
            await questions.apply(execution, client, responses)
            return {}
        if not (execution.is_finished or _is_unknown(execution)):
            return await questions.build_task(execution, client, await self._describe_progress(execution))
        task = await questions.build_task(execution, client, "ended")
        if execution.status == "cancelled":
            return task
        if execution.is_finished:
            await self._note_approval(execution)
            result = await self._deliver(execution, name, frame.request_id)
        else:
            result = answers.say_unknown(self._name(execution, name), await self._find_address(execution))
        return {**task, "status": "completed", "result": result}

    def _name(self, execution: ExecutionState, remote_name: str) -> str:
        """Return the name by which the host knows the tool that the execution calls."""
        own_call = execution.only_call
        return own_call.tool_name if own_call is not None and self._relay.host.names_servers else remote_name

    async def _open_questions(self) -> "HostQuestions":
        if self._questions is None:
            # The module imports the SDK, which only a host that can be asked needs.
            module = await anyio.to_thread.run_sync(import_module, "planwarden.server.gate.asking")
            self._questions = module.HostQuestions(self._service, self._relay, self._principal)
        assert self._questions is not None
        return self._questions

    def _read_call(self, frame: Frame) -> HostCall:
        params = {} if isinstance(frame.params, UnsetType) else read_json(bytes(frame.params))
        # A server that ignores case could take two such names for one, and run a call that nobody has judged.
        if not isinstance(params, dict) or _has_twins(params, PARAMETERS):
            raise InvalidArguments("the parameters of a call are an object whose names differ by more than their case")
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            raise InvalidArguments("a call needs a name, and arguments that are an object")
        return HostCall(
            request_id=frame.request_id,
            name=name,
            arguments=arguments or {},
            meta=frames.read_members(params.get("_meta")),
            client=read_client(frame, self._relay.host.greeted_client),
            responses=frames.read_members(params.get("inputResponses")),
        )

    def _build_trusted_definition(self, remote_name: str, definition: ToolDefinition) -> TrustedDefinition:
        key = digest([self._relay.config.slug, self._relay.config.fingerprint, remote_name], context="gated tool/v1")
        return TrustedDefinition(tool=key, origin=definition.origin, digest=definition.digest)

    async def _run(self, call: HostCall, definition: ToolDefinition, pin: str, *, needs_person: bool) -> Answer:
        facts: JsonValue = [
            self._principal,
            # Rules may differ between two names of one server.
            self._relay.config.slug,
            self._relay.config.fingerprint,
            call.name,
            normalize_numbers(call.arguments),
        ]
        thread_id = f"{THREAD_PREFIX}{digest(facts, context='gate/v1')[:40]}"
        for _ in range(ATTEMPTS):
            headers = await self._service.store.thread(thread_id)
            newest = await self._service.find(headers[-1].execution_id) if headers else None
            result = None if newest is None else await self._follow(newest, call)
            if result is not None:
                return result
            try:
                with self._announce_question(thread_id) if needs_person else nullcontext(()) as earlier:
                    warning = await self._find_warning(definition, earlier, needs_person=needs_person)
                    asks = needs_person or warning is not None
                    started = await self._start(call, definition, thread_id, newest, pin, warning, asks=asks)
                    if needs_person:
                        await self._wait_for_question(started)
            except (ThreadBusy, StartRefused):
                # An identical call, or another process, was faster.
                continue
            result = await self._follow(started, call, has_waited=True)
            if result is not None:
                return result
        return build_text("Not run: identical calls are being decided at this moment; try again in a minute.")

    @contextmanager
    def _announce_question(self, thread_id: str) -> Generator[Collection[str]]:
        """Count the question as open during the block. Yield the threads whose questions were announced before."""
        asking, own = self._service.asking, (self._principal, thread_id)
        earlier = {thread for principal, thread in asking if principal == self._principal} - {thread_id}
        asking.append(own)
        try:
            yield earlier
        finally:
            asking.remove(own)

    async def _wait_for_question(self, execution: ExecutionState) -> None:
        """Wait for at most `HEARTBEAT_S` until the question is open, so that others can count it."""
        with anyio.move_on_after(HEARTBEAT_S, shield=True):
            while not (execution.suspensions or execution.is_finished):
                await self._service.wait_for_change(execution)
                execution = await self._service.find(execution.execution_id)

    async def _find_warning(
        self, definition: ToolDefinition, earlier: Collection[str], *, needs_person: bool
    ) -> str | None:
        """Return a warning if the tool has effects and nobody knows whether an earlier call of the tool happened; else
        None. The questions of the `earlier` threads count as open. Raises `ToolError`: a person must be asked, but too
        many questions are open.
        """
        if not needs_person and definition.effect != "effect":
            return None
        rows = await list_open_questions(self._service.store, self._principal, THREAD_PREFIX)
        if needs_person and len({row.thread_id for row in rows}.union(earlier)) >= MAX_OPEN:
            raise ToolError(f"{MAX_OPEN} calls wait for a person already; some of them have to be decided first")
        # A question without a time limit always asks whether a call happened.
        for row in rows if definition.effect == "effect" else ():
            execution = None if row.expires_at is not None else await self._service.find(row.execution_id)
            other = None if execution is None or not _is_unknown(execution) else execution.only_call
            if other is not None and other.tool_name == definition.name:
                return f"Nobody knows yet whether an earlier call of {definition.name} happened; settle that first."
        return None

    async def _start(
        self,
        call: HostCall,
        definition: ToolDefinition,
        thread_id: str,
        newest: ExecutionState | None,
        pin: str,
        warning: str | None,
        *,
        asks: bool,
    ) -> ExecutionState:
        note = None if newest is None else await self._describe_earlier(newest)
        options = ev.Options(is_literal=True, asks_because=warning, note=note)
        # A call that a person decides about may run when its host is gone. So the gate itself reports the progress.
        meta = {**call.meta, **call.client.envelope}
        self.tools.claim(thread_id, {key: meta[key] for key in meta if key != "progressToken" or not asks})
        # No model reads the context. The context names the owner of the server process that makes the call.
        thread = PreparedThread(thread_id, options, context=self._service.owner)
        requester = Requester(self._principal, host=call.client.name)
        goal = f"{call.name} of {self._describe_server()}"[:MAX_WHERE_CHARS]
        planned = PlannedCall(tool_name=definition.name, arguments=call.arguments)
        words = f"It calls {call.name}."
        return await self._service.create(build_single_call(thread, requester, goal, planned, words, newest, (pin,)))

    def _describe_server(self) -> str:
        config = self._relay.config
        # The folder comes first: a long command must not hide it.
        folder = f" in {config.cwd}" if config.cwd is not None else ""
        where = describe_address(config.url) if config.url else f"`{shlex.join((config.command or '', *config.args))}`"
        variables = f", with the variables {', '.join(sorted(config.env))}" if config.env else ""
        return f"server {config.name!r}{folder}, which is {where}{variables}"

    async def _describe_earlier(self, newest: ExecutionState) -> str | None:
        """Return what a person should know about the last identical call before deciding; None if nothing."""
        age = format_age(self._service.store.clock.now() - newest.updated_at)
        if answers.is_given_up(newest):
            return f"This same call was given up {age}: nobody could find out whether it happened."
        if not newest.suspensions or not has_run(newest):
            return None
        is_taken = await self._deliveries.find(newest.execution_id) is not None
        fate = "its result was taken" if is_taken else "nobody asked for its result in time"
        return f"This same call ran {age}, and {fate}."

    async def _follow(self, execution: ExecutionState, call: HostCall, *, has_waited: bool = False) -> Answer | None:
        """Return the answer of an execution about an identical call; None if this call must start a new one. A call
        that `has_waited` gets the answer at any time after the end of the execution.
        """
        if not execution.is_finished and not has_waited:
            # If nobody was asked, the execution answers only one call, and an identical call runs again.
            has_waited = bool(execution.suspensions)
            for suspension in execution.open_suspensions:
                execution = await self._service.renew(execution, suspension.question.suspension_id)
        if not execution.is_finished:
            answer, execution = await self._wait(execution, call)
            if answer is not None:
                return answer
        if has_waited:
            return await self._deliver(execution, call.name, call.request_id)
        # If nobody was asked, a later identical call runs again.
        return await self._recall(execution, call) if execution.suspensions else None

    async def _recall(self, execution: ExecutionState, call: HostCall) -> Answer | None:
        """Return the answer of a call that has ended to a later identical call; None if the answer no longer counts."""
        now = self._service.store.clock.now()
        if not has_run(execution):
            is_settled = answers.is_rejected_by_person(execution) or answers.is_given_up(execution)
            is_remembered = is_settled and now - execution.updated_at <= REJECTED_S
            return await self._deliver(execution, call.name, call.request_id) if is_remembered else None
        delivery = await self._deliveries.find(execution.execution_id)
        until = execution.updated_at + self._settings.tables.gate.keep_s
        if now > (until if delivery is None else delivery.delivered_at + SAME_ANSWER_S):
            return None
        return answers.add_first_line(execution, await self._deliver(execution, call.name, call.request_id))

    async def _wait(self, execution: ExecutionState, call: HostCall) -> tuple[Answer | None, ExecutionState]:
        """Hold the call. Return a pair: the answer, or None if `_deliver` has to build it; and the execution."""
        if call.responses:
            await (await self._open_questions()).apply(execution, call.client, call.responses)
            execution = await self._service.find(execution.execution_id)
        with self.tools.wait_for(execution.execution_id, call.client):
            execution = await self._hold(execution, call)
            if not execution.is_finished:
                return await self._describe_wait(execution, call), execution
            await self._note_approval(execution)
            raw = self.tools.large.get(execution.execution_id)
        if raw is None:
            return None, execution
        self._expect_delivery(execution, call.request_id)
        return answers.describe_result(execution, frames.read_object(raw)), execution

    async def _deliver(self, execution: ExecutionState, name: str, request_id: RequestId | None) -> Result:
        """Return the answer of a finished execution, with the whole result of its call."""
        own_call = execution.only_call
        whole = None if own_call is None else own_call.value
        if own_call is not None and own_call.artifact is not None:
            artifact = await self._service.read_artifact(
                execution.thread_id, own_call.artifact, principal=self._principal
            )
            whole = read_json(artifact.data)
        self._expect_delivery(execution, request_id)
        return answers.describe_end(execution, self._name(execution, name), whole)

    def _expect_delivery(self, execution: ExecutionState, request_id: RequestId | None) -> None:
        if execution.suspensions and has_run(execution):
            self._undelivered[request_id] = execution.execution_id

    async def _hold(self, execution: ExecutionState, call: HostCall) -> ExecutionState:
        """Return the execution when it has ended, when its outcome is unknown, or when the call has been held for long
        enough. If nobody is asked, the call is held without a limit, as if there were no gate.
        """
        beats = 0
        already_asked: set[str] | None = None
        async with anyio.create_task_group() as asking:
            with anyio.CancelScope() as waiting:
                while not (execution.is_finished or _is_unknown(execution)):
                    questions = {suspension.question.suspension_id for suspension in execution.open_suspensions}
                    if execution.suspensions and (already_asked is None or questions - already_asked):
                        already_asked = questions | (already_asked or set())
                        hold_s = await self._ask(execution, call, asking, waiting)
                        if not hold_s:
                            # The reply has to name the questions that are still open, so it must not come later.
                            break
                        waiting.deadline = anyio.current_time() + hold_s
                    beats += 1
                    if (token := call.meta.get("progressToken")) is not None and execution.suspensions:
                        await self._report_progress(execution, token, beats)
                    with anyio.move_on_after(HEARTBEAT_S):
                        await self._service.wait_for_change(execution)
                    execution = await self._service.find(execution.execution_id)
            asking.cancel_scope.cancel()
        return execution

    async def _ask(
        self, execution: ExecutionState, call: HostCall, asking: TaskGroup, waiting: anyio.CancelScope
    ) -> float:
        """Begin to ask the person who uses the host, if possible. Return how many seconds to hold the call."""
        hold_s = self._settings.tables.gate.hold_s
        if call.client.wants_tasks:
            return 0
        questions = await self._find_questions(execution, call)
        if not questions:
            return hold_s
        if call.client.envelope:
            # The reply to the call carries the questions.
            return 0
        asking.start_soon((await self._open_questions()).push, execution, call.client, questions, waiting, hold_s)
        return inf if any(suspension.needs == "client" for suspension, _ in questions.values()) else hold_s

    async def _find_questions(self, execution: ExecutionState, call: HostCall) -> "Questions":
        """Return the open questions of the execution that the gate can ask the host during a call."""
        if call.client.wants_tasks or not call.client.can_elicit:
            return {}
        return await (await self._open_questions()).find(execution, call.client)

    async def _report_progress(self, execution: ExecutionState, token: JsonValue, beats: int) -> None:
        text = await self._describe_progress(execution)
        params: dict[str, JsonValue] = {"progressToken": token, "progress": beats, "message": text}
        await self._relay.host.write(frames.build_notification("notifications/progress", params))

    async def _describe_progress(self, execution: ExecutionState) -> str:
        if not execution.open_suspensions:
            return "running"
        return f"waiting for a person: {await self._find_address(execution)}"

    async def _describe_wait(self, execution: ExecutionState, call: HostCall) -> Result:
        if call.client.wants_tasks and not _is_unknown(execution):
            asker = await self._open_questions()
            task = await asker.build_task(execution, call.client, await self._describe_progress(execution))
            return {"resultType": "task", **task}
        if call.client.envelope and (questions := await self._find_questions(execution, call)):
            requests = (await self._open_questions()).build_requests(questions)
            state = execution.open_suspensions[0].question.suspension_id
            return {"resultType": "input_required", "inputRequests": requests, "requestState": state}
        name = self._name(execution, call.name)
        if not execution.open_suspensions:
            return answers.say_still_running(name)
        say = answers.say_unknown if _is_unknown(execution) else answers.ask_to_wait
        return say(name, await self._find_address(execution))

    async def _find_address(self, execution: ExecutionState) -> str:
        """Return the page or the command with which a person decides."""
        suspension_id = execution.open_suspensions[0].question.suspension_id
        urls = await self._inboxes.list_urls()
        inbox = urls[0] if urls else self._service.find_inbox(execution)
        if inbox is not None:
            return f"{inbox}/suspensions/{suspension_id}"
        return f"`{self._service.program()} approve {suspension_id}`"

    def build_listener(self, tasks: TaskGroup) -> Callable[[Commit | None], None]:
        """Return a listener for commits. After each call, it starts a task that notes an approved definition."""

        def look(commit: Commit | None) -> None:
            execution = None if commit is None else commit.execution
            if execution is not None and execution.thread_id.startswith(THREAD_PREFIX) and execution.is_finished:
                self.tools.release(execution.thread_id)
                tasks.start_soon(self._note_approval, execution)

        return look

    async def _note_approval(self, execution: ExecutionState) -> None:
        """If a person approved the call with exactly this definition of the tool, people rely on it from now on."""
        own_call = execution.only_call
        suspension = None if own_call is None else execution.suspensions.get(own_call.suspension_id or "")
        if own_call is None or suspension is None or suspension.decision is None or not suspension.decision.approved:
            return
        definition = self._service.tools.get(own_call.tool_name)
        tool = self.tools.find_by_name(own_call.tool_name)
        if definition is not None and tool is not None and definition.digest == suspension.question.definition_digest:
            record = self._build_trusted_definition(tool.remote_name, definition)
            if record != self._trusted_by_tool.get(record.tool):
                self._trusted_by_tool[record.tool] = record
                await self._trusted.approve(record)


def normalize_numbers(value: JsonValue) -> JsonValue:
    """Return the value with numbers such as 1.0 written as 1, because both mean the same to a server."""

    def read_number(text: str) -> float:
        number = float(text)
        return int(number) if number.is_integer() else number

    return json.loads(canonical_json(value), parse_float=read_number)


def _has_twins(values: Mapping[str, JsonValue], names: Collection[str]) -> bool:
    """Return whether a name in `values` differs only in case from another of them, or from one of the `names`."""
    spellings = Counter(name.casefold() for name in {*values, *names})
    return any(spellings[name.casefold()] > 1 for name in values if name not in names)


def _only_reads(definition: ToolDefinition, requirement: Requirement) -> bool:
    is_read = definition.risk == "read" and definition.effect == "read" and not definition.is_blocking
    return is_read and requirement.needs is None and requirement.denied is None and not requirement.shares


def _is_unknown(execution: ExecutionState) -> bool:
    return any(suspension.question.kind == "reconcile" for suspension in execution.open_suspensions)
