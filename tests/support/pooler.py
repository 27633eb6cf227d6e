"""PgBouncer in transaction mode: each transaction may reach the server through another connection."""

import atexit
import functools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from psycopg.conninfo import make_conninfo

from tests.support.ports import take_port
from tests.support.postgres import USER, Server, shared_server

SETTINGS = {
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

    def __init__(self, server: Server, files: Mapping[str, str] | None = None, **settings: str) -> None:
        """`files` are texts by name that the settings may name."""
        self.folder = Path(tempfile.mkdtemp(prefix="planwarden-pool-"))
        self.port = take_port()
        options = {
            **SETTINGS,
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
        atexit.register(self.end)

    def start(self) -> None:
        """Returns when it listens."""
        as_user: dict[str, Any] = {"user": USER} if os.geteuid() == 0 else {}
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None, "pgbouncer is missing; `make postgres` installs it"
        self._process = subprocess.Popen(
            [program, "-q", str(self.folder / "settings")],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **as_user,
        )
        while self._process.poll() is None:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.02)
        raise RuntimeError("pgbouncer did not start")

    def stop(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Stop, and delete everything."""
        atexit.unregister(self.end)
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def lead_to(self, url: str) -> str:
        """The URL of the same database through the pooler."""
        return make_conninfo(url, host="127.0.0.1", port=self.port)


@functools.cache
def shared_pooler() -> Pooler:
    """Before the shared server of this process."""
    return Pooler(shared_server())
