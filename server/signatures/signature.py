"""A person's signatures and new keys: what the browser is asked for, what it sends back, and how that is verified.

A signature is a WebAuthn assertion with user verification (https://www.w3.org/TR/webauthn-3/#sctn-verifying-assertion).
Its challenge is derived from the approval digest, so the signature covers one revision of one question and nothing
else. The audit keeps everything that a later verification needs. A signature does not prove that the person read what
the page showed; nor does it prove the model of the authenticator, because planwarden requests no attestation.
"""

import base64
import hashlib
import re
import secrets
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import msgspec
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from planwarden.agent.common.errors import UsageError
from planwarden.agent.common.imports import LazyModule
from planwarden.storage.keys import SigningKey

if TYPE_CHECKING:
    import webauthn
    import webauthn.helpers.exceptions
    from webauthn.helpers import structs
    from webauthn.registration.verify_registration_response import VerifiedRegistration
else:
    webauthn, structs = LazyModule("webauthn"), LazyModule("webauthn.helpers.structs")

EXTRA = "pip install 'planwarden[signed]'"
CONTEXT = "approval-signature/v1"
REGISTRATION_CONTEXT = "key-registration/v1"

NONCE_S = 300.0
"""How long a challenge is valid."""

BrowserOptions = dict[str, Any]

_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")
_DAMAGED = (ValueError, KeyError, TypeError, IndexError)


class SignatureRefused(UsageError):
    """The signature does not count, and nothing was decided."""

    code = "signature_refused"


class _ClientData(BaseModel):
    """The client data of the browser (https://www.w3.org/TR/webauthn-3/#dictdef-collectedclientdata)."""

    model_config = ConfigDict(strict=True, defer_build=True)
    origin: str
    cross_origin: bool = Field(default=False, alias="crossOrigin")


class _Response(BaseModel):
    model_config = ConfigDict(strict=True, defer_build=True)
    client_data: str = Field(alias="clientDataJSON", max_length=8_000)
    authenticator_data: str = Field(alias="authenticatorData", max_length=4_000)
    signature: str = Field(max_length=4_000)


class _Assertion(BaseModel):
    """What the script of the inbox sends (https://www.w3.org/TR/webauthn-3/#dictdef-authenticationresponsejson)."""

    model_config = ConfigDict(strict=True, defer_build=True)
    credential_id: str = Field(alias="id", min_length=1, max_length=1_400)
    response: _Response


class SignatureEvidence(msgspec.Struct, frozen=True):
    """One signature with everything that its verification needs."""

    credential_id: bytes
    authenticator_data: bytes
    client_data: bytes
    """The browser's JSON; the signature covers it, including its challenge and origin."""
    signature: bytes

    @classmethod
    def decode(cls, *, credential: str, authenticator_data: str, client_data: str, signature: str) -> Self:
        """Return the evidence, decoded from its base64url parts. Raises `ValueError` for other text."""
        return cls(*map(from_base64url, (credential, authenticator_data, client_data, signature)))

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the evidence in the text that a page sent. Raises `SignatureRefused` for any other text."""
        try:
            assertion = _Assertion.model_validate_json(text)
            return cls.decode(credential=assertion.credential_id, **assertion.response.model_dump())
        except ValueError:
            raise SignatureRefused("the page did not send a signature in the expected format") from None

    def facts(self) -> dict[str, JsonValue]:
        """Return the facts of the audit row."""
        return {
            "credential": to_base64url(self.credential_id),
            "authenticatorData": to_base64url(self.authenticator_data),
            "clientDataJSON": to_base64url(self.client_data),
            "signature": to_base64url(self.signature),
        }


def is_available() -> bool:
    """Return whether this installation can verify signatures."""
    return find_spec("webauthn") is not None


def build_challenge(digest: str, nonce: str, content: str = "") -> bytes:
    """Return the 32 bytes to sign: a hash of the approval digest, the server's nonce and, for a form, the digest of the
    answer.

    Each part is hexadecimal and has a fixed length, so no two triples produce the same text.
    """
    return hashlib.sha256(f"{CONTEXT}\0{digest}{nonce}{content}".encode()).digest()


def build_registration_challenge(nonce: str, step: str) -> bytes:
    """Return the 32 bytes to sign when a person adds a key; `step` separates the new key's challenge from the known
    key's."""
    return hashlib.sha256(f"{REGISTRATION_CONTEXT}\0{step}\0{nonce}".encode()).digest()


def derive_key_id(credential_id: bytes) -> str:
    return hashlib.sha256(credential_id).hexdigest()[:16]


