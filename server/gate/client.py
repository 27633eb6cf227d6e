"""What a client says about itself: in its handshake, or, from revision 2026-07-28 on, in each request.

Over HTTP, several clients of one principal share a connection to the server, and each is asked only as itself allows.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.server.gate import frames
from planwarden.server.gate.frames import Frame

ENVELOPE = "io.modelcontextprotocol/"
"""The beginning of the keys of `_meta` that, in newer revisions, say in each request what the handshake used to say."""
TASKS = "io.modelcontextprotocol/tasks"
"""The extension that a client declares in order to get tasks."""
MAX_NAME_CHARS = 64


class Client(msgspec.Struct, frozen=True):
    """One client."""

    info: JsonValue = None
    capabilities: JsonValue = None
    envelope: Mapping[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """The protocol's keys in `_meta` of the request, from revision 2026-07-28 on; otherwise empty."""

    @property
    def name(self) -> str:
        """The client's name, for people."""
        info = self.info if isinstance(self.info, dict) else {}
        return str(info.get("title") or info.get("name") or "an MCP host")[:MAX_NAME_CHARS]

    @property
    def wants_tasks(self) -> bool:
        extensions = self._declared.get("extensions")
        return bool(self.envelope) and isinstance(extensions, dict) and TASKS in extensions

    @property
    def can_elicit(self) -> bool:
        """Whether the client can ask the person who uses it."""
        return isinstance(self._declared.get("elicitation"), dict)

    @property
    def _declared(self) -> dict[str, JsonValue]:
        return self.capabilities if isinstance(self.capabilities, dict) else {}


def read_client(frame: Frame, earlier: Client) -> Client:
    """Return what the request says about its client; if it says nothing, return `earlier`."""
    if frame.method == "initialize":
        info, capabilities = frame.read_member("clientInfo"), frame.read_member("capabilities")
        return Client(frames.read_value(info), frames.read_value(capabilities))
    try:
        meta = frames.read_object(frame.read_member("_meta") or Raw(b"{}"))
    except InvalidArguments:
        return earlier
    keys = {key: frames.read_value(value) for key, value in meta.items() if key.startswith(ENVELOPE)}
    if f"{ENVELOPE}protocolVersion" not in keys:
        return earlier
    return Client(keys.get(f"{ENVELOPE}clientInfo"), keys.get(f"{ENVELOPE}clientCapabilities"), keys)
