"""A receiver of notifications on a loopback port: real sockets, and enough HTTP to reply well, badly or not at all."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteStream

from tests.support.loop_time import pass_time
from tests.support.network import ReceivedRequest, build_reply, listen

CHUNK = b"x" * 65_536


@dataclass
class Receiver:
    """Replies to each request with the next of its `manners`; the last one is repeated."""

    manners: list["Manner"]
    port: int = 0
    received: list[ReceivedRequest] = field(default_factory=list[ReceivedRequest])
    bytes_sent: int = 0
    hung_up: anyio.Event = field(default_factory=anyio.Event)
    """Set when a client closed a connection before the reply was complete."""
    silent_s: float = 0.0
    """How much time passes at once when a request gets no reply."""
    _arrival: anyio.Event = field(default_factory=anyio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def wait_for(self, count: int) -> None:
        while len(self.received) < count:
            await self._arrival.wait()

    async def answer(self, stream: ByteStream, request: ReceivedRequest) -> None:
        manner = self.manners[min(len(self.received), len(self.manners) - 1)]
        self.received.append(request)
        arrival, self._arrival = self._arrival, anyio.Event()
        arrival.set()
        await manner(self, stream)


Manner = Callable[[Receiver, ByteStream], Awaitable[None]]


def reply_with(status: int, **headers: str) -> Manner:
    """Returns a manner that sends a short reply; keyword `retry_after="7"` becomes the header `retry-after: 7`."""

    async def answer(receiver: Receiver, stream: ByteStream) -> None:
        await stream.send(build_reply("no", status, **headers))

    return answer


async def never_reply(receiver: Receiver, stream: ByteStream) -> None:
    pass_time(receiver.silent_s)
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        await stream.receive()
    receiver.hung_up.set()


async def send_endless_body(receiver: Receiver, stream: ByteStream) -> None:
    """Sends status 200, and then a body that never ends."""
    await stream.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    try:
        while True:
            await stream.send(f"{len(CHUNK):x}\r\n".encode() + CHUNK + b"\r\n")
            receiver.bytes_sent += len(CHUNK)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        receiver.hung_up.set()


async def send_garbage(receiver: Receiver, stream: ByteStream) -> None:
    """Sends something that is not HTTP."""
    await stream.send(b"220 mail.example ESMTP\r\n")


@asynccontextmanager
async def serve_receiver(*manners: Manner) -> AsyncGenerator[Receiver]:
    receiver = Receiver(list(manners) or [reply_with(204)])
    async with listen(receiver.answer) as receiver.port:
        yield receiver
