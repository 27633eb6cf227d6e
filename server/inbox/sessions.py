"""Access to the inbox: one-time codes that never pass through MCP, and the sessions that they open.

A link holds 256 random bits. A typed code holds 60 bits, and a lockout protects it. Both expire within minutes, using
either code voids both, and the store holds only hashes. Codes and sessions do not keep out other programs of the same
operating-system user, and cookies are not hidden from other servers on the same loopback address: browsers send cookies
to every port of a host (https://www.rfc-editor.org/rfc/rfc6265#section-8.5).
"""

import hashlib
import hmac
import math
import secrets

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from planwarden.agent.common.errors import RateLimited, UsageError
from planwarden.agent.core.execution.audit import AuditEntry, Kind
from planwarden.server.inbox.passphrase import Passphrase
from planwarden.storage.sessions import NAMED_DIGITS, CodeRefusal, InboxSession, Pairing
from planwarden.storage.sql.records import RecordStore, RecordTransaction

CODE_S = 600.0
"""How long a code is valid."""
SESSION_S = 12 * 3600.0
"""How long a session lasts; use does not extend it."""
TYPED_CHARS = 12
ATTEMPTS, ATTEMPTS_S = 5, 900.0
"""The number of wrong codes after which every typed code is refused, and the seconds for which a wrong code counts."""
PASSPHRASE_ATTEMPTS = 5
MAX_PRINCIPAL_CHARS = 128
_LOCK = "codes"
"""The lock of operations that use or void codes."""

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32, in which no two characters look alike (https://www.crockford.com/base32.html)."""
_LOOKALIKES = str.maketrans({"O": "0", "I": "1", "L": "1"})


class CodeRefused(UsageError):
    """This code is not valid: it is unknown, was used, or has expired; make a new one with `planwarden inbox`."""

    code = "code_refused"


class PassphraseRefused(UsageError):
    """The passphrase is wrong; try again."""

    code = "passphrase_refused"


class PairingCodes(msgspec.Struct, frozen=True, kw_only=True):
    """The two codes of one pairing; a person uses one of them, once."""

    link: str
    typed: str
    """The code to type, in groups with dashes."""
    expires_at: float


class OpenedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A new session. The token goes into the cookie and is stored nowhere else."""

    token: str
    session: InboxSession


class InboxAccess:
    """Makes and redeems one-time codes; finds and ends sessions.

    Guarantees: if several calls use one pairing's codes at once, only one opens a session. A change that lets a
    person in, keeps a person out or ends a session is stored together with its row of the audit, or not at all.
    """

    def __init__(self, store: object, passphrase: Passphrase | None = None) -> None:
        """Raise `UsageError` if the store keeps no records."""
        self._pairings = RecordStore(store, Pairing)
        self._sessions = RecordStore(store, InboxSession)
        self._refusals = RecordStore(store, CodeRefusal)
        self._clock = self._pairings.clock
        self._passphrase = passphrase

    async def make_codes(self, principal: str, channel: str) -> PairingCodes:
        """Make codes that open a session for `principal`; the audit records `channel` as their origin.

        Raises:
            UsageError: the name is empty, too long or not printable.
        """
        name = principal.strip()
        if not name or len(name) > MAX_PRINCIPAL_CHARS or not name.isprintable():
            raise UsageError(f"a name has 1 to {MAX_PRINCIPAL_CHARS} printable characters")
        now = self._clock.now()
        link = secrets.token_urlsafe(32)
        typed = "".join(secrets.choice(_ALPHABET) for _ in range(TYPED_CHARS))
        pairing = Pairing(
            link_hash=_hash("code", link), typed_hash=_hash("code", typed), principal=name, expires_at=now + CODE_S
        )

        def add(transaction: RecordTransaction) -> bool:
            for kind in (Pairing, InboxSession):
                transaction.delete_due(kind, now)
            return transaction.insert(pairing)

        await self._pairings.write(add, _build_audit_entry("code_made", principal=name, channel=channel))
        dashed = "-".join(typed[start : start + 4] for start in range(0, len(typed), 4))
        return PairingCodes(link=link, typed=dashed, expires_at=now + CODE_S)

    async def redeem(self, text: str, passphrase: str = "") -> OpenedSession:
        """Open a session with an unused code.

        Raises:
            RateLimited: too many codes were wrong; typed codes are refused for a while, links still work.
            CodeRefused: the code is unknown, used or expired; the message does not say which.
            PassphraseRefused: the passphrase is wrong; the code still works unless this was the last attempt.
        """
        now = self._clock.now()
        code_hash = _hash("code", _normalize_code(text))
        pairing = await self._pairings.find(code_hash, now)
        if pairing is None:
            await self._check_lockout(now)
            typed = [other for other in await self._pairings.all(code_hash) if other.expires_at > now]
            if not typed:
                await self._refuse(now)
                raise CodeRefused
            pairing = typed[0]
        if self._passphrase is not None and not await anyio.to_thread.run_sync(self._passphrase.matches, passphrase):
            await self._count_attempt(pairing, now)
            raise PassphraseRefused
        token = secrets.token_urlsafe(32)
        session = InboxSession(
            hash=_hash("session", token), principal=pairing.principal, created_at=now, expires_at=now + SESSION_S
        )
        entry = _build_audit_entry("session_opened", principal=pairing.principal, session=session.hash[:NAMED_DIGITS])

        def use(transaction: RecordTransaction) -> bool:
            return transaction.delete(Pairing, pairing.link_hash) and transaction.insert(session)

        if not await self._pairings.write(use, entry, lock=_LOCK):
            raise CodeRefused
        return OpenedSession(token=token, session=session)

    async def _refuse(self, now: float) -> None:
        """Count a wrong code; delete refusals that no longer count."""
        refusal = CodeRefusal(refusal_id=secrets.token_hex(8), expires_at=now + ATTEMPTS_S)

        def add(transaction: RecordTransaction) -> bool:
            transaction.delete_due(CodeRefusal, now)
            return transaction.insert(refusal)

        await self._refusals.write(add, _build_audit_entry("code_refused", why="code"))

    async def _count_attempt(self, pairing: Pairing, now: float) -> None:
        """Count a wrong passphrase; after the last attempt, both codes are void."""

        def count(transaction: RecordTransaction) -> bool:
            stored = transaction.find(Pairing, pairing.link_hash, now)
            if stored is None:
                return False
            if stored.attempts + 1 >= PASSPHRASE_ATTEMPTS:
                return transaction.delete(Pairing, stored.link_hash)
            return transaction.change(replace(stored, attempts=stored.attempts + 1))

        entry = _build_audit_entry("code_refused", why="passphrase", principal=pairing.principal)
        await self._pairings.write(count, entry, lock=_LOCK)

    async def _check_lockout(self, now: float) -> None:
        """Raise `RateLimited` after `ATTEMPTS` wrong codes, before any typed code is compared."""
        if sum(refusal.expires_at > now for refusal in await self._refusals.all()) >= ATTEMPTS:
            raise RateLimited(
                f"{ATTEMPTS} codes were wrong, so typed codes are refused for {ATTEMPTS_S / 60:.0f} minutes; open the "
                "link that `planwarden inbox` prints instead"
            )

    async def find_session(self, token: str | None) -> InboxSession | None:
        """Return the open session of this cookie; None if there is none."""
        if not token or len(token) > 128:
            return None
        return await self._sessions.find(_hash("session", token), self._clock.now())

    async def end_session(self, token: str, principal: str) -> bool:
        """End one session. Return False if it had already ended."""
        ended = _hash("session", token)
        entry = _build_audit_entry("session_ended", principal=principal, session=ended[:NAMED_DIGITS])
        now = self._clock.now()

        def end(transaction: RecordTransaction) -> bool:
            is_open = transaction.find(InboxSession, ended, now) is not None
            return is_open and transaction.delete(InboxSession, ended)

        return await self._sessions.write(end, entry)

    async def end_all_sessions(self, principal: str) -> int:
        """End every session of this home and void every code. Return the number of sessions that were open."""
        entry = _build_audit_entry("session_ended", principal=principal, session="all")
        now = self._clock.now()

        def end(transaction: RecordTransaction) -> int:
            transaction.delete_due(InboxSession, now)
            transaction.delete_due(Pairing, math.inf)
            transaction.add_audit((entry,), now)
            return transaction.delete_due(InboxSession, math.inf)

        return await self._sessions.write(end, lock=_LOCK)


def derive_csrf_token(token: str) -> str:
    """Return a token that ties a form to this session and reveals nothing about the cookie."""
    return hmac.new(token.encode(), b"planwarden csrf/v1", hashlib.sha256).hexdigest()


def _build_audit_entry(kind: Kind, **facts: str) -> AuditEntry:
    return AuditEntry(kind=kind, facts={**facts, "channel": facts.get("channel", "inbox")})


def _hash(use: str, text: str) -> str:
    return hashlib.sha256(f"planwarden {use}/v1\0{text}".encode("utf-8", "surrogatepass")).hexdigest()


def _normalize_code(text: str) -> str:
    """Return a typed code in the form that is hashed; return other text, such as a link's code, stripped and cut."""
    code = text.strip()[:256]
    plain = code.replace("-", "").replace(" ", "").upper().translate(_LOOKALIKES)
    is_typed = len(plain) == TYPED_CHARS and all(character in _ALPHABET for character in plain)
    return plain if is_typed else code
