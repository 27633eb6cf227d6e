"""Real hosts over a gated filesystem server: what their models are offered, and what they read of a call that is
decided while it is held, later, or after the gate was killed.
"""

import json
import os
import shlex
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import anyio
import pytest

from tests.clients import hosts
from tests.clients.conftest import find_processes
from tests.clients.installed import Package, Unavailable
from tests.clients.stage import Message, Stage, decide_on_page
from tests.server.cli.support import Cli
from tests.support.doubles.messages import ModelReply, ModelRequest

FILES = Package("@modelcontextprotocol/server-filesystem", "2026.8.31")
RAN, PENDING, WROTE = "after a person approved it; not run again", "Nobody has decided yet", "Successfully wrote to"
LOOKS = 300
"""Processes that are started to see a change, one after the other."""


def _codex(stage: Stage, folder: Path, url: str) -> hosts.Session:
    session = hosts.codex(stage, folder, url)
    config = folder / ".codex" / "config.toml"
    # Unattended, it refuses every destructive tool otherwise, whatever a server behind it does.
    words = 'required = true\ndefault_tools_approval_mode = "approve"\n'
    config.write_text(config.read_text(encoding="utf-8").replace("required = true\n", words), encoding="utf-8")
    return session


HOSTS: dict[str, tuple[hosts.HostWire, hosts.PrepareSession, bool]] = {
    "Claude Code": (hosts.HostAnthropicWire(), hosts.claude_code, False),
    "Codex CLI": (hosts.HostResponsesWire(), _codex, False),
    "Gemini CLI": (hosts.HostGeminiWire(), hosts.gemini_cli, True),
    "opencode": (hosts.HostChatWire(), hosts.opencode, True),
}
"""The last is whether the model reads the text of a result that has structured content too."""
Step = tuple[str, Callable[[], None] | None, Callable[[], None] | None]
"""A file to write, what happens on another thread while that call is held, and what happens after its answer."""


class GatedHost:
    """One host, its home, and a folder of files that its server reaches."""

    def __init__(self, name: str, folder: Path) -> None:
        self.wire, self.prepare, self.shows_text = HOSTS[name]
        # Below the host's own folder, to which hosts with roots restrict the server.
        self.data = folder / "host" / "data"
        self.data.mkdir(parents=True)
        self.server = (*FILES.binary("mcp-server-filesystem"), str(self.data))
        self.stage = Stage(folder, kills=False, words=("gate", "--name", "files", "--", *self.server))
        self.settings = self.stage.home / "planwarden.toml"
        self.bodies: list[str] = []
        """The requests to the model of the last run that have a new result."""
        self.offer: object = None
        """The tools in the last request with those of the server."""

    @property
    def written(self) -> list[str]:
        return sorted(path.name for path in self.data.iterdir())

    def run(self, *steps: Step) -> None:
        """Runs the host, whose model makes the calls one after the other."""
        self.bodies.clear()
        started: set[int] = set()
        with ThreadPoolExecutor() as pool:

            def answer(request: ModelRequest) -> ModelReply:
                count = hosts.count_results(self.wire, request)
                if count > len(self.bodies):
                    self.bodies.append(json.dumps(request.body, ensure_ascii=False))
                    if (after := steps[count - 1][2]) is not None:
                        after()
                name, during, _ = steps[count] if count < len(steps) else ("", None, None)
                call = {"path": str(self.data / name), "content": name}
                reply = hosts.build_call_reply(request, ("write_file", call))
                if reply is None:
                    return ModelReply(text="Our tools are not here.")
                self.offer = request.body["tools"]
                if during is not None and count not in started:
                    started.add(count)
                    changes.append(pool.submit(during))
                return reply if name else ModelReply(text="Done.")

            changes = [pool.submit(lambda: None)]
            anyio.run(partial(hosts.run_session, self.wire, self.prepare, self.stage, answer))
            for change in changes:
                change.result()

    def find_question(self) -> Message:
        """Returns the one open question, once there is one."""
        for _ in range(LOOKS):
            for row in Cli(self.stage.home).spawn("list", "--json").json["suspensions"]:
                return row
        raise AssertionError("the gate asked nobody")

    def decide_on_page(self) -> None:
        anyio.run(decide_on_page, self.stage.home, self.find_question()["suspensionId"])

    def approve(self) -> None:
        """Approves at a terminal, and returns when the call ran."""
        question = self.find_question()
        self.stage.approve(question["suspensionId"])
        assert any(self.stage.status(question["threadId"]) == "completed" for _ in range(LOOKS))

    def kill_gate(self) -> None:
        """Kills the gate once it asks, and not what records its messages."""
        self.find_question()
        for process_id in find_processes(self.stage.folder, b"\0gate\0"):
            if b"tap.py" not in Path(f"/proc/{process_id}/cmdline").read_bytes():
                os.kill(process_id, signal.SIGKILL)


@pytest.mark.clients
@pytest.mark.parametrize("name", HOSTS)
def test_a_gated_call_is_decided_and_its_result_reaches_the_model(name: str, tmp_path: Path) -> None:
    try:
        host = GatedHost(name, tmp_path)
        launcher = host.stage.launcher
        gate = launcher.read_text(encoding="utf-8")
        launcher.write_text(f"#!/bin/sh\nexec {shlex.join(host.server)}\n", encoding="utf-8")
        host.run()
    except Unavailable as error:
        pytest.skip(str(error))
    offer_without_gate = host.offer
    launcher.write_text(gate, encoding="utf-8")
    host.settings.write_text("[gate]\nhold_s = 200\n", encoding="utf-8")
    host.run(("one.txt", host.decide_on_page, None), ("two.txt", host.kill_gate, None))
    same_call, killed = host.bodies
    assert WROTE in same_call and RAN not in same_call and killed.count(WROTE) == 1
    assert offer_without_gate == host.offer and host.written == ["one.txt"]

    # The gate is gone, and the home knows how to start the server.
    host.approve()
    host.settings.unlink()
    host.run(("two.txt", None, None), ("three.txt", None, host.approve), ("three.txt", None, None))
    after_kill, pending, later = host.bodies
    assert WROTE in after_kill and PENDING in pending and f"{WROTE} {host.data / 'three.txt'}" in later
    assert (after_kill.count(RAN), later.count(RAN)) == ((1, 2) if host.shows_text else (0, 0))
    assert json.dumps(host.stage.wire).count(RAN) == 2
    assert host.written == ["one.txt", "three.txt", "two.txt"]
