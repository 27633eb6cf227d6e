"""Sends requests to checked addresses only, and limits time and size; see `planwarden.tools.web.access`.

The tools import this module when they are called, because importing the HTTP client takes a tenth of a second.
"""

import functools
import ipaddress
import ssl
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

import anyio
import anyio.to_thread
import httpx2
from pydantic import JsonValue

from planwarden.agent.common.errors import ToolError
from planwarden.tools.web.access import MAX_ADDRESSES_TRIED, WebAccess, WebLimits, WebReply


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests to checked addresses only. Raises `ToolError` for a refused request or an unknown host."""

    def __init__(self, access: WebAccess, tls: ssl.SSLContext) -> None:
        self._access = access
        # A connection goes to an address, and two names at one address are two sites, so no connection is reused.
        limits = httpx2.Limits(max_keepalive_connections=0)
        self._transport = httpx2.AsyncHTTPTransport(verify=tls, trust_env=False, limits=limits)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host, port = self._access.policy.check_url(request.url)
        addresses = self._access.policy.check_addresses(host, port, await self._resolve(host, port))
        failure: httpx2.TransportError = httpx2.ConnectError(f"{host!r} has no address")
        for address in addresses[:MAX_ADDRESSES_TRIED]:
            # The URL has the address to connect to; the Host header in `headers` still has the name.
            addressed = httpx2.Request(
                request.method,
                request.url.copy_with(host=str(address)),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return await self._transport.handle_async_request(addressed)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass
        try:
            return await self._access.resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise ToolError(f"the host {host!r} was not found; check the spelling of the URL") from error


async def fetch(
    url: str,
    access: WebAccess,
    *,
    accept: Callable[[int, str], None],
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
    body: JsonValue = None,
    follow_redirects: bool = True,
) -> WebReply:
    """Return the reply to a GET, or to a POST when there is a `body` (sent as JSON).

    `accept` gets the status and the content type of the final response before its body is read. It raises `ToolError`
    to refuse the response. The target of a redirect gets the same headers and body, so a caller that sends a secret
    must not follow redirects.

    Raises `ToolError`: the URL is refused, the host fails, or a limit is exceeded.
    """
    # A limit per read would start again with every byte of a slow answer, so the total time is limited.
    timeout = httpx2.Timeout(None, connect=access.limits.connect_s)
    with anyio.move_on_after(access.limits.total_s):
        tls = access.tls or await anyio.to_thread.run_sync(load_system_tls)
        target = _parse_url(url) if params is None else _parse_url(url).copy_merge_params(dict(params))
        async with GuardedTransport(access, tls) as transport:
            for _ in range(access.limits.redirects + 1):
                request = httpx2.Request(
                    "GET" if body is None else "POST",
                    target,
                    headers={"User-Agent": "planwarden", "Accept-Encoding": "gzip, deflate", **(headers or {})},
                    json=body,
                    extensions={"timeout": timeout.as_dict()},
                )
                with _translate_errors(target):
                    response = await transport.handle_async_request(request)
                    try:
                        if not (follow_redirects and response.has_redirect_location):
                            accept(response.status_code, response.headers.get("content-type", ""))
                            return await _read_reply(target, response, access.limits)
                    finally:
                        await response.aclose()
                target = _parse_url(response.headers["location"], base=target)
            raise ToolError(
                f"{_quote_host(target)} redirects more than {access.limits.redirects} times; use the final URL"
            )
    raise ToolError(f"{url[:200]!r} was not read within {access.limits.total_s:g} seconds; try again later")


def _parse_url(url: str, *, base: httpx2.URL | None = None) -> httpx2.URL:
    try:
        return httpx2.URL(url) if base is None else base.join(url)
    except (httpx2.InvalidURL, ValueError) as error:
        raise ToolError(f"{url[:200]!r} is not a URL; write it in full, such as https://example.org/page") from error


def _quote_host(url: httpx2.URL) -> str:
    return repr(url.raw_host.decode("ascii"))


async def _read_reply(url: httpx2.URL, response: httpx2.Response, limits: WebLimits) -> WebReply:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    # Only one layer of encoding: with several, a small reply could keep the process busy without any output.
    if encoding not in ("identity", "gzip", "deflate"):
        raise ToolError(f"{_quote_host(url)} sent the content encoding {encoding[:40]!r}, which is not supported")
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limits.body_bytes:
            raise ToolError(
                f"{_quote_host(url)} sent more than {limits.body_bytes} bytes; use a URL with a smaller reply"
            )
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return WebReply(url=str(url), media_type=media_type, charset=response.charset_encoding, body=bytes(body))


_FAULTS: Mapping[type[httpx2.HTTPError], str] = {
    httpx2.TimeoutException: "did not accept a connection in time; try again later",
    httpx2.DecodingError: "sent a body that cannot be decompressed",
    httpx2.ConnectError: "cannot be connected to; check the address or try again later",
    httpx2.TransportError: "broke the connection or does not speak HTTP; check the address or try again later",
}
"""The first kind that fits counts. These texts replace the HTTP library's messages, which may repeat what was sent."""


@contextmanager
def _translate_errors(url: httpx2.URL) -> Generator[None]:
    try:
        yield
    except (*_FAULTS,) as error:
        fault = next(text for kind, text in _FAULTS.items() if isinstance(error, kind))
        if has_bad_certificate(error):
            fault = "has no valid TLS certificate for that name; check the address"
        raise ToolError(f"the host {_quote_host(url)} {fault}") from error


def has_bad_certificate(error: BaseException | None) -> bool:
    """Return whether a certificate that is not valid for the host caused the error."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


@functools.cache
def load_system_tls() -> ssl.SSLContext:
    """Return a TLS context with the system's certificates. Load them only once: that takes a tenth of a second."""
    return httpx2.create_ssl_context()
