"""One home with its processes, which lives for several rounds: settings, disk, clock, hosts, and a browser.

Instead of the home's own store, the processes may share a PostgreSQL, which notes who took whose executions.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
import psycopg
from anyio.abc import TaskGroup

from planwarden.server.inbox.sessions import InboxAccess
from planwarden.server.settings.configuration import DATABASE
from planwarden.storage.location import StoreLocation, read_location
from planwarden.storage.opening import open_store
from planwarden.storage.postgres.connection import connect, run
from planwarden.storage.postgres.store import PostgresStore
from tests.harness.clients import AnswerForm, HttpHost, StdioHost
from tests.harness.ledger import Manner, SharedClock
from tests.harness.process import CONNECTION_NAME, Launcher, Lost, Patience, Process
from tests.harness.records import Records, Testimony, Unreadable, read_file
from tests.harness.seams import CALL_S, HASTY_CALL_S
from tests.server.inbox.support import read
from tests.support.paths import ROOT
from tests.support.postgres import Server as Postgres
from tests.support.postgres import as_url

WATCH = """
CREATE TABLE takes (execution_id text, previous text, owner text, taker text, at double precision);
CREATE FUNCTION note_take() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO takes VALUES (old.execution_id, old.owner, new.owner, current_setting('application_name'),
                              extract(epoch FROM clock_timestamp()));
    RETURN NULL;
END $$;
CREATE TRIGGER taken AFTER UPDATE OF owner ON executions FOR EACH ROW
WHEN (old.status = 'running' AND new.status = 'running'
      AND old.owner IS NOT NULL AND old.owner IS DISTINCT FROM new.owner)
EXECUTE FUNCTION note_take();
"""


@dataclass(frozen=True)
class Take:
    execution_id: str
    previous: str
    taker: int
    """The process that did it."""
    at: float
    """By the clock that never jumps."""


class SharedDatabase:
    """One empty database, with planwarden's schema and a trigger that notes who takes executions from whom."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._database = server.make_database()
        self.url = as_url(self._database)

    async def prepare(self) -> None:
        """Like the operator's first start."""
        await PostgresStore.open(self.url).close()
        with connect(self.url) as connection:
            connection.execute(WATCH.encode())

    def fetch(self, name: str, parameters: Sequence[object]) -> list[Any]:
        """As `records.Fetch`."""
        try:
            with connect(self.url) as connection:
                return run(connection, name, parameters).fetchall()
        except psycopg.OperationalError as error:
            raise Unreadable(str(error)) from error

    def list_takes(self) -> list[Take]:
        """Oldest first."""
        since = time.time() - time.monotonic()
        with connect(self.url) as connection:
            rows = connection.execute("SELECT execution_id, previous, taker, at FROM takes ORDER BY at").fetchall()
        return [Take(row[0], row[1], int(row[2].rpartition(" ")[2]), row[3] - since) for row in rows]

    def cut(self, pid: int, *, only_control: bool) -> None:
        """The server ends the connections of a process, or only the one that holds its sign of life."""
        text = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1"
        if only_control:
            text += " AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')"
        with suppress(psycopg.Error), connect(self.url) as connection:
            connection.execute(text.encode(), (CONNECTION_NAME.format(pid=pid),))

    def restart(self, mode: str) -> None:
        """`fast` or `immediate`; the second one as after a crash."""
        self._server.stop(mode)
        self._server.start()

    def close(self, kept: Path | None) -> None:
        """Deletes it, perhaps after its tables were copied into a folder."""
        if kept is not None:
            with suppress(psycopg.Error), connect(self.url) as connection:
                for table in ("executions", "events", "suspensions", "owners", "takes"):
                    rows = connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
                    (kept / table).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        with suppress(psycopg.Error):
            self._server.drop_database(self._database)


Kind = Literal["http", "front", "stdio", "program", "worker"]
"""A server over HTTP, the same without work of its own, one over pipes, a program with a `Warden`, a worker."""

