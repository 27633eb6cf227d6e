"""A client of either era that is told of changes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from mcp import Client
from mcp.server.subscriptions import PromptsListChanged, ResourceUpdated, ToolsListChanged
from mcp.types import (
    EmptyResult,
    PromptListChangedNotification,
    ResourceUpdatedNotification,
    SubscribeRequest,
    SubscribeRequestParams,
    ToolListChangedNotification,
    UnsubscribeRequest,
    UnsubscribeRequestParams,
)

from planwarden.server.mcp.server import PlanwardenServer
from tests.server.mcp.support import Era

TOOL_LIST, PROMPT_LIST = "the list of tools", "the list of prompts"


@dataclass
class Listener:
    """A client of either era that keeps the addresses it was told of."""

    uris: list[str] = field(default_factory=list[str])
    _bell: anyio.Event = field(default_factory=anyio.Event)

    async def wait_for_updates(self, uri: str, times: int = 1) -> None:
        """Returns when the address was told so often."""
        with anyio.fail_after(60):
            while self.uris.count(uri) < times:
                await self._bell.wait()

    async def handle(self, message: object) -> None:
        """Note what the older era pushes, and events of the newer one."""
        match message:
            case ResourceUpdatedNotification():
                self.uris.append(str(message.params.uri))
            case ResourceUpdated():
                self.uris.append(message.uri)
            case ToolListChangedNotification() | ToolsListChanged():
                self.uris.append(TOOL_LIST)
            case PromptListChangedNotification() | PromptsListChanged():
                self.uris.append(PROMPT_LIST)
            case _:
                pass
        self._bell.set()
        self._bell = anyio.Event()

    @asynccontextmanager
    async def subscribed(
        self, server: PlanwardenServer, era: Era, *uris: str, has_lists: bool = False
    ) -> AsyncGenerator[Client]:
        """A client with these subscriptions, and with those to lists."""
        if era == "legacy":
            async with Client(server, mode=era, message_handler=self.handle) as client:
                if has_lists:
                    await client.list_tools()
                for uri in uris:
                    await subscribe(client, uri)
                yield client
            return
        async with (
            Client(server, mode=era) as client,
            client.listen(
                resource_subscriptions=uris, tools_list_changed=has_lists, prompts_list_changed=has_lists
            ) as stream,
            anyio.create_task_group() as tasks,
        ):

            async def hear() -> None:
                async for event in stream:
                    await self.handle(event)

            tasks.start_soon(hear)
            yield client
            tasks.cancel_scope.cancel()


async def subscribe(client: Client, uri: str) -> None:
    await client.session.send_request(SubscribeRequest(params=SubscribeRequestParams(uri=uri)), EmptyResult)


async def unsubscribe(client: Client, uri: str) -> None:
    await client.session.send_request(UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri)), EmptyResult)
