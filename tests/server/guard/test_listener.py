"""Hooks that a running server answers: the same answers, none by old settings, and none that is not whole."""

import json
import os
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

import planwarden
from planwarden.server.guard.listener import answering_hooks
from planwarden.server.guard.quick import FOLDER, digest_settings
from planwarden.server.settings.configuration import load_settings
from tests.requirements import requirement

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the system has no local sockets"),
]

ALLOW = '[[rules]]\ntool = "codex/Bash"\nthen = "allow"\n'
DENY = '[[rules]]\ntool = "codex/Bash"\nthen = "deny"\nbecause = "changed"\n'
EVENT = json.dumps({"tool_name": "Bash", "tool_input": {"command": "ls"}, "cwd": "/"}).encode()


@pytest.fixture
def home() -> object:
    # The path of a socket is short.
    with TemporaryDirectory(prefix="pw") as folder:
        yield Path(folder)


@asynccontextmanager
async def serving(home: Path) -> AsyncGenerator[None]:
    settings = load_settings(home=home, environment={})
    async with planwarden.Warden(settings=settings) as warden, answering_hooks(settings, warden.service):
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
    """A server that takes one event and answers it so."""
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


@requirement("guard:fails-closed")
async def test_an_answer_that_is_not_whole_blocks(home: Path) -> None:
    (home / "planwarden.toml").write_text(ALLOW)
    for answer in (b"", b"garbage", b"[]", b"{}", b'{"out": "{}", "error": "", "code": 1}', b'{"code": 0}'):
        with answering(home, answer):
            code, out, said = await run_hook(home)
        assert (code, out) == (2, "") and said.startswith("planwarden:")
        count_answers(home)[0].unlink(missing_ok=True)


async def test_a_server_answers_every_way_to_name_the_home_and_declines_when_its_settings_changed(home: Path) -> None:
    (home / "planwarden.toml").write_text(ALLOW)
    async with serving(home):
        (home / "planwarden.toml").write_text(DENY)
        code, _, said = await run_hook(home)
    assert code == 2 and "changed" in said
    with answering(home, b'{"out": "{}", "error": "", "code": 0}'):
        assert await run_hook(home, is_home_first=True) == (0, "{}", "")


async def test_odd_requests_end_and_the_next_hook_is_answered(home: Path) -> None:
    (home / "planwarden.toml").write_text(ALLOW)
    async with serving(home):
        [path] = count_answers(home)
        known = digest_settings(str(home))
        for request in (
            b"",
            b"garbage",
            b"[]\n",
            b"\n",
            b"x" * 5_000,
            json.dumps({"settings": known}).encode() + b"\n{",
        ):
            async with await anyio.connect_unix(path) as stream:
                await stream.send(request or b" ")
                await stream.send_eof()
                with anyio.fail_after(60):
                    try:
                        said = await stream.receive()
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        continue
                assert said == b"declined" or json.loads(said)["code"] == 2
        assert await run_hook(home) == (0, "{}", "")
