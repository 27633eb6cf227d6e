"""One home with its processes, which lives for several rounds: settings, disk, clock, hosts, and a browser."""

import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import httpx2
from anyio.abc import TaskGroup

from planwarden.server.inbox.sessions import InboxAccess
from planwarden.storage.location import StoreLocation, read_location
from planwarden.storage.opening import open_store
from tests.campaign.clients import AnswerForm, HttpHost, StdioHost
from tests.campaign.clock import JumpingClock
from tests.campaign.database import SharedDatabase
from tests.campaign.manner import Manner
from tests.campaign.nursery import Nursery
from tests.campaign.patience import Patience
from tests.campaign.processes import Launcher, Lost, Process, read_lines
from tests.campaign.records import Records, read_file
from tests.campaign.seams import CALL_S, HASTY_CALL_S
from tests.campaign.testimony import Testimony
from tests.server.inbox.support import read
from tests.support.paths import ROOT

Kind = Literal["http", "front", "stdio", "program", "worker"]
"""A server over HTTP, the same without work of its own, one over pipes, a program with a `Warden`, a worker."""

PAGES: tuple[Kind, ...] = ("http", "front")
"""Kinds that have an inbox."""
PATIENCE_OF_PLANTS: dict[str, Patience] = {
    "no-fence": "hasty",
    "shared-no-fence": "hasty",
    "shared-no-death": "product",
}
"""With which patience a planted bug shows."""
DISK_BYTES = 48 * 1024 * 1024
SHOP = Path(__file__).with_name("shop.py")
SETTINGS = """\
[tools]
python = ["{shop}"]
[tools."pay"]
timeout_s = {call_s}
[tools."send"]
timeout_s = {call_s}
[tools."jot"]
timeout_s = {call_s}
[tools."hold"]
timeout_s = {call_s}
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
SERVERS = '{{"mcpServers": {{"desk": {{"command": "{python}", "args": ["-S", "-m", "tests.campaign.desk", "{stage}"], \
"cwd": "{root}"}}}}}}'


@dataclass(frozen=True)
class Cast:
    """The processes with which a stage opens, the first one with an inbox, and how long they wait for a silent one."""

    kinds: tuple[Kind, ...]
    patience: Patience


def draw_cast(chance: random.Random, plant: str | None, *, is_shared: bool) -> Cast:
    """Two to four processes; on a shared database one or two servers, and two or three workers."""
    drawn = chance.random()
    patience: Patience = "hasty" if drawn < 0.5 else "usual"
    if is_shared and drawn < 0.3:
        patience = "product"
    if plant is not None:
        patience = PATIENCE_OF_PLANTS.get(plant, "usual")
    others: tuple[Kind, ...] = ("stdio", "program", "http")
    if is_shared:
        return Cast((chance.choice(PAGES), "worker", "worker", chance.choice((*PAGES, "worker"))), patience)
    return Cast(("http", *chance.sample(others, chance.randrange(1, 4))), patience)


@dataclass
class Server:
    """A process that lives until somebody ends it, and what the driver needs to talk to it."""

    kind: Kind
    process: Process
    url: str = ""
    http: HttpHost | None = None
    stdio: StdioHost | None = None
    on_started: Callable[[str], None] = lambda execution_id: None
    """Of a program: called with the id of each execution whose start it acknowledged."""

    @property
    def is_alive(self) -> bool:
        return not self.process.has_ended

    async def take(self, line: list[str]) -> None:
        """What a program printed."""
        if line[0] == "started":
            self.on_started(line[2])


@dataclass
class Stage:
    folder: Path
    launcher: Launcher
    tasks: TaskGroup
    browser: httpx2.AsyncClient
    testimony: Testimony
    answer_form: AnswerForm
    clock: JumpingClock
    database: SharedDatabase | None = None
    """Where the store is not in the home."""
    servers: list[Server] = field(default_factory=list[Server])
    has_own_disk: bool = False

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def records(self) -> Records:
        return Records(read_file(self.home / "planwarden.db") if self.database is None else self.database.fetch)

    def living(self, *kinds: Kind) -> list[Server]:
        """All, or those of these kinds."""
        return [server for server in self.servers if server.is_alive and (not kinds or server.kind in kinds)]

    def list_missing(self, chance: random.Random) -> list[Kind]:
        """What has to start so that everything can be decided and carried out."""
        if self.database is not None:
            has_page, has_worker = self.living("http", "front"), self.living("worker")
            return [*([] if has_page else [chance.choice(PAGES)]), *([] if has_worker else ["worker"])]
        if not self.living("http"):
            return ["http"]
        return [] if len(self.living()) >= 2 else [chance.choice(("stdio", "program"))]

    def choose_kind(self, chance: random.Random, victim: Kind) -> Kind:
        """What starts instead of a process of the kind `victim`."""
        if self.database is None:
            return chance.choice(("http", "stdio", "program"))
        return "worker" if victim == "worker" else chance.choice(PAGES)

    def end_some(self, most: int) -> None:
        """So that no more than `most` are left, of each kind that is needed at least one."""
        ordered = sorted(self.living(), key=lambda server: server.kind != "http")
        if self.database is not None:
            pages, workers = self.living("http", "front"), self.living("worker")
            ordered = [*pages[:1], *workers[:2], *pages[1:], *workers[2:]]
        for server in ordered[most:]:
            server.process.terminate()

    async def start(self, kind: Kind) -> Server:
        """Raises `Lost` when the process does not start."""
        if kind == "worker":
            process = self.launcher.without_input("worker", "--concurrency", "8")
            server = Server(kind, process)
            await process.wait_for_log(r"planwarden (works on)")
            self.servers.append(server)
            return server
        if kind in ("http", "front"):
            role = [] if self.database is None else ["--role", "front" if kind == "front" else "both"]
            process = self.launcher.without_input("serve", "--http", "--port", "0", *role)
            server = Server(kind, process)
            server.url = await process.wait_for_log(r"listens on (http://\S+)/mcp")
            server.http = HttpHost(f"{server.url}/mcp", self.browser)
            self.servers.append(server)
            return server
        program = "planwarden" if kind == "stdio" else "worker"
        process = self.launcher.with_pipes(program, *(["serve"] if kind == "stdio" else []))
        server = Server(kind, process)
        if kind == "stdio":
            server.stdio = StdioHost(process, self.answer_form)
            self.tasks.start_soon(server.stdio.run, self.tasks)
            await server.stdio.open()
        else:
            server.on_started = self.testimony.started.append
            self.tasks.start_soon(read_lines, process, server.take)
        self.servers.append(server)
        return server

    async def log_in(self, server: Server) -> None:
        """The browser gets a session, which every HTTP server of the home accepts."""
        place = (
            StoreLocation(self.home / "planwarden.db") if self.database is None else read_location(self.database.url)
        )
        async with open_store(place) as store:
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
        """Ends every process."""
        for process in self.launcher.started.values():
            for desk in self.launcher.desks_of(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(desk, 9)
            process.kill()
            process.close()


@asynccontextmanager
async def open_stage(
    folder: Path,
    nursery: Nursery,
    testimony: Testimony,
    answer_form: AnswerForm,
    cast: Cast,
    plant: str | None = None,
    database: SharedDatabase | None = None,
) -> AsyncGenerator[Stage]:
    """A new home with its processes. The folder stays; a disk of its own is copied into it.

    With a database the processes share that, and each has a copy of the home.
    """
    (folder / "logs").mkdir(parents=True)
    (folder / "home").mkdir(mode=0o700)
    has_own_disk = database is None and _mount(folder / "home")
    settings = SETTINGS.format(shop=SHOP, call_s=HASTY_CALL_S if cast.patience == "hasty" else CALL_S)
    (folder / "home" / "planwarden.toml").write_text(settings, encoding="utf-8")
    servers = SERVERS.format(python=sys.executable, stage=folder, root=ROOT)
    (folder / "home" / "planwarden.json").write_text(servers, encoding="utf-8")
    Manner().write(folder)
    launcher = Launcher(folder, nursery, plant, cast.patience, "" if database is None else database.url)
    if database is not None:
        await database.prepare(plant)
    async with httpx2.AsyncClient(timeout=8.0) as browser, anyio.create_task_group() as tasks:
        clock = JumpingClock(folder)
        stage = Stage(
            folder, launcher, tasks, browser, testimony, answer_form, clock, database, has_own_disk=has_own_disk
        )
        try:
            await stage.log_in(await stage.start(cast.kinds[0]))
            for kind in cast.kinds[1:]:
                await stage.start(kind)
            yield stage
        finally:
            stage.clear()
            tasks.cancel_scope.cancel()
            if has_own_disk:
                _unmount(folder / "home")


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
