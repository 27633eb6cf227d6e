"""`resources/subscribe` of the protocol's older revisions: the same changes, pushed over the client's connection.

A connection has one watch and one task that tells it, from its first subscription until it closes. Resources that
planwarden does not change can be subscribed to as well; whatever is published about them on the SDK's bus is passed on.

Source: https://modelcontextprotocol.io/specification/2025-11-25/server/resources#subscriptions.
"""

import logging
from contextlib import aclosing
from typing import Any

import anyio
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import ResourceUpdated, ServerEvent, SubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, EmptyResult, SubscribeRequestParams, UnsubscribeRequestParams

from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.api.service import Service
from planwarden.server.mcp.lazy_service import LazyService
from planwarden.server.mcp.subscriptions.listen import find_topic
from planwarden.server.mcp.subscriptions.topic_watcher import MAX_TOPICS, ResourceTopic, TopicWatcher

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""After something failed."""

ServiceContext = ServerRequestContext[LazyService, Any]


class LegacySubscriptions:
    """Serves `resources/subscribe` and `resources/unsubscribe`."""

    def __init__(self, bus: SubscriptionBus) -> None:
        self._bus = bus
        self._subscribers: dict[int, _Subscriber] = {}
        """By identity of the connection; taken out when it closes."""

    async def subscribe(self, ctx: ServiceContext, params: SubscribeRequestParams) -> EmptyResult:
        """The same resource twice is one subscription."""
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
        """What was not subscribed to is not an error."""
        subscriber = self._subscribers.get(id(_find_connection(ctx)))
        if subscriber is not None:
            subscriber.remove(str(params.uri))
        return EmptyResult()

    def _find_or_start_subscriber(self, ctx: ServiceContext, service: Service) -> "_Subscriber":
        connection = _find_connection(ctx)
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
    """What one connection subscribed to."""

    def __init__(self, session: ServerSession, service: Service, principal: str, bus: SubscriptionBus) -> None:
        self.scope = anyio.CancelScope()
        self._session = session
        self._uris: set[str] = set()
        self._watch = TopicWatcher(service, principal, bus, self._admits)

    async def add(self, uri: str) -> bool:
        if uri not in self._uris and len(self._uris) >= MAX_TOPICS:
            return False
        self._uris.add(uri)
        topic = find_topic(uri)
        return topic is None or await self._watch.add(topic)

    def remove(self, uri: str) -> None:
        self._uris.discard(uri)
        topic = find_topic(uri)
        if topic is not None:
            self._watch.remove(topic)

    async def run(self) -> None:
        """Until the connection closes; what failed is tried again."""
        with self.scope:
            while True:
                try:
                    await self._send_changes()
                except PlanwardenError as error:
                    logger.error("%s", error.message)
                # The outermost loop: one client's subscriptions must neither end the server nor fall silent.
                except Exception:
                    logger.exception("a client's subscriptions stumbled")
                await anyio.sleep(RETRY_S)

    async def _send_changes(self) -> None:
        async with aclosing(self._watch.changes()) as changes:
            async for change in changes:
                if isinstance(change, ResourceTopic | ResourceUpdated):
                    await self._session.send_resource_updated(change.uri)

    def _admits(self, event: ServerEvent) -> bool:
        return isinstance(event, ResourceUpdated) and event.uri in self._uris


def _find_connection(ctx: ServiceContext) -> Connection:
    # The SDK (2.3) has no public way from a request to its connection, whose end has to end the subscriptions.
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage]
