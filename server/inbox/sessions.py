"""Access to the inbox: one-time codes that never pass through MCP, and the sessions that they open.

A link holds 256 random bits. A typed code holds 60 bits, and a lockout protects it. Both expire within minutes, using
one voids both, and the store holds only hashes. Not promised: telling programs of the same operating-system user apart,
and hiding a cookie from other servers on the same loopback address, because browsers send cookies to every port of a
host (https://www.rfc-editor.org/rfc/rfc6265#section-8.5).
"""

import hashlib
import hmac
import secrets

import anyio.to_thread
import msgspec

from planwarden.agent.common.errors import RateLimited, UsageError
from planwarden.agent.core.audit import AuditEntry, Kind
from planwarden.agent.ports.store import Store
from planwarden.server.inbox.passphrase import Passphrase
from planwarden.storage.ports.sessions import NAMED_DIGITS, InboxSession, PairingCode, sessions_of

CODE_S = 600.0
"""How long a code is valid."""
SESSION_S = 12 * 3600.0
"""How long a session lasts; use does not extend it."""
TYPED_CHARS = 12
ATTEMPTS, ATTEMPTS_S = 5, 900.0
"""After this many wrong codes in this many seconds, every typed code is refused."""
PASSPHRASE_ATTEMPTS = 5
MAX_PRINCIPAL_CHARS = 128

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
    """Makes and redeems one-time codes; finds and ends sessions."""

    def __init__(self, store: Store, passphrase: Passphrase | None = None) -> None:
        """Raises `UsageError` if the store has no sessions."""
        self._sessions = sessions_of(store)
        self._clock = store.clock
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
        pairing = secrets.token_hex(16)

        def build_code(text: str, *, is_typed: bool) -> PairingCode:
            return PairingCode(
                hash=_hash("code", text),
                pairing=pairing,
                principal=name,
                is_typed=is_typed,
                created_at=now,
                expires_at=now + CODE_S,
            )

        entry = _build_audit_entry("code_made", principal=name, channel=channel)
        codes = (build_code(link, is_typed=False), build_code(typed, is_typed=True))
        await self._sessions.add_codes(codes, entry)
        return PairingCodes(link=link, typed=_add_dashes(typed), expires_at=now + CODE_S)

    async def redeem(self, text: str, passphrase: str = "") -> OpenedSession:
        """Open a session with an unused code.

        Raises:
            RateLimited: too many codes were wrong; typed codes are refused for a while, links still work.
            CodeRefused: the code is unknown, used or expired; the message does not say which.
            PassphraseRefused: the code is valid, and usable again unless this was the last attempt.
        """
        now = self._clock.now()
        wanted = _hash("code", _normalize_code(text))
        code = await self._sessions.code(wanted, now)
        if code is not None and not hmac.compare_digest(code.hash, wanted):
            code = None
        if code is None or code.is_typed:
            await self._check_lockout(now)
        if code is None:
            await self._sessions.refuse(now, now - ATTEMPTS_S, _build_audit_entry("code_refused", why="code"))
            raise CodeRefused
        if self._passphrase is not None and not await anyio.to_thread.run_sync(self._passphrase.matches, passphrase):
            entry = _build_audit_entry("code_refused", why="passphrase", principal=code.principal)
            await self._sessions.record_failed_attempt(code.hash, PASSPHRASE_ATTEMPTS, now, entry)
            raise PassphraseRefused
        token = secrets.token_urlsafe(32)
        session = InboxSession(
            hash=_hash("session", token), principal=code.principal, created_at=now, expires_at=now + SESSION_S
        )
        entry = _build_audit_entry("session_opened", principal=code.principal, session=session.hash[:NAMED_DIGITS])
        if not await self._sessions.redeem(code.hash, session, entry):
            raise CodeRefused
        return OpenedSession(token=token, session=session)

    async def _check_lockout(self, now: float) -> None:
        """Raises `RateLimited` after a few wrong codes, before any typed code is compared."""
        if await self._sessions.refusals(now - ATTEMPTS_S) >= ATTEMPTS:
            raise RateLimited(
                f"{ATTEMPTS} codes were wrong, so typed codes are refused for {ATTEMPTS_S / 60:.0f} minutes; open the "
                "link that `planwarden inbox` prints instead"
            )

    async def find_session(self, token: str | None) -> InboxSession | None:
        """The open session of this cookie; None if there is none."""
        if not token or len(token) > 128:
            return None
        wanted = _hash("session", token)
        session = await self._sessions.session(wanted, self._clock.now())
        return session if session is not None and hmac.compare_digest(session.hash, wanted) else None

    async def end_session(self, token: str, principal: str) -> bool:
        """End one session; False if it had ended before."""
        ended = _hash("session", token)
        entry = _build_audit_entry("session_ended", principal=principal, session=ended[:NAMED_DIGITS])
        return await self._sessions.end(ended, self._clock.now(), entry)

    async def end_all_sessions(self, principal: str) -> int:
        """End every session of this home and void every code. Returns the number of sessions."""
        entry = _build_audit_entry("session_ended", principal=principal, session="all")
        return await self._sessions.end_all(self._clock.now(), entry)


def derive_csrf_token(token: str) -> str:
    """A token that ties a form to this session and reveals nothing about the cookie."""
    return hmac.new(token.encode(), b"planwarden csrf/v1", hashlib.sha256).hexdigest()


def _build_audit_entry(kind: Kind, **facts: str) -> AuditEntry:
    return AuditEntry(kind=kind, facts={**facts, "channel": facts.get("channel", "inbox")})


def _hash(use: str, text: str) -> str:
    return hashlib.sha256(f"planwarden {use}/v1\0{text}".encode("utf-8", "surrogatepass")).hexdigest()


def _normalize_code(text: str) -> str:
    """A typed code without dashes and lookalikes; any other text, such as the code of a link, unchanged."""
    code = text.strip()[:256]
    plain = code.replace("-", "").replace(" ", "").upper().translate(_LOOKALIKES)
    is_typed = len(plain) == TYPED_CHARS and all(character in _ALPHABET for character in plain)
    return plain if is_typed else code


def _add_dashes(text: str) -> str:
    return "-".join(text[start : start + 4] for start in range(0, len(text), 4))
