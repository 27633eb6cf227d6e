"""`resources/subscribe` of the older revisions of the protocol, which pushes changes over the client's connection.

A connection has one watcher and one task that sends its changes, from its first subscription until it closes. Clients
may subscribe to resources that planwarden does not change, too; events about them on the SDK's bus are passed on.

Source: https://modelcontextprotocol.io/specification/2025-11-25/server/resources#subscriptions.
"""

import logging
from contextlib import aclosing
from typing import Any

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import ResourceUpdated, ServerEvent, SubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, EmptyResult, SubscribeRequestParams, UnsubscribeRequestParams

from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.api.service import Service
from planwarden.server.mcp.lazy_service import LazyService
from planwarden.server.mcp.subscriptions.topics import (
    MAX_TOPICS,
    ResourceTopic,
    TopicWatcher,
    find_connection,
    find_topic,
)

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""The pause after a failure."""

ServiceContext = ServerRequestContext[LazyService, Any]


class LegacySubscriptions:
    """Serves `resources/subscribe` and `resources/unsubscribe`."""

    def __init__(self, bus: SubscriptionBus) -> None:
        self._bus = bus
        self._subscribers: dict[int, _Subscriber] = {}
        """By the identity of the connection; removed when it closes."""

    async def subscribe(self, ctx: ServiceContext, params: SubscribeRequestParams) -> EmptyResult:
        """Subscribes to a resource; subscribing twice is one subscription."""
        try:
            service = await ctx.lifespan_context.service()
            subscriber = self._find_or_start_subscriber(ctx, service)
            if not await subscriber.add(str(params.uri)):
                message = f"this connection has {MAX_TOPICS} subscriptions, which is the limit; unsubscribe first"
                raise MCPError(code=INVALID_PARAMS, message=message)
        except PlanwardenError as error:
            raise MCPError(code=INTERNAL_ERROR, message=f"{error.code}: {error.message}") from None
        return EmptyResult()

    async def unsubscribe(self, ctx: ServiceContext, params: UnsubscribeRequestParams) -> EmptyResult:
        """Ends a subscription; without one it does nothing."""
        subscriber = self._subscribers.get(id(find_connection(ctx)))
        if subscriber is not None:
            subscriber.remove(str(params.uri))
        return EmptyResult()

    def _find_or_start_subscriber(self, ctx: ServiceContext, service: Service) -> "_Subscriber":
        connection = find_connection(ctx)
        found = self._subscribers.get(id(connection))
        if found is None:
            found = _Subscriber(ctx.session, service, ctx.lifespan_context.principal(), self._bus)
            self._subscribers[id(connection)] = found
            connection.exit_stack.callback(self._remove, id(connection))
            ctx.lifespan_context.listener_tasks.start_soon(found.run)
        return found

    def _remove(self, connection_id: int) -> None:
        self._subscribers.pop(connection_id).scope.cancel()


class _Subscriber:
    """The subscriptions of one connection."""

    def __init__(self, session: ServerSession, service: Service, principal: str, bus: SubscriptionBus) -> None:
        self.scope = anyio.CancelScope()
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

    async def run(self) -> None:
        """Runs until the connection closes; tries again after a failure."""
        with self.scope:
            while True:
                try:
                    await self._send_changes()
                except PlanwardenError as error:
                    logger.error("%s", error.message)
                # The outermost loop: a failure must end neither the server nor this client's subscriptions.
                except Exception:
                    logger.exception("sending a client's subscribed changes failed; trying again in %s s", RETRY_S)
                await anyio.sleep(RETRY_S)

    async def _send_changes(self) -> None:
        async with aclosing(self._watcher.changes()) as changes:
            async for change in changes:
                if isinstance(change, ResourceTopic | ResourceUpdated):
                    await self._session.send_resource_updated(change.uri)

    def _accepts_event(self, event: ServerEvent) -> bool:
        return isinstance(event, ResourceUpdated) and event.uri in self._uris
