"""The hook as a command: it lets a call run for one answer only, and blocks for everything else that may happen."""

import io
import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from pydantic import JsonValue

from planwarden.server.cli.guard_hook import answer_hook
from planwarden.server.guard.answers import CommandAnswer
from planwarden.server.guard.calls import MAX_EVENT_BYTES
from planwarden.tools.guarded.hosts import GUARDED_HOSTS
from tests.requirements import requirement

READS = {"claude-code": "Read", "codex": "update_plan", "gemini": "read_file", "opencode": "read", "cursor": "Read"}


@pytest.fixture(autouse=True)
def _settings_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # fixture
    for name in ("PLANWARDEN_HOME", "PLANWARDEN_STORE", "PLANWARDEN_MODEL"):
        monkeypatch.delenv(name, raising=False)


def ask(home: Path, host: str, event: bytes | dict[str, JsonValue]) -> CommandAnswer:
    given = event if isinstance(event, bytes) else json.dumps(event).encode()
    return answer_hook(Namespace(home=home, store=None, host=host), io.BytesIO(given))


def event(tool: str, arguments: JsonValue = None, folder: str = "/") -> dict[str, JsonValue]:
    return {"hook_event_name": "PreToolUse", "tool_name": tool, "tool_input": arguments or {}, "cwd": folder}


@pytest.mark.parametrize("host", list(GUARDED_HOSTS))
def test_what_reads_passes_and_what_is_asked_about_is_blocked_with_a_reason(tmp_path: Path, host: str) -> None:
    passed = ask(tmp_path, host, event(READS[host]))
    assert (passed.code, passed.error) == (0, "")
    assert passed.out == ('{"planwarden": "no opinion"}' if host == "opencode" else "{}")
    asked = ask(tmp_path, host, event("anything", {"command": "rm -rf x"}))
    assert asked.code == 2
    assert f"planwarden --home {tmp_path} approve" in asked.error
    assert asked.out == "" or (host == "cursor" and json.loads(asked.out)["permission"] == "deny")


def text(tool: str = '"x"', arguments: str = "{}", folder: str = '"/"') -> bytes:
    return f'{{"tool_name": {tool}, "tool_input": {arguments}, "cwd": {folder}}}'.encode()


ODD = {
    "nothing": b"",
    "words": b"garbage",
    "null": b"null",
    "a list": b"[]",
    "an empty object": b"{}",
    "no UTF-8": b"\xff\xfe",
    "open braces": b"{" * 100_000,
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "no arguments": b'{"tool_name": "x", "cwd": "/"}',
    "no folder": b'{"tool_name": "x", "tool_input": {}}',
    "a key twice": b'{"tool_name": "x", "tool_name": "y", "tool_input": {}, "cwd": "/"}',
    "a number as tool": text(tool="1"),
    "a tool of a tool": text(tool='"a/b"'),
    "a tool with a space": text(tool='"a b"'),
    "an empty tool": text(tool='""'),
    "a list as arguments": text(arguments="[]"),
    "broken text as arguments": text(arguments='"{"'),
    "no number": text(arguments='{"a": NaN}'),
    "half a surrogate pair": text(arguments='{"a": "\\ud800"}'),
    "a binding": text(arguments='{"a": {"$from": "b"}}'),
    "a large text": text(arguments='{"a": "' + "a" * 600_000 + '"}'),
    "many values": text(arguments='{"a": [' + "1," * 50_000 + "1]}"),
    "deep arguments": text(arguments='{"a":' * 200 + "1" + "}" * 200),
    "an empty folder": text(folder='""'),
    "a folder with a NUL": text(folder='"a\\u0000b"'),
    "a number as folder": text(folder="1"),
    "too much": b" " * (MAX_EVENT_BYTES + 1),
}


@requirement("guard:fails-closed")
@pytest.mark.parametrize("odd", list(ODD))
def test_whatever_a_host_sends_that_is_not_a_call_is_blocked(tmp_path: Path, odd: str) -> None:
    answer = ask(tmp_path, "codex", ODD[odd])
    assert (answer.code, answer.out) == (2, "")
    assert answer.error.startswith("planwarden: Refused")
    assert len(answer.error) < 5_000


def test_an_unknown_host_broken_settings_a_broken_store_and_a_failure_inside_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(tmp_path, "nobody", event("Read")).code == 2
    (tmp_path / "planwarden.toml").write_text("[[rules]]\nthen = 'perhaps'\n")
    assert ask(tmp_path, "codex", event("update_plan")).code == 2
    (tmp_path / "planwarden.toml").unlink()
    (tmp_path / "planwarden.db").write_bytes(b"no database" * 1000)
    assert ask(tmp_path, "codex", event("Bash", {"command": "ls"})).code == 2

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr("planwarden.server.cli.guard_hook.load_settings", fail)
    answer = ask(tmp_path, "codex", event("update_plan"))
    assert answer.code == 2 and "RuntimeError" in answer.error


def test_a_rule_decides_without_a_question(tmp_path: Path) -> None:
    (tmp_path / "planwarden.toml").write_text(
        '[[rules]]\ntool = "codex/Bash"\nwhen = { command = { matches = "ls" } }\nthen = "allow"\n'
        '[[rules]]\ntool = "*/Bash"\nthen = "deny"\nbecause = "no shell here"\n'
    )
    assert ask(tmp_path, "codex", event("Bash", {"command": "ls"})).code == 0
    refused = ask(tmp_path, "codex", event("Bash", {"command": "rm x"}))
    assert (refused.code, "no shell here" in refused.error) == (2, True)
    (tmp_path / "planwarden.toml").write_text('[[rules]]\ntool = "claude-code/Bash"\nthen = "allow"\n')
    said = json.loads(ask(tmp_path, "claude-code", event("Bash", {"command": "ls"})).out)["hookSpecificOutput"]
    assert (said["hookEventName"], said["permissionDecision"]) == ("PreToolUse", "allow")


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="the system has no alarm")
def test_a_hook_that_hangs_is_ended_by_the_system(tmp_path: Path) -> None:
    code = (
        "import planwarden.server.guard.quick as guard, sys\n"
        "guard.DEADLINE_S = 1\n"
        "from planwarden.server.main import main\n"
        f"sys.exit(main(['guard', 'hook', 'codex', '--home', {str(tmp_path)!r}]))\n"
    )
    reading, writing = os.pipe()
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code], stdin=reading, capture_output=True, timeout=120, check=False
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert ended.returncode == -signal.SIGALRM
    assert ended.stdout == b""


def test_as_a_process_it_answers_and_leaves_no_process_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "planwarden.server.main", "guard", "hook", "codex", "--home", str(tmp_path)]
    given = json.dumps(event("Bash", {"command": "rm x"})).encode()
    # Standard output would stay open while any child held it.
    ended = subprocess.run(command, input=given, capture_output=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert b"do not retry" in ended.stderr.lower()
