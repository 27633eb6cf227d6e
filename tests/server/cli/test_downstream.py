"""Downstream servers at the command line: `call`, the health of servers, and `trust`, which lets reading tools run."""

import json
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import UsageError
from planwarden.server.cli.commands.trust import add_to_text
from planwarden.server.cli.hosts import replace_text
from tests.requirements import requirement
from tests.server.cli.support import Cli, Open, at_terminal, step
from tests.tools.downstream.support import DOUBLE

MINE = """\
# My settings. Keep this line.
[tools]
python = ["tools.py"]   # beside this file

[approvals]   # who may do what
trust_caller = false
"""
READS = {"risk": "read", "effect": "read"}


@pytest.fixture
def cli(cli: Cli) -> Cli:
    (cli.home / "planwarden.toml").write_text(MINE)
    cli.write("planwarden.json", servers(d=server(cli, "good"), liar=server(cli, "liar")))
    return cli


def server(cli: Cli, manner: str) -> dict[str, JsonValue]:
    return {"command": sys.executable, "args": [str(DOUBLE), manner, str(cli.home)]}


def servers(**configured: dict[str, JsonValue]) -> JsonValue:
    return {"mcpServers": {**configured}}


def settings(cli: Cli) -> str:
    return (cli.home / "planwarden.toml").read_text()


@requirement("call:gated")
def test_one_tool_is_called_with_typed_arguments_and_a_dangerous_one_waits_for_a_person(cli: Cli) -> None:
    cli.set_risk("d_echo", "read")
    result = cli.main("call", "d_echo", "--arg", "text=42")
    assert result.code == 0 and '"said": "42"' in result.out
    assert cli.main("call", "find", "--json-args", '{"topic": "old"}', "--json").json["status"] == "completed"
    asked = cli.main("call", "d_note", "--arg", "text=x", "--json")
    assert asked.code == 3 and asked.json["suspensions"][0]["toolCall"]["arguments"] == {"text": "x"}
    assert cli.main("call", "d_note", "--arg", "text=y", "--yes").code == 3
    cli.set_risk("d_note", "confirm")
    assert cli.main("call", "d_note", "--arg", "text=y", "--yes").code == 0
    assert [line for line in cli.ledger if line.startswith("note")] == ["note y"]
    assert cli.main("show", asked.json["threadId"], "--json").json["status"] == "suspended"


DEEP = "[" * 2_000 + "]" * 2_000


def test_an_impossible_call_is_refused_and_not_recorded(cli: Cli, tmp_path: Path) -> None:
    for words, why in (
        (["d_gone"], "there is none"),
        (["nobody"], "there is none"),
        (["d_echo", "--arg", "text"], "is not NAME=VALUE"),
        (["d_echo", "--json-args", "[1]"], "is not a JSON object"),
        (["d_echo", "--json-args", "{"], "not valid JSON"),
        (["d_echo", "--arg", "wrong=1"], '"text" is a required property'),
        (["d_echo", "--arg", f"deep={DEEP}"], "nested"),
        (["d_echo", "--json-args", f'{{"text": {DEEP}}}'], "nested"),
    ):
        result = cli.main("call", *words)
        assert result.code == 2 and why in result.err
    assert cli.main("list", "--executions", "--json").json["executions"] == []
    other = tmp_path / "other.json"
    other.write_text(json.dumps(servers(o=server(cli, "good"))), encoding="utf-8")
    elsewhere = cli.main("call", "--mcp-config", str(other), "o_note", "--arg", "text=x")
    assert elsewhere.code == 3 and f"--mcp-config {other}" in elsewhere.out
    assert cli.main("call", "--mcp-config", str(other), "d_note").code == 2
    assert cli.main("tools", "--mcp-config", "missing.json").code == 2


@requirement("downstream:alone")
def test_a_server_that_is_down_is_named_with_its_reason_by_each_command_and_hinders_no_other(cli: Cli) -> None:
    cli.write("planwarden.json", servers(d=server(cli, "good"), bad=server(cli, "breaks")))
    result, text = cli.main("tools", "--json"), cli.main("tools", "echo").out
    assert {row["name"]: row["health"] for row in result.json["servers"]} == {"d": "ready", "bad": "down"}
    assert all({"reason", "log"} <= row.keys() for row in result.json["servers"])
    assert {"d", "builtin"} <= {tool["source"] for tool in result.json["tools"]}
    assert "d_echo" in text and "exit code 7" in text and "bad" in text
    path = cli.write("plan.json", {"todoList": [step("a", "bad_note", {"text": "x"})]})
    checked, ran = cli.main("check", path), cli.main("run", path)
    assert (ran.code, ran.out, ran.err) == (2, "", checked.err)
    assert "'bad_note' is not available: server 'bad' is down: " in ran.err and "exit code 7" in ran.err
    report = cli.main("doctor", "--json")
    checks = {check["name"]: check for check in report.json["checks"]}
    assert report.code == 1 and checks["server d"]["status"] == "ok" and checks["server d"]["facts"]["tools"] == 10
    assert checks["server bad"]["status"] == "broken" and "its log is" in checks["server bad"]["message"]
    assert checks["downstream"]["status"] == "ok"
    down = cli.main("trust", "bad", "--yes")
    assert down.code == 1 and "'bad'" in down.err


