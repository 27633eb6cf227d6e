"""Watches the topics of one listener, and yields those that have changed since they were last read.

A change puts the topic into a queue. A topic is in the queue only once, even if it changes often. So the queue is never
longer than the subscription, and a slow listener misses only intermediate states. A topic is yielded only to its owner,
and only if the reader would see a difference: foreign and unknown topics never change.
"""

from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Literal

import anyio
import msgspec
from mcp.server.subscriptions import ServerEvent, SubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS

from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.watchers import Commit
from planwarden.server.api.limits import MAX_PAGE
from planwarden.server.api.service import Service
from planwarden.server.mcp.resources import find_resource
from planwarden.server.mcp.task_state import read_notes
from planwarden.server.views.tools import build_tool_line

MAX_TOPICS = 256
"""The most topics of one listener."""
MAX_URI_CHARS = 2_000

Kind = Literal["execution", "suspensions", "suspension", "tools", "tool", "task"]


class Topic(msgspec.Struct, frozen=True):
    """What a listener watches: a resource at an address, or an execution as a task."""

    kind: Kind
    """`execution`: the newest execution of a thread. `suspensions`: the principal's open questions. `suspension`: one
    question, open or not. `tools` and `tool`: all tools for plans, or one tool; they are the same for everybody."""
    name: str = ""
    """The id of the thread, the suspension or the execution, or the name of the tool."""
    uri: str = ""
    """The address of the resource; empty for a task."""


Change = Topic | ServerEvent
"""A topic, or an event of the SDK's bus, which is passed on unchanged."""


