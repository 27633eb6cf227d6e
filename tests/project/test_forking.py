"""A forked command is a process like one that was started: its streams, its folder, its end, signals to it."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.kit import first_only
from tests.server.cli.support import clean_environment, command_line, make_home
from tests.support.forking import fork_server, forked_command_line

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("words", first_only(["tools", "--json"], ["call", "nosuch"], ["nosuch"], ["--version"]))
def test_a_forked_command_says_and_returns_what_the_command_does(tmp_path: Path, words: list[str]) -> None:
    environment = clean_environment({"PLANWARDEN_HOME": str(make_home(tmp_path / "home"))})
    forked, started = (
        subprocess.run(start(*words), capture_output=True, env=environment, cwd=tmp_path, timeout=120, check=False)
        for start in (forked_command_line, command_line)
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


def test_a_client_that_is_killed_before_it_reads_its_answer_does_not_end_the_server(tmp_path: Path) -> None:
    order = json.dumps([["--version"], dict(os.environ), str(tmp_path)]).encode()
    with open(os.devnull, "r+b") as null:
        for _ in range(5):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(fork_server())
                socket.send_fds(client, [order], [null.fileno()] * 3)
    assert subprocess.run(forked_command_line("--version"), timeout=120, check=False).returncode == 0


@pytest.mark.parametrize("number", first_only(signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
def test_a_signal_ends_a_forked_server_as_it_ends_one_that_was_started(tmp_path: Path, number: signal.Signals) -> None:
    home = make_home(tmp_path / "home")
    ends: list[int] = []
    for start in (forked_command_line, command_line):
        with subprocess.Popen(
            start("serve"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=clean_environment({"PLANWARDEN_HOME": str(home)}),
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
            process.stdin.flush()
            assert process.stdout.readline()
            os.kill(process.pid, number)
            assert process.stdout.read() == b""
            ends.append(process.wait(60))
    assert ends[0] == ends[1]
