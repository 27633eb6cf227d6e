"""Web Push: a message that only one browser can read, in a request that its push service takes from this home alone.

Sources: https://www.rfc-editor.org/rfc/rfc8030 (the request), https://www.rfc-editor.org/rfc/rfc8188 and
https://www.rfc-editor.org/rfc/rfc8291 (one sealed record), https://www.rfc-editor.org/rfc/rfc8292 (VAPID, who sends).
The push service sees the browser's address there, size, time and urgency of a message, and the home's public key.
"""

import base64
import hashlib
import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from planwarden.agent.common.errors import InvalidArguments, StoreError
from planwarden.storage.ports.secrets import SecretStore

KEY_NAME = "push.key"
CONTACT = "https://pypi.org/project/planwarden/"
"""Whom a push service may write to about the sender. Apple's refuses requests whose contact is no public address, see
https://github.com/web-push-libs/web-push/issues/947; the operator's own address is nothing that it has to know."""
TTL_S = 12 * 3600
"""How long a push service keeps a message for a browser that is not running."""
TOKEN_S = 12 * 3600
RECORD_BYTES = 4096
"""Every push service takes so much, https://www.rfc-editor.org/rfc/rfc8030#section-7.2."""
PADDED_BYTES = 1_024
"""Messages are as long as a multiple of this, so that their size says little."""
MAX_MESSAGE_BYTES = 3 * PADDED_BYTES - 1
SALT_BYTES = 16
AUTH_BYTES = 16
POINT_BYTES = 65


class BrowserKeys(NamedTuple):
    """What a browser hands over to be written to."""

    public: ec.EllipticCurvePublicKey
    secret: bytes


def read_browser_keys(p256dh: str, auth: str) -> BrowserKeys:
    """The keys of a browser. Raises `InvalidArguments` unless they are a point of P-256 and 16 bytes, in base64url."""
    point, secret = _decode(p256dh), _decode(auth)
    if len(point) != POINT_BYTES or len(secret) != AUTH_BYTES:
        raise InvalidArguments("these are not the keys of a browser's subscription")
    try:
        return BrowserKeys(ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point), secret)
    except ValueError:
        raise InvalidArguments("these are not the keys of a browser's subscription") from None


async def load_push_key(secrets: SecretStore) -> bytes:
    """The private key of this home, as PEM; the first process makes it.

    Raises:
        StoreError: it cannot be read or stored, or is not a key.
        UsageError: this process has not the key that the store is sealed with.
    """
    key = await secrets.read(KEY_NAME) or await secrets.create(KEY_NAME, _make_private_key())
    try:
        _read_private(key)
    except ValueError:
        raise StoreError(
            f"{secrets.locate(KEY_NAME)} is not a key of planwarden; delete it, people then have to choose their "
            "browsers again"
        ) from None
    return key


def encode_public_key(key: bytes) -> str:
    """The public half, as a browser takes it: a point in base64url."""
    return _encode(_encode_point(_read_private(key).public_key()))


def build_headers(key: bytes, endpoint: str, topic: str, now: float) -> Mapping[str, str]:
    """The headers that let a push service take a message and, while it waits, replace one of the same topic."""
    return {
        "authorization": f"vapid t={_sign_token(key, endpoint, now)}, k={encode_public_key(key)}",
        "content-encoding": "aes128gcm",
        "content-type": "application/octet-stream",
        "ttl": str(TTL_S),
        "urgency": "high",
        "topic": _encode(hashlib.sha256(topic.encode()).digest())[:32],
    }


def seal(message: bytes, keys: BrowserKeys) -> bytes:
    """The message as one record that only this browser can open; every call makes another one.

    Raises:
        InvalidArguments: it has more than `MAX_MESSAGE_BYTES`.
    """
    if len(message) > MAX_MESSAGE_BYTES:
        raise InvalidArguments(f"a message has {len(message)} bytes, the limit is {MAX_MESSAGE_BYTES}")
    padding = bytes(-(len(message) + 1) % PADDED_BYTES)
    return seal_record(message, padding, keys, ec.generate_private_key(ec.SECP256R1()), os.urandom(SALT_BYTES))


def seal_record(
    message: bytes, padding: bytes, keys: BrowserKeys, private: ec.EllipticCurvePrivateKey, salt: bytes
) -> bytes:
    """As `seal`, with a key and a salt that must never be used again."""
    own, theirs = _encode_point(private.public_key()), _encode_point(keys.public)
    shared = private.exchange(ec.ECDH(), keys.public)
    secret = _derive(shared, keys.secret, b"WebPush: info\0" + theirs + own, 32)
    cipher = AESGCM(_derive(secret, salt, b"Content-Encoding: aes128gcm\0", 16))
    nonce = _derive(secret, salt, b"Content-Encoding: nonce\0", 12)
    header = salt + RECORD_BYTES.to_bytes(4, "big") + bytes([len(own)]) + own
    # The 2 ends the message in the last record.
    return header + cipher.encrypt(nonce, message + b"\x02" + padding, None)


def _sign_token(key: bytes, endpoint: str, now: float) -> str:
    parts = urlsplit(endpoint)
    claims = {"aud": f"{parts.scheme}://{parts.netloc}", "exp": int(now) + TOKEN_S, "sub": CONTACT}
    return jwt.encode(claims, _read_private(key), algorithm="ES256")


def _derive(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)


def _make_private_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read_private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Raises `ValueError` when it is not a private key of P-256."""
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise ValueError("not a key of P-256")
    return key


def _encode_point(public: ec.EllipticCurvePublicKey) -> bytes:
    return public.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Empty when it is not base64url."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return b""
