"""What one listener waits to hear about: which of its topics changed since it last looked.

A change marks the topic, and a marked topic stays one entry however often it changes again, so the queue is as long as
the subscription at most and a slow listener misses intermediate states and nothing else. A marked topic is told only if
what its reader would see is different, and only to the principal it belongs to: foreign and unknown things are never
heard of, and look alike.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import anyio
from mcp.server.subscriptions import ServerEvent, SubscriptionBus

from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.watchers import Commit
from planwarden.server.api.service import MAX_PAGE, Service
from planwarden.server.views.tools import ToolLine, build_tool_line

MAX_TOPICS = 256
"""Per listener."""


@dataclass(frozen=True, slots=True)
class ExecutionTopic:
    """The newest execution of a thread, as the resource `uri`."""

    uri: str
    thread_id: str


@dataclass(frozen=True, slots=True)
class SuspensionsTopic:
    """The principal's open questions, as the resource `uri`."""

    uri: str


@dataclass(frozen=True, slots=True)
class SuspensionTopic:
    """One question, open or not, as the resource `uri`."""

    uri: str
    suspension_id: str


@dataclass(frozen=True, slots=True)
class TaskTopic:
    """One execution, as a task."""

    task_id: str


@dataclass(frozen=True, slots=True)
class ToolsTopic:
    """What there is for plans, or the one tool `name`, as the resource `uri`; the same for everybody."""

    uri: str
    name: str | None = None


ResourceTopic = ExecutionTopic | SuspensionsTopic | SuspensionTopic | ToolsTopic
Topic = ResourceTopic | TaskTopic
Change = Topic | ServerEvent
"""Events of the SDK's bus are passed on as they are."""


