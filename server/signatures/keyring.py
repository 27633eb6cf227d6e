"""The signing keys of people: requesting signatures and keys from a browser, and checking what it sends back.

A person adds a key in a session of the inbox. Their first key needs only that session; each further key needs a
signature by a key that they have. The inbox never removes a person's last key. So the thief of a session cannot add a
key for a person who has one. But nothing stops such a thief from adding the first key of a person who has none.
"""

import secrets

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import LimitExceeded, UsageError
from planwarden.agent.core.execution.audit import AuditEntry, Kind
from planwarden.agent.ports.store import Store
from planwarden.server.signatures.signature import (
    NONCE_S,
    BrowserOptions,
    RelyingParty,
    SignatureEvidence,
    SignatureRefused,
    build_challenge,
    build_creation_options,
    build_registration_challenge,
    build_request_options,
    derive_key_id,
    to_base64url,
    verify_registration,
    verify_signature,
)
from planwarden.server.views.escaping import complete_id
from planwarden.storage.keys import KeyStore, KeyUse, Purpose, SigningKey, SigningNonce, counts
from planwarden.storage.sessions import NAMED_DIGITS, InboxSession

MAX_KEYS = 20
MAX_LABEL_CHARS = 60
MIN_BEGINNING_CHARS = 4
CHANNEL = "inbox"


class SignedStatement(msgspec.Struct, frozen=True, kw_only=True):
    """What a signature approves."""

    execution_id: str
    suspension_id: str
    digest: str
    """The question's approval digest."""
    content: str = ""
    """The digest of the answer, for a question with a form."""


