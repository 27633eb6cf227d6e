"""The signatures of the audit, verified again.

A signature is verified with the public key that its own row of kind `key_added` holds, so an export of the audit is enough
for anybody to do the same; the keys that are stored beside it must agree. A decision that says `signed` must have its
signature before it. Where the inbox listened is not known any more: of the origin only the host is compared.
"""

from collections.abc import Iterable, Iterator

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planwarden.agent.core.audit import DIGEST_CHARS, AuditRow
from planwarden.server.signatures.signature import (
    SignatureEvidence,
    SignatureRefused,
    build_challenge,
    derive_key_id,
    from_base64url,
    is_available,
    to_base64url,
    verify_signature,
)
from planwarden.storage.ports.keys import SigningKey


class _KeyFacts(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, defer_build=True)
    key: str
    principal: str


class _KeyAddedFacts(_KeyFacts):
    rp_id: str = Field(alias="rpId")
    public_key: str = Field(alias="publicKey")


class _SignatureFacts(_KeyFacts):
    digest: str
    nonce: str
    content: str = ""
    credential: str
    authenticator_data: str = Field(alias="authenticatorData")
    client_data: str = Field(alias="clientDataJSON")
    signature: str


class SignatureCheck:
    """Takes the rows of an audit in their order, then the stored keys."""

    def __init__(self) -> None:
        self.verified = 0
        self.unverified = 0
        """Signatures that could not be verified because the extra is not installed."""
        self._is_available = is_available()
        self._keys: dict[str, _KeyAddedFacts] = {}
        self._removed = set[str]()
        self._signed = set[tuple[str | None, str, str]]()

    def check_row(self, row: AuditRow) -> Iterator[str]:
        """What is wrong with the row as far as signatures go."""
        entry = row.entry
        try:
            if entry.kind == "key_added":
                added = _KeyAddedFacts.model_validate(entry.facts)
                self._keys[added.key] = added
            elif entry.kind == "key_removed":
                self._removed.add(_KeyFacts.model_validate(entry.facts).key)
            elif entry.kind == "signature":
                self._check_signature(row, _SignatureFacts.model_validate(entry.facts))
            elif entry.kind in ("decided", "endorsed") and entry.facts.get("assurance") == "signed":
                said = (entry.suspension_id, str(entry.facts.get("digest")), str(entry.facts.get("principal")))
                if said not in self._signed:
                    yield f"row {row.sequence} says signed, and there is no such signature before it"
        except ValidationError:
            yield f"row {row.sequence} of kind {entry.kind} is not in the form of such rows"
        except SignatureRefused as error:
            yield f"row {row.sequence} is no valid signature: {error.message}"

    def compare_keys(self, stored: Iterable[SigningKey]) -> Iterator[str]:
        """Where the stored keys are not those of the audit."""
        found = {key.key_id: key for key in stored}
        for key_id, added in self._keys.items():
            key = found.pop(key_id, None)
            if key is None:
                yield f"key {key_id!r} of the audit is not stored any more"
            elif (key.principal, key.rp_id, to_base64url(key.public_key)) != (
                added.principal,
                added.rp_id,
                added.public_key,
            ):
                yield f"key {key_id!r} is stored otherwise than it was added"
            elif (key.revoked_at is not None) != (key_id in self._removed):
                yield f"key {key_id!r}: the audit and the stored key do not tell the same end"
        yield from (f"key {key_id!r} is stored, and the audit does not know it" for key_id in found)

    def _check_signature(self, row: AuditRow, signed: _SignatureFacts) -> None:
        """Raises `SignatureRefused`."""
        added = self._keys.get(signed.key)
        if added is None or added.principal != signed.principal or signed.key in self._removed:
            raise SignatureRefused(f"{signed.principal!r} had no key {signed.key!r} then")
        try:
            evidence = SignatureEvidence(
                credential_id=from_base64url(signed.credential),
                authenticator_data=from_base64url(signed.authenticator_data),
                client_data=from_base64url(signed.client_data),
                signature=from_base64url(signed.signature),
            )
            public_key = from_base64url(added.public_key)
        except ValueError:
            raise SignatureRefused("its bytes are not base64url") from None
        if derive_key_id(evidence.credential_id) != signed.key:
            raise SignatureRefused("its key is another one than it names")
        if self._is_available:
            expected = build_challenge(signed.digest, signed.nonce, signed.content)
            verify_signature(evidence, public_key=public_key, challenge=expected, rp_id=added.rp_id, origin=None)
            self.verified += 1
        else:
            self.unverified += 1
        self._signed.add((row.entry.suspension_id, signed.digest[:DIGEST_CHARS], signed.principal))
