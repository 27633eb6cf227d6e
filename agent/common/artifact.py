"""Artifacts: content that is too large for the log, or not JSON, stored whole beside the log in the same transaction.

In its place, the log has a stand-in: media type, size, the artifact's id, and the beginning of the content. The id is
derived from the content, so a repeated call stores nothing twice, and every read detects damage.
"""

import hashlib

import msgspec

from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.struct import JsonValue

INLINE_BYTES = 256 * 1024
"""JSON up to this size goes into the log itself; nothing larger fits into arguments either."""
INLINE_VALUES = 20_000
"""JSON with more values than this becomes an artifact too, because each value costs time when the log is read."""
MAX_ARTIFACT_BYTES = 8 * 1024 * 1024
"""The most bytes of content that is stored; a call with a larger result fails."""
MAX_ARTIFACT_VALUES = 1_000_000
"""The most values in a result; native code encodes that many in 50 ms."""
PREVIEW_CHARS = 4_000
JSON_TYPE = "application/json"

_KEYS = frozenset({"truncated", "stored", "artifactId", "mediaType", "sizeBytes", "sha256", "preview"})


class Artifact(msgspec.Struct, frozen=True):
    """Stored content of one execution."""

    media_type: str
    """As in MIME; `application/json` for a tool's whole result."""
    data: bytes
    artifact_id: str
    """128 bits of SHA-256 over media type and content, in hexadecimal."""

    def __repr__(self) -> str:
        return f"Artifact({self.media_type!r}, {len(self.data)} bytes, {self.artifact_id!r})"


class ResultWithArtifacts(msgspec.Struct, frozen=True, kw_only=True):
    """A result with content that the store keeps beside the log."""

    value: JsonValue
    artifacts: tuple[Artifact, ...]
    whole: str | None = None
    """The id of the artifact that holds the whole value; None if `value` only mentions artifacts."""
    beside: JsonValue = None
    """What else the tool sent. People and models read it, but bindings cannot take values from it."""


def make_artifact(data: bytes, media_type: str = JSON_TYPE) -> Artifact:
    return Artifact(media_type, data, _artifact_id(media_type, data))


def check_artifact(artifact_id: str, media_type: object, data: object) -> Artifact:
    """Return the artifact that a store read. Raises `StoreError` if it is not what was stored under that id."""
    # A flipped bit can also change the type of a column's value.
    if not (isinstance(media_type, str) and isinstance(data, bytes)) or _artifact_id(media_type, data) != artifact_id:
        raise StoreError(f"artifact {artifact_id!r} is damaged: its content does not match its id; restore a backup")
    return Artifact(media_type, data, artifact_id)


def build_stand_in(artifact: Artifact, preview: str) -> dict[str, JsonValue]:
    """Return what the log holds instead of the artifact."""
    return {
        "truncated": True,
        "stored": True,
        "artifactId": artifact.artifact_id,
        "mediaType": artifact.media_type,
        "sizeBytes": len(artifact.data),
        "sha256": hashlib.sha256(artifact.data).hexdigest(),
        "preview": preview[:PREVIEW_CHARS],
    }


def is_stand_in(value: JsonValue) -> bool:
    """Return whether the value looks like a stand-in. It is for display only: the event names the true artifact."""
    if not isinstance(value, dict) or value.keys() != _KEYS or not isinstance(value["preview"], str):
        return False
    facts = (fact for key, fact in value.items() if key != "preview")
    return all(isinstance(fact, bool | int) or (isinstance(fact, str) and len(fact) <= 200) for fact in facts)


def _artifact_id(media_type: str, data: bytes) -> str:
    hashed = hashlib.sha256(f"{media_type}\0".encode())
    hashed.update(data)
    return hashed.hexdigest()[:32]
