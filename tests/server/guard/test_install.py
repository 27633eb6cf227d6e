"""Installing and uninstalling the guard: what is shown and asked, what stays as it is, which files are left alone."""

import json
import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.cli.output import DONE, FAILED, USAGE
from planwarden.server.guard.json_text import add_item, read_json_text, remove_at, set_member
from planwarden.server.main import main
from planwarden.tools.guarded.hosts import GUARDED_HOSTS
from tests.kit import first_only, requirement

CLAUDE = """{
  // mine
  "model": "opus",
  "hooks": {
    "PreToolUse": [
      { "matcher": "Bash", "hooks": [{ "type": "command", "command": "echo hi" }] }
    ]
  }
}
"""
FILES = {
    "claude-code": (".claude/settings.json", CLAUDE),
    "codex": (".codex/hooks.json", '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]}}\n'),
    "gemini": (".gemini/settings.json", '{\n  "ui": {"theme": "x"} // dark\n}\n'),
    "cursor": (".cursor/hooks.json", '{"version": 1, "hooks": {"stop": [{"command": "x"}]}}'),
    "opencode": (".config/opencode/opencode.json", '{"permission": {"bash": "deny"}, "theme": "x"}\n'),
}


PROFILE = 'profile = "p"\n[profiles.p.features]\n'
HOOK = '"HOME/.codex/config.toml:pre_tool_use:0:0"'


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PLANWARDEN_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "user"
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.chdir(home / "project")
    return home


@pytest.mark.parametrize("host", list(GUARDED_HOSTS))
@requirement("guard:files")
def test_a_host_is_guarded_and_left_again_byte_for_byte(user: Path, host: str) -> None:
    path, text = user / FILES[host][0], FILES[host][1]
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o640)
    assert main(["guard", "install", host, "--yes"]) == DONE
    installed = path.read_text(encoding="utf-8")
    assert installed != text
    assert main(["guard", "install", host, "--yes"]) == DONE
    assert path.read_text(encoding="utf-8") == installed
    assert path.stat().st_mode & 0o777 == 0o640
    assert main(["guard", "uninstall", host, "--yes"]) == DONE
    assert path.read_text(encoding="utf-8") == text
    assert sorted(found.name for found in path.parent.iterdir() if found.is_file()) == [path.name]


@pytest.mark.parametrize("host", list(GUARDED_HOSTS))
def test_a_project_gets_its_own_file(user: Path, host: str) -> None:
    assert main(["guard", "install", host, "--project", "--yes"]) == DONE
    assert not (user / FILES[host][0]).exists()
    assert any((user / "project").rglob("*"))


def test_the_forms_that_block_are_what_is_written(user: Path) -> None:
    for host in GUARDED_HOSTS:
        assert main(["guard", "install", host, "--yes"]) == DONE
    claude = json.loads((user / ".claude/settings.json").read_text())["hooks"]["PreToolUse"][0]
    assert "matcher" not in claude
    [hook] = claude["hooks"]
    assert (hook["type"], hook["tool"], hook["onFailure"]) == ("mcp_tool", "guard_call", "block")
    # A host that runs a call when its own limit is over gets a limit that is never reached.
    for path, event, least in (
        (".codex/hooks.json", "PreToolUse", 3_600),
        (".gemini/settings.json", "BeforeTool", 3_600_000),
    ):
        [group] = json.loads((user / path).read_text())["hooks"][event]
        [command] = group["hooks"]
        assert "guard hook" in command["command"] and command["command"].endswith("|| exit 2")
        assert command["timeout"] > least
    [cursor] = json.loads((user / ".cursor/hooks.json").read_text())["hooks"]["preToolUse"]
    assert cursor["failClosed"] is True
    assert json.loads((user / ".config/opencode/opencode.json").read_text())["permission"]["bash"] == "ask"


def test_codex_settings_with_hooks_get_the_hook_themselves(user: Path) -> None:
    path = user / ".codex" / "config.toml"
    path.parent.mkdir()
    text = '# mine\nmodel = "x"\n\n[[hooks.Stop]]\n[[hooks.Stop.hooks]]\ntype = "command"\ncommand = "say" # loud\n'
    path.write_text(text)
    assert main(["guard", "install", "codex", "--yes"]) == DONE
    [group] = tomllib.loads(path.read_text())["hooks"]["PreToolUse"]
    assert group["hooks"][0]["command"].endswith("|| exit 2")
    assert path.read_text().startswith(text)
    assert main(["guard", "uninstall", "codex", "--yes"]) == DONE
    assert path.read_text() == text


