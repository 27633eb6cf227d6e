"""What became of the stops of hosts' sessions, for a week from the last one, and which folders people trust."""

import msgspec

from planwarden.storage.sql.records import Columns, ExpiringRecord, Record

KEEP_S = 7 * 86_400.0


class HostSession(ExpiringRecord, frozen=True, kw_only=True):
    """One session of a host."""

    columns = Columns("host_stops", "session", remedy="it is void after a week")

    session: str
    """Digest of the host and of its own id."""
    host: str
    folder: str
    """Where it began."""
    record: str = ""
    """The file with the calls: the host's own, or one of planwarden's home."""
    refusals: int = 0
    """How often the stop that the host is about to make was refused."""
    waived: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """The reasons by the names of the promises that a person waived for this session."""
    question: str = ""
    """The promises that a person was asked about."""
    updated_at: float = 0.0


class TrustedFolder(Record, frozen=True, kw_only=True):
    """The promises of a folder as a person read them at a terminal. The text counts, not what the file says later."""

    columns = Columns("trusted_folder", "folder", remedy="trust it again with planwarden guard trust-folder")

    folder: str
    text: str
    trusted_at: float