def test_a_call_that_waits_is_listed_without_words_of_a_plan(cli: Cli) -> None:
    called = cli.main("call", "erase", "--arg", "ids=[1]")
    assert called.code == 3 and "waits for an answer: Run erase?" in called.out and " says" not in called.out


def test_what_only_reads_runs_without_asking_after_trust_and_comments_stay(cli: Cli) -> None:
    assert cli.main("call", "d_echo", "--arg", "text=x").code == 3
    asked = cli.main("trust", "d")
    assert asked.code == 2 and "nobody can be asked here" in asked.err and settings(cli) == MINE
    assert '[tools."d_echo"]' in asked.out
    named = cli.main("trust", "d", "echo", "d_meta", "--yes", "--json")
    assert named.json["allowed"] == ["d_echo", "d_meta"]
    (cli.home / "planwarden.toml").write_text(MINE)
    result = cli.main("trust", "d", "--yes", "--json")
    assert result.code == 0 and {"d_echo", "d_meta"} < set(result.json["allowed"])
    assert not {"d_note", "d_die"} & set(result.json["allowed"])
    assert settings(cli).startswith(MINE) and tomllib.loads(settings(cli))["tools"]["d_echo"] == READS
    assert cli.main("call", "d_echo", "--arg", "text=x").code == 0
    assert cli.main("call", "d_note", "--arg", "text=x").code == 3
    before, again = settings(cli), cli.main("trust", "d", "--yes")
    assert again.code == 0 and "nothing was written" in again.out and settings(cli) == before


def test_an_effect_and_a_risk_that_the_operator_wrote_are_never_lowered_also_when_they_are_named(cli: Cli) -> None:
    cli.write(
        "planwarden.json",
        servers(d=server(cli, "good"), liar=server(cli, "liar"), off={**server(cli, "good"), "disabled": True}),
    )
    own = MINE + '\n[tools."d_echo"]\nrisk = "critical"\n'
    (cli.home / "planwarden.toml").write_text(own)
    for words, said in (
        (("liar", "wipe", "liar_both"), "does not say that it only reads"),
        (("liar", "wipe", "plain"), "nothing was written"),
        (("d", "echo"), 'has risk = "critical" in planwarden.toml'),
        (("lair",), "did you mean 'liar'?"),
        (("d", "d_ecko"), "did you mean 'd_echo'?"),
        (("off",), "is disabled"),
    ):
        refused = cli.main("trust", *words, "--yes")
        assert refused.code == 2 and said in refused.err and settings(cli) == own, words
    assert cli.main("trust", "liar", "--yes", "--json").json["allowed"] == ["liar_wipe"]
    assert cli.main("trust", "d", "--yes").code == 0
    assert tomllib.loads(settings(cli))["tools"]["d_echo"] == {"risk": "critical"}


@at_terminal
def test_a_person_confirms_what_is_written(cli: Cli, terminal: Open) -> None:
    shown = ("says that these tools only read", '[tools."d_echo"]', "Let plans call them without asking anybody?")
    for typed, code in (("", 1), ("y", 0)):
        assert terminal("trust", "d", "echo").play(*shown, f"> {typed}") == code
        assert (settings(cli) == MINE) is (typed == "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment",
        MINE,
        MINE.replace("\n", "\r\n"),
        '[tools."x"]   # mine\nremind_after_s = [60]\n\n[approvals]\ncritical = "second"\n',
        "[tools.x]\ncapabilities = ['a']\n",
        "[ tools . 'x' ]\n",
        "tools.python = ['tools.py']\n[tools.y]\nrisk = 'read'\n",
        "[tools]\ny = {risk = 'read'}\n[approvals]\n",
    ],
)
def test_the_text_says_afterwards_what_it_said_and_the_addition(text: str) -> None:
    after = add_to_text(text, {"x": READS}, "why")
    expected = tomllib.loads(text)
    expected.setdefault("tools", {}).setdefault("x", {}).update(READS)
    assert tomllib.loads(after) == expected
    assert [line for line in text.splitlines() if line not in after.splitlines()] == []
    assert add_to_text(f"\ufeff{text}", {"x": READS}, "why") == f"\ufeff{after}"
    assert after.count("\r\n") == (after.count("\n") if "\r\n" in text else 0)


def test_what_lines_cannot_be_added_to_is_left_to_the_person_with_the_lines() -> None:
    for text in (
        "tools = {python = ['tools.py']}\n",
        "[tools]\nx = {capabilities = ['a']}\n",
        "[tools]\nx.capabilities = ['a']\n",
        "[approvals]\napprovers = ['''\n[tools.x]\n''']\n[tools]\nx.capabilities = []\n",
    ):
        with pytest.raises(UsageError, match=r'nothing was changed. Add these yourself:\n\[tools."x"\]\nrisk = "read"'):
            add_to_text(text, {"x": READS}, "why")


def test_a_file_that_somebody_changed_in_between_is_not_overwritten(tmp_path: Path) -> None:
    path, link = tmp_path / "real.toml", tmp_path / "planwarden.toml"
    path.write_text("a = 1\n")
    path.chmod(0o640)
    link.symlink_to(path)
    with pytest.raises(UsageError, match="has been changed"):
        replace_text(link, "", "b = 2\n")
    replace_text(link, "a = 1\n", "b = 2\n")
    assert path.read_text() == "b = 2\n" and link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640 or sys.platform == "win32"
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []
