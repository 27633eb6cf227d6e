"""The hook of a host: as a command, as a process that a running server answers, and over MCP.

It lets a call run for one answer only, and blocks for everything else that may happen.
"""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from mcp.types import CallToolResult, TextContent
from pydantic import JsonValue

from planwarden.server.cli.commands import guard as guard_commands
from planwarden.server.cli.commands.guard import answer_hook
from planwarden.server.guard.calls import CommandAnswer, GuardedCall, Verdict
from planwarden.server.guard.guard import TOOL_USE_ID_KEY, answering_hooks
from planwarden.server.guard.hook_client import FOLDER, MAX_EVENT_BYTES, digest_settings, find_record
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.tools.guarded.hosts import GUARD_TOOL, GUARDED_HOSTS
from tests.kit import YES, Client, MemoryStore, Service, Settings, Warden, by, decide, load_settings, requirement
from tests.server.mcp.support import ERAS, Era
from tests.support.wardens import open_service

READS = {"claude-code": "Read", "codex": "update_plan", "gemini": "read_file", "opencode": "read", "cursor": "Read"}


@pytest.fixture(autouse=True)
def _settings_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # fixture
    for name in ("PLANWARDEN_HOME", "PLANWARDEN_STORE", "PLANWARDEN_MODEL"):
        monkeypatch.delenv(name, raising=False)


def ask(home: Path, host: str, event: bytes | dict[str, JsonValue]) -> CommandAnswer:
    given = event if isinstance(event, bytes) else json.dumps(event).encode()
    return answer_hook(Namespace(home=home, store=None, model=None, mcp_config=None, host=host), io.BytesIO(given))


def test_the_hook_reads_the_model_and_the_servers_that_its_command_line_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Settings] = []

    async def note(settings: Settings, _: GuardedCall) -> Verdict:
        seen.append(settings)
        return Verdict(then="deny")

    monkeypatch.setattr(guard_commands, "_ask", note)
    servers = tmp_path / "other.json"
    asked = Namespace(home=tmp_path, store=None, model="scripted:x", mcp_config=servers, host="codex")
    answer_hook(asked, io.BytesIO(json.dumps(event("Bash", {"command": "make"})).encode()))
    assert [(settings.model, settings.servers_file) for settings in seen] == [("scripted:x", servers)]


@pytest.mark.parametrize("stop", ["open", "closed"])
def test_a_stop_that_cannot_be_judged_is_refused_only_by_settings_that_say_closed(tmp_path: Path, stop: str) -> None:
    file = tmp_path / "planwarden.toml"
    for fault in ("", "[[rules]]\nbogus = 1\n"):
        file.write_text(f"[guard]\nstop = '{stop}'\n{fault}")
        Path(find_record(str(tmp_path), "claude-code", "s")).mkdir(parents=True, exist_ok=True)
        answer = ask(tmp_path, "claude-code", {"hook_event_name": "Stop", "cwd": "/r", "session_id": "s"})
        assert (answer.code, json.loads(answer.out).get("decision")) == (0, "block" if stop == "closed" else None)
        assert ("could not be checked" in answer.error) == (stop == "open")


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


ODD = (
    *(b"", b"garbage", b"null", b"[]", b"{}", b"\xff\xfe", b"{" * 100_000, b"[" * 100_000 + b"]" * 100_000),
    *(b'{"tool_name": "x", "cwd": "/"}', b'{"tool_name": "x", "tool_input": {}}', b" " * (MAX_EVENT_BYTES + 1)),
    b'{"tool_name": "x", "tool_name": "y", "tool_input": {}, "cwd": "/"}',
    *(text(tool=tool) for tool in ("1", '"a/b"', '"a b"', '""')),
    *(text(arguments=given) for given in ("[]", '"{"', '{"a": NaN}', '{"a": "\\ud800"}', '{"a": {"$from": "b"}}')),
    *(text(arguments='{"a": "' + "a" * 600_000 + '"}'), text(arguments='{"a": [' + "1," * 50_000 + "1]}")),
    text(arguments='{"a":' * 200 + "1" + "}" * 200),
    *(text(folder=folder) for folder in ('""', '"a\\u0000b"', "1")),
    text('"Bash"', json.dumps({"command": "ls /etc/x", "workdir": "/" + "a/" * 20_000})),
    text('"Bash"', json.dumps({"command": "a " + "$PWD" * 3_000, "workdir": "/" + "a" * 4_000})),
)


