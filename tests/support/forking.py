"""Commands as real processes that start in milliseconds: forked from one that has imported all of planwarden.

`python -m tests.support.forking PATH` forks a process of `planwarden` for each connection to the socket. It ends, and
kills what it forked, when its standard input ends. A process whose connection ends is killed as well.
"""

import atexit
import functools
import gc
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import FrameType

import planwarden
from planwarden.server import main
from tests.support.paths import ROOT

START = Path(__file__).with_name("forking_start.py")
MAX_ORDER_BYTES = 1 << 20
LEFT_OUT = ("provider", "telemetry")
"""What few commands import, and what reads the environment while it is imported."""

Order = tuple[list[str], dict[str, str], str]
"""The words of a command, its environment and its folder."""


def forked_command_line(*words: str) -> Sequence[str]:
    """Like `python -m planwarden.server.main WORD...`, except that everything has been imported. Signals reach it, and
    it is killed with the process that this starts, and then its streams end. `-m MODULE` runs a module instead."""
    if sys.platform == "linux":
        return [sys.executable, "-S", "-E", str(START), fork_server(), *words]
    # Others lack such sockets, or must not fork what has threads.
    return [sys.executable, *([] if words[:1] == ("-m",) else ["-m", "planwarden.server.main"]), *words]


@functools.cache
def fork_server(python_path: str = "") -> str:
    """Return the socket of the server of this process, which ends with it; one for each `PYTHONPATH`."""
    folder = tempfile.mkdtemp(prefix="planwarden-fork-")
    path = f"{folder}/socket"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forking", path],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": python_path} if python_path else None,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return path


class Server:
    """Processes by their connections."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wakes.fileno())
        signal.signal(signal.SIGCHLD, _pass)
        self._children: dict[int, socket.socket] = {}

    def wait_for_order(self) -> Order | None:
        """Returns in each process that it forks, which has the streams of its order, and with None at the end."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    for child in self._children:
                        os.kill(child, signal.SIGKILL)
                    return None
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._selector.register(connection, selectors.EVENT_READ)
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._tell_ends()
                elif isinstance(key.fileobj, socket.socket) and (order := self._serve(key.fileobj)):
                    return order

    def _serve(self, connection: socket.socket) -> Order | None:
        try:
            text, streams, _, _ = socket.recv_fds(connection, MAX_ORDER_BYTES, 3)
        except OSError:  # a client that was killed left an answer unread
            text, streams = b"", []
        if not text:
            self._selector.unregister(connection)
            for child in [child for child, found in self._children.items() if found is connection]:
                os.kill(child, signal.SIGKILL)
            connection.close()
            return None
        child = os.fork()
        if child == 0:
            self._leave(streams)
            return json.loads(text)
        for stream in streams:
            os.close(stream)
        self._children[child] = connection
        with suppress(OSError):
            connection.send(str(child).encode())
        return None

    def _leave(self, streams: list[int]) -> None:
        """In a new process: nothing of this server stays."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for watched in [key.fileobj for key in self._selector.get_map().values()]:
            if isinstance(watched, socket.socket):
                watched.close()
        self._selector.close()
        self._wakes.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)

    def _tell_ends(self) -> None:
        while self._children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            connection = self._children.pop(child)
            # Its other end closes it then, which this server sees. The client may also have been killed before.
            with suppress(OSError):
                connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _pass(_: int, __: FrameType | None) -> None:
    """A signal with a handler wakes the selector."""


def become(order: Order) -> None:
    """Runs a command of planwarden, or with `-m` a module as Python does."""
    words, environment, folder = order
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    gc.unfreeze()
    if words[:1] == ["-m"]:
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["planwarden", *words]
        main.run()


def import_everything() -> None:
    """What commands and servers import, so that no process has to."""
    for name in ("anyio._backends._asyncio", "mcp.client.stdio", "uvicorn"):
        import_module(name)
    for package in ("server", "storage", "tools", "agent"):
        for found in walk_packages([f"{planwarden.__path__[0]}/{package}"], f"planwarden.{package}."):
            if not any(left in found.name for left in LEFT_OUT):
                with suppress(ImportError):
                    import_module(found.name)


if __name__ == "__main__":
    import_everything()
    gc.collect()
    gc.freeze()
    waiting = Server(sys.argv[1])
    print("ready", flush=True)
    if (found := waiting.wait_for_order()) is not None:
        become(found)
