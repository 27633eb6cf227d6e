"""A web server on 127.0.0.1 that speaks just enough HTTP to misbehave on purpose, and a table of names.

No request leaves this machine.
"""

import contextlib
import ipaddress
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio
import pytest
from anyio.abc import ByteStream
from pydantic import JsonValue, TypeAdapter

from planwarden.agent.common.errors import ToolError
from planwarden.agent.core.tool import CallContext
from planwarden.tools.base import Tool
from planwarden.tools.registry import Registry
from planwarden.tools.web.access import AddressPolicy, WebAccess
from tests.support.network import ReceivedRequest, build_reply, listen

CONTEXT = CallContext(execution_id="e", step_id="s", call_id="c", idempotency_key="e:s:1")
LOOPBACK = ipaddress.ip_network("127.0.0.1/32")
KEY = "tvly-s3cret-k3y"

Handler = Callable[[ByteStream], Awaitable[None]]


@dataclass
class Site:
    port: int = 0
    received: list[ReceivedRequest] = field(default_factory=list[ReceivedRequest])

    @property
    def access(self) -> WebAccess:
        """The default access plus this server, as an operator would allow it."""
        return WebAccess(policy=AddressPolicy(allowed_endpoints=frozenset({("127.0.0.1", self.port)})))

    def named(self, resolve: "NameTable") -> WebAccess:
        """Access in which 127.0.0.1 counts as public and names come from `resolve`."""
        policy = AddressPolicy(allowed_networks=(LOOPBACK,), ports=frozenset({self.port}))
        return WebAccess(policy=policy, resolve=resolve)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


class NameTable:
    """A resolver whose answers can change from one look-up to the next; the last one stays."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(steps) for name, steps in answers.items()}
        self.looked_up: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.looked_up.append(host)
        steps = self._answers.get(host)
        if not steps:
            raise OSError("name not known")
        return steps.pop(0) if len(steps) > 1 else steps[0]


@contextlib.asynccontextmanager
async def serve(routes: Mapping[str, bytes | Handler], tls: ssl.SSLContext | None = None) -> AsyncGenerator[Site]:
    """A server on 127.0.0.1 that answers each path, without its query, with raw bytes or by a handler."""

    async def answer(stream: ByteStream, request: ReceivedRequest) -> None:
        site.received.append(request)
        answered = routes[request.path.partition("?")[0]]
        await (stream.send(answered) if isinstance(answered, bytes) else answered(stream))

    site = Site()
    async with listen(answer, tls) as site.port:
        yield site


def build_redirect(location: str, status: int = 302) -> bytes:
    return build_reply(status=status, location=location)


def build_json_reply(value: JsonValue) -> bytes:
    return build_reply(json.dumps(value), content_type="application/json")


def build_page(text: str, title: str = "A title") -> str:
    return f"<html><head><title>{title}</title></head><body><article><p>{text}</p></article></body></html>"


async def run_tool(tool: Tool, arguments: dict[str, JsonValue]) -> object:
    """Call the tool as the engine does: with arguments that fit its schema."""
    completed, faults = Registry([tool]).complete(tool.definition.name, arguments)
    if faults:
        raise ToolError("; ".join(faults))
    return await tool.call(completed, CONTEXT)


async def call_tool(tool: Tool, **arguments: JsonValue) -> dict[str, JsonValue]:
    """The call's result, which must be an object that survives being written as JSON."""
    result = await run_tool(tool, arguments)
    return TypeAdapter(dict[str, JsonValue]).validate_json(json.dumps(result, allow_nan=False, ensure_ascii=False))


async def read_refusal(tool: Tool, **arguments: JsonValue) -> str:
    with anyio.fail_after(60), pytest.raises(ToolError) as caught:
        await run_tool(tool, arguments)
    return caught.value.message


async def stall(stream: ByteStream) -> None:
    """A page of which the second half never comes."""
    await stream.send(build_reply(content_length="1000") + b"half")
    await anyio.sleep_forever()