def test_a_file_that_cannot_be_understood_is_left_alone(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = user / ".claude" / "settings.json"
    path.parent.mkdir()
    deep, large = b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", b" " * (4 << 20) + b"{}"
    for content in (b"[]", b"{", b'{"hooks": 1}', b'{"a": 1, "a": 2}', b"\xff", deep, large):
        path.write_bytes(content)
        assert main(["guard", "install", "claude-code", "--yes"]) == USAGE
        assert path.read_bytes() == content
    assert main(["guard", "status"]) == FAILED and "settings.json" in capsys.readouterr().out
    toml = user / ".codex" / "config.toml"
    toml.parent.mkdir()
    for text in ("# planwarden guard: begin\n[[hooks.Stop]]\n", "[hooks]\nPreToolUse = []\n", "[[hooks.Stop]]\n[a\n"):
        toml.write_text(text)
        main(["guard", "install", "codex", "--yes"])
        assert toml.read_text() == text


@pytest.mark.parametrize("whose", ["project", "person"])
def test_a_link_of_a_person_is_followed_and_stays_and_one_of_a_project_is_not_followed(user: Path, whose: str) -> None:
    target = user / "dotfiles.json"
    target.write_text("{}")
    folder = (user / "project" if whose == "project" else user) / ".claude"
    folder.mkdir()
    (folder / "settings.json").symlink_to(target)
    words = ["--project"] if whose == "project" else []
    assert main(["guard", "install", "claude-code", *words, "--yes"]) == (USAGE if words else DONE)
    assert ("guard_call" in target.read_text()) == (not words)
    assert (folder / "settings.json").is_symlink()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_left_alone(user: Path) -> None:
    path = user / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text("{}")
    os.chown(path, 12345, 12345)
    assert main(["guard", "install", "claude-code", "--yes"]) == USAGE


@pytest.mark.slow
@pytest.mark.parametrize(
    "host", first_only("codex", *(["opencode"] if shutil.which("node") else []), "gemini", "cursor")
)
def test_the_status_runs_each_hook_with_broken_ones_in_its_place(
    user: Path, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["guard", "install", host, "--yes"]) == DONE
    capsys.readouterr()
    assert main(["guard", "status", "--json"]) == DONE
    found = {status["host"]: status for status in json.loads(capsys.readouterr().out)["hosts"]}
    assert found["claude-code"]["state"] == "not installed" and found["claude-code"]["trials"] == []
    assert found[host]["unknown"]
    trials = {trial["what"]: trial["blocks"] for trial in found[host]["trials"]}
    assert trials.pop("a call that only reads") is False
    assert len(trials) == 6 and all(trials.values())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (".mcp.json", '{"mcpServers": {"planwarden": {"command": "./evil"}}}', "a server 'planwarden' of its own"),
        (".claude/settings.json", '{"disableAllHooks": true}', "disableAllHooks"),
        (".claude/settings.local.json", '{"disableAllHooks": true}', "disableAllHooks"),
    ],
)
def test_the_status_says_what_in_the_folder_switches_claude_codes_hook_off(
    user: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, said: str
) -> None:
    assert main(["guard", "install", "claude-code", "--yes"]) == DONE
    assert main(["guard", "status"]) == FAILED and "blocks every call" in capsys.readouterr().out
    (user / ".claude.json").write_text('{"mcpServers": {"planwarden": {"command": "planwarden"}}}')
    assert main(["guard", "status"]) == DONE
    file = user / "project" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    capsys.readouterr()
    assert main(["guard", "status"]) == FAILED
    assert said in capsys.readouterr().out


@requirement("guard:files")
@pytest.mark.parametrize(
    ("host", "name", "text", "said"),
    [
        ("codex", ".codex/config.toml", "[features]\nhooks = false\n", "features.hooks = false"),
        ("codex", ".codex/config.toml", "[features]\ncodex_hooks = false\n", "features.hooks = false"),
        ("codex", ".codex/config.toml", f"{PROFILE}hooks = false\n", "features.hooks = false"),
        ("codex", ".codex/config.toml", f"[hooks.state.{HOOK}]\nenabled = false\n", "this hook off"),
        ("codex", "project/.codex/config.toml", "features = { hooks = false }\n", "features.hooks = false"),
        ("gemini", "project/.gemini/settings.json", '{"hooksConfig": {"enabled": false}}', "hooksConfig.enabled"),
        ("gemini", "project/.gemini/settings.json", '{"hooks": {"disabled": ["planwarden"]}}', "hooks.disabled"),
        ("gemini", ".gemini/settings.json", '{"tools": {"enableHooks": false}}', "tools.enableHooks"),
        ("gemini", ".gemini/settings.json", '{"hooksConfig": {"disabled": ["planwarden"]}}', "hooksConfig.disabled"),
    ],
)
def test_the_status_proves_no_guard_that_its_host_has_switched_off(
    user: Path, capsys: pytest.CaptureFixture[str], host: str, name: str, text: str, said: str
) -> None:
    file = user / name
    file.parent.mkdir(parents=True)
    file.write_text(text.replace("HOME", str(user)))
    assert main(["guard", "install", host, "--yes"]) == DONE
    capsys.readouterr()
    assert main(["guard", "status"]) == FAILED
    printed = " ".join(capsys.readouterr().out.split())
    assert said in printed and f"so {host} asks nobody" in printed
    assert main(["doctor", "--json"]) is not None
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert said in checks["guard"]["message"]