class Keyring:
    """The keys of one home."""

    def __init__(self, store: Store) -> None:
        """Raise `UsageError` if the store cannot keep keys."""
        self._store = store
        self._keys = KeyStore(store)

    async def list_keys(self) -> tuple[SigningKey, ...]:
        """Return the keys of all people, including revoked keys, oldest first."""
        return await self._keys.all()

    async def list_usable_keys(self, principal: str) -> tuple[SigningKey, ...]:
        """Return the keys of one person that are not revoked, for every host."""
        return tuple(key for key in await self._keys.all(principal) if key.revoked_at is None)

    async def request_signature(
        self, session: InboxSession, relying_party: RelyingParty, statement: SignedStatement
    ) -> BrowserOptions:
        """Return the options with which the browser asks for one signature over the statement.

        Raises:
            UsageError: this person has no key for this host.
        """
        keys = _filter_by_host(await self.list_usable_keys(session.principal), relying_party)
        if not keys:
            raise UsageError(f"you have no key for {relying_party.rp_id}; add one first")
        nonce = await self._store_nonce("sign", session, statement)
        signed = build_challenge(statement.digest, nonce, statement.content)
        return {"nonce": nonce, "get": build_request_options(relying_party, signed, keys), "create": None}

    async def record_signature(
        self, session: InboxSession, relying_party: RelyingParty, statement: SignedStatement, nonce: str, text: str
    ) -> None:
        """Verify a signature over the statement and record it in the audit. The challenge cannot be used again, even if
        the verification fails.

        Raises:
            SignatureRefused: the signature does not count; the audit records the refusal.
        """
        try:
            await self._verify_and_record(session, relying_party, statement, nonce, text)
        except SignatureRefused as error:
            facts: dict[str, JsonValue] = {
                "assurance": "signed",
                "channel": CHANNEL,
                "principal": session.principal,
                "reason": error.message[:200],
            }
            await self._store.audit((_build_audit_entry("refused", facts, statement),))
            raise

    async def _verify_and_record(
        self, session: InboxSession, relying_party: RelyingParty, statement: SignedStatement, nonce: str, text: str
    ) -> None:
        stored = await self._take_nonce(nonce, "sign", session)
        expected = (statement.suspension_id, statement.digest, statement.content)
        if (stored.suspension_id, stored.digest, stored.content) != expected:
            raise SignatureRefused("you signed another question, another revision or another answer; sign again")
        evidence = SignatureEvidence.read(text)
        challenge = build_challenge(stored.digest, nonce, stored.content)
        use = await self._verify_own_signature(session, relying_party, evidence, challenge)
        facts: dict[str, JsonValue] = {
            "channel": CHANNEL,
            "principal": session.principal,
            "key": use.key_id,
            "rpId": relying_party.rp_id,
            "digest": stored.digest,
            "nonce": nonce,
            **({"content": stored.content} if stored.content else {}),
            **evidence.facts(),
        }
        if not await self._keys.use_key(use, _build_audit_entry("signature", facts, statement)):
            raise SignatureRefused("this key was removed or used elsewhere in the meantime; sign again")

    async def request_key(self, session: InboxSession, relying_party: RelyingParty) -> BrowserOptions:
        """Return the browser's options for a new key and, if this person has a key, for a signature by a known one.

        Raises:
            UsageError: this person has too many keys, or has keys for other hosts only.
        """
        usable = await self.list_usable_keys(session.principal)
        keys_here = _filter_by_host(usable, relying_party)
        _check_may_add(usable, keys_here)
        nonce = await self._store_nonce("add", session, None)
        by_known, by_new = (build_registration_challenge(nonce, step) for step in ("known", "new"))
        return {
            "nonce": nonce,
            "get": build_request_options(relying_party, by_known, keys_here) if keys_here else None,
            "create": build_creation_options(relying_party, by_new, session.principal, keys_here),
        }

    async def add_key(
        self, session: InboxSession, relying_party: RelyingParty, *, nonce: str, label: str, credential: str, text: str
    ) -> SigningKey:
        """Add a key and return it; `text` is the signature of a known key, if this person has one.

        Raises:
            UsageError: the label is empty, too long or not printable, or this person cannot add a key here.
            SignatureRefused: the key is not valid, or the signature does not count.
        """
        label = label.strip()
        if not label or len(label) > MAX_LABEL_CHARS or not label.isprintable():
            raise UsageError(f"name the key with 1 to {MAX_LABEL_CHARS} printable characters")
        await self._take_nonce(nonce, "add", session)
        usable = await self.list_usable_keys(session.principal)
        _check_may_add(usable, _filter_by_host(usable, relying_party))
        registration = verify_registration(
            credential,
            challenge=build_registration_challenge(nonce, "new"),
            rp_id=relying_party.rp_id,
            origin=relying_party.origin,
        )
        by = None
        if usable:
            by = await self._verify_own_signature(
                session, relying_party, SignatureEvidence.read(text), build_registration_challenge(nonce, "known")
            )
        key = SigningKey(
            key_id=derive_key_id(registration.credential_id),
            credential_id=registration.credential_id,
            public_key=registration.credential_public_key,
            principal=session.principal,
            rp_id=relying_party.rp_id,
            label=label,
            sign_count=registration.sign_count,
            created_at=self._store.clock.now(),
        )
        facts: dict[str, JsonValue] = {
            "channel": CHANNEL,
            "principal": key.principal,
            "key": key.key_id,
            "label": label,
            "rpId": key.rp_id,
            "publicKey": to_base64url(key.public_key),
            "session": session.hash[:NAMED_DIGITS],
            **({"confirmedBy": by.key_id} if by is not None else {}),
        }
        if not await self._keys.add_key(key, by, AuditEntry(kind="key_added", facts=facts)):
            raise SignatureRefused(
                "this key is registered already, or your keys changed in the meantime; reload the page of your keys"
            )
        return key

    async def remove_own_key(self, session: InboxSession, key_id: str) -> None:
        """Revoke one of this person's keys, but not their last.

        Raises:
            UsageError: the key is not theirs, was revoked before, or is their last.
        """
        entry = _build_removal_entry(key_id, session.principal, CHANNEL)
        is_own = any(key.key_id == key_id for key in await self.list_usable_keys(session.principal))
        now = self._store.clock.now()
        if not is_own or not await self._keys.revoke_key(key_id, now, entry, spares_last=True):
            raise UsageError(
                "this page removes only your own keys, and not your last one; `planwarden key revoke` in a terminal "
                "removes any key"
            )

    async def revoke_key(self, beginning: str, principal: str) -> SigningKey:
        """Revoke any key by its id or the first 4 or more characters; return it. Only for the operator's terminal.

        Raises:
            UsageError: the text is too short, no key or several keys begin with it, or the key was revoked before.
        """
        if len(beginning) < MIN_BEGINNING_CHARS:
            raise UsageError(f"write at least {MIN_BEGINNING_CHARS} characters of the key's id; a revocation is final")
        keys = {key.key_id: key for key in await self.list_keys()}
        key = keys.get(complete_id(beginning.lower(), keys, "key"))
        if key is None:
            raise UsageError(f"there is no key {beginning[:64]!r}; `planwarden key list` shows the keys")
        if not await self._keys.revoke_key(
            key.key_id, self._store.clock.now(), _build_removal_entry(key.key_id, principal, "terminal", key.principal)
        ):
            raise UsageError(f"key {key.key_id!r} was revoked before")
        return key

    async def _store_nonce(self, purpose: Purpose, session: InboxSession, statement: SignedStatement | None) -> str:
        now = self._store.clock.now()
        nonce = SigningNonce(
            nonce=secrets.token_hex(32),
            purpose=purpose,
            session=session.hash,
            suspension_id=statement.suspension_id if statement is not None else "",
            digest=statement.digest if statement is not None else "",
            content=statement.content if statement is not None else "",
            expires_at=now + NONCE_S,
        )
        await self._keys.add_nonce(nonce, now)
        return nonce.nonce

    async def _take_nonce(self, nonce: str, purpose: Purpose, session: InboxSession) -> SigningNonce:
        """Take and return the nonce. Raises `SignatureRefused` unless it is valid for this session and purpose."""
        challenge = await self._keys.take_nonce(nonce, self._store.clock.now()) if len(nonce) == 64 else None
        if challenge is None or challenge.session != session.hash or challenge.purpose != purpose:
            raise SignatureRefused("this challenge was used before, or has expired; sign again")
        return challenge

    async def _verify_own_signature(
        self, session: InboxSession, relying_party: RelyingParty, evidence: SignatureEvidence, signed: bytes
    ) -> KeyUse:
        """Verify that a usable key of this person signed, and return its `KeyUse`. Raises `SignatureRefused`."""
        keys = await self.list_usable_keys(session.principal)
        key = next((key for key in keys if key.credential_id == evidence.credential_id), None)
        if key is None:
            raise SignatureRefused("the key that signed is not yours, or was removed")
        count = verify_signature(
            evidence, public_key=key.public_key, challenge=signed, rp_id=key.rp_id, origin=relying_party.origin
        )
        if not counts(key.sign_count, count):
            raise SignatureRefused(
                f"key {key.key_id} counts {count} signatures after {key.sign_count}: it may have been copied; "
                "use another key, and remove this one"
            )
        return KeyUse(key_id=key.key_id, principal=session.principal, sign_count=count, at=self._store.clock.now())


