"""The product's own server object over HTTP, with the fixtures registered on it."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import uvicorn

from planwarden.server.api.warden import Warden
from planwarden.server.auth.network import AllowedNames
from planwarden.server.auth.settings import HttpSettings
from planwarden.server.mcp.lazy_service import build_service_opener
from planwarden.server.mcp.server import build_server
from planwarden.server.settings.configuration import Settings
from planwarden.server.transports.http import PATH, build_http_app
from planwarden.storage.clock import SystemClock
from tests.conformance import asking, content, tasks

HOST = "127.0.0.1"


@asynccontextmanager
async def serve_fixtures(home: Path) -> AsyncGenerator[str]:
    """Serves while the block runs and yields the address. The store is a SQLite file in `home`."""
    warden = Warden(settings=Settings(home=home), tools=tasks.engine_tools())
    server = build_server(build_service_opener(warden), extensions=[tasks.FixtureTasks()])
    for fixtures in (content, asking, tasks):
        fixtures.register(server)
    with socket.create_server((HOST, 0)) as listener:
        port = int(listener.getsockname()[1])
        config = uvicorn.Config(
            build_http_app(server, AllowedNames.from_settings(HttpSettings(), HOST, port), clock=SystemClock()),
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=2,
        )
        running = uvicorn.Server(config)
        async with anyio.create_task_group() as group:
            group.start_soon(running.serve, [listener])
            yield f"http://{HOST}:{port}{PATH}"
            running.should_exit = True