def test_the_status_says_that_codex_may_type_into_a_shell(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guard", "install", "codex", "--yes"]) == DONE
    # A hook that is switched off is not tried, which would take seconds.
    for more, is_said in (("", True), ("unified_exec_tty = false\n", False)):
        (user / ".codex" / "config.toml").write_text(f"[features]\nhooks = false\n{more}")
        capsys.readouterr()
        main(["guard", "status"])
        assert ("unified_exec_tty = false" in capsys.readouterr().out) == is_said


def test_the_status_calls_outdated_what_an_installation_would_write_with_other_line_ends(
    user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = user / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_bytes(b"[features]\r\nhooks = false\r\n[[hooks.Stop]]\r\n[[hooks.Stop.hooks]]\r\n")
    assert main(["guard", "install", "codex", "--yes"]) == DONE
    written = path.read_bytes()
    path.write_bytes(written.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n", 1))
    capsys.readouterr()
    assert main(["guard", "status"]) == FAILED and "install it again" in capsys.readouterr().out
    assert main(["guard", "install", "codex", "--yes"]) == DONE
    assert main(["guard", "status"]) == FAILED and "install it again" not in capsys.readouterr().out


PATH = ("hooks", "PreToolUse")
ITEM: JsonValue = {"hooks": [{"type": "x", "text": 'a "quoted" // no comment'}]}

TEXTS = (
    *('{\n  "a": 1\n}\n', '{"a":1}', '{\n\t"model": "x", // why\n\t"hooks": {\n\t\t"Stop": [] /* later */\n\t}\n}'),
    '{\n    "hooks": {\n        "PreToolUse": [\n            {"matcher": "Bash", "hooks": []}\n        ],\n    },\n}\n',
    '{\r\n  "hooks": {\r\n    "PreToolUse": [\r\n      1.0,\r\n      1e5\r\n    ]\r\n  }\r\n}\r\n',
    '\ufeff{ "hooks": { "PreToolUse": [ "\\u00e9", 12345678901234567890 ] } }',
    '{"url": "https://example.com/*x*/", "hooks": {"PreToolUse": [2,]}}',
    *(
        '{"hooks":{"PreToolUse":[]}}',
        '{"hooks": {}}',
        '{\n  "hooks": {\n  }\n}\n',
        '{"hooks": {"PreToolUse": [ /* x */ ],},}',
    ),
)


@pytest.mark.parametrize("text", TEXTS)
@requirement("guard:files")
def test_what_was_added_is_removed_without_a_trace(text: str) -> None:
    changed = add_item(text, PATH, ITEM)
    after: Any = read_json_text(changed).value
    assert after["hooks"]["PreToolUse"][-1] == ITEM
    assert all(comment in changed for comment in ("// why", "/* later */") if comment in text)
    assert remove_at(changed, (*PATH, len(after["hooks"]["PreToolUse"]) - 1)) == text


def test_lists_of_hooks_that_a_person_left_empty_stay_when_planwarden_leaves(user: Path) -> None:
    path = user / ".claude" / "settings.json"
    path.parent.mkdir()
    for text in ('{"hooks":{"PreToolUse":[]}}', '{"hooks": {"Stop": [ ]}, "a": 1}', '{\n  "hooks": {}\n}\n'):
        path.write_text(text, encoding="utf-8")
        for command in ("install", "install", "uninstall"):
            assert main(["guard", command, "claude-code", "--yes"]) == DONE
        assert path.read_text(encoding="utf-8") == text


VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([None, 2, "\t"]))
def test_any_object_keeps_its_other_values(value: JsonValue, indent: int | str | None) -> None:
    text = json.dumps({"a": value, "hooks": {"PreToolUse": [value]}}, indent=indent)
    changed = add_item(text, PATH, ITEM)
    assert json.loads(changed) == {"a": value, "hooks": {"PreToolUse": [value, ITEM]}}
    assert remove_at(changed, (*PATH, 1)) == text


OTHER = (
    *("[]", "1", '"x"', '{"hooks": []}', '{"hooks": {"PreToolUse": {}}}', '{"hooks": null}', '{"a": 1', "{'a': 1}"),
    *('{"a": 1, "a": 2}', '{"a": 01x}', '{"a" 1}', '{"a": 1} x', "{" * 1_000, '{"a": [1 2]}', "{a: 1}", '{"a": "\n"}'),
)


def test_an_empty_file_gets_an_object_one_that_is_something_else_is_refused_and_a_member_that_is_there_stays() -> None:
    changed = add_item("", PATH, ITEM)
    assert json.loads(changed) == {"hooks": {"PreToolUse": [ITEM]}}
    assert read_json_text(remove_at(changed, (*PATH, 0))).value == {}
    for text in OTHER:
        with pytest.raises(InvalidArguments):
            add_item(text, PATH, ITEM)
    for text in ('{"permission": {"bash": "allow"}}', '{"permission": "ask"}'):
        assert set_member(text, ("permission", "bash"), "ask") == text


@example('{"\\1"')
@given(st.text(st.sampled_from('{}[]",:/* \n1ae\\'), max_size=30))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        node = read_json_text(text)
    except InvalidArguments:
        return
    assert 0 <= node.start <= node.end <= len(text)
