"""A provider on a loopback port: real sockets, real HTTP/1.1, answers according to a manner.

One request per connection. It refuses what the provider would refuse: a wrong key (and repeats it in the message, as
some do), an unknown model, a forced tool that was not offered. Everything it was asked is kept in `asked`.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.support.doubles.asked import Asked, Body, Said, read_text_mode, set_revision_apart
from tests.support.doubles.manners import Manner
from tests.support.doubles.wire import KEY, Received, Refused, Wire, input_tokens, output_tokens
from tests.support.doubles.wire_anthropic import AnthropicWire
from tests.support.doubles.wire_gemini import GeminiWire
from tests.support.doubles.wire_openai import OpenAIChatWire, OpenAIResponsesWire

WIRES: dict[str, Wire] = {
    wire.name: wire for wire in (AnthropicWire(), OpenAIChatWire(), OpenAIResponsesWire(), GeminiWire())
}
PLAN: Body = {
    "todoList": [{"id": "step_1", "description": "write a note", "stepType": "tool", "requiredTools": ["note"]}]
}
MAX_HEAD_BYTES = 65_536
CHUNK_BYTES = 65_536


@dataclass
class Double:
    """One provider. `url`, `setting` and `environment` are what an operator would write down."""

    wire: Wire
    manner: Manner
    plan: Body = field(default_factory=lambda: PLAN)
    key: str = KEY
    """What `environment` says; the right one, unless a test says otherwise."""
    expected_key: str | None = KEY
    """None takes any, as local servers do."""
    port: int = 0
    asked: list[Asked] = field(default_factory=list[Asked])
    said: list[Said] = field(default_factory=list[Said])
    requests: int = 0
    """Refused ones included."""
    bytes_sent: int = 0
    is_hanging: anyio.Event = field(default_factory=anyio.Event)
    """Set when a request is being left without an answer."""
    hung_up: anyio.Event = field(default_factory=anyio.Event)
    """Set when the client closed a connection that was left so."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.wire.base_path}"

    @property
    def environment(self) -> dict[str, str]:
        return {"PLANWARDEN_MODEL_URL": self.url, self.wire.key_variable: self.key}

    @property
    def tokens(self) -> tuple[int, int]:
        """What the answers that arrived say they cost: input and output tokens."""
        pairs = zip(self.asked, self.said, strict=True)
        charged = [(asked, said) for asked, said in pairs if said.status == 200 and not said.breaks_off]
        return sum(input_tokens(a) for a, _ in charged), sum(output_tokens(s) for _, s in charged)

    async def handle(self, stream: SocketStream) -> None:
        """Serve one connection; a client that goes away is no error."""
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            async with stream:
                received = await _receive(stream)
                self.requests += 1
                await self._answer(stream, received)

    async def _answer(self, stream: SocketStream, received: Received) -> None:
        try:
            if self.expected_key not in (None, self.wire.key(received)):
                raise Refused(401, f"Incorrect API key provided: {self.wire.key(received)}")
            asked = read_text_mode(set_revision_apart(self.wire.read(received, self.requests)))
            asked = replace(asked, plan=self.plan)
        except Refused as refused:
            await self._send(stream, refused.status, self.wire.error(refused.status, refused.message))
            return
        said = self.manner.answer(asked)
        if asked.in_text:
            said = said.as_text()
        self.asked.append(asked)
        self.said.append(said)
        if said.hangs:
            await self._stall(stream)
            return
        if said.raw is not None:
            await self._send(stream, said.status, said.raw, said)
        elif said.status != 200:
            await self._send(stream, said.status, self.wire.error(said.status, said.message), said)
        elif asked.is_streamed:
            await self._stream(stream, self.wire.stream(said, asked), said)
        else:
            await self._send(stream, said.status, self.wire.write(said, asked), said)

    async def _stream(self, stream: SocketStream, events: list[str], said: Said) -> None:
        """Server-sent events until the connection is closed."""
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        middle = len(events) // 2
        end = middle if said.breaks_off or said.stalls else len(events)
        for number, event in enumerate(events[:end]):
            if said.goes_on is not None and number == middle:
                await said.goes_on.wait()
            data = event.encode()
            await stream.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.bytes_sent += len(data)
        if said.stalls:
            await self._stall(stream)
        elif not said.breaks_off:
            await stream.send(b"0\r\n\r\n")

    async def _stall(self, stream: SocketStream) -> None:
        """Say nothing more until the client hangs up."""
        self.is_hanging.set()
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await stream.receive()
        self.hung_up.set()

    async def _send(self, stream: SocketStream, status: int, body: Body | bytes, said: Said | None = None) -> None:
        is_json = not isinstance(body, bytes)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [
            f"HTTP/1.1 {status} {'OK' if status == 200 else 'No'}",
            f"Content-Type: {'application/json' if is_json else 'text/html'}",
            f"Content-Length: {len(data)}",
            "Connection: close",
        ]
        head += [f"{name}: {value}" for name, value in said.headers.items()] if said is not None else []
        await stream.send("\r\n".join([*head, "", ""]).encode())
        end = len(data) // 2 if said is not None and said.breaks_off else len(data)
        for start in range(0, end, CHUNK_BYTES):
            chunk = data[start : min(start + CHUNK_BYTES, end)]
            await stream.send(chunk)
            self.bytes_sent += len(chunk)


async def _receive(stream: SocketStream) -> Received:
    buffered = BufferedByteReceiveStream(stream)
    head = (await buffered.receive_until(b"\r\n\r\n", MAX_HEAD_BYTES)).decode("latin-1")
    request, *lines = head.split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    data = await buffered.receive_exactly(int(headers.get("content-length", "0")))
    return Received(path=request.split(" ")[1], headers=headers, body=json.loads(data) if data else {})


@asynccontextmanager
async def serving(wire: str, manner: Manner, *, plan: Body | None = None, port: int = 0) -> AsyncGenerator[Double]:
    """A double that listens on a free loopback port, unless one is named, until the block is left."""
    double = Double(WIRES[wire], manner, plan=plan or PLAN)
    failure: Exception | None = None
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port) as listener:
        double.port = listener.extra(SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, double.handle)
            try:
                yield double
            except Exception as error:  # noqa: BLE001
                # Raised again outside of the task group, which would wrap it.
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
