"""The person's folder of notes, and a home of planwarden with a saved plan over the filesystem and git servers."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.installed import find_node, find_npm, path_with_node
from tests.server.cli.support import clean_environment
from tests.support.paths import ROOT
from tests.tools.downstream.test_real_servers import REGISTRY_VARIABLES

PLAN_NAME = "archive"
PLAN = """\
title: Archive notes
description: Moves notes, and commits that.
inputs:
  properties:
    folder: {type: string, default: inbox, description: Folder with the notes}
    to: {type: string, description: Folder that takes them}
  required: [to]
todoList:
  - id: look
    description: List the notes
    toolCalls:
      - toolName: files_directory_tree
        arguments: {path: {$from: inputs, pointer: /folder}}
  - id: move
    description: Move each note
    forEach: {$from: look, parse: json, pointer: /content}
    toolCalls:
      - toolName: files_move_file
        arguments:
          source:
            $text: "{folder}/{name}"
            with: {folder: {$from: inputs, pointer: /folder}, name: {$from: item, pointer: /name}}
          destination:
            $text: "{to}/{name}"
            with: {to: {$from: inputs, pointer: /to}, name: {$from: item, pointer: /name}}
  - id: stage
    description: Stage what changed
    toolCalls:
      - toolName: repo_git_add
        arguments: {repo_path: ".", files: ["."]}
  - id: commit
    description: Commit it, if there was a note
    when: {value: {$from: move}, matches: {minItems: 1}}
    toolCalls:
      - toolName: repo_git_commit
        arguments:
          repo_path: "."
          message: {$text: "Move notes to {to}", with: {to: {$from: inputs, pointer: /to}}}
"""
SERVERS = """\
{
  "mcpServers": {
    "files": {
      "command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "."], "cwd": "${HOME}/notes"
    },
    "repo": {
      "command": "uvx", "args": ["mcp-server-git", "--repository", "."], "cwd": "${HOME}/notes"
    }
  }
}
"""
SETTINGS = """\
[servers.files]
trusted = true            # its hints say which tools only read
start_timeout_s = 180     # the first start downloads it

[servers.repo]
trusted = true
start_timeout_s = 180

[tools."repo_git_add"]    # staging loses nothing
risk = "read"
effect = "idempotent"
"""
PERSON = "ann"
HOME_SHOWN = "/home/ann"
"""What the page shows instead of the folder in which it all happens."""
NOTES = ("alps.md", "budget.md", "dentist.md")


@dataclass(frozen=True)
class Place:
    """A folder that is the person's home; `notes` in it is under git, and `planwarden` is planwarden's home."""

    folder: Path

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    @property
    def home(self) -> Path:
        return self.folder / "planwarden"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the person's commands."""
        return clean_environment(
            {"PLANWARDEN_HOME": str(self.home), "LOGNAME": PERSON, "HOME": str(self.folder), "COLUMNS": "100"}
        )

    def prepare(self) -> None:
        """Makes the folder with three notes and one commit, and the home with its plan. Raises `Unavailable`."""
        for name in ("inbox", "archive"):
            (self.notes / name).mkdir(parents=True)
        (self.notes / "archive" / ".gitkeep").touch()
        self.write_notes(*NOTES)
        self.run_git("init", "-q", "-b", "main")
        for key, value in (("user.name", PERSON), ("user.email", "ann@example.org"), ("commit.gpgsign", "false")):
            self.run_git("config", key, value)
        self.run_git("add", ".")
        self.run_git("commit", "-q", "-m", "Begin")
        self.home.mkdir(mode=0o700)
        (self.home / "plans").mkdir()
        (self.home / "plans" / f"{PLAN_NAME}.yaml").write_text(PLAN, encoding="utf-8")
        (self.home / "planwarden.toml").write_text(SETTINGS, encoding="utf-8")
        entries = {name: self._build_entry(entry) for name, entry in json.loads(SERVERS)["mcpServers"].items()}
        (self.home / "planwarden.json").write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")

    def write_notes(self, *names: str) -> None:
        """Writes notes into `inbox`."""
        for name in names:
            (self.notes / "inbox" / name).write_text(f"# {name}\n", encoding="utf-8")

    def list_notes(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.notes / folder).glob("*.md"))

    def run_git(self, *words: str) -> str:
        command = ["git", "-C", str(self.notes), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def _build_entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The entry with the npx and uvx of this environment, and with what they need to reach their registries."""
        cache = Path.home()
        env = {name: value for name, value in os.environ.items() if name.startswith(REGISTRY_VARIABLES)}
        env |= {"PATH": path_with_node(), "HOME": str(cache), "PLANWARDEN_SHOW": str(self.folder)}
        programs = {
            "npx": [str(find_node()), str(find_npm("npx-cli.js"))],
            "uvx": [str(ROOT / ".venv" / "bin" / "uvx")],
        }
        command, *before = programs[entry["command"]]
        # The host of the show has a home folder of its own, so `${HOME}` would lead elsewhere there.
        return {"command": command, "args": [*before, *entry["args"]], "cwd": str(self.notes), "env": env}
