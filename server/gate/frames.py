"""Reads the envelope of MCP messages, and what clients say about themselves; all other parts keep their bytes. The gate
writes each message of the host anew from the parts that it understood, so that the wrapped server cannot read the same
bytes differently. Messages of the server are written anew too, without members that JSON-RPC does not know.
"""

import json
from collections.abc import Mapping
from typing import TypeVar, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.tools.downstream.child_process import OversizedLine, cut_line

RequestId = int | float | str
Member = TypeVar("Member", bound=Raw | JsonValue)
PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32602, -32603
UNREACHABLE = -32001
"""Planwarden's error code for a request that the wrapped server did not answer."""
MAX_MENDED_BYTES = 1024 * 1024
FIRST_OWN_ID = 900_000_000_000_000
"""The first id of the gate's own requests, far above the ids of most hosts."""
ENVELOPE = "io.modelcontextprotocol/"
"""The prefix of the keys in `_meta` of each request that replace the handshake in newer revisions."""
TASKS = "io.modelcontextprotocol/tasks"
"""The extension that a client declares in order to get tasks."""
MAX_NAME_CHARS = 64


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message: a request, a notification, or an answer."""

    jsonrpc: str
    id: RequestId | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    @property
    def request_id(self) -> RequestId | None:
        return None if isinstance(self.id, UnsetType) else self.id

    @property
    def is_request(self) -> bool:
        return isinstance(self.method, str) and not isinstance(self.id, UnsetType)

    def encode(self) -> bytes:
        return end_line(msgspec.json.encode(self))

    def read_params(self) -> dict[str, Raw]:
        """Return the raw bytes of each parameter by name. Raises `InvalidArguments` if `params` is not an object."""
        return {} if isinstance(self.params, UnsetType) else read_object(self.params)

    def read_member(self, name: str) -> Raw | None:
        """Return the raw bytes of one parameter; None if it is missing, or `params` is not an object."""
        try:
            return self.read_params().get(name)
        except InvalidArguments:
            return None


class ServerFrame(Frame, frozen=True, forbid_unknown_fields=False):
    """A message of a server. Members that JSON-RPC does not know are ignored."""


class Client(msgspec.Struct, frozen=True):
    """What a client says about itself: in its handshake, or, from revision 2026-07-28 on, in each request.

    Over HTTP, several clients of one principal share a connection. Each client is asked only in ways that it supports.
    """

    info: Mapping[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    capabilities: Mapping[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    envelope: Mapping[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """The protocol's keys in `_meta` of the request, from revision 2026-07-28 on; otherwise empty. Its
    capabilities are only those that planwarden has too, because planwarden's own requests carry the envelope."""

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


_FRAME = msgspec.json.Decoder(Frame)
_SERVER_FRAME = msgspec.json.Decoder(ServerFrame)
_OBJECT = msgspec.json.Decoder(dict[str, Raw])


def read_frame(line: bytes, *, is_servers: bool = False) -> Frame:
    """Return the message of a host or a server. Raises `InvalidArguments`: the line is not one message of JSON-RPC."""
    try:
        # All members must be UTF-8, even those that are not decoded below.
        line.decode()
        frame = (_SERVER_FRAME if is_servers else _FRAME).decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArguments(f"the line is not one message of JSON-RPC: {error}") from None
    if frame.jsonrpc != "2.0":
        raise InvalidArguments("the line is not a message of JSON-RPC 2.0")
    # Some servers add `"error": null` to each result.
    has_null = is_servers and isinstance(frame.error, Raw) and bytes(frame.error) == b"null"
    return replace(frame, error=UNSET) if has_null else frame


def mend_frame(line: bytes) -> Frame | None:
    """Replace invalid characters in a server's message, such as half of an emoji; return None if that fails."""
    if len(line) > MAX_MENDED_BYTES:
        return None
    try:
        document = json.loads(line.decode(errors="replace"))
        text = json.dumps(document, ensure_ascii=False)
        return read_frame(text.encode(errors="replace"), is_servers=True)
    except (ValueError, RecursionError, InvalidArguments):
        return None