def verify_signature(
    evidence: SignatureEvidence, *, public_key: bytes, challenge: bytes, rp_id: str, origin: str | None
) -> int:
    """Verify a signature and return its sign count; the caller checks that the count has grown.

    If `origin` is None, accept any origin of the host `rp_id`, because the audit does not record the address of the
    inbox.

    Raises:
        SignatureRefused: the signature is invalid or covers something else; the message says which.
        UsageError: the extra is not installed.
    """
    check_available()
    try:
        client = _ClientData.model_validate_json(evidence.client_data)
    except ValidationError:
        raise SignatureRefused("the signature does not name its origin") from None
    if client.cross_origin:
        raise SignatureRefused("the signature comes from a page inside another site")
    if origin is None and can_use_keys_of(client.origin, rp_id):
        origin = client.origin
    try:
        verified = webauthn.verify_authentication_response(
            credential=structs.AuthenticationCredential(
                id=to_base64url(evidence.credential_id),
                raw_id=evidence.credential_id,
                response=structs.AuthenticatorAssertionResponse(
                    client_data_json=evidence.client_data,
                    authenticator_data=evidence.authenticator_data,
                    signature=evidence.signature,
                ),
            ),
            expected_challenge=challenge,
            expected_rp_id=rp_id,
            expected_origin=origin or "",
            credential_public_key=public_key,
            # The transaction that records the signature compares the count.
            credential_current_sign_count=0,
            require_user_verification=True,
        )
    # The library's own errors, and the errors that it and `cryptography` raise if a key is damaged.
    except (webauthn.helpers.exceptions.WebAuthnException, *_DAMAGED) as error:
        raise SignatureRefused(f"the signature is not valid: {error}"[:300]) from error
    return verified.new_sign_count


def verify_registration(text: str, *, challenge: bytes, rp_id: str, origin: str) -> "VerifiedRegistration":
    """Verify and return the new key that a page sent; the authenticator must have verified its user.

    Raises:
        SignatureRefused: the key is not valid; the message says why.
        UsageError: the extra is not installed.
    """
    check_available()
    if len(text) > 32_000:
        raise SignatureRefused("the new key is too large")
    try:
        return webauthn.verify_registration_response(
            credential=text,
            expected_challenge=challenge,
            expected_rp_id=rp_id,
            expected_origin=origin,
            require_user_verification=True,
        )
    # The library parses attestations of many kinds, and passes on whatever errors a hostile one causes there.
    except Exception as error:
        raise SignatureRefused(f"the new key is not valid: {error}"[:300]) from error


def can_use_keys_of(origin: str, host: str) -> bool:
    """Return whether a page of this origin can use keys of `host`: the same host, by https or on `localhost`."""
    parts = urlsplit(origin)
    return parts.hostname == host and (parts.scheme == "https" or host == "localhost")


def to_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """Decode the text. Raises `ValueError` if it has other characters or an impossible length."""
    if not _BASE64URL.fullmatch(text):
        raise ValueError("not base64url")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def check_available() -> None:
    """Raise `UsageError` if this installation cannot create and verify signatures."""
    if not is_available():
        raise UsageError(f"signing needs an extra that is not installed with planwarden: {EXTRA}")


class RelyingParty(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the inbox as browsers see it; browsers bind keys to it."""

    rp_id: str
    """The name of the host."""
    origin: str
    """Scheme, host name and port, as browsers write them."""


def build_request_options(relying_party: RelyingParty, challenge: bytes, keys: Sequence[SigningKey]) -> BrowserOptions:
    """Return the options for one signature with one of the keys, with user verification.

    Raises:
        UsageError: the extra is not installed.
    """
    check_available()
    return webauthn.helpers.options_to_json_dict(
        webauthn.generate_authentication_options(
            rp_id=relying_party.rp_id,
            challenge=challenge,
            timeout=int(NONCE_S * 1000),
            allow_credentials=[structs.PublicKeyCredentialDescriptor(id=key.credential_id) for key in keys],
            user_verification=structs.UserVerificationRequirement.REQUIRED,
        )
    )


def build_creation_options(
    relying_party: RelyingParty, challenge: bytes, principal: str, keys: Sequence[SigningKey]
) -> BrowserOptions:
    """Return the options for a new key other than the known ones.

    Each key gets a new user handle, because an authenticator replaces a key with the same handle and host, and several
    homes of one machine share a host.

    Raises:
        UsageError: the extra is not installed.
    """
    check_available()
    return webauthn.helpers.options_to_json_dict(
        webauthn.generate_registration_options(
            rp_id=relying_party.rp_id,
            rp_name="planwarden",
            user_name=principal,
            user_id=secrets.token_bytes(32),
            challenge=challenge,
            timeout=int(NONCE_S * 1000),
            attestation=structs.AttestationConveyancePreference.NONE,
            authenticator_selection=structs.AuthenticatorSelectionCriteria(
                resident_key=structs.ResidentKeyRequirement.DISCOURAGED,
                user_verification=structs.UserVerificationRequirement.REQUIRED,
            ),
            exclude_credentials=[structs.PublicKeyCredentialDescriptor(id=key.credential_id) for key in keys],
        )
    )
