"""The stage of the load: one home, `planwarden serve --http` with tokens and `planwarden serve` over stdio on it."""

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx2
from anyio.abc import Process
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from pydantic import JsonValue

from planwarden.agent.core.events import ExecutionCreated
from planwarden.server.inbox.sessions import InboxAccess
from planwarden.server.settings.configuration import DATABASE, Settings
from planwarden.storage.sqlite.store import SqliteStore
from tests.server.cli.support import Cli, clean_environment, command_line
from tests.server.inbox.support import Browser
from tests.server.mcp.http_support import client_of, token_for
from tests.server.mcp.support import Era, Person, approving
from tests.support.paths import DOUBLES, ROOT

CALLERS = ("ann", "bob")
READY_S = 120.0
"""Limits like this one only guard against waiting for ever."""
SETTINGS = """
[approvals]
open_inbox = "never"

[http]
auth = "required"

[servers.shop]
trusted = true

[servers.kiosk]
trusted = true

[tools.bank_transfer]
risk = "read"
"""


@dataclass
class Stage:
    """The home with its running servers. `open_stage` makes it."""

    folder: Path
    home: Path
    port: int
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    servers: dict[str, int] = field(default_factory=dict[str, int])
    """Process ids by name: the servers that must not grow."""
    host: Client | None = None
    """The client of the server over stdio."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        return self.home / DATABASE

    @property
    def orders(self) -> list[str]:
        """The ledger of the shop."""
        path = self.home / "orders"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    @property
    def cli(self) -> Cli:
        return Cli(self.home)

    def read_logs(self) -> dict[str, str]:
        """Everything that each server wrote on stderr."""
        return {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in self.folder.glob("*.log")}

    @asynccontextmanager
    async def connect(self, caller: str, era: Era, person: Person | None = None) -> AsyncGenerator[Client]:
        """A new client over HTTP with this caller's token."""
        async with client_of(f"{self.url}/mcp", self.tokens[caller], era, person) as client:
            yield client

    @asynccontextmanager
    async def start_host(self, name: str, person: Person | None = None) -> AsyncGenerator[Client]:
        """Starts one more server over stdio, and ends it with the block; `servers` has its process id meanwhile."""
        note = self.folder / f"{name}.pid"
        command = shlex.join(command_line("--home", str(self.home), "serve"))
        script = f"echo $$ > {shlex.quote(str(note))}; exec {command}"
        server = StdioServerParameters(command="/bin/sh", args=["-c", script], env=clean_environment(), cwd=ROOT)
        with (self.folder / f"{name}.log").open("a", encoding="utf-8") as log:
            async with Client(stdio_client(server, errlog=log), elicitation_callback=person) as client:
                self.servers[name] = int(note.read_text())
                yield client

    @asynccontextmanager
    async def open_browser(self, person: str) -> AsyncGenerator[Browser]:
        """A browser of this person that is logged in to the inbox beside the HTTP server."""
        store = SqliteStore.open(self.database)
        try:
            codes = await InboxAccess(store).make_codes(person, "terminal")
        finally:
            await store.close()
        async with httpx2.AsyncClient(base_url=self.url, timeout=READY_S) as http:
            browser = Browser(http, None, origin=self.url)
            await browser.pair(codes.link)
            yield browser

    async def read_statuses(self) -> list[tuple[str, str]]:
        """The goal and the status of every execution, from the database itself."""
        store = SqliteStore.open(self.database)
        try:
            found: list[tuple[str, str]] = []
            for header in await store.executions(None, 1_000_000):
                created = (await store.read(header.execution_id))[0].event
                assert isinstance(created, ExecutionCreated)
                found.append((created.goal or header.thread_id, header.status))
            return found
        finally:
            await store.close()


@asynccontextmanager
async def open_stage(folder: Path) -> AsyncGenerator[Stage]:
    """Makes a home below the folder, and runs both servers on it."""
    home = folder / "home"
    home.mkdir(mode=0o700, parents=True)
    (home / "planwarden.toml").write_text(SETTINGS, encoding="utf-8")
    (home / "bank").mkdir()
    shop = _build_entry("-m", "tests.soak.shop", str(home / "orders"))
    # The one that collapses is another process, so that it takes no other call with it.
    entries = {"shop": shop, "kiosk": shop, "bank": _build_entry(str(DOUBLES / "asking_server.py"), str(home / "bank"))}
    (home / "planwarden.json").write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    stage = Stage(folder, home, _find_free_port())
    for caller in CALLERS:
        stage.tokens[caller] = await token_for(Settings(home=home), caller)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_serve_http(stage))
        stage.host = await stack.enter_async_context(stage.start_host("stdio", approving()))
        yield stage


def _build_entry(*words: str) -> dict[str, JsonValue]:
    return {"command": sys.executable, "args": list[JsonValue](words), "cwd": str(ROOT)}


@asynccontextmanager
async def _serve_http(stage: Stage) -> AsyncGenerator[None]:
    command = command_line("--home", str(stage.home), "serve", "--http", "--port", str(stage.port))
    with (stage.folder / "http.log").open("w", encoding="utf-8") as log:
        process = await anyio.open_process(
            command, cwd=ROOT, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            await _wait_until_it_listens(stage, process)
            stage.servers["http"] = process.pid
            yield
        finally:
            process.terminate()
            with anyio.CancelScope(shield=True):
                await process.wait()


async def _wait_until_it_listens(stage: Stage, process: Process) -> None:
    with anyio.fail_after(READY_S):
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"the server ended: {stage.read_logs()['http']}")
            try:
                async with await anyio.connect_tcp("127.0.0.1", stage.port):
                    return
            except OSError:
                await anyio.sleep(0.1)


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]