def find_request_id(line: bytes) -> RequestId | None:
    """Return the id of the host's request in a line that is not a valid message; None if no usable id is found."""
    try:
        document: object = json.loads(line[:MAX_MENDED_BYTES])
    except (ValueError, RecursionError):
        return find_id_in_edges(cut_line(line))
    members = cast("dict[str, object]", document) if isinstance(document, dict) else {}
    request_id = members.get("id") if "method" in members else None
    # An id with half of an emoji, or with more than 64 bits, cannot be sent back.
    if isinstance(request_id, str):
        return request_id if request_id.isprintable() else None
    return request_id if isinstance(request_id, int) and abs(request_id) < 2**63 else None


def find_id_in_edges(line: OversizedLine) -> RequestId | None:
    """Return the id in the beginning and end of a line that is too long; None if they show no id or no `method`."""
    return line.request_id if b'"method"' in line.head + line.tail else None


def drop_own_facts(result: Mapping[str, Member]) -> dict[str, Member]:
    """Return a server's result without the keys of `_meta` that only planwarden may set."""
    raw = result.get("_meta")
    meta = read_value(raw) if isinstance(raw, Raw) else raw
    if not isinstance(meta, dict):
        return dict(result)
    rest = {
        key: value for key, value in meta.items() if not key.startswith("planwarden/") and "tool-approval" not in key
    }
    return dict(result) if rest == meta else {**result, "_meta": cast("Member", rest)}


def read_object(raw: Raw) -> dict[str, Raw]:
    """Return the members of an object. Raises `InvalidArguments`: the value is not an object."""
    try:
        return _OBJECT.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidArguments("a value is not a JSON object") from None


def read_value(raw: Raw | UnsetType | None) -> JsonValue:
    """Return the value of a small part, such as an id or a name; None if it is missing or not JSON."""
    try:
        return cast("JsonValue", msgspec.json.decode(raw)) if isinstance(raw, Raw) else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def read_members(value: JsonValue | Raw | UnsetType) -> dict[str, JsonValue]:
    """Return the members of a small object; an empty dict if the value is something else."""
    members = read_value(value) if isinstance(value, Raw) else value
    return members if isinstance(members, dict) else {}


def read_client(frame: Frame, earlier: Client) -> Client:
    """Return what the request says about its client; if it says nothing, return `earlier`."""
    if frame.method == "initialize":
        info, capabilities = frame.read_member("clientInfo"), frame.read_member("capabilities")
        return Client(read_members(info), read_members(capabilities))
    keys = {key: value for key, value in read_members(frame.read_member("_meta")).items() if key.startswith(ENVELOPE)}
    if f"{ENVELOPE}protocolVersion" not in keys:
        return earlier
    info, capabilities = keys.get(f"{ENVELOPE}clientInfo"), keys.get(f"{ENVELOPE}clientCapabilities")
    offered = {key: value for key, value in read_members(capabilities).items() if key not in ("sampling", "roots")}
    if isinstance(extensions := offered.get("extensions"), dict):
        offered["extensions"] = {key: value for key, value in extensions.items() if key != TASKS}
    return Client(read_members(info), read_members(capabilities), {**keys, f"{ENVELOPE}clientCapabilities": offered})


def build_request(request_id: RequestId, method: str, params: dict[str, JsonValue]) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def build_notification(method: str, params: dict[str, JsonValue]) -> bytes:
    return _encode({"jsonrpc": "2.0", "method": method, "params": params})


def build_result(request_id: RequestId | None, result: Mapping[str, JsonValue | Raw]) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def build_error(request_id: RequestId | None, code: int, message: str, data: object = None) -> bytes:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def _encode(message: Mapping[str, object]) -> bytes:
    return end_line(msgspec.json.encode(message))


def end_line(message: bytes) -> bytes:
    """Return the message in a form that every reader takes for one line.

    JSON may have line ends between its parts, and some readers also end a line at a carriage return, or at U+0085,
    U+2028 or U+2029 within a text. Otherwise such a reader could take the rest of the line for another message.
    """
    line = message.translate(None, b"\r\n")
    for character in ("\x85", "\u2028", "\u2029"):
        line = line.replace(character.encode(), f"\\u{ord(character):04x}".encode())
    return line + b"\n"
