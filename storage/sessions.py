"""The inbox's one-time codes, the sessions that they open, and where inboxes listen.

Codes and cookies are stored only as hashes, so a reader of the rows can neither open a session nor use one. All
processes with the same store share the rows. Times are in Unix seconds by the store's clock.
"""

from planwarden.storage.sql.records import Columns, ExpiringRecord, Record, RecordStore

NAMED_DIGITS = 16
"""How many digits of its hash identify a session in the audit."""


class Pairing(ExpiringRecord, frozen=True, kw_only=True):
    """The hashes of two one-time codes, one in a link and one to type; deleted when one is used or both are void."""

    columns = Columns("pairing", "link_hash", "typed_hash")

    link_hash: str
    typed_hash: str
    """Hash of a code that is short enough to type, and so to guess: the lockout protects it."""
    principal: str
    """Whose session the codes open."""
    attempts: int = 0
    """How many wrong passphrases came with one of the codes."""


class InboxSession(ExpiringRecord, frozen=True, kw_only=True):
    """A browser's session, stored by the hash of its cookie; deleted when the session ends."""

    columns = Columns("session", "hash", "principal")

    hash: str
    principal: str
    created_at: float


class CodeRefusal(ExpiringRecord, frozen=True, kw_only=True):
    """A wrong code, kept for as long as it counts towards the lockout."""

    columns = Columns("refusal", "refusal_id")

    refusal_id: str


class RunningInbox(Record, frozen=True, kw_only=True):
    """Where an inbox listens while its process, `owner`, lives."""

    columns = Columns("inbox", "owner")

    owner: str
    url: str


class RunningInboxes(RecordStore[RunningInbox]):
    """The inboxes that listen now."""

    def __init__(self, store: object) -> None:
        super().__init__(store, RunningInbox)

    async def open(self, owner: str, url: str) -> None:
        """Record where an inbox of this process listens."""
        await self.liveness.announce(owner)
        await self.write(lambda transaction: transaction.insert(RunningInbox(owner=owner, url=url)))

    async def close(self, owner: str) -> None:
        await self.write(lambda transaction: transaction.delete(RunningInbox, owner))

    async def list_urls(self) -> tuple[str, ...]:
        """Return the addresses of the inboxes of living processes, newest first."""
        urls: list[str] = []
        for inbox in reversed(await self.all()):
            if await self.liveness.is_dead(inbox.owner):
                await self.close(inbox.owner)
            else:
                urls.append(inbox.url)
        return tuple(urls)
