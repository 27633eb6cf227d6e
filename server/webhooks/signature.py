"""Whether a request is what Standard Webhooks 1.0.0 wants it to be.

Source: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import hmac

from planwarden.server.notifications.messages import sign_message

TOLERANCE_S = 300.0
"""How far a time stamp may be from the time here."""
MAX_ID_CHARS = 256
MAX_SIGNATURES = 10


def is_timely(message_id: str, timestamp: str, now: float) -> bool:
    """Whether the id has a usable form, and the time stamp is at most `TOLERANCE_S` seconds away.

    Dots part what is signed, so with an id that has a dot, one signature would fit two messages.
    """
    has_id = 0 < len(message_id) <= MAX_ID_CHARS and message_id.isascii() and message_id.isprintable()
    has_id = has_id and "." not in message_id
    has_time = timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12
    return has_id and has_time and abs(int(timestamp) - now) <= TOLERANCE_S


def is_signed(key: bytes, message_id: str, timestamp: str, body: bytes, signatures: str) -> bool:
    """Whether one of the signatures, with blanks between them, is that of the message. Takes the same time for all."""
    expected = sign_message(key, message_id, timestamp, body).encode()
    given = signatures.split(" ")[:MAX_SIGNATURES]
    return sum(hmac.compare_digest(expected, signature.encode()) for signature in given) > 0
