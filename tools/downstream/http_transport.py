"""Connects to a downstream server behind a URL: Streamable HTTP, with limited answers and an error per failed request.

The SDK reads a JSON answer whole. An exception of the HTTP client ends the SDK's connection, and the request gets no
error. `BoundedTransport` limits each answer, and gives each failed POST an error of its own, which says whether
the server may have carried the request out. The SDK follows redirects within the same origin only.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
from mcp.types import METHOD_NOT_FOUND, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError

from planwarden.agent.common.errors import PlanwardenError
from planwarden.tools.downstream.bounded_streams import ENCODINGS, bound_answer, connect_streams
from planwarden.tools.downstream.config import LoginLocation, ServerConfig
from planwarden.tools.downstream.in_flight_calls import LOST, NOT_SENT, SendCheck, send_check
from planwarden.tools.downstream.login.issuer import AccessError
from planwarden.tools.downstream.login.transport import LoginTransport

MAX_BODY_BYTES = 8 * 1024 * 1024
CLOSE_TIMEOUT_S = 1.0


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Limits the size of answers, and turns failures into JSON-RPC errors of their requests."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        is_post = request.method == "POST"
        request.headers["accept-encoding"] = ENCODINGS
        if request.method == "DELETE":
            # Ending a session is a courtesy; a server that does not answer must not delay our own end.
            with anyio.fail_after(CLOSE_TIMEOUT_S):
                return await self._inner.handle_async_request(request)
        check = send_check.get() if is_post else None
        if check is not None:
            # Connecting and logging in can take long, so `check` is called when the request itself is about to be sent.
            request.extensions = {**request.extensions, "trace": _check_at_headers(check)}
        try:
            response = await self._inner.handle_async_request(request)
        except PlanwardenError as error:
            return _error_response(NOT_SENT, error.message)
        except httpx2.TransportError as error:
            if not is_post:
                raise
            return _translate_error(error)
        kind = response.headers.get("content-type", "").lower()
        status = response.status_code
        is_json, is_events = kind.startswith("application/json"), kind.startswith("text/event-stream")
        is_usable = (is_json and status != 401) if status >= 400 else (is_json or is_events) and status != 202
        advice = "; it refuses the Authorization header under headers, or asks for one" if status == 401 else ""
        # The SDK ignores errors for notifications. Unless the status is 4xx, a request may have been carried out.
        code = NOT_SENT if 400 <= status < 500 else LOST
        refusal = _error_response(code, f"it answered with HTTP status {status}{advice}")
        if status == 404 and "mcp-session-id" in request.headers:
            # To the SDK, a 404 without an error in its body is the end of the session.
            refusal = httpx2.Response(404)
        # The SDK follows redirects itself.
        if is_post and not is_usable and not response.has_redirect_location:
            await response.aclose()
            return refusal
        try:
            bound_answer(response, None if is_events else MAX_BODY_BYTES)
            return await _read_failure(response, refusal) if is_post and status >= 400 else response
        except (httpx2.StreamError, httpx2.TransportError) as error:
            await response.aclose()
            return _error_response(LOST, str(error))

    async def aclose(self) -> None:
        await self._inner.aclose()


def _check_at_headers(check: SendCheck) -> Callable[[str, Mapping[str, object]], Coroutine[object, object, None]]:
    """Return a trace function for httpcore (https://www.encode.io/httpcore/extensions/#trace)."""

    async def trace(event: str, info: Mapping[str, object]) -> None:
        if event.endswith("send_request_headers.started"):
            await check()

    return trace


def _translate_error(error: httpx2.TransportError) -> httpx2.Response:
    match error:
        case AccessError():
            return _error_response(NOT_SENT, str(error))
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.PoolTimeout() | httpx2.UnsupportedProtocol():
            return _error_response(NOT_SENT, f"no connection could be opened ({type(error).__name__})")
        case _:
            return _error_response(LOST, f"the connection broke ({type(error).__name__})")


async def _read_failure(response: httpx2.Response, refusal: httpx2.Response) -> httpx2.Response:
    """Read an answer with a status of 400 or more. Return it if it is a JSON-RPC error to pass on, else `refusal`.

    Other JSON may come from a proxy, and the server may still have carried out the request. If `refusal` is an empty
    404, only `METHOD_NOT_FOUND` is passed on, because many servers report an unknown session with an error.
    """
    body = await response.aread()
    with suppress(ValidationError):
        message = jsonrpc_message_adapter.validate_json(body, by_name=False)
        if isinstance(message, JSONRPCError) and (refusal.content or message.error.code == METHOD_NOT_FOUND):
            return httpx2.Response(response.status_code, headers={"content-type": "application/json"}, content=body)
    return refusal


def _error_response(code: int, message: str) -> httpx2.Response:
    return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}})


@asynccontextmanager
# `Any`, because the SDK's type for the pair of streams has no public name.
async def http_transport(
    config: ServerConfig, login: LoginLocation | None, *, is_typed: bool = True
) -> AsyncGenerator[Any]:
    """Yield the streams to the server's URL. `login` is where a person's login to the server is kept.

    Without `is_typed`, results stay as the server sent them, and the SDK may refuse them.
    """
    async with httpx2.AsyncHTTPTransport() as inner:
        # An Authorization header of the operator takes precedence over a login.
        has_header = any(name.lower() == "authorization" for name in config.headers)
        outer = inner if login is None or has_header else LoginTransport(inner, login)
        # Reading has no time limit: calls have their own, and the stream of messages is silent most of the time.
        bounded = BoundedTransport(outer)
        async with connect_streams(config, bounded, MAX_BODY_BYTES, read_s=None, is_typed=is_typed) as streams:
            yield streams
