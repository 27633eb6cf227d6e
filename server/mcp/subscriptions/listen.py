"""`subscriptions/listen`: changes of resources and tasks as they happen (protocol 2026-07-28).

The response to the request is a stream. It begins with the subscriptions that the server accepts. Then it carries
`notifications/resources/updated` for executions, open questions and tools for plans, `notifications/tasks` with the
whole task, and other events of the SDK's bus. Each task is sent once at the beginning, so that no change is missed
between the task's creation and the stream's start. There is no replay: a client that lost its stream listens again.

This handler replaces the SDK's own, which ends the stream of a slow client and knows neither owners nor tasks.

Source: https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/subscriptions.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, cast

from mcp.server.mcpserver import require_client_extension
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY, ResourceUpdated, SubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import event_matches, event_to_notification
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    Notification,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsAcknowledgedNotificationParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)

from planwarden.server.api.service import Service
from planwarden.server.mcp.requests import ServiceContext, translate_errors
from planwarden.server.mcp.subscriptions.topics import MAX_TOPICS, Topic, TopicWatcher, check_uri, find_topic
from planwarden.server.mcp.task_state import TASKS, TERMINAL
from planwarden.server.mcp.tasks import Tasks, find_task

MAX_LISTENERS = 1_024
MAX_STREAMS = 64
"""The most open streams of one principal."""
TASK_IDS = "taskIds"


class TaskNotification(Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """A change of a task. The params are plain JSON, in which `ttlMs` may be null."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


class ListenMethod:
    """Serves `subscriptions/listen`; one call is one stream."""

    def __init__(self, bus: SubscriptionBus, tasks: Tasks) -> None:
        self._bus = bus
        self._tasks = tasks
        self._streams = set[_Stream]()
        self._is_closing = False
        tasks.on_answer = self._mark_task_changed

    def close(self) -> None:
        """End every stream with a result, as the protocol asks of a server; do not wait until they have ended."""
        self._is_closing = True
        for stream in self._streams:
            stream.watcher.close()

    def _mark_task_changed(self, task_id: str) -> None:
        """Mark the task as changed after an answer: the answer may change the task but not its execution."""
        for stream in self._streams:
            stream.watcher.mark_changed(Topic("task", task_id))

    async def __call__(
        self, ctx: ServiceContext, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Send changes until the client or the server ends the stream; return its result. Raises `MCPError`."""
        task_ids = _read_task_ids(ctx, params.notifications)
        with translate_errors():
            service = await ctx.lifespan_context.service()
            stream = _Stream(ctx, service, self._tasks, self._bus, params.notifications)
            if len(self._streams) >= MAX_LISTENERS:
                raise MCPError(code=INTERNAL_ERROR, message=f"{MAX_LISTENERS} streams are open, which is the limit")
            if sum(each.principal == stream.principal for each in self._streams) >= MAX_STREAMS:
                message = f"you have {MAX_STREAMS} open streams, which is the limit; end one first"
                raise MCPError(code=INVALID_REQUEST, message=message)
            self._streams.add(stream)
            try:
                if self._is_closing:
                    stream.watcher.close()
                await stream.run(task_ids)
            finally:
                self._streams.discard(stream)
                stream.stop()
        return SubscriptionsListenResult(_meta={SUBSCRIPTION_ID_META_KEY: ctx.request_id})


class _Stream:
    def __init__(
        self, ctx: ServiceContext, service: Service, tasks: Tasks, bus: SubscriptionBus, filter_: SubscriptionFilter
    ) -> None:
        self._ctx = ctx
        self._service = service
        self._tasks = tasks
        self.principal = ctx.lifespan_context.principal()
        uris = list(dict.fromkeys(filter_.resource_subscriptions or ()))[:MAX_TOPICS]
        for uri in uris:
            check_uri(uri)
        self._honored = SubscriptionFilter(
            tools_list_changed=filter_.tools_list_changed or None,
            prompts_list_changed=filter_.prompts_list_changed or None,
            resources_list_changed=filter_.resources_list_changed or None,
            resource_subscriptions=uris or None,
        )
        accepts_event = partial(event_matches, self._honored, frozenset(uris))
        self.watcher = TopicWatcher(service, self.principal, bus, accepts_event)
        self._meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """The timers by task id; each marks its task as changed at the time when the task changes by itself."""

    def stop(self) -> None:
        """Cancel the timers."""
        for timer in self._timers.values():
            timer.cancel()

    async def run(self, task_ids: Sequence[str]) -> None:
        """Watch the topics before the first frame acknowledges them, so that no change is missed; then send changes.

        Do not watch foreign or unknown tasks.
        """
        for topic in map(find_topic, self._honored.resource_subscriptions or ()):
            if topic is not None:
                await self.watcher.add(topic)
        own = [task_id for task_id in task_ids if await find_task(self._service, task_id, self.principal)]
        accepted = [task_id for task_id in own if await self.watcher.add(Topic("task", task_id))]
        honored = self._honored.model_copy(update={TASK_IDS: accepted} if accepted else {})
        params = SubscriptionsAcknowledgedNotificationParams(notifications=honored, _meta=self._meta)
        await self._send(SubscriptionsAcknowledgedNotification(params=params))
        for task_id in accepted:
            await self._send_task(Topic("task", task_id))
        async with aclosing(self.watcher.changes()) as changes:
            async for change in changes:
                if isinstance(change, Topic) and change.kind == "task":
                    await self._send_task(change)
                else:
                    event = ResourceUpdated(change.uri) if isinstance(change, Topic) else change
                    await self._send(event_to_notification(event, self._meta))

    async def _send_task(self, topic: Topic) -> None:
        """Send the task as `tasks/get` would return it now; stop watching a task that has ended."""
        task = await find_task(self._service, topic.name, self.principal)
        if task is None:
            self.watcher.remove(topic)
            return
        capabilities = self._ctx.session.client_capabilities
        document, changes_in_s = await self._tasks.build_snapshot(self._service, task, capabilities)
        if (timer := self._timers.pop(topic.name, None)) is not None:
            timer.cancel()
        if changes_in_s is not None:
            loop = asyncio.get_running_loop()
            self._timers[topic.name] = loop.call_later(changes_in_s, self.watcher.mark_changed, topic)
        if document["status"] in TERMINAL:
            self.watcher.remove(topic)
        await self._send(TaskNotification(params={**document, "_meta": self._meta}))

    async def _send(self, notification: Any) -> None:
        await self._ctx.session.send_notification(notification, related_request_id=self._ctx.request_id)


def _read_task_ids(ctx: ServiceContext, filter_: SubscriptionFilter) -> list[str]:
    """Return up to `MAX_TOPICS` task ids of the filter. Raises `MCPError` for invalid ids or clients without tasks."""
    ids: object = (filter_.model_extra or {}).get(TASK_IDS)
    if ids is None:
        return []
    require_client_extension(ctx, TASKS)
    entries = cast("list[object]", ids) if isinstance(ids, list) else [None]
    names = [task_id for task_id in entries if isinstance(task_id, str)]
    if len(names) != len(entries):
        raise MCPError(code=INVALID_PARAMS, message=f"notifications.{TASK_IDS} is not a list of task ids")
    return list(dict.fromkeys(names))[:MAX_TOPICS]
