"""`POST /hooks/NAME`: a Standard Webhooks request starts the saved plan of the operator's `[hooks.NAME]`.

The signature (https://www.standardwebhooks.com) is the login, so no token is needed. A request that is unsigned, signed
with another secret, too old, or for a hook that does not exist gets 401 with an empty body. The id of the message is
the idempotency key: when it comes again, the answer describes the run that the first message started.
"""

import hashlib
import hmac
import logging
import math
import secrets
from collections.abc import Callable, Sequence

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import KeyConflict, PlanwardenError, StoreError, UnknownPlan
from planwarden.agent.core.execution.requester import LOCAL, Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.store import SystemKey
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.service import Service
from planwarden.server.notifications.messages import sign_message
from planwarden.server.settings.tables import Hook

logger = logging.getLogger(__name__)

HOOKS_PATH = "/hooks/"
MAX_BODY_BYTES = 256 * 1024
READ_S = 15.0
"""The most seconds that a body may take to arrive."""
LOGGED_EVERY_S = 60.0
TOLERANCE_S = 300.0
"""The most seconds between a message's time stamp and the time here."""
MAX_ID_CHARS = 256
MAX_SIGNATURES = 10


def is_timely(message_id: str, timestamp: str, now: float) -> bool:
    """Return whether the id has a usable form, and the time stamp is at most `TOLERANCE_S` seconds from now.

    Dots separate the signed parts: if an id could contain a dot, one signature would fit two messages.
    """
    has_id = 0 < len(message_id) <= MAX_ID_CHARS and message_id.isascii() and message_id.isprintable()
    has_id = has_id and "." not in message_id
    has_time = timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12
    return has_id and has_time and abs(int(timestamp) - now) <= TOLERANCE_S


def is_signed(key: bytes, message_id: str, timestamp: str, body: bytes, signatures: str) -> bool:
    """Return, in constant time, whether one of the first `MAX_SIGNATURES` signatures, split at spaces, is right."""
    expected = sign_message(key, message_id, timestamp, body).encode()
    values = signatures.split(" ")[:MAX_SIGNATURES]
    return sum(hmac.compare_digest(expected, signature.encode()) for signature in values) > 0


class HookEndpoint:
    """An ASGI application for the paths below `/hooks/`."""

    def __init__(self, hooks: Sequence[Hook], service: Callable[[], Service]) -> None:
        self._hooks = {hook.name: hook for hook in hooks if hook.problem is None}
        for hook in hooks:
            if hook.problem is not None:
                logger.warning("hook %r takes no requests: %s", hook.name, hook.problem)
        self._service = service
        self._decoy_hook = Hook(name="", plan="", key=secrets.token_bytes(32))
        """Checked in place of an unknown hook, so that the time until the answer reveals nothing."""
        self._logged_at: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._answer(Request(scope, receive))
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405, headers={"allow": "POST"})
        name = str(request.scope["path"]).removeprefix(HOOKS_PATH)
        hook = self._hooks.get(name, self._decoy_hook)
        headers = [request.headers.getlist(f"webhook-{part}") for part in ("id", "timestamp", "signature")]
        if any(len(values) != 1 for values in headers):
            return self._refuse(hook, "it is not signed")
        [[message_id], [timestamp], [signatures]] = headers
        if not is_timely(message_id, timestamp, self._service().store.clock.now()):
            return self._refuse(hook, "its id is unusable, or its time stamp is more than 5 minutes away")
        body = await _read_body(request)
        if isinstance(body, Response):
            return body
        if not is_signed(hook.key, message_id, timestamp, body, signatures) or hook is self._decoy_hook:
            return self._refuse(hook, "it is not signed with the secret of the hook")
        try:
            return await self._start(hook, message_id, body)
        except PlanwardenError as error:
            logger.error("hook %r started nothing: %s", hook.name, error.message)
            # The sender can correct only the message; a fault on this side may be gone when the message comes again.
            status = 503 if isinstance(error, StoreError | UnknownPlan) else 422
            return JSONResponse({"code": error.code, "message": error.message}, status)

    async def _start(self, hook: Hook, message_id: str, body: bytes) -> Response:
        """Start the plan, unless a message with this id has started it before; return the answer about the run."""
        service = self._service()
        key = SystemKey("hook", hook.name, hashlib.sha256(message_id.encode()).hexdigest()[:32])
        earlier_run = await self._find_run(service, hook, key)
        if earlier_run is not None:
            return earlier_run
        event = read_json(body)
        try:
            requester = Requester(LOCAL, host=f"hook {hook.name}")
            start = StartOptions(requester=requester, key=key, inputs={"event": event})
            run = await service.run_plan(hook.plan, start)
        except KeyConflict:
            # The same id came at the same time with another body; the first message has started the plan.
            return await self._find_run(service, hook, key) or Response(status_code=503)
        return _describe_run(run)

    async def _find_run(self, service: Service, hook: Hook, key: str) -> Response | None:
        """Return the answer about the run that the key started, if any. Raises `KeyConflict` for another plan's run."""
        start = await service.store.find_start(LOCAL, str(key))
        if start is None:
            return None
        execution = await service.find(start.execution_id)
        if execution.saved_plan is None or execution.saved_plan.name != hook.plan:
            raise KeyConflict(f"the message with this id started execution {start.execution_id!r}, of another plan")
        return _describe_run(execution)

    def _refuse(self, hook: Hook, reason: str) -> Response:
        """Return an empty 401 answer. Log the reason for the operator, at most once a minute for each hook."""
        now = self._service().store.clock.steady()
        if now - self._logged_at.get(hook.name, -math.inf) >= LOGGED_EVERY_S:
            self._logged_at[hook.name] = now
            if hook is self._decoy_hook:
                logger.warning("refused a request for a hook that this server does not have")
            else:
                logger.warning("hook %r refused a request: %s", hook.name, reason)
        return Response(status_code=401)


async def _read_body(request: Request) -> bytes | Response:
    """Return the body, or the error response if it is too large or too slow."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
        return Response(status_code=413)
    body = bytearray()
    with anyio.move_on_after(READ_S):
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                return Response(status_code=413)
        return bytes(body)
    return Response(status_code=408)


def _describe_run(run: ExecutionState) -> JSONResponse:
    return JSONResponse({"threadId": run.thread_id, "executionId": run.execution_id, "status": run.status})
