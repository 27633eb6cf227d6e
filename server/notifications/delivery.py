"""Makes one attempt to deliver a message: a POST with a time limit. It reads the response's body only if asked to.

It follows no redirect, because a redirect would take a signed message or a token elsewhere. It uses no proxy from the
environment. A receipt's description is in planwarden's own words; no text from the receiver reaches a log. The sender
imports this module only when it sends something, because importing the HTTP client takes a tenth of a second.
"""

from datetime import UTC
from email.utils import parsedate_to_datetime

import anyio
import anyio.to_thread
import httpx2

from planwarden.server.notifications.messages import DeliveryReceipt, OutgoingRequest
from planwarden.tools.web.fetch import has_bad_certificate, load_system_tls

TIMEOUT_S = 15.0
"""https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md, request timeouts"""
CONNECT_S = 5.0
LONGEST_WAIT_S = 6 * 3600.0
"""The longest wait that a receiver's `Retry-After` can cause."""


async def post(
    message: OutgoingRequest, *, now: float, timeout_s: float = TIMEOUT_S, max_answer_bytes: int = 0
) -> DeliveryReceipt:
    """Send the message; return a receipt even if the network or receiver fails. `Retry-After` counts from `now`."""
    with anyio.move_on_after(timeout_s):
        try:
            return await _send(message, now, max_answer_bytes)
        # The texts of these errors may repeat what was sent, so the receipts do not quote them.
        except httpx2.ConnectTimeout:
            return DeliveryReceipt(is_delivered=False, description="did not accept a connection in time")
        except httpx2.ConnectError as error:
            why = "does not accept connections"
            if has_bad_certificate(error):
                why = "has no valid TLS certificate for that name"
            return DeliveryReceipt(is_delivered=False, description=why)
        except httpx2.InvalidURL:
            return DeliveryReceipt(is_delivered=False, description="is not an address that can be reached")
        except httpx2.HTTPError:
            return DeliveryReceipt(is_delivered=False, description="closed the connection, or does not speak HTTP")
    return DeliveryReceipt(is_delivered=False, description=f"did not answer within {timeout_s:g} s")


async def _send(message: OutgoingRequest, now: float, max_answer_bytes: int) -> DeliveryReceipt:
    tls = await anyio.to_thread.run_sync(load_system_tls)
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with httpx2.AsyncHTTPTransport(verify=tls, trust_env=False, limits=limits) as transport:
        request = httpx2.Request(
            "POST",
            message.url,
            headers={"user-agent": "planwarden", "content-type": "application/json", **message.headers},
            content=message.body,
            extensions={"timeout": httpx2.Timeout(None, connect=CONNECT_S).as_dict()},
        )
        response = await transport.handle_async_request(request)
        answer = bytearray()
        if max_answer_bytes:
            async for piece in response.aiter_raw():
                answer += piece[: max_answer_bytes - len(answer)]
                if len(answer) == max_answer_bytes:
                    break
        # Closing without reading ends the connection, however large the response is.
        await response.aclose()
    status = response.status_code
    redirects = (
        "; planwarden follows no redirects, so configure the address that it leads to" if 300 <= status < 400 else ""
    )
    return DeliveryReceipt(
        is_delivered=200 <= status < 300,
        description=f"answered {status}{redirects}",
        is_final=status == 410,
        retry_after_s=_parse_retry_after(response.headers.get("retry-after"), now),
        answer=(status, bytes(answer)) if max_answer_bytes else None,
    )


def _parse_retry_after(text: str | None, now: float) -> float | None:
    """Return the wait in seconds from `now`, if any (https://httpwg.org/specs/rfc9110.html#field.retry-after)."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        seconds = float(text[:12])
    else:
        try:
            at = parsedate_to_datetime(text[:100])
        # A number in the date may be too large.
        except (ValueError, OverflowError):
            return None
        seconds = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() - now
    return min(max(seconds, 0.0), LONGEST_WAIT_S)
