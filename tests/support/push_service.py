"""A push service on a loopback port, and browsers that can open what it is given: what a real pair would do.

The service accepts a message only if it is signed for its own origin with the key that the browser was given. The
browser opens what was sealed for it by RFC 8291, in code of its own.
"""

import base64
import ssl
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import jwt
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import JsonValue, TypeAdapter

from planwarden.agent.ports.environment import Clock
from planwarden.storage.ports.browsers import NotifiedBrowser
from planwarden.tools.web.access import AddressPolicy, WebAccess
from tests.support.certificates import make_certificate
from tests.tools.web.support import LOOPBACK, NameTable, Received, build_reply, read_request

HOST = "push.example"
_OBJECT = TypeAdapter[dict[str, JsonValue]](dict[str, JsonValue])


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def encode_point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


def read_point(text: str) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decode(text))


@dataclass
class BrowserDouble:
    """The keys of one subscription, and what they open."""

    private: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    auth: bytes = b"sixteen  octets!"

    @property
    def p256dh(self) -> str:
        return encode(encode_point(self.private.public_key()))

    def open(self, body: bytes) -> bytes:
        """The message of a record."""
        salt, length = body[:16], body[20]
        sender, sealed = body[21 : 21 + length], body[21 + length :]
        own = encode_point(self.private.public_key())
        shared = self.private.exchange(ec.ECDH(), read_point(encode(sender)))
        secret = _derive(shared, self.auth, b"WebPush: info\0" + own + sender, 32)
        key, nonce = (_derive(secret, salt, f"Content-Encoding: {use}\0".encode(), size) for use, size in USES)
        return AESGCM(key).decrypt(nonce, sealed, None).rstrip(b"\0").removesuffix(b"\x02")

    def read(self, body: bytes) -> dict[str, JsonValue]:
        return _OBJECT.validate_json(self.open(body))

    def describe(
        self, endpoint: str, *, principal: str = "ann", session: str = "s1", name: str = "b1", at: float = 0.0
    ) -> NotifiedBrowser:
        """The subscription as a store keeps it."""
        return NotifiedBrowser(
            browser_id=name,
            principal=principal,
            session=session,
            endpoint=endpoint,
            p256dh=self.p256dh,
            auth=encode(self.auth),
            label="Firefox on Linux",
            created_at=at,
            expires_at=at + 1e6,
        )


USES = (("aes128gcm", 16), ("nonce", 12))


def _derive(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)


def verify_sender(authorization: str, origin: str, now: float) -> tuple[dict[str, JsonValue], str]:
    """The claims of a VAPID header that is valid for the origin, and the key that signed it; raises otherwise."""
    scheme, _, rest = authorization.partition(" ")
    parts = (part.strip().partition("=") for part in rest.split(","))
    fields = {name: value for name, _, value in parts}
    assert scheme == "vapid" and set(fields) == {"t", "k"}
    claims = _OBJECT.validate_python(
        jwt.decode(
            fields["t"],
            read_point(fields["k"]),
            algorithms=["ES256"],
            audience=origin,
            # By the clock of the test, below.
            options={"verify_exp": False, "require": ["aud", "exp", "sub"]},
        )
    )
    assert isinstance(claims["exp"], int) and now < claims["exp"] <= now + 24 * 3600
    return claims, fields["k"]


@dataclass
class PushService:
    """A running push service. It answers each message with the next of its `statuses`; the last one is repeated."""

    statuses: list[int]
    tls: ssl.SSLContext
    """What a client trusts."""
    clock: Clock
    port: int = 0
    received: list[Received] = field(default_factory=list[Received])
    senders: list[str] = field(default_factory=list[str])
    """The public keys that signed."""
    silent: str = ""
    """The path at which nobody ever answers."""
    _arrival: anyio.Event = field(default_factory=anyio.Event)

    @property
    def origin(self) -> str:
        return f"https://{HOST}:{self.port}"

    @property
    def access(self) -> WebAccess:
        """Access in which this service counts as public."""
        policy = AddressPolicy(allowed_networks=(LOOPBACK,), ports=frozenset({self.port}))
        return WebAccess(policy=policy, resolve=NameTable(push_example=[["127.0.0.1"]]), tls=self.tls)

    async def wait_for(self, path: str) -> Received:
        """The first message that came to the path."""
        while True:
            found = [request for request in self.received if request.path == path]
            if found:
                return found[0]
            await self.wait_for_next()

    async def wait_for_next(self) -> None:
        await self._arrival.wait()

    async def handle(self, stream: ByteStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead):
            async with stream:
                request = await read_request(stream)
                _, key = verify_sender(request.headers["authorization"], self.origin, self.clock.now())
                self.received.append(request)
                self.senders.append(key)
                arrival, self._arrival = self._arrival, anyio.Event()
                arrival.set()
                if request.path == self.silent:
                    await anyio.sleep_forever()
                status = self.statuses[min(len(self.received), len(self.statuses)) - 1]
                moved = {"location": f"{self.origin}/elsewhere"} if status == 301 else {}
                await stream.send(build_reply("<b>anything</b>", status, **moved))


def build_tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What the server shows, and what a client trusts."""
    certificate, key = make_certificate(HOST)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        chain = Path(folder, "chain.pem")
        chain.write_text(certificate + key)
        server.load_cert_chain(chain)
    return server, ssl.create_default_context(cadata=certificate)


@asynccontextmanager
async def serve_push_service(*statuses: int, clock: Clock) -> AsyncGenerator[PushService]:
    """Runs a push service over TLS while the block runs; without `statuses` it accepts everything."""
    server, client = build_tls()
    service = PushService(list(statuses) or [201], client, clock)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        service.port = listener.extra(SocketAttribute.local_port)
        tasks.start_soon(TLSListener(listener, server, standard_compatible=False).serve, service.handle)
        yield service
        tasks.cancel_scope.cancel()
