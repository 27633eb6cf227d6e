"""A provider on a loopback port: real sockets, real HTTP/1.1, and the replies of a manner.

It serves one request per connection. It refuses what the provider would refuse: a wrong key (which it repeats in the
message, as some providers do), an unknown model, or a forced tool that was not offered. `requests` holds all requests.
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import anyio
from anyio.abc import ByteStream

from planwarden.agent.models.endpoint import Mode, read_endpoint
from planwarden.agent.models.failures import Retries
from planwarden.agent.models.provider import ProviderModel
from tests.support.doubles import wires
from tests.support.doubles.manners import Manner
from tests.support.doubles.messages import Body, ModelReply, ModelRequest, exclude_revision_tool, read_tools_from_text
from tests.support.loop_time import pass_time
from tests.support.network import ReceivedRequest, build_reply, listen

WIRES: dict[str, wires.Wire] = {
    wire.name: wire
    for wire in (wires.AnthropicWire(), wires.OpenAIChatWire(), wires.OpenAIResponsesWire(), wires.GeminiWire())
}
PLAN: Body = {
    "todoList": [{"id": "step_1", "description": "write a note", "stepType": "tool", "requiredTools": ["note"]}]
}
CHUNK_BYTES = 65_536


@dataclass
class ProviderDouble:
    """One provider. An operator would configure its `url` and `environment`."""

    wire: wires.Wire
    manner: Manner
    plan: Body = field(default_factory=lambda: PLAN)
    key: str = wires.KEY
    """In `environment`."""
    expected_key: str | None = wires.KEY
    """None accepts any key, as local servers do."""
    port: int = 0
    requests: list[ModelRequest] = field(default_factory=list[ModelRequest])
    replies: list[ModelReply] = field(default_factory=list[ModelReply])
    request_count: int = 0
    """Including refused ones."""
    bytes_sent: int = 0
    is_hanging: anyio.Event = field(default_factory=anyio.Event)
    """Set when a request gets no reply."""
    hung_up: anyio.Event = field(default_factory=anyio.Event)
    """Set when the client closes a connection that got no reply."""
    silent_s: float = 0.0
    """How much time passes at once when a request gets no reply."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.wire.base_path}"

    @property
    def environment(self) -> dict[str, str]:
        return {"PLANWARDEN_MODEL_URL": self.url, self.wire.key_variable: self.key}

    @property
    def tokens(self) -> tuple[int, int]:
        pairs = zip(self.requests, self.replies, strict=True)
        charged = [(request, reply) for request, reply in pairs if reply.status == 200 and not reply.breaks_off]
        return sum(wires.count_input_tokens(a) for a, _ in charged), sum(
            wires.count_output_tokens(s) for _, s in charged
        )

    async def answer(self, stream: ByteStream, received: ReceivedRequest) -> None:
        self.request_count += 1
        body = received.document if received.body else {}
        http_request = wires.HttpRequest(path=received.path, headers=received.headers, body=body)
        try:
            if self.expected_key not in (None, self.wire.key(http_request)):
                raise wires.RequestRefused(401, f"Incorrect API key provided: {self.wire.key(http_request)}")
            request = read_tools_from_text(exclude_revision_tool(self.wire.read(http_request, self.request_count)))
            request = replace(request, plan=self.plan)
        except wires.RequestRefused as refused:
            await self._send(stream, refused.status, self.wire.error(refused.status, refused.message))
            return
        reply = self.manner.answer(request)
        if request.in_text:
            reply = reply.with_calls_as_text()
        if request.is_streamed and not request.tools:
            # Where no tool is offered, a provider passes on no call.
            reply = replace(reply, text=reply.text or "Well.", calls=())
        self.requests.append(request)
        self.replies.append(reply)
        if reply.hangs:
            await self._stall(stream)
            return
        if reply.raw is not None:
            await self._send(stream, reply.status, reply.raw, reply)
        elif reply.status != 200:
            await self._send(stream, reply.status, self.wire.error(reply.status, reply.message), reply)
        elif request.is_streamed:
            await self._stream(stream, self.wire.stream(reply, request), reply)
        else:
            await self._send(stream, reply.status, self.wire.write(reply, request), reply)

    async def _stream(self, stream: ByteStream, events: list[str], reply: ModelReply) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        middle = len(events) // 2
        end = middle if reply.breaks_off or reply.stalls else len(events)
        for number, event in enumerate(events[:end]):
            if reply.goes_on is not None and number == middle:
                await reply.goes_on.wait()
            data = event.encode()
            await stream.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.bytes_sent += len(data)
        if reply.stalls:
            await self._stall(stream)
        elif not reply.breaks_off:
            await stream.send(b"0\r\n\r\n")

    async def _stall(self, stream: ByteStream) -> None:
        self.is_hanging.set()
        pass_time(self.silent_s)
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await stream.receive()
        self.hung_up.set()

    async def _send(self, stream: ByteStream, status: int, body: Body | bytes, reply: ModelReply | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-length": str(len(data)), **({} if reply is None else reply.headers)}
        headers |= {} if isinstance(body, bytes) else {"content-type": "application/json"}
        await stream.send(build_reply(status=status, **headers))
        end = len(data) // 2 if reply is not None and reply.breaks_off else len(data)
        for start in range(0, end, CHUNK_BYTES):
            chunk = data[start : min(start + CHUNK_BYTES, end)]
            await stream.send(chunk)
            self.bytes_sent += len(chunk)


@asynccontextmanager
async def serve_double(wire: str, manner: Manner, *, plan: Body | None = None) -> AsyncGenerator[ProviderDouble]:
    double = ProviderDouble(WIRES[wire], manner, plan=plan or PLAN)
    async with listen(double.answer) as double.port:
        yield double


RETRIES = Retries(attempts=3)


def build_provider_model(
    double: ProviderDouble,
    *,
    mode: Mode = "tools",
    timeout_s: float = 30.0,
    retries: Retries = RETRIES,
    waits_s: list[float] | None = None,
    clock: Callable[[], float] = anyio.current_time,
) -> ProviderModel:
    """Returns the model. It appends waits to `waits_s` instead of waiting."""

    async def wait(seconds: float) -> None:
        if waits_s is not None:
            waits_s.append(seconds)

    endpoint = read_endpoint(double.wire.setting, double.environment | {"PLANWARDEN_MODEL_MODE": mode})
    retries = replace(retries, sleep=wait, clock=clock, random_fraction=lambda: 1.0)
    return ProviderModel(replace(endpoint, timeout_s=timeout_s), retries=retries)