class TopicWatcher:
    """The topics of one listener; `changes` has to be running for anything to be heard."""

    def __init__(
        self,
        service: Service,
        principal: str,
        bus: SubscriptionBus,
        admits: Callable[[ServerEvent], bool],
        noted: Callable[[str], Awaitable[object]] | None = None,
    ) -> None:
        """`admits` says which events of the bus are for this listener; `noted` gives a value that differs when a task
        looks different, by its id, although its execution is the same.
        """
        self._service = service
        self._principal = principal
        self._bus = bus
        self._admits = admits
        self._noted = noted
        self._fingerprints: dict[Topic, object] = {}
        """What each topic looked like when it was last told of."""
        self._executions_with_questions: frozenset[str] = frozenset()
        """Executions with open questions, as of the last look."""
        self._catalogue: tuple[object, tuple[ToolLine, ...]] = (None, ())
        """The catalogue as of the last look, and what of it is shown: other processes' commits are many."""
        self._changed: dict[Change, None] = {}
        self._wakeup = anyio.Event()
        self._is_closed = False

    async def add(self, topic: Topic) -> bool:
        """Watch the topic from now on; False when there are too many. Raises `StoreError`."""
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
        """Tell of the topic again if it is watched, although nothing that is stored with it has changed."""
        if topic in self._fingerprints:
            self._fingerprints[topic] = None
            self._changed[topic] = None
            self._wake()

    def close(self) -> None:
        """Let `changes` end when it has told what changed so far."""
        self._is_closed = True
        self._wake()

    async def changes(self) -> AsyncGenerator[Change]:
        """Each change from the first `__anext__` on, until `close`. Raises `StoreError`; what changed is still to come."""
        stop = self._service.engine.listen(self._on_commit)
        stop_tools = self._service.engine.tools.listen(self._on_catalogue_change)
        unsubscribe = self._bus.subscribe(self._on_event)
        try:
            # What changed between `add` and now.
            self._mark_all_changed()
            while True:
                bell = self._wakeup
                while self._changed:
                    change = next(iter(self._changed))
                    if await self._take_if_changed(change):
                        yield change
                if self._is_closed:
                    return
                await bell.wait()
        finally:
            unsubscribe()
            stop_tools()
            stop()

    async def _take_if_changed(self, change: Change) -> bool:
        """Taken out of the queue before it is looked at: what changes while we look is looked at again."""
        self._changed.pop(change, None)
        if not isinstance(change, ResourceTopic | TaskTopic):
            return True
        try:
            mark = await self._fingerprint(change)
        except BaseException:
            self._changed[change] = None
            raise
        is_news = change in self._fingerprints and mark is not None and mark != self._fingerprints[change]
        if change in self._fingerprints:
            self._fingerprints[change] = mark
        return is_news

    def _on_commit(self, commit: Commit | None) -> None:
        if commit is None:
            self._mark_all_changed()
        elif commit.execution.principal == self._principal:
            concerned = [topic for topic in self._fingerprints if self._is_affected(topic, commit.execution)]
            if concerned:
                self._changed.update(dict.fromkeys(concerned))
                self._wake()

    def _on_event(self, event: ServerEvent) -> None:
        if self._admits(event):
            self._changed[event] = None
            self._wake()

    def _on_catalogue_change(self) -> None:
        concerned = [topic for topic in self._fingerprints if isinstance(topic, ToolsTopic)]
        if concerned:
            self._changed.update(dict.fromkeys(concerned))
            self._wake()

    def _is_affected(self, topic: Topic, execution: ExecutionState) -> bool:
        match topic:
            case ExecutionTopic(thread_id=thread_id):
                return thread_id == execution.thread_id
            case SuspensionTopic(suspension_id=suspension_id):
                return suspension_id in execution.suspensions
            case TaskTopic(task_id=task_id):
                return task_id == execution.execution_id
            case SuspensionsTopic():
                return bool(execution.open_suspensions) or execution.execution_id in self._executions_with_questions
            case ToolsTopic():
                return False

    def _mark_all_changed(self) -> None:
        self._changed.update(dict.fromkeys(self._fingerprints))
        self._wake()

    def _wake(self) -> None:
        self._wakeup.set()
        self._wakeup = anyio.Event()

    async def _fingerprint(self, topic: Topic) -> object:
        """A value that differs when the topic looks different; None for what is not the principal's."""
        match topic:
            case ExecutionTopic(thread_id=thread_id):
                return await self._fingerprint_execution(thread_id)
            case TaskTopic(task_id=task_id):
                return await self._fingerprint_task(task_id)
            case SuspensionTopic(suspension_id=suspension_id):
                return await self._fingerprint_suspension(suspension_id)
            case SuspensionsTopic():
                return await self._fingerprint_suspensions()
            case ToolsTopic(name=name):
                return self._fingerprint_tools(name)

    async def _fingerprint_execution(self, thread_id: str) -> object:
        headers = await self._service.engine.store.thread(thread_id)
        if not headers or headers[-1].principal != self._principal:
            return None
        return headers[-1].execution_id, headers[-1].version

    async def _fingerprint_task(self, task_id: str) -> object:
        found = await self._service.engine.store.header(task_id)
        if found is None or found.principal != self._principal:
            return None
        return found.version, None if self._noted is None else await self._noted(task_id)

    def _fingerprint_tools(self, name: str | None) -> object:
        """Never None, which would be silent: a tool that is gone looks different too."""
        tools = self._service.engine.tools
        if name is not None:
            return tools.get(name) or "gone"
        definitions = tools.definitions()
        if definitions is not self._catalogue[0]:
            self._catalogue = (definitions, tuple(map(build_tool_line, definitions)))
        return self._catalogue[1]

    async def _fingerprint_suspensions(self) -> object:
        page = await self._service.list_suspensions(limit=MAX_PAGE, principal=self._principal)
        self._executions_with_questions = frozenset(found.execution_id for found in page.suspensions)
        return page.total, tuple(
            (found.suspension_id, found.digest, len(found.endorsements)) for found in page.suspensions
        )

    async def _fingerprint_suspension(self, suspension_id: str) -> object:
        """None for what is not the principal's; the engine's own waiting looks like what does not exist."""
        row = await self._service.engine.store.find_suspension(suspension_id)
        if row is None or row.principal != self._principal or row.addressee == "clock":
            return None
        found, is_open = await self._service.question(row.thread_id, suspension_id, principal=self._principal)
        return is_open, found.digest, len(found.endorsements)
