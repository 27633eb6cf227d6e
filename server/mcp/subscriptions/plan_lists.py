"""Tells clients that the lists of tools, prompts and resources changed, because a file of a saved plan did.

Nothing announces the change of a file, so one task looks every few seconds, from the first list that a client asks for.
Clients of 2026-07-28 hear of it on `subscriptions/listen`. Those of older revisions that asked for a list are notified
on their connection until it closes.
"""

import logging
from collections.abc import Awaitable, Callable

import anyio
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    SubscriptionBus,
    ToolsListChanged,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from planwarden.server.mcp.lazy_service import LazyService, ServiceContext
from planwarden.server.mcp.resources import PLANS
from planwarden.server.mcp.subscriptions.legacy import ConnectionListener, find_or_start
from planwarden.server.plans.plan_file import SavedPlan

logger = logging.getLogger(__name__)

LOOK_S = 3.0
MAX_CONNECTIONS = 1_024
LISTS = frozenset({"tools/list", "prompts/list", "resources/list"})
METHODS = LISTS | {"subscriptions/listen", "resources/subscribe"}
"""Requests after which somebody wants to hear of changes."""


class PlanListWatch:
    """Watches the saved plans for the clients of one server."""

    def __init__(self, list_plans: Callable[[], Awaitable[tuple[SavedPlan, ...]]], bus: SubscriptionBus) -> None:
        self._list_plans = list_plans
        self._bus = bus
        self._seen: object = None
        self._run_of: LazyService | None = None
        """The run of the server for which the task looks."""
        self._connections: dict[int, _Notified] = {}
        """By identity; removed when they close."""

    async def begin(self, ctx: ServiceContext) -> None:
        """Looks from now on, and notifies the client of the request if it is of an older revision."""
        lazy_service = ctx.lifespan_context
        if self._run_of is not lazy_service:
            self._run_of = lazy_service
            self._seen = await self._fingerprint()
            lazy_service.listener_tasks.start_soon(self._look_for_ever)
        if ctx.method not in LISTS or ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return
        if len(self._connections) < MAX_CONNECTIONS:
            find_or_start(ctx, self._connections, lambda: _Notified(ctx.session))

    async def look(self) -> None:
        """Looks once, and tells everybody if a plan came, went or changed."""
        fingerprint = await self._fingerprint()
        if fingerprint == self._seen:
            return
        self._seen = fingerprint
        for connection in self._connections.values():
            connection.changed.set()
        for event in (ToolsListChanged(), PromptsListChanged(), ResourcesListChanged(), ResourceUpdated(PLANS)):
            await self._bus.publish(event)

    async def _look_for_ever(self) -> None:
        while True:
            await anyio.sleep(LOOK_S)
            try:
                await self.look()
            # The outermost loop: a failure must not end the server.
            except Exception:
                logger.exception("looking for changed plans failed; trying again in %s s", LOOK_S)

    async def _fingerprint(self) -> object:
        return tuple((plan.name, plan.digest) for plan in await self._list_plans())


class _Notified(ConnectionListener):
    """A connection of an older revision. Notifications that it has not read yet are one."""

    def __init__(self, session: ServerSession) -> None:
        super().__init__(session)
        self.changed = anyio.Event()

    async def send_changes(self) -> None:
        while True:
            await self.changed.wait()
            self.changed = anyio.Event()
            await self.session.send_tool_list_changed()
            await self.session.send_prompt_list_changed()
            await self.session.send_resource_list_changed()
