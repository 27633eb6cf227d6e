"""A tools file or a setting that is wrong: who still sees what waits, and which commands tell."""

import json
import re

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from tests.server.cli.support import ERASE, Cli, CommandResult, step

CONFIRM = step("ask", "displayConfirmation", {"action": "Close the shop"})
SAYS = "tools.py' could not be loaded: RuntimeError: half written"


def break_tools(cli: Cli) -> None:
    (cli.home / "tools.py").write_text("raise RuntimeError('half written')\n", encoding="utf-8")


def look(cli: Cli, words: str) -> CommandResult:
    """What the command prints, whatever the time is."""
    result = cli.main(*words.split())
    return CommandResult(result.code, re.sub(r"\d+ s ago", "N s ago", result.out), result.err)


@pytest.mark.parametrize("words", ["list", "list --json", "list --executions", "show", "show --json", "show --graph"])
def test_what_waits_is_shown_while_the_tools_are_broken(cli: Cli, words: str) -> None:
    cli.run_to_question(CONFIRM)
    before = look(cli, words)
    break_tools(cli)
    assert (look(cli, words), before.code) == (before, 0)


def test_a_command_that_shows_what_a_broken_tool_says_of_itself_tells(cli: Cli) -> None:
    cli.run_to_question(ERASE)
    assert 'says of it: "Delete records."' in cli.main("show").out
    before = [look(cli, words) for words in ("list", "show --json")]
    break_tools(cli)
    assert (cli.main("show").code, SAYS in cli.main("show").err, cli.main("show").out) == (2, True, "")
    assert [look(cli, words) for words in ("list", "show --json")] == before


@pytest.mark.parametrize("words", ["run PLAN", "check PLAN", "approve ID", "reject ID", "tools", "doctor", "rules"])
def test_a_command_that_needs_the_tools_tells_that_they_are_broken(cli: Cli, words: str) -> None:
    found = {"ID": cli.run_to_question(CONFIRM), "PLAN": cli.write("other.json", {"todoList": [CONFIRM]})}
    break_tools(cli)
    result = cli.main(*(found.get(word, word) for word in words.split()))
    assert result.code and SAYS in result.out + result.err


def test_a_document_has_the_tools_that_are_offered_to_the_caller(cli: Cli) -> None:
    plan: JsonValue = {"todoList": [{"id": "look", "description": "Look", "requiredTools": ["find", "wait"]}]}

    async def start() -> None:
        async with planwarden.Warden(cli.home) as warden:
            await warden.execute_plan(plan, wait_seconds=60)

    anyio.run(start)
    for words in (["list", "--json"], ["show", "--json"]):
        [question] = cli.main(*words).json["suspensions"]
        assert [tool["name"] for tool in question["tools"]] == ["find", "wait"], json.dumps(question)
        assert all(tool["definitionDigest"] for tool in question["tools"])
    break_tools(cli)
    assert cli.main("list").code == cli.main("show").code == 0
    assert cli.main("list", "--json").code == 2


def test_what_waits_is_shown_while_the_model_is_not_usable(cli: Cli) -> None:
    cli.run_to_question(CONFIRM)
    settings = cli.home / "planwarden.toml"
    settings.write_text('model = "gpt-9"\n' + settings.read_text())
    assert cli.main("list").code == cli.main("show").code == 0
    assert "unknown model 'gpt-9'" in cli.main("tools").err
