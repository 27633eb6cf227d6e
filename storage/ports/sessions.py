"""Who may use the inbox: one-time codes and the sessions that they open. A port that every store implements.

Only hashes are stored, so a reader of the rows can neither pair nor use a person's session. All processes of one home
directory share them. Times are arguments, in Unix seconds by the store's clock.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.ports.store import Store

KEPT_S = 30 * 24 * 3600.0
"""How long rows of expired codes and sessions are kept."""
NAMED_DIGITS = 16
"""Of a session's hash, to name it in the audit."""


class PairingCode(msgspec.Struct, frozen=True, kw_only=True):
    """A one-time code, by its hash."""

    hash: str
    pairing: str
    """Shared by the codes of which only one can be used: a link, and what may be typed instead."""
    principal: str
    """Whose session it opens."""
    is_typed: bool
    """Short enough to be typed, and therefore to be guessed: the lockout applies."""
    created_at: float
    expires_at: float
    attempts: int = 0
    """Wrong passphrases that came with it."""


class InboxSession(msgspec.Struct, frozen=True, kw_only=True):
    """A browser that was let in, by the hash of its cookie."""

    hash: str
    principal: str
    created_at: float
    expires_at: float


class SessionStore(Protocol):
    """Codes, sessions, refusals and running inboxes of one home.

    Laws:
    * `redeem` is atomic: exactly one of racing calls with codes of one pairing returns True; the others change nothing.
    * A code that was used, voided or has expired is not found, nor is a session that was ended or has expired.
    * A change that lets a person in, keeps a person out or ends a session is stored together with its row of the audit,
      or not at all.
    * Acknowledged means committed.
    """

    async def add_codes(self, codes: Sequence[PairingCode], entry: AuditEntry) -> None:
        """Store new codes; delete rows that expired `KEPT_S` ago."""
        ...

    async def code(self, code_hash: str, now: float) -> PairingCode | None:
        """The code if it can still be used."""
        ...

    async def redeem(self, code_hash: str, session: InboxSession, entry: AuditEntry) -> bool:
        """Use the code up and open the session in one transaction; False when the code can no longer be used."""
        ...

    async def record_failed_attempt(self, code_hash: str, limit: int, now: float, entry: AuditEntry) -> None:
        """Count a wrong passphrase; with the `limit`-th one every code of the pairing is void."""
        ...

    async def refuse(self, at: float, since: float, entry: AuditEntry) -> None:
        """Count a wrong code; delete refusals older than `since`."""
        ...

    async def refusals(self, since: float) -> int:
        """The number of wrong codes since then."""
        ...

    async def session(self, session_hash: str, now: float) -> InboxSession | None:
        """The session if it is still open."""
        ...

    async def end(self, session_hash: str, now: float, entry: AuditEntry) -> bool:
        """End one session; False when it was not open."""
        ...

    async def end_all(self, now: float, entry: AuditEntry) -> int:
        """End every open session and void every unused code; returns the number of sessions."""
        ...

    async def open_inbox(self, owner: str, url: str, at: float) -> None:
        """Record where an inbox of this process listens."""
        ...

    async def close_inbox(self, owner: str) -> None: ...

    async def inboxes(self) -> tuple[str, ...]:
        """Addresses of the inboxes of living processes, newest first."""
        ...


@runtime_checkable
class HasSessions(Protocol):
    """A store that also stores sessions."""

    @property
    def sessions(self) -> SessionStore: ...


def sessions_of(store: Store) -> SessionStore:
    """The sessions beside the store's executions.

    Raises:
        UsageError: this store has none, so there can be no inbox.
    """
    if not isinstance(store, HasSessions):
        raise UsageError(f"{type(store).__name__} keeps no sessions, so it cannot have an inbox")
    return store.sessions
