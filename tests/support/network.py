"""Ports and sockets: a free port, a server that reads enough HTTP, and a proxy that does harm.

Some tests have to know a port before anybody listens on it. A port that the system gave and took back may be given to
somebody else before it is used; these are below those that systems give to connections, and each worker of pytest has
its own.
"""

import errno
import json
import os
import random
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener

FIRST, OF_WORKER, WORKERS = 20_000, 1_000, 10

READY = b"Z\0\0\0\5I"
"""PostgreSQL's last word about a request after a transaction."""


def _iterate_ports() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    ports = range(FIRST + worker * OF_WORKER, FIRST + (worker + 1) * OF_WORKER)
    # Elsewhere than the other runs of the tests on this machine.
    skipped = random.randrange(OF_WORKER)
    return islice(cycle(ports), skipped, None)


_PORTS = _iterate_ports()


def take_port() -> int:
    """Return a port on which nobody listens at any address of `localhost`."""
    return next(filter(_is_free, _PORTS))


def _is_free(port: int) -> bool:
    with ExitStack() as stack:
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                probe = stack.enter_context(socket.socket(family))
                probe.bind((address, port))
            except OSError as error:
                # A machine may be without IPv6, and then nobody listens there.
                if family == socket.AF_INET or error.errno == errno.EADDRINUSE:
                    return False
    return True


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.body)


async def read_request(stream: ByteStream) -> ReceivedRequest:
    buffered = BufferedByteReceiveStream(stream)
    request, *lines = (await buffered.receive_until(b"\r\n\r\n", 65_536)).decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await buffered.receive_exactly(int(headers.get("content-length", "0")))
    method, path, _ = request.split(" ")
    return ReceivedRequest(method, path, headers, body)


def build_reply(body: bytes | str = b"", status: int = 200, **headers: str) -> bytes:
    """A whole HTTP response; keyword `content_type="x"` becomes the header `content-type: x`."""
    content = body.encode() if isinstance(body, str) else body
    fields = {"content-type": "text/html", "content-length": str(len(content)), "connection": "close"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode() + content


@asynccontextmanager
async def listen(
    answer: Callable[[ByteStream, ReceivedRequest], Awaitable[None]], tls: ssl.SSLContext | None = None
) -> AsyncGenerator[int]:
    """Answers one request for each connection while the block runs, on the free loopback port that it gives."""

    async def handle(stream: ByteStream) -> None:
        # A client that leaves early is part of the tests.
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            async with stream:
                await answer(stream, await read_request(stream))

    failure: Exception | None = None
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        listening = listener if tls is None else TLSListener(listener, tls, standard_compatible=False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listening.serve, handle)
            try:
                yield listener.extra(SocketAttribute.local_port)
            except Exception as error:  # noqa: BLE001
                # Raised again outside of the task group, which would wrap it.
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


class Proxy:
    """Forwards everything between clients and a server on a socket.

    After a request for which `loses` is true was carried out, it breaks the connection, and the client never learns
    that the server has done what it was asked for. With a `farewell` it learns what was done, then that instead of
    PostgreSQL's last word, and the end a second later. While the proxy holds, it accepts connections and forwards
    nothing.
    """

    def __init__(
        self, server: Path, folder: Path, loses: Callable[[bytes], bool] = lambda _: False, farewell: bytes = b""
    ) -> None:
        self.path = folder / ".s.PGSQL.5432"
        self.lost = 0
        self._server, self._loses, self._farewell = server, loses, farewell
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Requests on this thread, answers on another one; a lost answer is waited for first, so that it is done."""
        is_losing, client_left, told = threading.Event(), threading.Event(), b""

        def ask(data: bytes) -> bool:
            if self._loses(data):
                is_losing.set()
            return True

        def answer(data: bytes) -> bool:
            nonlocal told
            if not is_losing.is_set():
                return True
            self.lost += 1
            while self._farewell and not (told := told + data).endswith(READY):
                data = server.recv(65536)
            if self._farewell:
                client.sendall(told.removesuffix(READY) + self._farewell)
                client_left.wait(1)
            return False

        self._open.wait()
        server = socket.socket(socket.AF_UNIX)
        with client, server, suppress(OSError):
            server.connect(str(self._server))
            answering = threading.Thread(target=self._forward, args=(server, client, answer), daemon=True)
            answering.start()
            self._forward(client, server, ask)
            client_left.set()
            answering.join()

    def _forward(self, source: socket.socket, target: socket.socket, lets: Callable[[bytes], bool]) -> None:
        with suppress(OSError):
            while (data := source.recv(65536)) and lets(data):
                self._open.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self._open.set()
        os.unlink(self.path)
