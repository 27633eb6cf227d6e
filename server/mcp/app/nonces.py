"""The nonces with which views decide: one for each revision of a question and each principal, for an hour.

Each is sealed with the key of its home, so that every process of a home takes what another one issued, also after a
restart. Nothing is kept: the store takes one decision about a question, and a nonce is worth nothing after it.
"""

import hashlib
import hmac
import json

from planwarden.server.views.suspension import Suspension

NONCE_TTL_S = 3_600.0
_LABEL = b"planwarden app nonce/v1"


class Nonces:
    """The nonces of one home; `key` is secret, and the same in all of its processes."""

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, _LABEL, "sha256")

    def issue(self, principal: str, suspension: Suspension, now: float) -> str:
        """Return the nonce for this revision of the question."""
        parts = f"{int(now + NONCE_TTL_S)}.{suspension.digest}"
        return f"{parts}.{self._seal(principal, suspension.suspension_id, parts)}"

    def read(self, principal: str, suspension_id: str, nonce: str, now: float) -> str | None:
        """Return the digest of the revision that the nonce was issued for; None if it is expired or for something
        else."""
        parts, _, seal = nonce.rpartition(".")
        expected = self._seal(principal, suspension_id, parts)
        if not hmac.compare_digest(seal.encode("utf-8", "surrogatepass"), expected.encode()):
            return None
        expires_at, _, digest = parts.partition(".")
        return digest if int(expires_at) > now else None

    def _seal(self, principal: str, suspension_id: str, parts: str) -> str:
        # JSON keeps the three apart, whatever they hold.
        sealed = json.dumps([principal, suspension_id, parts]).encode()
        return hmac.new(self._key, sealed, hashlib.sha256).hexdigest()