PAGES: tuple[Kind, ...] = ("http", "front")
"""Kinds that have an inbox."""
DISK_BYTES = 48 * 1024 * 1024
LONG_CALL_S = 60.0
"""The time limit of calls where nothing goes wrong."""
SHOP = Path(__file__).with_name("shop.py")
LIMITED = ("pay", "send", "jot", "hold")
"""Tools of the shop whose calls end in time."""
SETTINGS = """\
[tools]
python = ["{shop}"]
{limits}
[tools."hurry"]
timeout_s = {call_s}
answer_within_s = 1.5
[tools."desk_peek"]
risk = "read"
effect = "read"
[tools."desk_note"]
risk = "read"
[approvals]
open_inbox = "never"
[execution]
waitSeconds = 0
[servers.desk]
start_timeout_s = 10
timeout_s = {call_s}
"""


@dataclass(frozen=True)
class Cast:
    """The processes with which a stage opens, the first one with an inbox, and how long they wait for a silent one."""

    kinds: tuple[Kind, ...]
    patience: Patience | None
    has_own_disk: bool = False
    """Where it can be mounted."""
    settings: str = ""
    """More settings of the operator."""
    servers: dict[str, Any] = field(default_factory=dict[str, Any])
    """More downstream servers."""


def write_settings(home: Path, stage: Path, cast: Cast) -> None:
    """Write the files of the operator: the tools of the shop, and the desk as a downstream server."""
    call_s = HASTY_CALL_S if cast.patience == "hasty" else CALL_S if cast.patience else LONG_CALL_S
    limits = "\n".join(f"[tools.{name}]\ntimeout_s = {call_s}" for name in LIMITED)
    settings = SETTINGS.format(shop=SHOP, limits=limits, call_s=call_s)
    (home / "planwarden.toml").write_text(settings + cast.settings, encoding="utf-8")
    # Without `site` it starts in a moment.
    desk = {"command": sys.executable, "args": ["-S", "-m", "tests.harness.desk", str(stage)], "cwd": str(ROOT)}
    (home / "planwarden.json").write_text(json.dumps({"mcpServers": {"desk": desk, **cast.servers}}), encoding="utf-8")


@dataclass
class Server:
    """A process that lives until somebody ends it, and what the driver needs to talk to it."""

    kind: Kind
    process: Process
    url: str = ""
    http: HttpHost | None = None
    stdio: StdioHost | None = None

    @property
    def is_alive(self) -> bool:
        return not self.process.has_ended


