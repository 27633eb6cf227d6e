"""`gate install`, `uninstall` and `status`: the files of hosts, changed byte for byte and put back."""

import json
import os
import shlex
import tomllib
from pathlib import Path

import pytest

from planwarden.agent.common.errors import UsageError
from planwarden.server.cli.hosts import build_change, make_changes
from planwarden.server.cli.output import DONE, FAILED, USAGE
from planwarden.server.cli.program import build_parser
from planwarden.server.gate.host_servers import HostName, find_server_files
from planwarden.server.guard.json_text import read_json_text
from planwarden.server.main import main
from tests.requirements import requirement

STDIO = (
    '"a": {"command": "np\\u0078", "args": [\n  "-y",\n  "srv" ], "env": {"K": "v"}}, "b": {"command": "srv"},\r\n'
    '"c": {"args": [], "command": "install"}, "d":{"command":"x","args":[ ]}, '
    '"far": {"url": "https://x", "headers": {}}, "planwarden": {"command": "uvx", "args": ["planwarden"]}, '
    '"odd": {"command": 3}'
)
TOML = """model = "m" # mine
[mcp_servers.a]
command = 'npx'  # old
args = [
  "-y", # yes
  "srv",
]
[mcp_servers.a.env]
K = "v"
[mcp_servers."b"]
command = "srv"
[mcp_servers.c]
args = []
command = "install"
[mcp_servers.d]
command = "x"
args = [ ] # none
[mcp_servers.far]
url = "https://x"
[mcp_servers.planwarden]
command = "planwarden"
"""
FILES: dict[HostName, str] = {
    "claude-code": '{"numStartups": 1, "mcpServers": {' + STDIO + "}}\n",
    "codex": TOML,
    "gemini": '{"ui": {}, "mcpServers": {' + STDIO + "}}",
    "opencode": '{"mcp": {"a": {"type": "local", "command": ["npx", "-y", "srv"], "environment": {"K": "v"}}, // mine\n'
    '"b": {"command": ["srv",]}, "c": {"command": ["install"]}, "d": {"command": ["x"]}, "far": {"url": "https://x"}}}',
    "cursor": '{// mine\n"mcpServers": {' + STDIO + ",},}",
    "vscode": '{/* mine */ "inputs": [], "servers": {' + STDIO + "}}",
    "claude-desktop": '{"mcpServers": {' + STDIO + "}}",
}


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PLANWARDEN_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


