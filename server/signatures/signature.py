"""A person's signature over an approval digest: what is signed, what of it is kept, and how it is verified.

What is signed is a WebAuthn assertion with user verification (https://www.w3.org/TR/webauthn-3/#sctn-verifying-assertion)
whose challenge rests on the approval digest, so that the signature is about one revision of one question and nothing else.
All that is needed to verify it again is kept, in the audit. What is not proven: that the person read what was shown, and
that the authenticator is what it says it is, because attestation is not asked for.

The library `webauthn` is an extra and is imported when used.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from planwarden.agent.common.errors import UsageError

if TYPE_CHECKING:
    from webauthn.helpers.structs import AuthenticationCredential

EXTRA = "pip install 'planwarden[signed]'"
CONTEXT = "approval-signature/v1"
REGISTRATION_CONTEXT = "key-registration/v1"

_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")


class SignatureRefused(UsageError):
    """The signature does not count; nothing was decided."""

    code = "signature_refused"


class _ClientData(BaseModel):
    """What the browser says about the ceremony (https://www.w3.org/TR/webauthn-3/#dictdef-collectedclientdata)."""

    model_config = ConfigDict(strict=True, defer_build=True)
    origin: str
    cross_origin: bool = Field(default=False, alias="crossOrigin")


class _Response(BaseModel):
    model_config = ConfigDict(strict=True, defer_build=True)
    client_data: str = Field(alias="clientDataJSON", max_length=8_000)
    authenticator_data: str = Field(alias="authenticatorData", max_length=4_000)
    signature: str = Field(max_length=4_000)


class _Assertion(BaseModel):
    """What the inbox's script sends; the form of https://www.w3.org/TR/webauthn-3/#dictdef-authenticationresponsejson."""

    model_config = ConfigDict(strict=True, defer_build=True)
    credential_id: str = Field(alias="id", min_length=1, max_length=1_400)
    response: _Response


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureEvidence:
    """One signature, whole."""

    credential_id: bytes
    authenticator_data: bytes
    client_data: bytes
    """JSON as the browser made it; its challenge and its origin are signed with it."""
    signature: bytes

    @classmethod
    def read(cls, text: str) -> "SignatureEvidence":
        """The evidence that a page sent. Raises `SignatureRefused` for anything else."""
        try:
            found = _Assertion.model_validate_json(text)
            return cls(
                credential_id=from_base64url(found.credential_id),
                authenticator_data=from_base64url(found.response.authenticator_data),
                client_data=from_base64url(found.response.client_data),
                signature=from_base64url(found.response.signature),
            )
        except ValueError:
            raise SignatureRefused("the signature is not in the form that the page sends") from None

    def facts(self) -> dict[str, JsonValue]:
        """As it stands in the audit."""
        return {
            "credential": to_base64url(self.credential_id),
            "authenticatorData": to_base64url(self.authenticator_data),
            "clientDataJSON": to_base64url(self.client_data),
            "signature": to_base64url(self.signature),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRegistration:
    """A new key, as its authenticator made it."""

    credential_id: bytes
    public_key: bytes
    sign_count: int


def is_available() -> bool:
    """Whether signatures can be verified by this installation."""
    return find_spec("webauthn") is not None


def build_challenge(digest: str, nonce: str, content: str = "") -> bytes:
    """The 32 bytes to be signed: over the approval digest, the server's nonce, and the digest of the answer if there is one.

    All three are hexadecimal and of one length each, so no two triples have the same text.
    """
    return hashlib.sha256(f"{CONTEXT}\0{digest}{nonce}{content}".encode()).digest()


def build_registration_challenge(nonce: str, step: str) -> bytes:
    """The 32 bytes to be signed when a key is added; `step` keeps the new key's and the known one's apart."""
    return hashlib.sha256(f"{REGISTRATION_CONTEXT}\0{step}\0{nonce}".encode()).digest()


def derive_key_id(credential_id: bytes) -> str:
    return hashlib.sha256(credential_id).hexdigest()[:16]


def verify_signature(
    evidence: SignatureEvidence, *, public_key: bytes, challenge: bytes, rp_id: str, origin: str | None
) -> int:
    """The sign count of a valid signature by the person at that place; whether it has grown is for the caller to judge.

    With `origin` None any origin of the host `rp_id` will do: where the inbox listened is not known afterwards.

    Raises:
        SignatureRefused: it is not one, or of something else; the message says what is wrong.
        UsageError: the extra is not installed.
    """
    check_available()
    from webauthn import verify_authentication_response
    from webauthn.helpers.exceptions import WebAuthnException

    try:
        client = _ClientData.model_validate_json(evidence.client_data)
    except ValidationError:
        raise SignatureRefused("the signature does not say where it was made") from None
    if client.cross_origin:
        raise SignatureRefused("the signature was made inside a page of another site")
    if origin is None and can_use_keys_of(client.origin, rp_id):
        origin = client.origin
    try:
        verified = verify_authentication_response(
            credential=_build_credential(evidence),
            expected_challenge=challenge,
            expected_rp_id=rp_id,
            expected_origin=origin or "",
            credential_public_key=public_key,
            # The count is compared in the transaction that counts the signature.
            credential_current_sign_count=0,
            require_user_verification=True,
        )
    # Besides the library's own errors: what a damaged key makes it and `cryptography` raise.
    except (WebAuthnException, ValueError, KeyError, TypeError, IndexError) as error:
        raise SignatureRefused(f"the signature is not valid: {error}"[:300]) from error
    return verified.new_sign_count


def verify_registration(text: str, *, challenge: bytes, rp_id: str, origin: str) -> KeyRegistration:
    """The new key that a page sent, made with user verification.

    Raises:
        SignatureRefused: it is not one; the message says what is wrong.
        UsageError: the extra is not installed.
    """
    check_available()
    from webauthn import verify_registration_response
    from webauthn.helpers.exceptions import WebAuthnException

    if len(text) > 32_000:
        raise SignatureRefused("the new key is larger than any key")
    try:
        verified = verify_registration_response(
            credential=text,
            expected_challenge=challenge,
            expected_rp_id=rp_id,
            expected_origin=origin,
            require_user_verification=True,
        )
    # Besides the library's own errors: what hostile attestation makes it and `cryptography` raise.
    except (WebAuthnException, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise SignatureRefused(f"the new key is not valid: {error}"[:300]) from error
    return KeyRegistration(
        credential_id=verified.credential_id,
        public_key=verified.credential_public_key,
        sign_count=verified.sign_count,
    )


def can_use_keys_of(origin: str, host: str) -> bool:
    """Whether a page of that origin may use keys of `host`: the same name, over https or on this machine."""
    parts = urlsplit(origin)
    return parts.hostname == host and (parts.scheme == "https" or host == "localhost")


def to_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """Raises `ValueError` for other characters and impossible lengths."""
    if not _BASE64URL.fullmatch(text):
        raise ValueError("not base64url")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def check_available() -> None:
    """Raises `UsageError` when signatures cannot be made and verified by this installation."""
    if not is_available():
        raise UsageError(f"signing needs an extra that is not installed where planwarden runs: {EXTRA}")


def _build_credential(evidence: SignatureEvidence) -> "AuthenticationCredential":
    from webauthn.helpers.structs import AuthenticationCredential, AuthenticatorAssertionResponse

    return AuthenticationCredential(
        id=to_base64url(evidence.credential_id),
        raw_id=evidence.credential_id,
        response=AuthenticatorAssertionResponse(
            client_data_json=evidence.client_data,
            authenticator_data=evidence.authenticator_data,
            signature=evidence.signature,
        ),
    )
