"""Forks planwarden processes from one that has imported everything, so that a real process starts in milliseconds.

`python -m tests.campaign.nursery` is the parent of all processes of a lane: it takes one JSON object for each of them
over a socket, with the three standard streams, and says when one ended. It kills what is left when its driver is gone.
"""

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.support.paths import ROOT

PROGRAMS = ("planwarden", "worker")
POLL_S = 0.02


class Nursery:
    """The driver's side. Use as a context manager."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.campaign.nursery", str(theirs.fileno())]
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self._ended: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._receive("ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait(30)

    def spawn(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]
    ) -> int:
        """Starts one of `PROGRAMS` on three file descriptors, which the caller may close afterwards. Returns its id."""
        order = json.dumps([program, list(arguments), dict(environment)]).encode()
        socket.send_fds(self._socket, [order], list(streams))
        return self._receive("started")[0]

    def exit_code(self, pid: int) -> int | None:
        """The exit code of a process of this nursery (negative: the signal), or None while it runs."""
        while select.select([self._socket], [], [], 0)[0]:
            self._note(json.loads(self._socket.recv(65536) or b'["gone"]'))
        return self._ended.get(pid)

    def _receive(self, kind: str) -> list[int]:
        while True:
            message = json.loads(self._socket.recv(65536) or b'["gone"]')
            if message[0] == kind:
                return message[1:]
            self._note(message)

    def _note(self, message: list[Any]) -> None:
        if message[0] == "gone":
            raise RuntimeError("the nursery ended")
        self._ended[message[1]] = message[2]


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    _import_everything()
    gc.collect()
    gc.freeze()
    channel.send(b'["ready"]')
    children: set[int] = set()
    try:
        while True:
            _report_ends(channel, children)
            if not select.select([channel], [], [], POLL_S)[0]:
                continue
            order, streams, _, _ = socket.recv_fds(channel, 1 << 20, 3)
            if not order:
                return
            pid = os.fork()
            if pid == 0:
                channel.close()
                _become(json.loads(order), streams)
            for stream in streams:
                os.close(stream)
            children.add(pid)
            channel.send(json.dumps(["started", pid]).encode())
    except OSError:
        return
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def _report_ends(channel: socket.socket, children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        channel.send(json.dumps(["ended", pid, os.waitstatus_to_exitcode(status)]).encode())


def _become(order: tuple[str, list[str], dict[str, str]], streams: list[int]) -> None:
    """The child's whole life."""
    program, arguments, environment = order
    code = 70
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
        os.environ.update(environment)
        from tests.campaign import worker

        code = worker.run(program, arguments)
        sys.stdout.flush()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    # The last place of a process: whatever happened is written to its log.
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(code)


def _import_everything() -> None:
    """Everything that a server, a command and a program of the campaign import, so that no child has to."""
    from importlib import import_module
    from pkgutil import walk_packages

    import planwarden

    for name in ("anyio._backends._asyncio", "mcp.client", "mcp.client.stdio", "uvicorn", "tests.campaign.shop"):
        import_module(name)
    for package in ("server", "storage", "tools", "agent"):
        root = Path(planwarden.__file__).parent / package
        for found in walk_packages([str(root)], f"planwarden.{package}."):
            if "provider" not in found.name:
                with suppress(ImportError):
                    import_module(found.name)


if __name__ == "__main__":
    main()
