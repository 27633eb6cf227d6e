"""Allows a host's call, denies the call, leaves it to the host's own rules, or asks a person, who can allow it once.

To ask about a call, the guard starts an execution with one step, which calls the host's tool. So the question has
reminders and an audit like every other question. All executions about identical calls of one principal share a thread,
which has at most one unfinished execution: an identical call gets the same question.

A server that is already running answers the hooks of hosts: over MCP, or over a socket for command hooks. An answer
takes effect only if the host gets it from its hook. A model that calls `guard_call` itself gets a text without effect.
Such a call uses up no pass if `_meta` has the id that Claude Code adds to calls by its model. The socket (see
`hook_client`) answers only hooks, and lies in a folder of the home that only its owner may enter.
"""

import json
import logging
import os
import shlex
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import SocketStream

from planwarden.agent.common.errors import PlanwardenError, StartRefused, ThreadBusy
from planwarden.agent.common.task_groups import keep_running
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.execution.requester import LOCAL, Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.plan import PlannedCall
from planwarden.agent.ports.model import CallerModel
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.log_reader import MAX_OPEN, list_open_questions
from planwarden.agent.runtime.new_execution import PreparedThread
from planwarden.server.api.service import Service
from planwarden.server.guard.calls import (
    GuardedCall,
    Verdict,
    build_call,
    build_claude_document,
    build_command_answer,
    build_single_call,
    deny,
    read_event,
)
from planwarden.server.guard.done import DoneKeeper
from planwarden.server.guard.hook_client import (
    DECLINED,
    DONE_EVENTS,
    FOLDER,
    MAX_EVENT_BYTES,
    digest_settings,
    read_event_name,
)
from planwarden.server.guard.judging import RELEASING, build_judge, is_about, take_pass
from planwarden.server.notifications.messages import build_outbox
from planwarden.server.settings.catalogue import build_command_prefix
from planwarden.server.settings.configuration import Settings
from planwarden.storage.opening import open_store
from planwarden.tools.guarded.hosts import PASS_LIFETIME_S
from planwarden.tools.registry import Registry

logger = logging.getLogger(__name__)

READ_S = 10.0
"""How long a hook may take to send its event over the socket."""
MAX_HEAD_BYTES = 1_000
TOOL_USE_ID_KEY = "claudecode/toolUseId"
"""The key in `_meta` that Claude Code sets on calls made by its model, and never on calls made by a hook."""
SETTLE_S = 10.0
"""How long a call waits until its execution asks a question or ends. The host's own limit is longer."""
MAX_OPEN_OF_SESSION = 50
"""How many questions about calls of one host session may be open; without a limit, a model could ask forever."""
PREFIX = "guard-"
"""The prefix of the ids of the guard's threads. No other id has the prefix, because callers do not choose ids."""
ATTEMPTS = 5
"""How many times the guard tries to decide about a call while other processes change the call's thread."""


