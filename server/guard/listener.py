"""Answers hooks that are commands, in a server that runs anyway: see `planwarden.server.guard.quick`.

The socket is in a folder of the home that only its owner may enter. A program that can connect to it gets what
`guard_call` gives: an answer, which only a host acts on.
"""

import json
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec
from anyio.abc import SocketStream

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.server.api.service import Service
from planwarden.server.guard.calls import build_command_answer, deny, read_event
from planwarden.server.guard.done import DoneKeeper
from planwarden.server.guard.opening import build_guard
from planwarden.server.guard.quick import (
    DECLINED,
    DONE_EVENTS,
    FOLDER,
    MAX_EVENT_BYTES,
    digest_settings,
    read_event_name,
)
from planwarden.server.settings.configuration import Settings

logger = logging.getLogger(__name__)

READ_S = 10.0
MAX_HEAD_BYTES = 1_000


@asynccontextmanager
async def answering_hooks(settings: Settings, service: Service) -> AsyncGenerator[None]:
    """Answer hooks of the home while the block runs; where that is not possible, they judge by themselves."""
    folder = settings.home / FOLDER
    path = folder / f"{os.getpid()}.sock"
    settings_digest = digest_settings(str(settings.home))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            path.unlink()
        listener = await anyio.create_unix_listener(path, mode=0o600)
    # A path that is too long, a file system without sockets, or a system without them.
    except (OSError, ValueError, NotImplementedError, AttributeError) as error:
        logger.info("hooks start without a server: %s", error)
        yield
        return

    async def handle(stream: SocketStream) -> None:
        async with stream:
            try:
                with anyio.fail_after(READ_S):
                    head, event = await _read(stream)
                await stream.send(await _answer(settings, service, settings_digest, head, event))
            # A hook that went away, or something else that connected.
            except (TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream, ValueError):
                return

    async with anyio.create_task_group() as tasks, listener:
        tasks.start_soon(listener.serve, handle)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()
            with suppress(OSError):
                path.unlink()


async def _read(stream: SocketStream) -> tuple[bytes, bytes]:
    """Return the first line and the event. Raises `ValueError` when it is too much."""
    text = bytearray()
    with suppress(anyio.EndOfStream):
        while True:
            text += await stream.receive(1 << 20)
            if len(text) > MAX_EVENT_BYTES + MAX_HEAD_BYTES + 1:
                break
    head, _, event = bytes(text).partition(b"\n")
    if len(head) > MAX_HEAD_BYTES:
        raise ValueError("no head")
    return head, event


async def _answer(settings: Settings, service: Service, settings_digest: str, head: bytes, event: bytes) -> bytes:
    request = json.loads(head)
    if not isinstance(request, dict) or request.get("settings") != settings_digest:  # pyright: ignore[reportUnknownMemberType]  # hostile
        return DECLINED
    host = str(request.get("host"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # hostile
    if read_event_name(event) in DONE_EVENTS:
        guard = build_guard(settings, service)
        keeper = DoneKeeper(service.store, settings, lambda call: guard.decide(call, LOCAL))
        return msgspec.json.encode(await keeper.answer(host, event))
    try:
        verdict = await build_guard(settings, service).decide(read_event(host, event), LOCAL)
    except PlanwardenError as error:
        verdict = deny(f"Refused, because it could not be judged: {error.message}")
    return msgspec.json.encode(build_command_answer(host, verdict))
