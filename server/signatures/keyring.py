"""Keys of people in use: what is asked of a browser, and what becomes of what it sends back.

A key is added in a session of the inbox. The first one of a person needs no more than that session, every further one a
signature by a key that they have, and pages do not remove the last: so whoever gets hold of a session of somebody with a
key cannot make a key for it. What that leaves open: a stolen session of somebody who has no key yet.
"""

import secrets
from dataclasses import dataclass

from pydantic import JsonValue

from planwarden.agent.common.errors import LimitExceeded, UsageError
from planwarden.agent.core.audit import AuditEntry, Kind
from planwarden.agent.ports.store import Store
from planwarden.server.signatures.browser_options import (
    NONCE_S,
    BrowserOptions,
    RelyingParty,
    build_creation_options,
    build_request_options,
)
from planwarden.server.signatures.signature import (
    KeyRegistration,
    SignatureEvidence,
    SignatureRefused,
    build_challenge,
    build_registration_challenge,
    derive_key_id,
    to_base64url,
    verify_registration,
    verify_signature,
)
from planwarden.storage.ports.keys import KeyUse, Purpose, SigningKey, SigningNonce, counts, keys_of
from planwarden.storage.ports.sessions import NAMED_DIGITS, InboxSession

MAX_KEYS = 20
MAX_LABEL_CHARS = 60
CHANNEL = "inbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedStatement:
    """What is approved by a signature."""

    execution_id: str
    suspension_id: str
    digest: str
    """The approval digest of the revision."""
    content: str = ""
    """Digest of the answer, for a question that has a form."""