class TopicWatcher:
    """The topics of one listener; their changes are noticed while `changes` runs."""

    def __init__(
        self, service: Service, principal: str, bus: SubscriptionBus, accepts_event: Callable[[ServerEvent], bool]
    ) -> None:
        """`accepts_event` selects the events of the bus for this listener."""
        self._service = service
        self._principal = principal
        self._bus = bus
        self._accepts_event = accepts_event
        self._fingerprints: dict[Topic, object] = {}
        """The last fingerprint of each watched topic; None makes the next fingerprint count as a change."""
        self._executions_with_questions: frozenset[str] = frozenset()
        """The ids of executions with open questions at the last look."""
        self._changed: dict[Change, None] = {}
        self._wakeup = anyio.Event()
        self._is_closed = False

    async def add(self, topic: Topic) -> bool:
        """Watch the topic from now on and return True, or return False if there are too many. Raises `StoreError`."""
        if topic not in self._fingerprints:
            if len(self._fingerprints) >= MAX_TOPICS:
                return False
            self._fingerprints[topic] = None
            self._fingerprints[topic] = await self._fingerprint(topic)
        return True

    def remove(self, topic: Topic) -> None:
        self._fingerprints.pop(topic, None)
        self._changed.pop(topic, None)

    def mark_changed(self, topic: Topic) -> None:
        """Let `changes` yield the topic again if it is watched, even if nothing in the store has changed."""
        if topic in self._fingerprints:
            self._fingerprints[topic] = None
            self._changed[topic] = None
            self._wake()

    def close(self) -> None:
        """End `changes` after it has yielded what changed so far."""
        self._is_closed = True
        self._wake()

    async def changes(self) -> AsyncGenerator[Change]:
        """Yield changes from the first `__anext__` until `close`. Raises `StoreError`; the change then stays queued."""
        stop = self._service.listen(self._on_commit)
        stop_tools = self._service.tools.listen(
            partial(self._mark_changed_where, lambda topic: topic.kind in ("tool", "tools"))
        )
        unsubscribe = self._bus.subscribe(self._on_event)
        try:
            # Any topic may have changed between `add` and now.
            self._mark_changed_where(lambda topic: True)
            while True:
                wakeup = self._wakeup
                while self._changed:
                    change = next(iter(self._changed))
                    if await self._take_if_changed(change):
                        yield change
                if self._is_closed:
                    return
                await wakeup.wait()
        finally:
            unsubscribe()
            stop_tools()
            stop()

    async def _take_if_changed(self, change: Change) -> bool:
        """Take a change off the queue; return whether to yield it. A topic that changes during the read is queued
        again."""
        self._changed.pop(change, None)
        if not isinstance(change, Topic):
            return True
        try:
            fingerprint = await self._fingerprint(change)
        except BaseException:
            self._changed[change] = None
            raise
        if change not in self._fingerprints:
            return False
        earlier, self._fingerprints[change] = self._fingerprints[change], fingerprint
        return fingerprint is not None and fingerprint != earlier

    def _on_commit(self, commit: Commit | None) -> None:
        if commit is None:
            # The catalogue announces its changes itself.
            self._mark_changed_where(lambda topic: topic.kind not in ("tool", "tools"))
        elif commit.execution.principal == self._principal:
            self._mark_changed_where(lambda topic: self._is_affected(topic, commit.execution))

    def _on_event(self, event: ServerEvent) -> None:
        if self._accepts_event(event):
            self._changed[event] = None
            self._wake()

    def _is_affected(self, topic: Topic, execution: ExecutionState) -> bool:
        if topic.kind == "suspension":
            return topic.name in execution.suspensions
        if topic.kind == "suspensions":
            return bool(execution.open_suspensions) or execution.execution_id in self._executions_with_questions
        return topic.name in (execution.thread_id, execution.execution_id)

    def _mark_changed_where(self, is_affected: Callable[[Topic], bool]) -> None:
        affected = dict.fromkeys(filter(is_affected, self._fingerprints))
        if affected:
            self._changed |= affected
            self._wake()

    def _wake(self) -> None:
        self._wakeup.set()
        self._wakeup = anyio.Event()

    async def _fingerprint(self, topic: Topic) -> object:
        """Return a value that changes when the topic's reader sees a change; None for foreign and unknown ids."""
        match topic.kind:
            case "execution":
                headers = await self._service.store.thread(topic.name)
                is_own = bool(headers) and headers[-1].principal == self._principal
                return (headers[-1].execution_id, headers[-1].version) if is_own else None
            case "task":
                header = await self._service.store.header(topic.name)
                if header is None or header.principal != self._principal:
                    return None
                # An answer can change the task although nothing is committed to the execution.
                notes = await read_notes(self._service.store, topic.name)
                return header.version, len(notes.answered), len(notes.opened)
            case "suspension":
                return await self._fingerprint_suspension(topic.name)
            case "suspensions":
                return await self._fingerprint_suspensions()
            case "tool":
                # The removal of a tool is a change too, so the fingerprint is never None.
                return self._service.tools.get(topic.name) or "gone"
            case "tools":
                return tuple(map(build_tool_line, self._service.tools.definitions()))

    async def _fingerprint_suspensions(self) -> object:
        page = await self._service.list_suspensions(limit=MAX_PAGE, principal=self._principal, max_rows=0)
        self._executions_with_questions = frozenset(suspension.execution_id for suspension in page.suspensions)
        return page.total, tuple(
            (suspension.suspension_id, suspension.digest, suspension.endorsements) for suspension in page.suspensions
        )

    async def _fingerprint_suspension(self, suspension_id: str) -> object:
        """Return a fingerprint; None for an unknown or foreign suspension, or one that only waits for the clock."""
        row = await self._service.store.find_suspension(suspension_id)
        if row is None or row.principal != self._principal or row.addressee == "clock":
            return None
        view, is_open = await self._service.read_question(row.thread_id, suspension_id, principal=self._principal)
        return is_open, view.digest, view.endorsements


def check_uri(uri: str) -> None:
    """Raise `MCPError` if the address is too long, because a subscription keeps even an address that leads nowhere."""
    if len(uri) > MAX_URI_CHARS:
        raise MCPError(code=INVALID_PARAMS, message=f"a subscribed URI has at most {MAX_URI_CHARS} characters")


def find_topic(uri: str) -> Topic | None:
    """Return the topic of a resource; None for a resource that planwarden does not change."""
    resource = find_resource(uri)
    if resource is None:
        return None
    kind, name = resource
    return None if kind == "plans" or kind == "artifact" else Topic(kind, name, uri)
