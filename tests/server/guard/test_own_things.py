"""What is refused to a model always: planwarden's decisions, its home, the hooks of hosts; quoted, linked, globbed."""

import json
import os
from pathlib import Path

import pytest
from pydantic import JsonValue

from planwarden.server.guard.calls import read_event
from planwarden.server.guard.own_things import MAX_FOLDERS, TOO_MUCH, OwnThings
from tests.requirements import requirement


def find_refusal(
    root: Path, arguments: dict[str, JsonValue], tool: str = "Bash", host: str = "claude-code"
) -> str | None:
    home = root / "data" / "planwarden"
    home.mkdir(parents=True, exist_ok=True)
    project = root / "project"
    project.mkdir(exist_ok=True)
    (project / "link").unlink(missing_ok=True)
    (project / "link").symlink_to(home)
    event = {"tool_name": tool, "tool_input": arguments, "cwd": str(project)}
    own = OwnThings(home, {"HOME": str(root), "XDG_DATA_HOME": str(root / "data")})
    return own.find_refusal(read_event(host, json.dumps(event).encode()))


@pytest.mark.parametrize(
    "command",
    [
        *("planwarden approve 1", "planwarden  approve 1", "/usr/bin/planwarden reject 1", "plan''warden approve 1"),
        *("'planwarden' approve", "planwar\\den approve", "ls; planwarden approve 1", "ls && planwarden trust x"),
        *("sh -c 'planwarden approve 1'", 'bash -lc "cd /; planwarden approve 1"', "env X=1 planwarden approve 1"),
        *(
            "X=1 planwarden approve 1",
            "echo $(planwarden approve 1)",
            "echo `planwarden approve 1`",
            "(planwarden inbox)",
        ),
        *(
            "planwarden --home /x approve 1",
            "planwarden run p --yes",
            "planwarden once forget x",
            "planwarden grant add x",
        ),
        *(
            "planwarden guard uninstall claude-code",
            "uvx planwarden approve 1",
            "python -m planwarden.server.main code",
        ),
        *("python3.12 -m planwarden.server.main approve", "timeout 5 planwarden approve 1", "xargs planwarden approve"),
        *("planwarden serve", "planwarden", "nohup planwarden worker &", "if true; then planwarden approve 1; fi"),
        *("find . -exec planwarden approve 1 +", "planwarden list --yes", "echo x | planwarden approve 1"),
        *('python -c "from planwarden import x"', "sudo -u ann planwarden approve 1", "uvx planwarden@latest approve"),
    ],
)
@requirement("guard:own")
def test_a_command_that_decides_is_refused(tmp_path: Path, command: str) -> None:
    assert find_refusal(tmp_path, {"command": command}) is not None


@pytest.mark.parametrize(
    "command",
    [
        *(
            "planwarden list",
            "planwarden show x",
            "planwarden doctor",
            "planwarden --version",
            "planwarden --home x show",
        ),
        *("git commit -m 'let planwarden approve it'", "ls planwarden", "cd planwarden && ls", "grep -r planwarden ."),
        *("echo planwarden approve", "npm test", "rm -rf build", "cat notes/settings.json", "pip show planwarden"),
    ],
)
def test_a_command_that_only_names_it_is_not_refused(tmp_path: Path, command: str) -> None:
    assert find_refusal(tmp_path, {"command": command}) is None