@requirement("guard:fails-closed")
def test_whatever_a_host_sends_that_is_not_a_call_is_blocked(tmp_path: Path) -> None:
    for odd in ODD:
        answer = ask(tmp_path, "codex", odd)
        assert (answer.code, answer.out) == (2, ""), odd[:100]
        assert answer.error.startswith("planwarden: Refused") and len(answer.error) < 5_000


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

    monkeypatch.setattr("planwarden.server.cli.commands.guard.read_settings", fail)
    answer = ask(tmp_path, "codex", event("update_plan"))
    assert answer.code == 2 and "RuntimeError" in answer.error


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="the system has no alarm")
def test_a_hook_that_hangs_is_ended_by_the_system(tmp_path: Path) -> None:
    code = (
        "import planwarden.server.guard.hook_client as guard, sys\n"
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


ALLOW = '[[rules]]\ntool = "codex/Bash"\nthen = "allow"\n'
DENY = '[[rules]]\ntool = "codex/Bash"\nthen = "deny"\nbecause = "changed"\n'
EVENT = json.dumps({"tool_name": "Bash", "tool_input": {"command": "ls"}, "cwd": "/"}).encode()


has_sockets = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the system has no local sockets")


@pytest.fixture
def home() -> object:
    # The path of a socket is short.
    with TemporaryDirectory(prefix="pw") as folder:
        yield Path(folder)


@asynccontextmanager
async def serving(home: Path) -> AsyncGenerator[None]:
    settings = load_settings(home=home, environment={})
    async with Warden(settings=settings) as warden, answering_hooks(settings, warden.service):
        yield


async def run_hook(home: Path, host: str = "codex", *, is_home_first: bool = False) -> tuple[int, str, str]:
    hook, option = ["guard", "hook", host], ["--home", str(home)]
    words = [*option, *hook] if is_home_first else [*hook, *option]
    command = [sys.executable, "-m", "planwarden.server.main", *words]
    env = {name: text for name, text in os.environ.items() if not name.startswith("PLANWARDEN_")}
    ended = await anyio.run_process(command, input=EVENT, check=False, env=env)
    return ended.returncode, ended.stdout.decode().strip(), ended.stderr.decode()


@contextmanager
def answering(home: Path, answer: bytes) -> Generator[None]:
    (home / FOLDER).mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / FOLDER / "1.sock"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while connection.recv(65_536):
                    pass
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(60)


def count_answers(home: Path) -> list[Path]:
    return sorted((home / FOLDER).glob("*.sock"))


@has_sockets
async def test_a_running_server_answers_as_the_command_does(home: Path) -> None:
    (home / "planwarden.toml").write_text(ALLOW)
    async with serving(home):
        assert len(count_answers(home)) == 1
        assert await run_hook(home) == (0, "{}", "")
        code, out, said = await run_hook(home, "nobody")
        assert (code, out) == (2, "")
        assert "no guarded host" in said
    assert count_answers(home) == []
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(home / FOLDER / "1.sock"))
    assert await run_hook(home) == (0, "{}", "")
    assert count_answers(home) == [], "the socket of a process that is gone is passed over"


@has_sockets
@requirement("guard:fails-closed")
async def test_an_answer_that_is_not_whole_blocks(home: Path) -> None:
    (home / "planwarden.toml").write_text(ALLOW)
    for answer in (b"", b"garbage", b"[]", b"{}", b'{"out": "{}", "error": "", "code": 1}', b'{"code": 0}'):
        with answering(home, answer):
            code, out, said = await run_hook(home)
        assert (code, out) == (2, "") and said.startswith("planwarden:")
        count_answers(home)[0].unlink(missing_ok=True)


@has_sockets
async def test_a_server_answers_every_way_to_name_the_home_and_declines_when_its_settings_changed(home: Path) -> None:
    (home / "planwarden.toml").write_text(ALLOW)
    async with serving(home):
        (home / "planwarden.toml").write_text(DENY)
        code, _, said = await run_hook(home)
    assert code == 2 and "changed" in said
    with answering(home, b'{"out": "{}", "error": "", "code": 0}'):
        assert await run_hook(home, is_home_first=True) == (0, "{}", "")


