"""Verifies the signatures in the audit again.

The public key comes from the audit row of kind `key_added`, so anyone can repeat the check with an export of the audit.
The stored keys must agree with those rows. A decision with assurance `signed` needs its signature in an earlier row.
The audit does not record the address of the inbox, so the check compares only the host of the origin.
"""

from collections.abc import Iterable, Iterator

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planwarden.agent.core.execution.audit import DIGEST_CHARS, AuditRow
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
from planwarden.storage.keys import SigningKey


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
    """Checks the rows of an audit, in order, and then the stored keys."""

    def __init__(self) -> None:
        self.verified = 0
        self.unverified = 0
        """The number of signatures that could not be verified because the extra is not installed."""
        self._is_available = is_available()
        self._keys: dict[str, _KeyAddedFacts] = {}
        self._removed = set[str]()
        self._signed = set[tuple[str | None, str, str]]()

    def check_row(self, row: AuditRow) -> Iterator[str]:
        """Yield what is wrong with the keys and signatures in the row."""
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
                claim = (entry.suspension_id, str(entry.facts.get("digest")), str(entry.facts.get("principal")))
                if claim not in self._signed:
                    yield f"row {row.sequence} claims a signature, and no earlier row holds it"
        except ValidationError:
            yield f"row {row.sequence} of kind {entry.kind} does not have the fields of this kind"
        except SignatureRefused as error:
            yield f"row {row.sequence} is not a valid signature: {error.message}"

    def compare_keys(self, keys: Iterable[SigningKey]) -> Iterator[str]:
        """Yield the differences between the stored keys and the keys in the audit."""
        remaining = {key.key_id: key for key in keys}
        for key_id, added in self._keys.items():
            key = remaining.pop(key_id, None)
            if key is None:
                yield f"key {key_id!r} is in the audit and no longer stored"
            elif (key.principal, key.rp_id, to_base64url(key.public_key)) != (
                added.principal,
                added.rp_id,
                added.public_key,
            ):
                yield f"key {key_id!r}: the stored key differs from the one in the audit"
            elif (key.revoked_at is not None) != (key_id in self._removed):
                yield f"key {key_id!r}: the audit and the stored key disagree about its removal"
        yield from (f"key {key_id!r} is stored and not in the audit" for key_id in remaining)

    def _check_signature(self, row: AuditRow, signed: _SignatureFacts) -> None:
        """Verify the signature if the extra is installed; note it for a later decision. Raises `SignatureRefused`."""
        added = self._keys.get(signed.key)
        if added is None or added.principal != signed.principal or signed.key in self._removed:
            raise SignatureRefused(f"{signed.principal!r} had no key {signed.key!r} at that time")
        try:
            evidence = SignatureEvidence.decode(
                credential=signed.credential,
                authenticator_data=signed.authenticator_data,
                client_data=signed.client_data,
                signature=signed.signature,
            )
            public_key = from_base64url(added.public_key)
        except ValueError:
            raise SignatureRefused("its bytes are not base64url") from None
        if derive_key_id(evidence.credential_id) != signed.key:
            raise SignatureRefused("its credential does not belong to the key that it names")
        if self._is_available:
            expected = build_challenge(signed.digest, signed.nonce, signed.content)
            verify_signature(evidence, public_key=public_key, challenge=expected, rp_id=added.rp_id, origin=None)
            self.verified += 1
        else:
            self.unverified += 1
        self._signed.add((row.entry.suspension_id, signed.digest[:DIGEST_CHARS], signed.principal))