@pytest.mark.parametrize(
    "command",
    [
        *(
            "cat ~/data/planwarden/planwarden.toml",
            "echo x > ~/data/planwarden/planwarden.toml",
            "rm -r $HOME/data/planwarden",
        ),
        *("cat ${XDG_DATA_HOME}/planwarden/planwarden.db", "cat ../data/planwarden/x", "cat link/planwarden.toml"),
        *("cat ../data/../data/./planwarden/x", "sqlite3 ~/data/planwarden/planwarden.db 'delete from x'"),
        *(
            "cat ~/data/planw*/planwarden.toml",
            "cat ~/data/?lanwarden/x",
            "cd ../data/planwarden && cat planwarden.toml",
        ),
        *("cd ~/data; cd planwarden; ls .", 'cat "/nowhere/../"', "PLANWARDEN_HOME=/tmp/x planwarden list"),
        *(
            "cp --target-directory=../data/planwarden x",
            "ls '~/data'/planwarden ; cat ../data/planwarden",
            "tar -C../data/planwarden -x",
        ),
    ],
)
def test_a_command_that_names_the_home_is_refused(tmp_path: Path, command: str) -> None:
    said = find_refusal(tmp_path, {"command": command})
    if command == 'cat "/nowhere/../"':
        assert said is None
    else:
        assert said is not None


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("Write", {"file_path": "HOME/x", "content": ""}),
        ("Read", {"file_path": "HOME/planwarden.toml"}),
        ("Grep", {"pattern": "x", "path": "HOME"}),
        ("Edit", {"file_path": "link/planwarden.toml", "old_string": "a", "new_string": "b"}),
        ("mcp__files__write", {"where": {"to": ["HOME/x"]}}),
        ("mcp__files__write", {"uri": "file://HOME/x"}),
        ("Write", {"file_path": "../project/.claude/settings.json", "content": ""}),
        ("Write", {"file_path": ".claude/settings.local.json", "content": ""}),
        ("Write", {"file_path": "sub/.mcp.json", "content": ""}),
        ("Bash", {"command": "sed -i s/a/b/ .claude/settings.json"}),
        ("Bash", {"command": "cat .CLAUDE/settings.json"}),
        ("Bash", {"command": "cd .claude && echo {} > settings.json"}),
        ("Bash", {"command": "rm ~/.config/opencode/plugins/planwarden-guard.js"}),
    ],
)
@requirement("guard:own")
def test_a_tool_that_names_the_home_or_a_hook_is_refused(
    tmp_path: Path, tool: str, arguments: dict[str, JsonValue]
) -> None:
    found = json.loads(json.dumps(arguments).replace("HOME", str(tmp_path / "data" / "planwarden")))
    assert find_refusal(tmp_path, found, tool) is not None


def test_a_patch_is_looked_through(tmp_path: Path) -> None:
    for line in (
        "*** Update File: .codex/config.toml",
        "*** Add File: ../data/planwarden/x",
        "+++ b/.codex/hooks.json",
    ):
        patch = f"*** Begin Patch\n{line}\n@@\n-a\n+b\n*** End Patch"
        assert find_refusal(tmp_path, {"command": patch}, "apply_patch", "codex") is not None


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("Read", {"file_path": ".claude/settings.json"}),
        ("Write", {"file_path": "docs/guard.md", "content": "see ~/.claude/settings.json\nand planwarden approve"}),
        ("Write", {"file_path": "a.txt", "content": ".claude/settings.json"}),
        ("Edit", {"file_path": "settings.json", "old_string": ".mcp.json", "new_string": "x"}),
        ("Grep", {"pattern": "PLANWARDEN_HOME", "path": "docs"}),
        ("WebFetch", {"url": "https://example.com/.claude/x", "prompt": "planwarden"}),
    ],
)
def test_words_about_them_are_not_refused(tmp_path: Path, tool: str, arguments: dict[str, JsonValue]) -> None:
    assert find_refusal(tmp_path, arguments, tool) is None


def test_more_words_than_can_be_looked_through_are_refused(tmp_path: Path) -> None:
    assert (
        find_refusal(tmp_path, {"command": "a/b " * 5_000 + "; " + " ".join(f"a/{n}" for n in range(5_000))})
        is not None
    )
    many: JsonValue = [f"a/{n}" for n in range(5_000)]
    assert find_refusal(tmp_path, {"paths": many}, "mcp__x__y") is not None


def test_a_command_line_that_changes_its_folder_too_often_is_refused_before_every_word_is_looked_up_in_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    real = os.path.realpath

    def look(path: str) -> str:
        looks.append(path)
        return real(path)

    monkeypatch.setattr(os.path, "realpath", look)
    for count in (MAX_FOLDERS, 300, 1_900):
        changes = "; ".join(f"cd d{number}" for number in range(count))
        assert find_refusal(tmp_path, {"command": changes}) == TOO_MUCH
    assert find_refusal(tmp_path, {"command": "; ".join(f"cd d{number}" for number in range(10))}) is None
    assert len(looks) < 1_000
