"""Downstream servers on the command line, and `planwarden call`, which runs one tool as a plan of one step."""

import json
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.requirements import requirement
from tests.server.cli.support import Cli, PtyTerminal, start_on_terminal, step
from tests.tools.downstream.support import DOUBLE


@pytest.fixture
def cli(cli: Cli) -> Cli:
    cli.write("planwarden.json", servers(d=server(cli, "good")))
    return cli


@pytest.fixture
def terminals() -> Generator[list[PtyTerminal]]:
    opened: list[PtyTerminal] = []
    yield opened
    for one in opened:
        one.close()


def server(cli: Cli, manner: str) -> dict[str, JsonValue]:
    return {"command": sys.executable, "args": [str(DOUBLE), manner, str(cli.home)]}


def servers(**configured: dict[str, JsonValue]) -> JsonValue:
    return {"mcpServers": {**configured}}


def trust(cli: Cli, text: str = "[servers.d]\ntrusted = true\n") -> None:
    with (cli.home / "planwarden.toml").open("a", encoding="utf-8") as file:
        file.write(text)


@requirement("call:gated")
def test_one_tool_is_called_with_typed_arguments_and_its_result_is_printed(cli: Cli) -> None:
    trust(cli)
    result = cli.main("call", "d_echo", "--arg", "text=42")
    assert result.code == 0 and '"said": "42"' in result.out
    assert cli.main("call", "find", "--json-args", '{"topic": "old"}', "--json").json["status"] == "completed"
    assert cli.main("call", "calculator", "--arg", "expression=6*7").code == 0


@requirement("call:gated")
def test_a_dangerous_call_waits_for_a_person_and_the_answer_runs_it(cli: Cli) -> None:
    result = cli.main("call", "d_note", "--arg", "text=x", "--json")
    assert result.code == 3 and "note x" not in cli.ledger
    thread = result.json["threadId"]
    assert result.json["suspensions"][0]["toolCall"]["arguments"] == {"text": "x"}
    assert cli.main("call", "d_note", "--arg", "text=y", "--yes").code == 3
    cli.set_risk("d_note", "confirm")
    assert cli.main("call", "d_note", "--arg", "text=y", "--yes").code == 0
    assert [line for line in cli.ledger if line.startswith("note")] == ["note y"]
    shown = cli.main("show", thread, "--observations", "0", "--json").json
    assert "AGENT_SUSPENDED" in [seen["type"] for seen in shown["observations"]]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals in the standard library")
@requirement("call:gated")
def test_the_person_at_the_terminal_decides(cli: Cli, terminals: list[PtyTerminal]) -> None:
    terminals.append(start_on_terminal(cli, "call", "d_note", "--arg", "text=x"))
    terminals[0].expect("Tool: d_note")
    terminals[0].expect("Enter leaves it open]")
    terminals[0].type("y")
    assert terminals[0].finish() == 0
    assert cli.ledger.count("note x") == 1
    # The server that was asked for its tools is the one that is called after the answer.
    assert sum(line.startswith("start") for line in cli.ledger) == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["d_gone"], "there is none"),
        (["nobody"], "there is none"),
        (["d_echo", "--arg", "text"], "is not NAME=VALUE"),
        (["d_echo", "--json-args", "[1]"], "is not a JSON object"),
        (["d_echo", "--json-args", "{"], "not valid JSON"),
    ],
)
def test_an_impossible_call_is_refused_and_not_recorded(cli: Cli, words: list[str], why: str) -> None:
    result = cli.main("call", *words)
    assert result.code == 2 and why in result.err
    assert cli.main("list", "--json").json.get("executions", []) == []


def test_wrong_arguments_are_refused_with_the_reason(cli: Cli) -> None:
    result = cli.main("call", "d_echo", "--arg", "wrong=1", "--json")
    assert result.code == 2 and '"text" is a required property' in json.dumps(result.json).replace('\\"', '"')


@requirement("downstream:alone")
def test_tools_shows_sources_and_the_health_of_servers(cli: Cli) -> None:
    broken = {**server(cli, "breaks")}
    cli.write("planwarden.json", servers(d=server(cli, "good"), bad=broken))
    result = cli.main("tools", "--json")
    health = {found["name"]: found["health"] for found in result.json["servers"]}
    assert health == {"d": "ready", "bad": "down"}
    assert {"d", "builtin"} <= {tool["source"] for tool in result.json["tools"]}
    text = cli.main("tools", "echo").out
    assert "d_echo" in text and "exit code 7" in text and "bad" in text


@requirement("downstream:alone")
def test_run_says_of_a_server_that_is_down_what_check_says(cli: Cli) -> None:
    cli.write("planwarden.json", servers(bad=server(cli, "breaks")))
    path = cli.write("plan.json", {"todoList": [step("a", "bad_note", {"text": "x"})]})
    checked, ran = cli.main("check", path), cli.main("run", path)
    assert (ran.code, ran.out, ran.err) == (2, "", checked.err)
    assert "'bad_note' is not available: server 'bad' is down: " in ran.err and "exit code 7" in ran.err


@requirement("downstream:alone")
def test_doctor_starts_each_server_and_says_what_to_do(cli: Cli) -> None:
    cli.write("planwarden.json", servers(d=server(cli, "good"), bad=server(cli, "breaks")))
    result = cli.main("doctor", "--json")
    checks = {check["name"]: check for check in result.json["checks"]}
    assert result.code == 1 and checks["server d"]["status"] == "ok" and checks["server d"]["facts"]["tools"] == 10
    assert checks["server bad"]["status"] == "broken" and "its log is" in checks["server bad"]["message"]
    assert checks["downstream"]["status"] == "ok"
    cli.write("planwarden.json", servers())
    assert cli.main("doctor").code == 0


def test_mcp_config_selects_another_file_and_printed_commands_repeat_it(cli: Cli, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(servers(o=server(cli, "good"))), encoding="utf-8")
    result = cli.main("call", "--mcp-config", str(other), "o_note", "--arg", "text=x")
    assert result.code == 3 and f"--mcp-config {other}" in result.out
    assert cli.main("call", "--mcp-config", str(other), "d_note").code == 2
    assert cli.main("tools", "--mcp-config", "missing.json").code == 2


def test_a_plan_can_name_tools_of_a_server_that_was_never_listed(cli: Cli) -> None:
    trust(cli)
    call: JsonValue = {"toolName": "d_echo", "arguments": {"text": "x"}}
    plan: JsonValue = {"todoList": [{"id": "a", "description": "x", "requiredTools": ["d_echo"], "toolCalls": [call]}]}
    assert cli.main("run", cli.write("plan.json", plan)).code == 0