class HostGuard:
    """The guard of one process: it judges the calls of hosts and keeps its questions in one store."""

    def __init__(self, executions: Engine | Service, settings: Settings, find_inbox: Callable[[], str | None]) -> None:
        self._executions = executions
        self._judge = build_judge(settings)
        self._find_inbox = find_inbox
        self._program = build_command_prefix(settings)
        """The beginning of the command line that people copy: the program, this home and this store."""

    async def decide(self, call: GuardedCall, principal: str) -> Verdict:
        """Return the answer to the host; every `PlanwardenError` becomes a refusal."""
        try:
            # The judge looks at files on disks that may be slow, so it must not run in the event loop.
            verdict = await anyio.to_thread.run_sync(self._judge.judge, call)
            if verdict is None:
                return await self._decide_by_log(call, principal)
            if verdict.facts is not None:
                await self._executions.store.audit((AuditEntry(kind="guarded", facts=verdict.facts),))
            return verdict
        except PlanwardenError as error:
            return deny(f"Refused, because this call could not be judged: {error.message}")

    async def _decide_by_log(self, call: GuardedCall, principal: str) -> Verdict:
        thread_id = f"{PREFIX}{call.compute_digest(principal)[:40]}"
        for _ in range(ATTEMPTS):
            headers, newest = await self._executions.store.thread(thread_id), None
            if headers and headers[-1].principal == principal:
                newest = await self._executions.find(headers[-1].execution_id)
                verdict = await self._follow(newest, call)
                if verdict is not None:
                    return verdict
            flood = await self._describe_flood(call.session, principal)
            if flood is not None:
                return deny(f"Refused: {flood} already wait for people; some of them have to be answered first.")
            try:
                started = await self._start(call, principal, thread_id, newest)
            except (ThreadBusy, StartRefused):
                # Another process has asked the same question, or decided it, in the meantime.
                continue
            verdict = await self._follow(started, call)
            return verdict or deny(f"Refused: {_explain_end(await self._executions.find(started.execution_id))}.")
        return deny("Refused for now, because others are asking about the same call; try again in a minute.")

    async def _describe_flood(self, session: str, principal: str) -> str | None:
        """Return the limit of open questions that has been reached, in words; None if another question may be asked."""
        rows = await list_open_questions(self._executions.store, principal, PREFIX)
        if len(rows) >= MAX_OPEN:
            return f"{MAX_OPEN} questions about calls of hosts"
        if len(rows) < MAX_OPEN_OF_SESSION:
            return None
        states = [await self._executions.find(row.execution_id) for row in rows]
        if sum(state.context == session for state in states) < MAX_OPEN_OF_SESSION:
            return None
        return f"{MAX_OPEN_OF_SESSION} questions of this session"

    async def _start(
        self, call: GuardedCall, principal: str, thread_id: str, newest: ExecutionState | None
    ) -> ExecutionState:
        # No model reads the context: `_describe_flood` uses it to count the questions of the session.
        thread = PreparedThread(thread_id, ev.Options(), context=call.session)
        requester = Requester(principal, host=call.host.label)
        goal = f"{call.host.label}: {call.tool} in {call.folder}"[:400]
        planned = PlannedCall(tool_name=call.name, arguments=call.arguments)
        return await self._executions.create(build_single_call(thread, requester, goal, planned, call.words, newest))

    async def _follow(self, execution: ExecutionState, call: GuardedCall) -> Verdict | None:
        """Return the verdict of the execution; None if there is none, or if an earlier call used up the pass."""
        if not is_about(execution, call):
            return None
        execution = await self._executions.wait(execution, SETTLE_S)
        for suspension in execution.open_suspensions:
            return self._ask_to_wait(suspension.question.suspension_id)
        if not execution.is_finished:
            return deny("Refused for now: planwarden has not decided about this call yet; try again in a minute.")
        now = self._executions.store.clock.now()
        if await anyio.to_thread.run_sync(self._judge.is_released, execution, call, now):
            if await take_pass(self._executions.store, execution, call):
                decisions = [each.decision for each in execution.suspensions.values() if each.decision is not None]
                if not decisions:
                    return Verdict(then="allow", reason="A standing approval or a rule let this call pass, once.")
                reason = "A person approved this call, once."
                return Verdict(then="allow", reason=reason, person=decisions[-1].reason or "")
            return None
        return _find_rejection(execution, now)

    def _ask_to_wait(self, suspension_id: str) -> Verdict:
        inbox = self._find_inbox()
        where = f"at {inbox} or " if inbox is not None else ""
        command = shlex.join((*self._program, "approve", suspension_id))
        text = (
            f"Not run: a person has to decide. Question {suspension_id} can be answered {where}in a terminal with "
            f"`{command}`. Do not work around this, and do not retry before the decision. If the call is approved, "
            "the identical call passes once, within an hour of the decision."
        )
        return Verdict(then="deny", reason=text, suspension_id=suspension_id)


def _find_rejection(execution: ExecutionState, now: float) -> Verdict | None:
    """Return the refusal if a person, an embedding program or a form of the host rejected the call in the last hour.
    Return None otherwise, for example if a model rejected the call: then the guard asks again."""
    for suspension in execution.suspensions.values():
        decision = suspension.decision
        if decision is None or suspension.decided_at is None or abs(now - suspension.decided_at) > PASS_LIFETIME_S:
            continue
        if decision.approved is False and suspension.assurance in RELEASING:
            reason = f": {decision.reason[:500]}" if decision.reason else ""
            text = f"Refused: a person rejected this call{reason}. Do not try it again."
            return Verdict(then="deny", reason=text, person=decision.reason or "")
        if decision.approved is False and suspension.assurance == "client":
            return deny("Refused: a form of the host rejected this call. Do not try it again.")
    return None


