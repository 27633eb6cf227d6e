"""What a client says about itself: in its handshake, or, from revision 2026-07-28 on, in each request.

Over HTTP, several clients of one principal share a connection to the server. Each is asked only in ways it supports.
"""

from collections.abc import Mapping

import msgspec

from planwarden.agent.common.struct import JsonValue
from planwarden.server.gate import frames
from planwarden.server.gate.frames import Frame

ENVELOPE = "io.modelcontextprotocol/"
"""The prefix of the keys of `_meta` that, in newer revisions, say in each request what the handshake said before."""
TASKS = "io.modelcontextprotocol/tasks"
"""The extension that a client declares in order to get tasks."""
MAX_NAME_CHARS = 64


class Client(msgspec.Struct, frozen=True):
    """One client."""

    info: Mapping[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    capabilities: Mapping[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    envelope: Mapping[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """The protocol's keys in `_meta` of the request, from revision 2026-07-28 on; otherwise empty. The capabilities in
    it are those that planwarden has too, because it uses the envelope in its own requests."""

    @property
    def name(self) -> str:
        """The client's name, for people."""
        return str(self.info.get("title") or self.info.get("name") or "an MCP host")[:MAX_NAME_CHARS]

    @property
    def wants_tasks(self) -> bool:
        extensions = self.capabilities.get("extensions")
        return bool(self.envelope) and isinstance(extensions, dict) and TASKS in extensions

    @property
    def can_elicit(self) -> bool:
        """Whether the client can ask the person who uses it."""
        return isinstance(self.capabilities.get("elicitation"), dict)


def read_client(frame: Frame, earlier: Client) -> Client:
    """Return what the request says about its client; if it says nothing, return `earlier`."""
    if frame.method == "initialize":
        info, capabilities = frame.read_member("clientInfo"), frame.read_member("capabilities")
        return Client(frames.read_members(info), frames.read_members(capabilities))
    keys = {
        key: value for key, value in frames.read_members(frame.read_member("_meta")).items() if key.startswith(ENVELOPE)
    }
    if f"{ENVELOPE}protocolVersion" not in keys:
        return earlier
    info, capabilities = keys.get(f"{ENVELOPE}clientInfo"), keys.get(f"{ENVELOPE}clientCapabilities")
    offered = {
        key: value for key, value in frames.read_members(capabilities).items() if key not in ("sampling", "roots")
    }
    if isinstance(extensions := offered.get("extensions"), dict):
        offered["extensions"] = {key: value for key, value in extensions.items() if key != TASKS}
    return Client(
        frames.read_members(info), frames.read_members(capabilities), {**keys, f"{ENVELOPE}clientCapabilities": offered}
    )