class Keyring:
    """The keys of one home."""

    def __init__(self, store: Store) -> None:
        """Raises `UsageError` when the store keeps no keys."""
        self._store = store
        self._keys = keys_of(store)

    async def list_keys(self) -> tuple[SigningKey, ...]:
        """Of everybody, revoked ones included, oldest first."""
        return await self._keys.keys()

    async def list_usable_keys(self, principal: str) -> tuple[SigningKey, ...]:
        """The keys of one person that are not revoked, wherever they can be used."""
        return tuple(key for key in await self._keys.keys(principal) if key.revoked_at is None)

    async def request_signature(
        self, session: InboxSession, place: RelyingParty, statement: SignedStatement
    ) -> BrowserOptions:
        """A challenge for one signature about the statement.

        Raises:
            UsageError: this person has no key for this place.
        """
        known = _filter_by_host(await self.list_usable_keys(session.principal), place)
        if not known:
            raise UsageError(f"you have no key for {place.rp_id}; add one first")
        nonce = await self._store_nonce("sign", session, statement)
        signed = build_challenge(statement.digest, nonce, statement.content)
        return {"nonce": nonce, "get": build_request_options(place, signed, known), "create": None}

    async def record_signature(
        self, session: InboxSession, place: RelyingParty, statement: SignedStatement, nonce: str, text: str
    ) -> None:
        """Count a signature about the statement and keep it in the audit; the challenge is used up, whatever comes of it.

        Raises:
            SignatureRefused: it does not count; that stands in the audit too.
        """
        try:
            await self._verify_and_record(session, place, statement, nonce, text)
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
        self, session: InboxSession, place: RelyingParty, statement: SignedStatement, nonce: str, text: str
    ) -> None:
        asked = await self._take_nonce(nonce, "sign", session)
        if (asked.suspension_id, asked.digest, asked.content) != (
            statement.suspension_id,
            statement.digest,
            statement.content,
        ):
            raise SignatureRefused(
                "what was signed is another question, another revision or another answer; sign again"
            )
        evidence = SignatureEvidence.read(text)
        use = await self._verify_own_signature(
            session, place, evidence, build_challenge(asked.digest, nonce, asked.content)
        )
        facts: dict[str, JsonValue] = {
            "channel": CHANNEL,
            "principal": session.principal,
            "key": use.key_id,
            "rpId": place.rp_id,
            "digest": asked.digest,
            "nonce": nonce,
            **({"content": asked.content} if asked.content else {}),
            **evidence.facts(),
        }
        if not await self._keys.use_key(use, _build_audit_entry("signature", facts, statement)):
            raise SignatureRefused("this key was removed or used elsewhere meanwhile; sign again")

    async def request_key(self, session: InboxSession, place: RelyingParty) -> BrowserOptions:
        """A challenge for a new key, and one for a known key if this person has any.

        Raises:
            UsageError: this person has enough keys, or none of theirs can be used here to add another.
        """
        usable = await self.list_usable_keys(session.principal)
        known = _filter_by_host(usable, place)
        _check_may_add(usable, known)
        nonce = await self._store_nonce("add", session, None)
        return {
            "nonce": nonce,
            "get": build_request_options(place, build_registration_challenge(nonce, "known"), known) if known else None,
            "create": build_creation_options(
                place, build_registration_challenge(nonce, "new"), session.principal, known
            ),
        }

    async def add_key(
        self, session: InboxSession, place: RelyingParty, *, nonce: str, label: str, credential: str, text: str
    ) -> SigningKey:
        """The new key; `text` is the signature of a known one, where one is needed.

        Raises:
            UsageError: the label is empty, too long or not printable.
            SignatureRefused: the key is not a valid one, or the signature does not count.
        """
        label = label.strip()
        if not label or len(label) > MAX_LABEL_CHARS or not label.isprintable():
            raise UsageError(f"name the key with 1 to {MAX_LABEL_CHARS} printable characters")
        await self._take_nonce(nonce, "add", session)
        usable = await self.list_usable_keys(session.principal)
        _check_may_add(usable, _filter_by_host(usable, place))
        made = verify_registration(
            credential, challenge=build_registration_challenge(nonce, "new"), rp_id=place.rp_id, origin=place.origin
        )
        by = None
        if usable:
            by = await self._verify_own_signature(
                session, place, SignatureEvidence.read(text), build_registration_challenge(nonce, "known")
            )
        key = self._build_key(made, session.principal, place, label)
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
            raise SignatureRefused("this key is known already, or your keys changed meanwhile; look at them again")
        return key

    async def remove_own_key(self, session: InboxSession, key_id: str) -> None:
        """End one of this person's keys, but not their last.

        Raises:
            UsageError: it is not theirs, ended before, or is the last one.
        """
        entry = _build_removal_entry(key_id, session.principal, CHANNEL)
        is_own = any(key.key_id == key_id for key in await self.list_usable_keys(session.principal))
        now = self._store.clock.now()
        if not is_own or not await self._keys.revoke_key(key_id, now, entry, spares_last=True):
            raise UsageError(
                "only a key of yours that is not your last is removed here; `planwarden key revoke` in a terminal removes any"
            )

    async def revoke_key(self, named: str, principal: str) -> SigningKey:
        """End any key, for the operator's terminal: by its id or the beginning of it.

        Raises:
            UsageError: there is no such key, several begin so, or it ended before.
        """
        found = [key for key in await self.list_keys() if key.key_id.startswith(named.lower())]
        if len(found) != 1 or len(named) < 4:
            raise UsageError(f"{len(found) if len(named) >= 4 else 'too many'} keys begin with {named[:64]!r}")
        [key] = found
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
        """The nonce, used up. One of another session or purpose is used up too and refused."""
        found = await self._keys.take_nonce(nonce, self._store.clock.now()) if len(nonce) == 64 else None
        if found is None or found.session != session.hash or found.purpose != purpose:
            raise SignatureRefused("what was to be signed was used before, or has expired; sign again")
        return found

    async def _verify_own_signature(
        self, session: InboxSession, place: RelyingParty, evidence: SignatureEvidence, signed: bytes
    ) -> KeyUse:
        """A valid signature by a usable key of this person."""
        known = await self.list_usable_keys(session.principal)
        key = next((key for key in known if key.credential_id == evidence.credential_id), None)
        if key is None:
            raise SignatureRefused("the key that signed is not one of yours, or was removed")
        count = verify_signature(
            evidence, public_key=key.public_key, challenge=signed, rp_id=key.rp_id, origin=place.origin
        )
        if not counts(key.sign_count, count):
            raise SignatureRefused(
                f"key {key.key_id} counts {count} signatures after {key.sign_count}: it may have been copied; "
                "use another, and remove this one"
            )
        return KeyUse(key_id=key.key_id, principal=session.principal, sign_count=count, at=self._store.clock.now())

    def _build_key(self, made: KeyRegistration, principal: str, place: RelyingParty, label: str) -> SigningKey:
        return SigningKey(
            key_id=derive_key_id(made.credential_id),
            credential_id=made.credential_id,
            public_key=made.public_key,
            principal=principal,
            rp_id=place.rp_id,
            label=label,
            sign_count=made.sign_count,
            created_at=self._store.clock.now(),
        )


def _filter_by_host(keys: tuple[SigningKey, ...], place: RelyingParty) -> tuple[SigningKey, ...]:
    return tuple(key for key in keys if key.rp_id == place.rp_id)


def _check_may_add(usable: tuple[SigningKey, ...], known: tuple[SigningKey, ...]) -> None:
    if len(usable) >= MAX_KEYS:
        raise LimitExceeded(f"you have {len(usable)} keys, the limit is {MAX_KEYS}")
    if usable and not known:
        raise UsageError(
            f"another key is added with one that you have, and yours can be used at {usable[0].rp_id} only; "
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
