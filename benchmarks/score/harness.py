"""The cases of `agent-security-harness` about approvals and people, against a planwarden that serves over loopback.

*Approval binding* drives a host: what the host is about to do goes through the command of the guard's hook, which the
server answers, and only what the hook lets pass is done. A person approves in a process of their own, on the same
store. *Human in the loop* posts the methods that it knows to the server's address.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
from tests.kit import by, decide

import planwarden
from planwarden.server.guard.calls import build_call
from planwarden.server.guard.guard import build_guard
from planwarden.server.settings.configuration import SETTINGS_FILE, load_settings

PROGRAM = (sys.executable, "-m", "planwarden.server.main")
START_S = 30.0
ACCEPT = {"Accept": "application/json, text/event-stream"}


@contextmanager
def run_server(home: Path) -> Generator[str]:
    """Serve over HTTP on a free port of the loopback address; yields the address."""
    log = home.parent / "log"
    command = [*PROGRAM, "--home", str(home), "serve", "--http", "--port", "0"]
    with log.open("wb") as errors, subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors) as server:
        try:
            until = time.monotonic() + START_S
            while " listens on " not in log.read_text() and server.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            yield log.read_text().partition(" listens on ")[2].partition(";")[0].split()[0]
        finally:
            server.terminate()


class Host:
    """A host under the guard, as the harness drives it."""

    def __init__(self, home: Path) -> None:
        self.home, self.done = home, list[dict[str, Any]]()

    def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        tool: str = request.get("tool", "")
        arguments: dict[str, Any] = request.get("args") or {}
        match request["op"]:
            case "profile":
                return {"_status": 200, "single_use": True}
            case "executions":
                return {"_status": 200, "executions": [dict(call) for call in self.done]}
            case "declare":
                denied = request["deny"]
                values = ", ".join(f"{json.dumps(k)} = {{ in = [{json.dumps(v)}] }}" for k, v in denied["args"].items())
                rule = f'[[rules]]\ntool = "*/{denied["tool"]}"\nwhen = {{ {values} }}\nthen = "deny"\n'
                with open(self.home / SETTINGS_FILE, "a", encoding="utf-8") as file:
                    file.write(rule)
                return {"_status": 200, "declared": True}
            case "approve":
                return {"_status": 200, "approved": anyio.run(self.approve, tool, arguments)}
            case "call" if self.ask_hook(tool, arguments):
                self.done.append({"tool": tool, "args": dict(arguments)})
                return {"_status": 200, "result": "ok"}
            case _:
                return {"_status": 403, "error": "not let through"}

    def ask_hook(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether the hook lets the call pass."""
        event = {"tool_name": tool, "tool_input": arguments, "cwd": str(self.home.parent), "session_id": "s"}
        command = [*PROGRAM, "guard", "hook", "claude-code", "--home", str(self.home)]
        done = subprocess.run(command, input=json.dumps(event), text=True, capture_output=True, check=False)
        answer = json.loads(done.stdout or "{}")
        return done.returncode == 0 and answer.get("hookSpecificOutput", {}).get("permissionDecision") == "allow"

    async def approve(self, tool: str, arguments: dict[str, Any]) -> bool:
        """Ask about the call, and approve as a person; False where nobody is asked."""
        settings = load_settings(home=self.home, environment=os.environ)
        async with planwarden.Warden(settings=settings) as warden:
            call = build_call("claude-code", tool, arguments, str(self.home.parent), "s")
            asked = await build_guard(settings, warden.service).decide(call, "local")
            if asked.suspension_id is None:
                return False
            row = await warden.service.store.find_suspension(asked.suspension_id)
            assert row is not None
            await decide(warden, row, authority=by(channel="terminal"))
            return True


def run_harness(folder: Path) -> dict[str, list[tuple[str, str, str]]]:
    """Return each case of both suites with its name and its result: `passed`, `failed` or `inconclusive`."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    (home / SETTINGS_FILE).write_text("", encoding="utf-8")
    with run_server(home) as address:
        binding = import_module("protocol_tests.approval_binding_harness").ApprovalBindingHarness(Host(home)).run_all()
        people = import_module("protocol_tests.hitl_harness").HITLSecurityTests(address, dict(ACCEPT)).run_all()
    return {
        "approval binding": [_read(case) for case in binding],
        "human in the loop": [_read(case) for case in people],
    }


def _read(case: Any) -> tuple[str, str, str]:
    result = "passed" if case.passed else "inconclusive" if "INCONCLUSIVE" in case.details else "failed"
    return case.test_id, case.name, result
