"""A security key in software, and an inbox at a place where keys can be used."""

import hashlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from starlette.types import ASGIApp, Receive, Scope, Send
from webauthn.helpers import encode_cbor

import planwarden
from planwarden.agent.ports.store import Store
from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.site import InboxSite
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.signatures.signature import RelyingParty, from_base64url, to_base64url
from tests.server.inbox.support import Browser, Form, Inbox, Page
from tests.support.wardens import Ledger, tool_step, warden

HOST = "localhost:8765"
ORIGIN = f"http://{HOST}"
HERE = RelyingParty(rp_id="localhost", origin=ORIGIN)
WIPE = tool_step("wipe", "wipe", {"what": "old"})

PRESENT, VERIFIED, ATTESTED = 0x01, 0x04, 0x40


@dataclass
class Authenticator:
    """Signs whatever it is asked to, for the place that it is told; the fields say how it lies.

    The layout is that of https://www.w3.org/TR/webauthn-3/#sctn-authenticator-data.
    """

    origin: str = ORIGIN
    rp_id: str = "localhost"
    flags: int = PRESENT | VERIFIED
    count: int = 0
    step: int = 1
    """By which the count grows with each signature."""
    attestation: Mapping[str, Any] = field(default_factory=lambda: {"fmt": "none", "attStmt": {}})
    keys: dict[bytes, ec.EllipticCurvePrivateKey] = field(default_factory=dict[bytes, ec.EllipticCurvePrivateKey])

    def create(self, options: Mapping[str, Any]) -> str:
        """A new key, as the page's script sends it."""
        key = ec.generate_private_key(ec.SECP256R1())
        numbers = key.public_key().public_numbers()
        # COSE_Key of ES256: https://www.rfc-editor.org/rfc/rfc9053#section-7.1.1
        cose = encode_cbor({1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32, "big"), -3: numbers.y.to_bytes(32, "big")})
        credential_id = hashlib.sha256(cose).digest()
        attested = b"\0" * 16 + len(credential_id).to_bytes(2, "big") + credential_id + cose
        data = self._data(self.flags | ATTESTED) + attested
        attestation = encode_cbor({**self.attestation, "authData": data})
        client = self._client("webauthn.create", options["challenge"])
        self.keys[credential_id] = key
        return _sent(credential_id, clientDataJSON=client, attestationObject=attestation)

    def get(self, options: Mapping[str, Any], credential_id: bytes | None = None) -> str:
        """A signature with the first of the allowed keys that this authenticator has, as the page's script sends it."""
        allowed = [from_base64url(found["id"]) for found in options["allowCredentials"]]
        chosen = credential_id or next(found for found in allowed if found in self.keys)
        self.count += self.step
        client = self._client("webauthn.get", options["challenge"])
        data = self._data(self.flags)
        signature = self.keys[chosen].sign(data + hashlib.sha256(client).digest(), ec.ECDSA(SHA256()))
        return _sent(chosen, clientDataJSON=client, authenticatorData=data, signature=signature)

    def _data(self, flags: int) -> bytes:
        return hashlib.sha256(self.rp_id.encode()).digest() + bytes([flags]) + self.count.to_bytes(4, "big")

    def _client(self, kind: str, challenge: str) -> bytes:
        return json.dumps({"type": kind, "challenge": challenge, "origin": self.origin}).encode()


def _sent(credential_id: bytes, **response: bytes) -> str:
    text = to_base64url(credential_id)
    parts = {name: to_base64url(value) for name, value in response.items()}
    return json.dumps({"id": text, "rawId": text, "type": "public-key", "response": parts})


@dataclass
class SigningBrowser(Browser):
    """A browser whose pages run the script of the inbox, with a key in its slot."""

    key: Authenticator = field(default_factory=Authenticator)

    async def send(self, path: str, fields: Mapping[str, Sequence[str]], **headers: str) -> Page:
        return await super().send(path, fields, **{"origin": self.key.origin, **headers})

    async def challenge(self, path: str, fields: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """What the script is given for the form."""
        answer = await self.send(path, fields, accept="application/json")
        assert answer.headers["content-type"] == "application/json", answer.words
        return json.loads(answer.text)

    async def add_key(self, label: str = "blue key") -> Page:
        page = await self.open("/inbox/keys")
        form = page.form("/add")
        fields = {**form.fields, "label": [label]}
        asked = await self.challenge(form.action, fields)
        if "message" in asked:
            raise AssertionError(asked["message"])
        if asked["get"]:
            fields["signature"] = [self.key.get(asked["get"])]
        return await self.send(
            form.action, {**fields, "credential": [self.key.create(asked["create"])], "nonce": [asked["nonce"]]}
        )

    async def sign(self, suspension_id: str, **changes: str) -> Page:
        """Open the question and press the button that signs."""
        page = await self.open(f"/inbox/suspensions/{suspension_id}")
        form = page.form("/decision")
        assert ("decision", "sign", False) in form.buttons, page.words
        return await self.send(form.action, await self.prepare(form, **{n: [v] for n, v in changes.items()}))

    async def prepare(self, form: Form, **changes: Sequence[str]) -> dict[str, Sequence[str]]:
        """The fields of the form, with a signature about them."""
        fields = {**form.fields, "decision": ["sign"], **changes}
        asked = await self.challenge(form.action, fields)
        return {**fields, "signature": [self.key.get(asked["get"])], "nonce": [asked["nonce"]]}


@dataclass
class SigningInbox(Inbox):
    """An inbox with an origin."""

    def signer(self) -> SigningBrowser:
        transport, origin = httpx2.ASGITransport(_behind_tls(self.app)), self.site.origin or ORIGIN
        # A proxy ends https, so the inbox is spoken to without it.
        client = httpx2.AsyncClient(transport=transport, base_url=origin)
        key = Authenticator(origin=origin, rp_id=str(urlsplit(origin).hostname))
        return SigningBrowser(client, self.site, key)

    async def person(self, name: str = "ann") -> SigningBrowser:
        """Somebody who is in and has a key."""
        browser = self.signer()
        await browser.log_in(name)
        added = await browser.add_key()
        assert added.status == 303, added.words
        return browser


def wipe(ledger: Ledger) -> object:
    @planwarden.tool(name="wipe", risk="critical")
    async def tool(what: str, times: int = 1) -> str:
        """Wipe it."""
        ledger.lines.append(f"wipe {what} {times}")
        return "wiped"

    return tool


@asynccontextmanager
async def signing_inbox(
    ledger: Ledger, *, tools: Sequence[object] = (), store: Store | None = None, origin: str = ORIGIN, **policy: Any
) -> AsyncGenerator[SigningInbox]:
    """An inbox at that origin whose owner is ann."""
    rules = OperatorPolicy(same_person=frozenset({"local", "ann"}), **policy)
    settings = Settings(home=Path("/nonexistent"), policy=rules)
    async with warden(tools=[wipe(ledger), *tools], store=store, settings=settings) as made:
        site = InboxSite(service=lambda: made.service, settings=Settings(home=Path("/nonexistent")), origin=origin)
        yield SigningInbox(made, site, build_inbox_app(site, lambda: {urlsplit(origin).netloc, "127.0.0.1:8765"}))


def _behind_tls(app: ASGIApp) -> ASGIApp:
    """A proxy that has TLS: what comes to the application came without."""

    async def passed_on(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "scheme": "http"}, receive, send)

    return passed_on
