"""Promises of a folder count as a person read them at a terminal."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.kit import requirement
from tests.server.cli.support import Cli, Open, needs_terminal

PROMISE = '[[promises]]\nname = "tests"\nwhen = {tool = "Edit"}\nrequires = {tool = "Bash"}\n'


@needs_terminal
@requirement("done:trusted")
def test_a_folder_counts_as_it_was_trusted_and_a_change_is_said_until_a_person_trusts_it_again(
    cli: Cli, terminal: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shop/.planwarden/promises.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f"\ufeff{PROMISE}", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "shop")
    refused = cli.main("guard", "trust-folder")
    assert refused.code == 2 and "only a person at a terminal" in refused.err
    assert "not trusted]" in cli.main("promises").out
    assert terminal("guard", "trust-folder").play("tests (strict)", "Hold hosts in", "> y") == 0
    assert "/shop: trusted]" in cli.main("promises").out
    file.write_text("promises = []")
    assert "tests (strict)" in (said := cli.main("promises").out)
    assert "trusted; its file has changed since, and the old text counts]" in said
    assert terminal("guard", "trust-folder").play("Hold hosts in", "> y") == 0
    assert cli.main("promises").out.startswith("no promises")


def write_events(path: Path, *events: dict[str, JsonValue]) -> str:
    common: dict[str, JsonValue] = {"hook_event_name": "PostToolUse", "cwd": "/r", "session_id": "s", "tool_input": {}}
    lines = (json.dumps({**common, "tool_response": {}, **event}, ensure_ascii=False) for event in events)
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    return str(path)


@requirement("done:trusted")
def test_a_check_judges_only_calls_that_were_made_and_skips_other_events(cli: Cli, tmp_path: Path) -> None:
    (Path(cli.home) / "planwarden.toml").write_text(PROMISE)
    edit: dict[str, JsonValue] = {"tool_name": "Edit", "tool_input": {"new_string": "a\u2028b\x85c"}}
    bash: dict[str, JsonValue] = {"tool_name": "Bash", "tool_input": {"command": "ls"}}
    others: list[dict[str, JsonValue]] = [
        {"hook_event_name": name} for name in ("SessionStart", "UserPromptSubmit", "Stop")
    ]
    planned, failed = (edit | {"hook_event_name": name} for name in ("PreToolUse", "PostToolUseFailure"))
    for code, *events in (
        (1, *others, edit),
        (0, edit, bash, *others),
        (0, edit, bash, planned),
        (0, planned, failed),
    ):
        ended = cli.main("promises", "check", write_events(tmp_path / "t.jsonl", *events))
        assert ended.code == code, (events, ended)


@pytest.mark.parametrize("at", [1e300, -1e18, 10**400, "soon"], ids=["1e300", "-1e18", "10**400", "text"])
def test_a_time_without_a_date_in_a_transcript_is_refused(cli: Cli, tmp_path: Path, at: JsonValue) -> None:
    (Path(cli.home) / "planwarden.toml").write_text(PROMISE)
    ended = cli.main("promises", "check", write_events(tmp_path / "t.jsonl", {"tool_name": "Edit", "at": at}))
    assert ended.code == 2 and "line 1 has an 'at' that is not a time" in ended.err
