"""`resources/subscribe` of the older revisions of the protocol, which pushes changes over the client's connection.

A connection has one watcher and one task that sends its changes, from its first subscription until it closes. Clients
may subscribe to resources that planwarden does not change, too; events about them on the SDK's bus are passed on.

Source: https://modelcontextprotocol.io/specification/2025-11-25/server/resources#subscriptions.
"""

import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import TypeVar

import anyio
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.server.subscriptions import ResourceUpdated, ServerEvent, SubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, EmptyResult, SubscribeRequestParams, UnsubscribeRequestParams

from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.api.service import Service
from planwarden.server.mcp.lazy_service import ServiceContext, translate_errors
from planwarden.server.mcp.subscriptions.topics import MAX_TOPICS, Topic, TopicWatcher, find_topic

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""The pause after a failure."""


class ConnectionListener:
    """Sends one connection what changes, until that closes."""

    def __init__(self, session: ServerSession) -> None:
        self.scope = anyio.CancelScope()
        self.session = session

    async def send_changes(self) -> None:
        """Send the changes as they come; what it raises ends no other listener."""
        raise NotImplementedError

    async def run(self) -> None:
        """Run until the connection closes; tries again after a failure."""
        with self.scope:
            while True:
                try:
                    await self.send_changes()
                except PlanwardenError as error:
                    logger.error("%s", error.message)
                # The outermost loop: a failure must end neither the server nor this client's subscriptions.
                except Exception:
                    logger.exception("sending a client's subscribed changes failed; trying again in %s s", RETRY_S)
                await anyio.sleep(RETRY_S)


L = TypeVar("L", bound=ConnectionListener)


def find_connection(ctx: ServiceContext) -> Connection:
    """Return the connection of a request, whose end must end what was subscribed on it."""
    # SDK 2.3 has no public way from a request to its connection.
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage]


def find_or_start(ctx: ServiceContext, listeners: dict[int, L], make: Callable[[], L]) -> L:
    """Return the listener of the request's connection, by whose identity `listeners` has it; made and started if it is
    new.

    It is cancelled and removed when the connection closes.
    """
    connection = find_connection(ctx)
    listener = listeners.get(id(connection))
    if listener is None:
        listener = listeners[id(connection)] = make()
        connection.exit_stack.callback(lambda: listeners.pop(id(connection)).scope.cancel())
        ctx.lifespan_context.listener_tasks.start_soon(listener.run)
    return listener


class LegacySubscriptions:
    """Serves `resources/subscribe` and `resources/unsubscribe`."""

    def __init__(self, bus: SubscriptionBus) -> None:
        self._bus = bus
        self._subscribers: dict[int, _Subscriber] = {}
        """By the identity of the connection; removed when it closes."""

    async def subscribe(self, ctx: ServiceContext, params: SubscribeRequestParams) -> EmptyResult:
        """Subscribe to a resource; subscribing twice is one subscription."""
        with translate_errors():
            service, principal = await ctx.lifespan_context.service(), ctx.lifespan_context.principal()
            subscriber = find_or_start(
                ctx, self._subscribers, lambda: _Subscriber(ctx.session, service, principal, self._bus)
            )
            if not await subscriber.add(str(params.uri)):
                message = f"this connection has {MAX_TOPICS} subscriptions, which is the limit; unsubscribe first"
                raise MCPError(code=INVALID_PARAMS, message=message)
        return EmptyResult()

    async def unsubscribe(self, ctx: ServiceContext, params: UnsubscribeRequestParams) -> EmptyResult:
        """End a subscription; without one it does nothing."""
        subscriber = self._subscribers.get(id(find_connection(ctx)))
        if subscriber is not None:
            subscriber.remove(str(params.uri))
        return EmptyResult()


class _Subscriber(ConnectionListener):
    """The subscriptions of one connection."""

    def __init__(self, session: ServerSession, service: Service, principal: str, bus: SubscriptionBus) -> None:
        super().__init__(session)
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
                    await self.session.send_resource_updated(change.uri)

    def _accepts_event(self, event: ServerEvent) -> bool:
        return isinstance(event, ResourceUpdated) and event.uri in self._uris
