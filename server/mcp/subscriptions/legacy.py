"""Tells clients of older protocol revisions, over their connection, what has changed: a resource that they subscribed
to or, once they have asked for any list, the lists.

Clients may also subscribe to resources that planwarden does not change, and get the SDK's events about these. Lists
change when the file of a saved plan changes. No event announces such a change, so once a client has asked for a list
or for changes, a task looks for them every few seconds. Clients of protocol 2026-07-28 use `subscriptions/listen`.

Source: https://modelcontextprotocol.io/specification/2025-11-25/server/resources#subscriptions.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial

import anyio
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    SubscriptionBus,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, EmptyResult, SubscribeRequestParams, UnsubscribeRequestParams
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.api.service import Service
from planwarden.server.mcp.requests import LazyService, ServiceContext, translate_errors
from planwarden.server.mcp.resources import PLANS
from planwarden.server.mcp.subscriptions.topics import MAX_TOPICS, Topic, TopicWatcher, check_uri, find_topic
from planwarden.server.plans.plan_file import SavedPlan

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""The pause before sending is tried again after a failure."""
LOOK_S = 3.0
MAX_CONNECTIONS = 1_024
LISTS = frozenset({"tools/list", "prompts/list", "resources/list"})
METHODS = LISTS | {"subscriptions/listen", "resources/subscribe"}
"""Requests whose senders want to hear of changes."""


def _find_connection(ctx: ServiceContext) -> Connection:
    """Return the connection of a request; subscriptions made on a connection must end with that connection."""
    # SDK 2.3 has no public way from a request to its connection.
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage]


def _send_until_closed(ctx: ServiceContext, send: Callable[[], Awaitable[None]], forget: Callable[[], object]) -> None:
    """Run `send` in the background until the request's connection closes, again after failures; then call `forget`."""
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            while True:
                try:
                    await send()
                except PlanwardenError as error:
                    logger.error("%s", error.message)
                # The outermost loop: a failure must end neither the server nor this client's subscriptions.
                except Exception:
                    logger.exception("cannot send a client its subscribed changes; trying again in %s s", RETRY_S)
                await anyio.sleep(RETRY_S)

    def stop() -> None:
        forget()
        scope.cancel()

    _find_connection(ctx).exit_stack.callback(stop)
    ctx.lifespan_context.listener_tasks.start_soon(run)


class LegacySubscriptions:
    """Serves `resources/subscribe` and `resources/unsubscribe`."""

    def __init__(self, bus: SubscriptionBus) -> None:
        self._bus = bus
        self._subscribers: dict[int, _Subscriber] = {}
        """The subscribers by the `id` of their connection; each is removed when its connection closes."""

    async def subscribe(self, ctx: ServiceContext, params: SubscribeRequestParams) -> EmptyResult:
        """Subscribe to a resource; subscribing to it again changes nothing."""
        check_uri(str(params.uri))
        with translate_errors():
            service, principal = await ctx.lifespan_context.service(), ctx.lifespan_context.principal()
            key = id(_find_connection(ctx))
            if key not in self._subscribers:
                subscriber = self._subscribers[key] = _Subscriber(ctx.session, service, principal, self._bus)
                _send_until_closed(ctx, subscriber.send_changes, partial(self._subscribers.pop, key))
            if not await self._subscribers[key].add(str(params.uri)):
                message = f"this connection has {MAX_TOPICS} subscriptions, which is the limit; unsubscribe first"
                raise MCPError(code=INVALID_PARAMS, message=message)
        return EmptyResult()

    async def unsubscribe(self, ctx: ServiceContext, params: UnsubscribeRequestParams) -> EmptyResult:
        """End a subscription; do nothing if there is none."""
        subscriber = self._subscribers.get(id(_find_connection(ctx)))
        if subscriber is not None:
            subscriber.remove(str(params.uri))
        return EmptyResult()


class _Subscriber:
    """The subscriptions of one connection."""

    def __init__(self, session: ServerSession, service: Service, principal: str, bus: SubscriptionBus) -> None:
        self._session = session
        self._uris: set[str] = set()
        self._watcher = TopicWatcher(service, principal, bus, self._accepts_event)

    async def add(self, uri: str) -> bool:
        if uri not in self._uris and len(self._uris) >= MAX_TOPICS:
            return False
        self._uris.add(uri)
        topic = find_topic(uri)
        return topic is None or await self._watcher.add(topic)

    def remove(self, uri: str) -> None:
        self._uris.discard(uri)
        topic = find_topic(uri)
        if topic is not None:
            self._watcher.remove(topic)

    async def send_changes(self) -> None:
        async with aclosing(self._watcher.changes()) as changes:
            async for change in changes:
                if isinstance(change, Topic | ResourceUpdated):
                    await self._session.send_resource_updated(change.uri)

    def _accepts_event(self, event: ServerEvent) -> bool:
        return isinstance(event, ResourceUpdated) and event.uri in self._uris


class PlanListWatch:
    """Middleware that watches the saved plans for one server, and sees which clients want to hear of changes."""

    def __init__(self, list_plans: Callable[[], Awaitable[tuple[SavedPlan, ...]]], bus: SubscriptionBus) -> None:
        self._list_plans = list_plans
        self._bus = bus
        self._fingerprint: object = None
        self._run_of: LazyService | None = None
        """The running server whose task looks for changes."""
        self._changed: dict[int, anyio.Event] = {}
        """An event for each connection, by the connection's `id`. It is set while the client has a change to hear
        of."""

    async def __call__(self, ctx: ServiceContext, call_next: CallNext) -> HandlerResult:
        """Start to look for changes when a client wants to hear of them, and notify clients of older revisions."""
        lazy_service = ctx.lifespan_context
        if ctx.method in METHODS and self._run_of is not lazy_service:
            self._run_of = lazy_service
            self._fingerprint = await self._compute_fingerprint()
            lazy_service.listener_tasks.start_soon(self._look_for_ever)
        if ctx.method in LISTS and ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            key = id(_find_connection(ctx))
            if key not in self._changed and len(self._changed) < MAX_CONNECTIONS:
                self._changed[key] = anyio.Event()
                _send_until_closed(ctx, partial(self._send_changes, ctx.session, key), partial(self._changed.pop, key))
        return await call_next(ctx)

    async def look(self) -> None:
        """Look once, and tell all clients if a plan was added, removed or changed."""
        fingerprint = await self._compute_fingerprint()
        if fingerprint == self._fingerprint:
            return
        self._fingerprint = fingerprint
        for changed in self._changed.values():
            changed.set()
        for event in (ToolsListChanged(), PromptsListChanged(), ResourcesListChanged(), ResourceUpdated(PLANS)):
            await self._bus.publish(event)

    async def _send_changes(self, session: ServerSession, key: int) -> None:
        # The connection may be forgotten before this runs, or while it waits.
        while (changed := self._changed.get(key)) is not None:
            await changed.wait()
            if key not in self._changed:
                return
            self._changed[key] = anyio.Event()
            await session.send_tool_list_changed()
            await session.send_prompt_list_changed()
            await session.send_resource_list_changed()

    async def _look_for_ever(self) -> None:
        while True:
            await anyio.sleep(LOOK_S)
            try:
                await self.look()
            # The outermost loop: a failure must not end the server.
            except Exception:
                logger.exception("looking for changed plans failed; trying again in %s s", LOOK_S)

    async def _compute_fingerprint(self) -> object:
        return tuple((plan.name, plan.digest) for plan in await self._list_plans())