def _explain_end(execution: ExecutionState) -> str:
    call = execution.only_call
    reason = None if call is None else call.error_message
    return reason or f"planwarden's execution {execution.execution_id} ended as {execution.status}"


def build_guard(settings: Settings, service: Service) -> HostGuard:
    """Return the guard of a server. A question of the guard makes the server open the inbox."""
    return HostGuard(service, settings, service.open_inbox)


@asynccontextmanager
async def open_guard(settings: Settings, inbox: str | None) -> AsyncGenerator[HostGuard]:
    """Yield a guard for one command, with an engine that has only the tools of hosts. `inbox` is its address, if known.

    Raises:
        StoreError: the store cannot be used.
    """
    async with open_store(settings.store, settings.policy.policy_digest) as store:
        outbox = build_outbox(settings.channels)
        async with Engine(store, Registry(), CallerModel(), settings.policy, adopts=False, outbox=outbox) as engine:
            yield HostGuard(engine, settings, lambda: inbox)


async def answer_guard_call(
    guard: HostGuard, arguments: Mapping[str, Any], principal: str, meta: Mapping[str, Any]
) -> str:
    """Return the JSON answer to a hook that called the tool `guard_call`."""
    if TOOL_USE_ID_KEY in meta:
        verdict = deny("Refused: only the host's hook calls guard_call. It lets nothing pass for a model.")
    else:
        values = (arguments.get(name) for name in ("host", "tool_name", "tool_input", "cwd", "session_id"))
        try:
            verdict = await guard.decide(build_call(*values), principal)
        except PlanwardenError as error:
            verdict = deny(f"Refused, because this call could not be judged: {error.message}")
    return json.dumps(build_claude_document(verdict))


@asynccontextmanager
async def answering_hooks(settings: Settings, service: Service) -> AsyncGenerator[None]:
    """Answer this home's hooks while the block runs. If no socket can be opened, the hooks judge calls themselves."""
    folder = settings.home / FOLDER
    path = folder / f"{os.getpid()}.sock"
    settings_digest = digest_settings(str(settings.home))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            path.unlink()
        listener = await anyio.create_unix_listener(path, mode=0o600)
    # The path is too long, or this system has no such sockets.
    except (OSError, ValueError, NotImplementedError, AttributeError) as error:
        logger.info("hooks judge calls without this server: %s", error)
        yield
        return

    async def handle(stream: SocketStream) -> None:
        async with stream:
            try:
                with anyio.fail_after(READ_S):
                    head, event = await _read(stream)
                await stream.send(await _answer(settings, service, settings_digest, head, event))
            # The hook went away, or another program connected.
            except (TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream, ValueError, RecursionError):
                return

    async with listener, keep_running(partial(listener.serve, handle)):
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()


async def _read(stream: SocketStream) -> tuple[bytes, bytes]:
    """Return the head (the first line) and the event (the rest). Raises `ValueError` if the head is too long."""
    text = bytearray()
    with suppress(anyio.EndOfStream):
        while True:
            text += await stream.receive(1 << 20)
            if len(text) > MAX_EVENT_BYTES + MAX_HEAD_BYTES + 1:
                break
    head, _, event = bytes(text).partition(b"\n")
    if len(head) > MAX_HEAD_BYTES:
        raise ValueError("no head")
    return head, event


async def _answer(settings: Settings, service: Service, settings_digest: str, head: bytes, event: bytes) -> bytes:
    request: object = json.loads(head)
    fields = cast("dict[str, object]", request) if isinstance(request, dict) else {}
    if fields.get("settings") != settings_digest:
        return DECLINED
    host, guard = str(fields.get("host")), build_guard(settings, service)
    if read_event_name(event) in DONE_EVENTS:
        keeper = DoneKeeper(service.store, settings, lambda call: guard.decide(call, LOCAL))
        return msgspec.json.encode(await keeper.answer(host, event))
    try:
        verdict = await guard.decide(read_event(host, event), LOCAL)
    except PlanwardenError as error:
        verdict = deny(f"Refused, because this call could not be judged: {error.message}")
    return msgspec.json.encode(build_command_answer(host, verdict))