@pytest.mark.parametrize(("host", "before"), [*FILES.items(), ("codex", TOML.replace("\n", "\r\n"))])
@requirement("gate:install")
def test_servers_are_put_behind_the_gate_and_back_byte_for_byte(
    user: Path, host: HostName, before: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = find_server_files(host, os.environ, None)
    file.path.parent.mkdir(parents=True, exist_ok=True)
    real = user / f"real{file.path.suffix}"
    real.write_bytes(before.encode())
    real.chmod(0o640)
    file.path.symlink_to(real)
    install = ["--home", str(user / "own"), "gate", "install", host]
    assert main([*install, "a", "--yes"]) == DONE
    assert main([*install, "--yes"]) == DONE
    text = real.read_bytes().decode()
    entries = {server.name: server for server in file.list_servers(text)}
    assert {name for name, entry in entries.items() if entry.own_words} == {"a", "b", "c", "d"}
    home = ("--home", str(user / "own"), "gate", "--name", "a", "--", "npx", "-y", "srv")
    assert entries["a"].words[-9:] == home and Path(entries["a"].words[0]).is_absolute()
    document = tomllib.loads(text) if host == "codex" else read_json_text(text).value
    assert "'K': 'v'" in str(document)
    capsys.readouterr()
    assert main([*install, "--yes"]) == DONE
    assert "nothing to change" in (shown := capsys.readouterr().out) and "far is left as it is: it has an" in shown
    assert real.read_bytes().decode() == text and file.path.is_symlink() and real.stat().st_mode & 0o777 == 0o640
    assert main(["gate", "status"]) == DONE
    shown = capsys.readouterr().out
    assert "c: behind the gate" in shown and "far: passes by, because it has an address" in shown
    assert main(["gate", "uninstall", host, "--yes"]) == DONE
    assert real.read_bytes().decode() == before


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("planwarden", "planwarden itself"),
        ("/opt/bin/planwarden serve", "planwarden itself"),
        ("uvx planwarden==0.1", "planwarden itself"),
        ("uv --directory /x run planwarden", "planwarden itself"),
        ("uvx --python 3.12 --from planwarden[web] planwarden", "planwarden itself"),
        ("uvx --refresh -q --with x planwarden", "planwarden itself"),
        ("python3 -m planwarden.server.main", "planwarden itself"),
        ("/usr/bin/env A=b planwarden serve", "planwarden itself"),
        ("bash -lc 'cd /x && exec planwarden --home x'", "planwarden itself"),
        ("uvx --prerelease allow planwarden", "planwarden itself"),
        ("py -3.12 -m planwarden", "planwarden itself"),
        ("nice -n 10 python -m planwarden", "planwarden itself"),
        ("nice python -m planwarden", "planwarden itself"),
        ("docker run -i --rm -v /data:/data -e A=b planwarden", "planwarden itself"),
        ("docker run -i ghcr.io/acme/planwarden:0.3 serve", "planwarden itself"),
        ("podman container run -i acme/planwarden@sha256:00ff", "planwarden itself"),
        ("docker compose -f x.yaml run --rm -T planwarden", "planwarden itself"),
        ("docker exec -i app planwarden serve", "planwarden itself"),
        ("docker compose exec -T -u me app planwarden", "planwarden itself"),
        ("docker run --sig-proxy planwarden", "planwarden itself"),
        ("docker-compose -f x.yaml run planwarden", "planwarden itself"),
        ("uvx -c constraints.txt planwarden", "planwarden itself"),
        ("docker exec -i app planwarden gate --name a -- npx srv", "behind the gate"),
        ("docker exec -i planwarden mcp-server-git", "passes by"),
        ("docker exec planwarden", "passes by"),
        ("python -c code planwarden", "passes by"),
        ("docker run -i --name planwarden mcp/fetch", "passes by"),
        ("docker run -i mcp/git --repository planwarden", "passes by"),
        ("docker run -i -v /x/planwarden:/data mcp/git", "passes by"),
        ("uvx planwarden gate --name a -- npx srv", "behind the gate"),
        ("uvx planwarden-like", "passes by"),
        ("uvx mcp-server-git --repository planwarden", "passes by"),
        ("npx srv planwarden", "passes by"),
        ("bash -c 'npx srv planwarden'", "passes by"),
    ],
)
@requirement("gate:install")
def test_planwarden_is_known_however_it_is_started(user: Path, words: str, state: str) -> None:
    command, *arguments = shlex.split(words)
    (file,) = find_server_files("cursor", os.environ, None)
    (server,) = file.list_servers(json.dumps({"mcpServers": {"a": {"command": command, "args": arguments}}}))
    assert server.state == state


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "it is not JSON, line 1"),
        ('{"mcpServers": []}', "is not a list of servers by name"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "twice"),
        ("\xff", "it is not UTF-8"),
        ("[" * 5000, "nested too deeply"),
    ],
)
@requirement("gate:install")
def test_a_file_that_cannot_be_read_is_named_with_its_fault_and_left(
    user: Path, text: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = user / ".claude.json"
    path.write_bytes(text.encode("latin-1"))
    assert main(["gate", "install", "claude-code", "--yes"]) == USAGE
    shown = capsys.readouterr().err
    assert fault in shown and str(path) in shown
    assert path.read_bytes() == text.encode("latin-1")
    assert main(["gate", "status"]) == FAILED


@requirement("gate:install")
def test_without_a_yes_or_with_a_file_that_changed_in_between_nothing_is_written(
    user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = user / "project" / ".mcp.json"
    path.write_bytes(FILES["claude-code"].encode())
    assert main(["gate", "install", "claude-code", "--project"]) == USAGE
    assert main(["gate", "install", "claude-code", "bb", "--project", "--yes"]) == USAGE
    assert "there is no server 'bb'" in capsys.readouterr().err
    assert path.read_bytes().decode() == FILES["claude-code"]
    listed = [build_change(path, change, is_project=True) for change in ("{} ".format, "".format)]
    path.write_text("{}")
    arguments = build_parser().parse_args(["gate", "install", "claude-code", "--project", "--yes"])
    for change in listed:
        with pytest.raises(UsageError, match="has been changed"):
            make_changes(arguments, [change], "", "")
    assert path.read_text() == "{}"


@requirement("gate:install")
def test_an_entry_that_is_written_in_another_way_is_named_and_left_and_the_others_are_changed(
    user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = user / ".codex" / "config.toml"
    path.parent.mkdir()
    before = f'[mcp_servers]\nodd = {{ command = "npx", args = ["-y", "odd"] }}\n{TOML.partition("# mine")[2]}'
    path.write_text(before)
    assert main(["gate", "install", "codex", "--yes"]) == DONE
    assert "odd is left as it is: it is written in a way that cannot be changed" in capsys.readouterr().out
    (file,) = find_server_files("codex", os.environ, None)
    entries = {server.name: server for server in file.list_servers(path.read_text())}
    assert {name for name, entry in entries.items() if entry.own_words} == {"a", "b", "c", "d"}
    assert main(["gate", "uninstall", "codex", "--yes"]) == DONE
    assert path.read_text() == before


@requirement("gate:install")
def test_a_host_without_servers_is_said_to_have_none(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = user / ".codex" / "config.toml"
    for text in (None, "", 'model = "m"\n'):
        if text is not None:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        for verb in ("install", "uninstall"):
            assert main(["gate", verb, "codex", "--yes"]) == DONE
            assert f"There is nothing to change: '{path}' lists no servers." in capsys.readouterr().out


def test_behind_two_hyphens_a_server_may_be_called_like_a_command() -> None:
    parse = build_parser().parse_args
    assert parse(["gate", "--name", "install", "--", "install", "status", "--", "-x"]).command[0] == "install"
    assert parse(["gate", "--", "--help"]).command == ["--help"]
    assert parse(["gate", "install", "codex", "a"]).servers == ["a"]
