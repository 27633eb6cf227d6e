"""The quick way of `planwarden guard hook`: a server of the same home that runs already answers, over a local socket.

A host waits for its hook before each call, and importing planwarden takes most of a command's time. So this module
imports little, and hands the event to a server that the host has started anyway. It says which settings it sees; a
server that was started with other ones declines. Where no server answers, the command judges by itself. Nothing is
started, and nothing stays behind.
"""

import hashlib
import io
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import cast

DEADLINE_S = 20
"""After this the system ends the process, whatever it is doing; the hook's shell then blocks the call."""
ANSWER_S = 15.0
MAX_EVENT_BYTES = 8 * 1024 * 1024
MAX_ANSWER_BYTES = 64 * 1024
MAX_SERVERS = 8
FOLDER = "guard"
"""Below the home: a socket for each server that runs."""
SETTINGS_FILE = "planwarden.toml"
DECLINED = b"declined"
DONE_EVENTS = frozenset({"PostToolUse", "PostToolUseFailure", "AfterTool", "Stop", "AfterAgent"})
"""Events about what a host did. Where planwarden fails, they block nothing, so that no session is caught."""


def set_deadline() -> None:
    if hasattr(signal, "SIGALRM"):
        # The default action of the signal needs no Python to run.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(DEADLINE_S)


def answer_quickly(words: Sequence[str]) -> int | None:
    """Answer with the help of a server, and return the exit code; None when the command has to judge by itself.

    `words` stand behind `guard hook`. Standard input can be read again after None.
    """
    set_deadline()
    home = find_home(words)
    if home is None or not hasattr(socket, "AF_UNIX"):
        return None
    event = sys.stdin.buffer.read(MAX_EVENT_BYTES + 1)
    sys.stdin = io.TextIOWrapper(io.BytesIO(event), encoding="utf-8")
    head = json.dumps({"host": words[0], "settings": digest_settings(home)}).encode()
    for path in _list_sockets(home):
        answer = _ask(path, head + b"\n" + event)
        if answer is not None:
            if not answer and read_event_name(event) in DONE_EVENTS:
                # The command says what then happens to a stop.
                return None
            return _write(answer)
    return None


def read_event_name(event: bytes) -> str:
    """Return what the event is about by the host's word; empty where it does not say."""
    try:
        document: object = json.loads(event)
    except (ValueError, RecursionError):
        return ""
    return str(cast("dict[str, object]", document).get("hook_event_name", "")) if isinstance(document, dict) else ""


def find_home(words: Sequence[str]) -> str | None:
    """Return the home that the command works on, without a look into it; None where it takes more to find it."""
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
    """Return the digest of the settings in the home; of nothing where there are none."""
    try:
        with open(os.path.join(home, SETTINGS_FILE), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _list_sockets(home: str) -> list[str]:
    """Return the sockets, the newest first."""
    folder = os.path.join(home, FOLDER)
    try:
        names = [entry for entry in os.scandir(folder) if entry.name.endswith(".sock")]
        return [entry.path for entry in sorted(names, key=lambda entry: -entry.stat().st_mtime_ns)][:MAX_SERVERS]
    except OSError:
        return []


def _ask(path: str, request: bytes) -> dict[str, object] | None:
    """Return the answer; None when nobody is there, or declines. Raises nothing: an answer that breaks off blocks."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(path)
        except OSError:
            _remove(path)
            return None
        text = b""
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while len(text) <= MAX_ANSWER_BYTES and (piece := connection.recv(MAX_ANSWER_BYTES)):
                text += piece
        except OSError:
            # It may have taken a pass for this call.
            text = b""
    if text == DECLINED:
        return None
    try:
        answer: object = json.loads(text)
    except ValueError:
        answer = None
    return cast("dict[str, object]", answer) if isinstance(answer, dict) else {}


def _remove(path: str) -> None:
    """Remove the socket of a server that is gone."""
    try:
        os.unlink(path)
    except OSError:
        pass


def _write(answer: dict[str, object]) -> int:
    out, error, code = answer.get("out"), answer.get("error"), answer.get("code")
    if not isinstance(out, str) or not isinstance(error, str) or code not in (0, 2):
        out, error, code = "", "planwarden: Refused, because the server gave no answer", 2
    if error:
        print(error, file=sys.stderr, flush=True)
    if out:
        print(out, flush=True)
    return 0 if code == 0 else 2