def _filter_by_host(keys: tuple[SigningKey, ...], relying_party: RelyingParty) -> tuple[SigningKey, ...]:
    return tuple(key for key in keys if key.rp_id == relying_party.rp_id)


def _check_may_add(usable: tuple[SigningKey, ...], keys_here: tuple[SigningKey, ...]) -> None:
    if len(usable) >= MAX_KEYS:
        raise LimitExceeded(f"you have {len(usable)} keys, the limit is {MAX_KEYS}")
    if usable and not keys_here:
        raise UsageError(
            f"a new key needs a signature by a key of yours, but yours work only at {usable[0].rp_id}; "
            "`planwarden key revoke` in a terminal removes them"
        )


def _build_audit_entry(kind: Kind, facts: dict[str, JsonValue], statement: SignedStatement) -> AuditEntry:
    return AuditEntry(
        kind=kind, facts=facts, execution_id=statement.execution_id, suspension_id=statement.suspension_id
    )


def _build_removal_entry(key_id: str, principal: str, channel: str, owner: str | None = None) -> AuditEntry:
    facts: dict[str, JsonValue] = {"key": key_id, "principal": principal, "channel": channel}
    if owner not in (None, principal):
        facts["owner"] = owner
    return AuditEntry(kind="key_removed", facts=facts)