@dataclass
class Stage:
    folder: Path
    launcher: Launcher
    tasks: TaskGroup
    browser: httpx2.AsyncClient
    clock: SharedClock
    has_own_disk: bool
    database: SharedDatabase | None = None
    """Where the store is not in the home."""
    servers: list[Server] = field(default_factory=list[Server])
    testimony: Testimony = field(default_factory=Testimony)
    answer_form: AnswerForm | None = None
    """What a person enters into a form that a host shows."""

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def records(self) -> Records:
        return Records(read_file(self.home / DATABASE) if self.database is None else self.database.fetch)

    def living(self, *kinds: Kind) -> list[Server]:
        return [server for server in self.servers if server.is_alive and (not kinds or server.kind in kinds)]

    async def start(self, kind: Kind) -> Server:
        """Raises `Lost` when the process does not start."""
        match kind:
            case "worker":
                server = Server(kind, self.launcher.without_input("worker", "--concurrency", "8"))
                await server.process.wait_for_log(r"planwarden (works on)")
            case "http" | "front":
                role = [] if self.database is None else ["--role", "front" if kind == "front" else "both"]
                server = Server(kind, self.launcher.without_input("serve", "--http", "--port", "0", *role))
                server.url = await server.process.wait_for_log(r"listens on (http://\S+)/mcp")
                server.http = HttpHost(f"{server.url}/mcp", self.browser)
            case "stdio":
                server = Server(kind, self.launcher.with_pipes("planwarden", "serve"))
                server.stdio = StdioHost(server.process, self._fill_in)
                self.tasks.start_soon(server.stdio.run, self.tasks)
                await server.stdio.open()
            case "program":
                server = Server(kind, self.launcher.with_pipes("tests.harness.worker:embed"))
                self.tasks.start_soon(server.process.read_lines, self._hear)
        self.servers.append(server)
        return server

    async def _fill_in(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"action": "decline"} if self.answer_form is None else await self.answer_form(params)

    async def _hear(self, line: list[str]) -> None:
        if line[0] == "started":
            self.testimony.started.append(line[1])

    async def log_in(self, server: Server) -> None:
        """The browser gets a session, which every HTTP server of the home accepts."""
        where = StoreLocation(self.home / DATABASE) if self.database is None else read_location(self.database.url)
        async with open_store(where) as store:
            codes = await InboxAccess(store).make_codes("ann", "terminal")
        page = read(await self.browser.get(f"{server.url}/inbox/pair?code={codes.link}"))
        fields = {name: values[0] for name, values in page.form("/pair").fields.items()}
        answer = await self.browser.post(f"{server.url}/inbox/pair", data=fields)
        if answer.status_code != 303:
            raise Lost(f"the inbox did not let the browser in: {answer.status_code}")

    def fill_disk(self) -> None:
        """No process can make its files larger from now on, until `free_disk`."""
        if not self.has_own_disk:
            self._limit_files(1)
            return
        with suppress(OSError), (self.home / "ballast").open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    def free_disk(self) -> None:
        (self.home / "ballast").unlink(missing_ok=True)
        if not self.has_own_disk:
            self._limit_files(resource.RLIM_INFINITY)

    def _limit_files(self, size: int) -> None:
        for server in self.living():
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, hard))

    def clear(self) -> None:
        for process in self.launcher.started.values():
            for desk in self.launcher.desks_of(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(desk, signal.SIGKILL)
            process.end(signal.SIGKILL)
            process.close()


@asynccontextmanager
async def open_stage(
    folder: Path, cast: Cast, plant: str | None = None, database: SharedDatabase | None = None
) -> AsyncGenerator[Stage]:
    """Open a new home with its processes. The folder stays; a disk of its own is copied into it.

    With a database the processes share that, and each has a copy of the home.
    """
    home = folder / "home"
    (folder / "logs").mkdir(parents=True)
    home.mkdir(mode=0o700)
    has_own_disk = cast.has_own_disk and database is None and _mount(home)
    write_settings(home, folder, cast)
    Manner().write(folder)
    launcher = Launcher(folder, plant, cast.patience, "" if database is None else database.url)
    if database is not None:
        await database.prepare()
    async with httpx2.AsyncClient(timeout=8.0) as browser, anyio.create_task_group() as tasks:
        stage = Stage(folder, launcher, tasks, browser, SharedClock.of(folder), has_own_disk, database)
        try:
            await stage.log_in(await stage.start(cast.kinds[0]))
            for kind in cast.kinds[1:]:
                await stage.start(kind)
            yield stage
        finally:
            stage.clear()
            tasks.cancel_scope.cancel()
            if has_own_disk:
                _unmount(home)


def _mount(home: Path) -> bool:
    """Whether the home is now a small disk of its own, which only a process that may mount can make."""
    if shutil.which("mount") is None:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(home)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _unmount(home: Path) -> None:
    copy = home.with_name("home.kept")
    with suppress(OSError, shutil.Error):
        shutil.copytree(home, copy, ignore=shutil.ignore_patterns("ballast"))
    subprocess.run(["umount", "-l", str(home)], capture_output=True, check=False)
    with suppress(OSError):
        home.rmdir()
        copy.rename(home)
