"""What a browser is asked for, as the JSON that it takes (https://www.w3.org/TR/webauthn-3/#sctn-parseCreationOptionsFromJSON)."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planwarden.server.signatures.signature import check_available
from planwarden.storage.ports.keys import SigningKey

NONCE_S = 300.0
"""How long a challenge can be signed."""

BrowserOptions = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelyingParty:
    """Where the browser is: keys are bound to it."""

    rp_id: str
    """Name of the host."""
    origin: str
    """Scheme, name and port, as browsers write it."""


def build_request_options(place: RelyingParty, challenge: bytes, keys: Sequence[SigningKey]) -> BrowserOptions:
    """For one signature with one of the keys, by a person whom the key has recognised.

    Raises:
        UsageError: the extra is not installed.
    """
    check_available()
    from webauthn import generate_authentication_options
    from webauthn.helpers import options_to_json_dict
    from webauthn.helpers.structs import PublicKeyCredentialDescriptor, UserVerificationRequirement

    return options_to_json_dict(
        generate_authentication_options(
            rp_id=place.rp_id,
            challenge=challenge,
            timeout=int(NONCE_S * 1000),
            allow_credentials=[PublicKeyCredentialDescriptor(id=key.credential_id) for key in keys],
            user_verification=UserVerificationRequirement.REQUIRED,
        )
    )


def build_creation_options(
    place: RelyingParty, challenge: bytes, principal: str, keys: Sequence[SigningKey]
) -> BrowserOptions:
    """For a new key that is none of the known ones.

    The user's handle is new for each key: an authenticator replaces a key of the same handle, and several homes of one
    machine have the same name.

    Raises:
        UsageError: the extra is not installed.
    """
    check_available()
    from webauthn import generate_registration_options
    from webauthn.helpers import options_to_json_dict
    from webauthn.helpers.structs import (
        AttestationConveyancePreference,
        AuthenticatorSelectionCriteria,
        PublicKeyCredentialDescriptor,
        ResidentKeyRequirement,
        UserVerificationRequirement,
    )

    return options_to_json_dict(
        generate_registration_options(
            rp_id=place.rp_id,
            rp_name="planwarden",
            user_name=principal,
            user_id=secrets.token_bytes(32),
            challenge=challenge,
            timeout=int(NONCE_S * 1000),
            attestation=AttestationConveyancePreference.NONE,
            authenticator_selection=AuthenticatorSelectionCriteria(
                resident_key=ResidentKeyRequirement.DISCOURAGED,
                user_verification=UserVerificationRequirement.REQUIRED,
            ),
            exclude_credentials=[PublicKeyCredentialDescriptor(id=key.credential_id) for key in keys],
        )
    )
