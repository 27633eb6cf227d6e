"""Answers `planwarden guard hook` quickly. To judge a call that a host wants to make, it asks a running server of the
same home over a local socket. A call that the host has already made is only written to a file.

A host waits for its hook before each call, and importing planwarden takes most of a command's time. So this module
imports little, and lets a server judge that the host has started anyway. The server declines if it started with other
settings, as a digest of their file shows. If no server answers, the command judges by itself. The hook starts no
process.
"""

import hashlib
import io
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

DEADLINE_S = 20
"""Seconds after which the system kills the process; then the hook's shell blocks the call."""
ANSWER_S = 15.0
MAX_EVENT_BYTES = 8 * 1024 * 1024
MAX_ANSWER_BYTES = 64 * 1024
MAX_SERVERS = 8
FOLDER = "guard"
"""The name of the folder in the home that holds a socket for each running server."""
SETTINGS_FILE = "planwarden.toml"
DECLINED = b"declined"
SESSIONS = "sessions"
"""The folder below `FOLDER` that holds a file for each session of a host, with a line for each reported call."""
MAX_RECORD_BYTES = 32 * 1024 * 1024
"""The limit for a session's file. A larger file replaces the `.old` file, and a new file begins."""
CUT_CHARS = 2_000
"""How many characters are kept at the beginning of a long text in a result, and how many at its end."""
MAX_ITEMS = 20
"""How many items of a list in a result are kept."""
CALL_EVENTS = frozenset({"PostToolUse", "PostToolUseFailure", "AfterTool"})
STOPS = frozenset({"Stop", "AfterAgent"})
DONE_EVENTS = CALL_EVENTS | STOPS
"""Events about what a host did. A failing planwarden never refuses two stops in a row, so each session can end."""


def set_deadline() -> None:
    if hasattr(signal, "SIGALRM"):
        # The default action of the signal ends the process without running Python code.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(DEADLINE_S)


def answer_quickly(words: Sequence[str]) -> int | None:
    """Answer the hook, and return the exit code; None if no server can help. Then the command has to judge by itself,
    and can still read the event from `sys.stdin`. `words` are the arguments of `guard hook`.
    """
    set_deadline()
    home = find_home(words)
    if home is None or not hasattr(socket, "AF_UNIX"):
        return None
    event = sys.stdin.buffer.read(MAX_EVENT_BYTES + 1)
    if read_event_name(event) in CALL_EVENTS:
        return _write(record_call(home, words[0], event))
    sys.stdin = io.TextIOWrapper(io.BytesIO(event), encoding="utf-8")
    head = json.dumps({"host": words[0], "settings": digest_settings(home)}).encode()
    for path in _list_sockets(home):
        answer = _ask(path, head + b"\n" + event)
        if answer is not None:
            if not answer and read_event_name(event) in DONE_EVENTS:
                # The server failed, so the command itself decides whether the host may stop.
                return None
            return _write(answer)
    return None


def read_event_name(event: bytes) -> str:
    """Return the name that the host gives to the event; empty if it gives none."""
    try:
        document: object = json.loads(event)
    except (ValueError, RecursionError):
        return ""
    return str(cast("dict[str, object]", document).get("hook_event_name", "")) if isinstance(document, dict) else ""


def find_record(home: str, host: str, session: str) -> str:
    """Return the file with the calls of a session. Its name is planwarden's id of the session, with `.jsonl`."""
    name = hashlib.sha256(json.dumps([host, session[:1_000]]).encode()).hexdigest()[:32]
    return os.path.join(home, FOLDER, SESSIONS, f"{name}.jsonl")


