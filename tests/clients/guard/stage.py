"""The stage of a guarded host: a person's home with the host's settings, a project, and planwarden's home with rules.

`planwarden guard install` writes the hook. The hook and the host's MCP server start planwarden through a launcher, in
whose place a fault can be put.
"""

import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from tests.clients.stage import find_installed_command, print_config
from tests.server.cli.support import Cli, CommandResult, clean_environment, command_line

Fault = Literal["killed", "hanging", "giving garbage", "uninstalled"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
COMMANDS: dict[Fault, str] = {
    "killed": "kill -KILL $$",
    "hanging": "exec sleep 600",
    "giving garbage": "echo 'this is no answer {{{'",
}
"""What the launcher does instead of starting planwarden as a command; uninstalled, there is no launcher."""
BECAUSE = "nothing is sent on a Friday"
RULES = """\
[[rules]]
tool = "{tool}"
when = {{ command = {{ matches = "\\\\./note (allowed|warm)" }} }}
then = "allow"

[[rules]]
tool = "{tool}"
when = {{ command = {{ matches = "\\\\./note denied" }} }}
then = "deny"
because = "{because}"
"""
PROMISE = """\
[[rules]]
tool = "{tool}"
when = {{ command = {{ matches = ".*" }} }}
then = "allow"

[[promises]]
name = "tests"
when = {{ tool = "{own}", matches = {{ command = {{ prefix = "./note change" }} }} }}
requires = {{ tool = "{own}", matches = {{ command = {{ prefix = "./note tests" }} }} }}
retries = 2
because = "tests run after every change"
"""
NOTE = '#!/bin/sh\necho "$1" >> "$(dirname "$0")/ledger.txt"\n'


@dataclass(frozen=True)
class GuardStage:
    folder: Path

    @cached_property
    def user(self) -> Path:
        """The home folder of the person, where the host keeps its settings."""
        return _make(self.folder / "user")

    @cached_property
    def project(self) -> Path:
        """The folder in which the host works, with a program that writes a word into the ledger."""
        project = _make(self.user / "shop")
        (project / "note").write_text(NOTE, encoding="utf-8")
        (project / "note").chmod(0o755)
        return project

    @cached_property
    def home(self) -> Path:
        return _make(self.folder / "planwarden-home")

    @property
    def launcher(self) -> Path:
        return self.folder / "bin" / "planwarden"

    @property
    def ledger(self) -> list[str]:
        path = self.project / "ledger.txt"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    @property
    def cli(self) -> Cli:
        return Cli(self.home)

    def write_rules(self, tool: str) -> None:
        """Writes rules about the tool, whose argument `command` has the command line."""
        text = RULES.format(tool=tool, because=BECAUSE)
        (self.home / "planwarden.toml").write_text(text, encoding="utf-8")

    def write_place_rule(self, tool: str) -> None:
        """Writes a rule that lets the tool run anything, in the project alone."""
        text = f'[[rules]]\ntool = "{tool}"\nwhen = {{ cwd = {{ in = ["{self.project}"] }} }}\nthen = "allow"\n'
        (self.home / "planwarden.toml").write_text(text, encoding="utf-8")

    def write_promise(self, tool: str) -> None:
        """Writes a rule that lets the tool run anything, and the promise of a command after another one."""
        text = PROMISE.format(tool=tool, own=tool.partition("/")[2])
        (self.home / "planwarden.toml").write_text(text, encoding="utf-8")

    def run_guard(self, *words: str) -> CommandResult:
        done = subprocess.run(
            command_line("guard", *words, "--home", str(self.home)),
            cwd=self.project,
            env=clean_environment({"HOME": str(self.user)}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def install_hook(self, host: str) -> list[Path]:
        """Installs the hook with the launcher in place of planwarden, and returns the files that it wrote."""
        done = self.run_guard("install", host, "--yes", "--json")
        assert done.code == 0, done
        files = [Path(name) for name in done.json["files"]]
        for file in files:
            text = file.read_text(encoding="utf-8")
            file.write_text(text.replace(str(find_installed_command()), str(self.launcher)), encoding="utf-8")
        self.repair()
        return files

    def config(self, host: str) -> str:
        return print_config(self.cli, host, self.launcher)

    def repair(self) -> None:
        """Lets the launcher start planwarden."""
        self._write_launcher(f'exec "{find_installed_command()}" "$@"')

    def break_planwarden(self, fault: Fault) -> None:
        """Puts the fault in planwarden's place, as a command and as an MCP server."""
        if fault == "uninstalled":
            self.launcher.unlink()
            return
        tap = Path(__file__).parents[1] / "tap.py"
        words = [sys.executable, str(tap), str(self.folder), fault.split()[-1], str(find_installed_command())]
        serve = f"exec {shlex.join(words)}"
        self._write_launcher(f"[ $# -gt 0 ] || {serve}\n{COMMANDS[fault]}")

    def _write_launcher(self, script: str) -> None:
        self.launcher.parent.mkdir(exist_ok=True)
        self.launcher.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        self.launcher.chmod(0o755)

    def list_questions(self) -> list[dict[str, Any]]:
        return self.cli.spawn("list", "--json").json["suspensions"]


def _make(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder
