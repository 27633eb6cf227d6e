"""The options for a browser's key API, as JSON.

Source: https://www.w3.org/TR/webauthn-3/#sctn-parseCreationOptionsFromJSON
"""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from planwarden.agent.common.imports import LazyModule
from planwarden.server.signatures.signature import check_available
from planwarden.storage.keys import SigningKey

if TYPE_CHECKING:
    import webauthn
    from webauthn.helpers import structs
else:
    webauthn, structs = LazyModule("webauthn"), LazyModule("webauthn.helpers.structs")

NONCE_S = 300.0
"""How long a challenge is valid."""

BrowserOptions = dict[str, Any]


class RelyingParty(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the inbox as browsers see it; browsers bind keys to it."""

    rp_id: str
    """The name of the host."""
    origin: str
    """Scheme, host name and port, as browsers write them."""


def build_request_options(relying_party: RelyingParty, challenge: bytes, keys: Sequence[SigningKey]) -> BrowserOptions:
    """Options for one signature with one of the keys, with user verification.

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
    """Options for a new key other than the known ones.

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
