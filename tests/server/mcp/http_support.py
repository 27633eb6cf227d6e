"""What tests over real HTTP share: a server on a free port, tokens for it, and clients that send them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from planwarden.server.auth.secrets import make_token
from planwarden.server.settings.configuration import Settings
from planwarden.server.transports.http import serve_http
from planwarden.storage.opening import open_store
from planwarden.storage.ports.tokens import Role
from tests.server.mcp.support import Document, Era, Person

HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
LIST: Document = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


@asynccontextmanager
async def serving(
    settings: Settings, *, host: str = "127.0.0.1", port: int = 0, accepts_trust: bool = False
) -> AsyncGenerator[str]:
    """The address of a server that stops when the block is left."""
    addresses: list[str] = []
    ready = anyio.Event()

    def started(address: str) -> None:
        addresses.append(address)
        ready.set()

    async def serve() -> None:
        await serve_http(settings, host=host, port=port, accepts_trust=accepts_trust, started=started)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        with anyio.fail_after(60):
            await ready.wait()
        yield addresses[0]
        tasks.cancel_scope.cancel()


async def token_for(settings: Settings, name: str, *, role: Role = "caller", days: int | None = None) -> str:
    """A new token of that name in the home's database."""
    async with open_store(settings.store) as store:
        token, _ = await make_token(store.tokens, store.clock, name, role=role, days=days)
    return token


async def revoke(settings: Settings, name: str) -> None:
    async with open_store(settings.store) as store:
        assert await store.tokens.revoke(name, store.clock.now())


@asynccontextmanager
async def client_of(url: str, token: str, era: Era, person: Person | None = None) -> AsyncGenerator[Client]:
    """A client that sends the token with every request."""
    async with httpx2.AsyncClient(headers=bearing(token), timeout=60) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=era, elicitation_callback=person) as client:
            yield client


def bearing(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
