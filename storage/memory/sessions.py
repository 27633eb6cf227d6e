"""Codes and sessions without a disk: every law of the port except durability."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.ports.sessions import KEPT_S, InboxSession, PairingCode


class MemorySessions:
    """Implements `SessionStore` for one process."""

    def __init__(self, audit: Callable[[Sequence[AuditEntry]], Awaitable[None]]) -> None:
        self._audit = audit
        self._codes: dict[str, PairingCode] = {}
        self._sessions: dict[str, InboxSession] = {}
        self._refusals: list[float] = []
        self._inboxes: dict[str, tuple[float, str]] = {}

    async def add_codes(self, codes: Sequence[PairingCode], entry: AuditEntry) -> None:
        await self._audit((entry,))
        for code in codes:
            oldest = code.created_at - KEPT_S
            self._codes = {key: known for key, known in self._codes.items() if known.expires_at > oldest}
            self._sessions = {key: known for key, known in self._sessions.items() if known.expires_at > oldest}
            self._codes[code.hash] = code

    async def code(self, code_hash: str, now: float) -> PairingCode | None:
        found = self._codes.get(code_hash)
        return found if found is not None and found.expires_at > now else None

    async def redeem(self, code_hash: str, session: InboxSession, entry: AuditEntry) -> bool:
        found = await self.code(code_hash, session.created_at)
        if found is None:
            return False
        await self._audit((entry,))
        self._void(found.pairing)
        self._sessions[session.hash] = session
        return True

    async def record_failed_attempt(self, code_hash: str, limit: int, now: float, entry: AuditEntry) -> None:
        found = await self.code(code_hash, now)
        if found is None:
            return
        await self._audit((entry,))
        attempts = found.attempts + 1
        for key, known in list(self._codes.items()):
            if known.pairing == found.pairing:
                self._codes[key] = replace(known, attempts=attempts)
        if attempts >= limit:
            self._void(found.pairing)

    def _void(self, pairing: str) -> None:
        self._codes = {key: known for key, known in self._codes.items() if known.pairing != pairing}

    async def refuse(self, at: float, since: float, entry: AuditEntry) -> None:
        await self._audit((entry,))
        self._refusals = [*(known for known in self._refusals if known > since), at]

    async def refusals(self, since: float) -> int:
        return sum(known > since for known in self._refusals)

    async def session(self, session_hash: str, now: float) -> InboxSession | None:
        found = self._sessions.get(session_hash)
        return found if found is not None and found.expires_at > now else None

    async def end(self, session_hash: str, now: float, entry: AuditEntry) -> bool:
        found = await self.session(session_hash, now)
        if found is not None:
            await self._audit((entry,))
            del self._sessions[session_hash]
        return found is not None

    async def end_all(self, now: float, entry: AuditEntry) -> int:
        await self._audit((entry,))
        open_sessions = sum(known.expires_at > now for known in self._sessions.values())
        self._sessions.clear()
        self._codes.clear()
        return open_sessions

    async def open_inbox(self, owner: str, url: str, at: float) -> None:
        self._inboxes[owner] = (at, url)

    async def close_inbox(self, owner: str) -> None:
        self._inboxes.pop(owner, None)

    async def inboxes(self) -> tuple[str, ...]:
        return tuple(url for _, url in sorted(self._inboxes.values(), reverse=True))
