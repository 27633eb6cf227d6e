"""Lets a server that is already running answer the hooks of hosts: over MCP, or over a socket for command hooks.

An answer takes effect only when a host gets it from its hook. For a model that calls `guard_call` itself, it is mere
text; and if `_meta` has the id that Claude Code adds to calls by its model, the call uses up no pass. The socket (see
`hook_client`) answers only hooks. It is in the home, in a folder that only the folder's owner may enter.
"""

import json
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import anyio
import msgspec
from anyio.abc import SocketStream

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.common.task_groups import run_beside
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.server.api.service import Service
from planwarden.server.guard.calls import build_call, build_claude_document, build_command_answer, deny, read_event
from planwarden.server.guard.done import DoneKeeper
from planwarden.server.guard.guard import HostGuard, build_guard
from planwarden.server.guard.hook_client import (
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
TOOL_USE_ID_KEY = "claudecode/toolUseId"
"""The key in `_meta` that Claude Code sets on calls made by its model, and never on calls made by a hook."""


async def answer_guard_call(
    guard: HostGuard, arguments: Mapping[str, Any], principal: str, meta: Mapping[str, Any]
) -> str:
    """Return the JSON answer to a hook that called the tool `guard_call`."""
    if TOOL_USE_ID_KEY in meta:
        verdict = deny("Refused: only the host's hook calls guard_call. It lets nothing pass for a model.")
    else:
        values = (arguments.get(name) for name in ("host", "tool_name", "tool_input", "cwd", "session_id"))
        try:
            verdict = await guard.decide(build_call(*values), principal)
        except PlanwardenError as error:
            verdict = deny(f"Refused, because this call could not be judged: {error.message}")
    return json.dumps(build_claude_document(verdict))


@asynccontextmanager
async def answering_hooks(settings: Settings, service: Service) -> AsyncGenerator[None]:
    """Answer this home's hooks while the block runs. If no socket can be opened, the hooks judge calls themselves."""
    folder = settings.home / FOLDER
    path = folder / f"{os.getpid()}.sock"
    settings_digest = digest_settings(str(settings.home))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            path.unlink()
        listener = await anyio.create_unix_listener(path, mode=0o600)
    # The path is too long, or the file system or the operating system has no such sockets.
    except (OSError, ValueError, NotImplementedError, AttributeError) as error:
        logger.info("hooks judge calls without this server: %s", error)
        yield
        return

    async def handle(stream: SocketStream) -> None:
        async with stream:
            try:
                with anyio.fail_after(READ_S):
                    head, event = await _read(stream)
                await stream.send(await _answer(settings, service, settings_digest, head, event))
            # The hook went away, or another program connected.
            except (TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream, ValueError, RecursionError):
                return

    async with listener, run_beside(partial(listener.serve, handle)):
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()


async def _read(stream: SocketStream) -> tuple[bytes, bytes]:
    """Return the head (the first line) and the event (the rest). Raises `ValueError` if the head is too long."""
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
    request: object = json.loads(head)
    fields = cast("dict[str, object]", request) if isinstance(request, dict) else {}
    if fields.get("settings") != settings_digest:
        return DECLINED
    host, guard = str(fields.get("host")), build_guard(settings, service)
    if read_event_name(event) in DONE_EVENTS:
        keeper = DoneKeeper(service.store, settings, lambda call: guard.decide(call, LOCAL))
        return msgspec.json.encode(await keeper.answer(host, event))
    try:
        verdict = await guard.decide(read_event(host, event), LOCAL)
    except PlanwardenError as error:
        verdict = deny(f"Refused, because this call could not be judged: {error.message}")
    return msgspec.json.encode(build_command_answer(host, verdict))
