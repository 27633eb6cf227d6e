"""An OAuth authorization server for tests, which can misbehave, and certificates that only their maker signed."""

import datetime
import ipaddress
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx2
import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.utils import base64url_decode, base64url_encode

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
Document = dict[str, Any]

KEY_ID = "k1"
AUDIENCE = "https://plan.example.com/mcp"


@cache
def make_key(algorithm: str, name: str = KEY_ID) -> Key:
    """Returns the key of this algorithm and name, which is made once."""
    if algorithm.startswith("ES"):
        curve = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}[algorithm]
        return ec.generate_private_key(curve)
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass
class Issuer:
    """Answers `GET` as an authorization server does; `request_counts` counts requests by path."""

    url: str = "https://idp.example.com/tenant"
    algorithm: str = "RS256"
    keys: list[Document] = field(default_factory=list[Document])
    """The key set; when it is empty, it holds the key that `token` signs with."""
    says_issuer: str | None = None
    jwks_uri: str | None = None
    metadata_at: str = "/.well-known/oauth-authorization-server/tenant"
    answer: httpx2.Response | None = None
    """Sent to any request instead of a document."""
    request_counts: Counter[str] = field(default_factory=Counter[str])

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self.respond))

    def respond(self, request: httpx2.Request) -> httpx2.Response:
        self.request_counts[request.url.path] += 1
        if self.answer is not None:
            return self.answer
        if request.url.path == self.metadata_at:
            return httpx2.Response(200, json=self.metadata())
        if request.url.path == "/keys":
            return httpx2.Response(200, json={"keys": self.keys or [self.jwk()]})
        return httpx2.Response(404)

    def metadata(self) -> Document:
        root = self.url.removesuffix("/tenant")
        return {"issuer": self.says_issuer or self.url, "jwks_uri": self.jwks_uri or f"{root}/keys"}

    def jwk(self, key_id: str | None = KEY_ID, **more: Any) -> Document:
        public = make_key(self.algorithm, key_id or KEY_ID).public_key()
        match public:
            case rsa.RSAPublicKey():
                found = RSAAlgorithm.to_jwk(public, as_dict=True)
            case ec.EllipticCurvePublicKey():
                found = ECAlgorithm.to_jwk(public, as_dict=True)
            case _:
                found = OKPAlgorithm.to_jwk(public, as_dict=True)
        named = {} if key_id is None else {"kid": key_id}
        return {**found, **named, "use": "sig", **more}

    def token(self, *, key_id: str | None = KEY_ID, typ: str | None = "at+jwt", **claims: Any) -> str:
        """Returns an access token for Ann. `claims` replace the usual ones; a claim that is None is omitted."""
        now = int(time.time())
        usual: Document = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ann",
            "iat": now,
            "nbf": now,
            "exp": now + 300,
            "client_id": "app",
            "scope": "plan:run other",
        }
        kept = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        headers: Document = {**({"kid": key_id} if key_id is not None else {}), "typ": typ}
        key = make_key(self.algorithm, key_id or KEY_ID)
        return jwt.encode(kept, key, algorithm=self.algorithm, headers=headers)


def split_token(token: str) -> tuple[Document, Document, str]:
    """Returns header, claims and signature, so that a test can join them differently."""
    header, claims, signature = token.split(".")
    return _decode_part(header), _decode_part(claims), signature


def join_token(header: Document, claims: Document, signature: str) -> str:
    return f"{_encode_part(header)}.{_encode_part(claims)}.{signature}"


def _decode_part(part: str) -> Document:
    return json.loads(base64url_decode(part))


def _encode_part(document: Document) -> str:
    return base64url_encode(json.dumps(document).encode()).decode()


def make_certificate(host: str = "127.0.0.1") -> tuple[str, str]:
    """A certificate for the host, a name or an address, and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    try:
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    except ValueError:
        address = x509.SubjectAlternativeName([x509.DNSName(host)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), secret.decode()