@has_sockets
async def test_odd_requests_end_and_the_next_hook_is_answered(home: Path) -> None:
    (home / "planwarden.toml").write_text(ALLOW)
    async with serving(home):
        [path] = count_answers(home)
        half = json.dumps({"settings": digest_settings(str(home))}).encode() + b"\n{"
        for request in (b" ", b"garbage", b"[]\n", b"\n", b"x" * 5_000, half):
            async with await anyio.connect_unix(path) as stream:
                await stream.send(request)
                await stream.send_eof()
                with anyio.fail_after(60), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    said = await stream.receive()
                    assert said == b"declined" or json.loads(said)["code"] == 2
        assert await run_hook(home) == (0, "{}", "")


Document = dict[str, Any]


@dataclass(frozen=True)
class Hook:
    client: Client
    service: Service
    folder: str

    async def send(self, command: object = "rm -rf build", meta: Document | None = None, **changes: object) -> Document:
        """What the hook gets, as Claude Code fills it in: `tool_input` is the text of the object."""
        arguments = {
            "host": "claude-code",
            "tool_name": "Bash",
            "tool_input": json.dumps({"command": command}),
            "cwd": self.folder,
            **changes,
        }
        result = await self.client.session.call_tool(GUARD_TOOL, arguments, meta=meta)  # pyright: ignore[reportArgumentType]
        assert isinstance(result, CallToolResult) and not result.is_error and result.structured_content is None
        [block] = result.content
        assert isinstance(block, TextContent)
        return json.loads(block.text)

    async def approve(self, said: Document) -> None:
        page = await self.service.list_suspensions(principal=None)
        [question] = [found for found in page.suspensions if found.suspension_id in json.dumps(said)]
        ids = (question.thread_id, question.suspension_id)
        await decide(self.service, ids, YES, by())


@asynccontextmanager
async def hooked(home: Path, era: Era = "auto") -> AsyncGenerator[Hook]:
    settings = load_settings(home=home, environment={})
    warden = Warden(settings=settings, store=MemoryStore())
    server = PlanwardenServer(lambda: open_service(warden), warden=warden)
    async with Client(server, mode=era) as client:
        await client.session.call_tool("list_suspensions", {})
        yield Hook(client, warden.service, "/")


def decision(said: Document) -> str:
    return said["hookSpecificOutput"]["permissionDecision"]


@pytest.mark.parametrize("era", ERAS)
@requirement("guard:once")
async def test_a_hook_is_told_to_deny_then_once_to_allow_by_a_tool_that_no_list_has(tmp_path: Path, era: Era) -> None:
    async with hooked(tmp_path, era) as hook:
        asked = await hook.send()
        assert decision(asked) == "deny"
        assert GUARD_TOOL not in [tool.name for tool in (await hook.client.session.list_tools()).tools]
        await hook.approve(asked)
        assert decision(await hook.send("rm -rf /")) == "deny"
        assert decision(await hook.send()) == "allow"
        assert decision(await hook.send()) == "deny"
        assert await hook.send(tool_name="Read", tool_input='{"file_path": "/etc/hosts"}') == {}


@requirement("guard:no-model")
async def test_a_model_that_calls_it_gets_nothing_and_takes_nothing(tmp_path: Path) -> None:
    async with hooked(tmp_path) as hook:
        await hook.approve(await hook.send())
        by_model = await hook.send(meta={TOOL_USE_ID_KEY: "toolu_1"})
        assert decision(by_model) == "deny"
        assert decision(await hook.send()) == "allow"
        through_hook = await hook.send(tool_name="mcp__planwarden__guard_call", tool_input="{}")
        assert decision(through_hook) == "deny"


@requirement("guard:fails-closed")
async def test_odd_arguments_are_denied_in_the_hooks_own_form(tmp_path: Path) -> None:
    odd: dict[str, tuple[Any, ...]] = {
        "host": ("nobody", None),
        "tool_name": ("", None),
        "tool_input": ("", "garbage", "[1]", 1, "[" * 100_000),
        "cwd": ("", None),
    }
    async with hooked(tmp_path) as hook:
        for name, values in odd.items():
            for value in values:
                assert decision(await hook.send(**{name: value})) == "deny", name