def record_call(home: str, host: str, event: bytes) -> dict[str, object]:
    """Append a host's report of a call to the session's file. Return the answer to the hook, even after an error."""
    call = cast("dict[str, Any]", json.loads(event))
    session = call.get("session_id")
    if not isinstance(session, str) or not session:
        return {"out": "{}", "error": "planwarden: the host did not say which session it is", "code": 0}
    names = ("hook_event_name", "tool_name", "tool_input", "tool_response", "cwd", "session_id")
    path = find_record(home, host, session)
    try:
        # A result of planwarden's own tool may name the execution that the call started anywhere, so it is not cut.
        if "planwarden" not in str(call.get("tool_name")):
            call["tool_response"] = _shorten(call.get("tool_response"))
        line = json.dumps({"at": time.time(), **{name: call[name] for name in names if name in call}})
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # One single write keeps the line whole, even if several calls end at the same time.
            os.write(file, f"{line}\n".encode())
            if os.fstat(file).st_size > MAX_RECORD_BYTES:
                os.replace(path, f"{path}.old")
        finally:
            os.close(file)
    except (OSError, RecursionError) as error:
        return {"out": "{}", "error": f"planwarden: the call cannot be written down: {error}", "code": 0}
    return {"out": "{}", "error": "", "code": 0}


def _shorten(value: Any) -> Any:
    """Return the result without the middle of long texts and the end of long lists."""
    if isinstance(value, str) and len(value) > 2 * CUT_CHARS:
        return f"{value[:CUT_CHARS]}\n…\n{value[-CUT_CHARS:]}"
    if isinstance(value, dict):
        return {name: _shorten(item) for name, item in cast("dict[str, Any]", value).items()}
    return [_shorten(item) for item in cast("list[Any]", value)[:MAX_ITEMS]] if isinstance(value, list) else value


def find_home(words: Sequence[str]) -> str | None:
    """Return the home on which the command works; None if this is not clear from the words and the environment."""
    if os.environ.get("PLANWARDEN_STORE") or not words or words[0].startswith("-"):
        return None
    if len(words) == 3 and words[1] == "--home":
        return os.path.abspath(os.path.expanduser(words[2]))
    home = os.environ.get("PLANWARDEN_HOME")
    if len(words) != 1:
        return None
    if home:
        return os.path.abspath(os.path.expanduser(home))
    if sys.platform != "linux":
        return None
    data = os.environ.get("XDG_DATA_HOME", "").strip() or os.path.expanduser("~/.local/share")
    return os.path.join(data, "planwarden")


def digest_settings(home: str) -> str:
    """Return the digest of the home's settings file; empty if the file cannot be read."""
    try:
        with open(os.path.join(home, SETTINGS_FILE), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _list_sockets(home: str) -> list[str]:
    """Return the newest sockets, at most `MAX_SERVERS`, the newest first."""
    folder = os.path.join(home, FOLDER)
    try:
        names = [entry for entry in os.scandir(folder) if entry.name.endswith(".sock")]
        return [entry.path for entry in sorted(names, key=lambda entry: -entry.stat().st_mtime_ns)][:MAX_SERVERS]
    except OSError:
        return []


def _ask(path: str, request: bytes) -> dict[str, object] | None:
    """Return the server's answer; None if there is no server or it declines; `{}`, which blocks a call, if it fails."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            # The server has ended.
            with suppress(OSError):
                os.unlink(path)
            return None
        except OSError:
            return None
        text = b""
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while len(text) <= MAX_ANSWER_BYTES and (piece := connection.recv(MAX_ANSWER_BYTES)):
                text += piece
        except OSError:
            # Do not ask another server: this one may have used up the only pass of the call.
            text = b""
    if text == DECLINED:
        return None
    try:
        answer: object = json.loads(text)
    except ValueError:
        answer = None
    return cast("dict[str, object]", answer) if isinstance(answer, dict) else {}


def _write(answer: dict[str, object]) -> int:
    out, error, code = answer.get("out"), answer.get("error"), answer.get("code")
    if not isinstance(out, str) or not isinstance(error, str) or code not in (0, 2):
        out, error, code = "", "planwarden: Refused, because the server gave no answer", 2
    if error:
        print(error, file=sys.stderr, flush=True)
    if out:
        print(out, flush=True)
    return 0 if code == 0 else 2
