"""`approve` decides exactly what it was given, and ends with 0 when the decision is recorded."""

import shlex
import sys
from pathlib import Path

import anyio
import pytest

import planwarden
from planwarden.server.main import main
from tests.server.cli.support import ERASE, Cli, Open, step
from tests.server.cli.test_code import make_code
from tests.support.wardens import Ledger, plan, tool_step

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals in the standard library"),
]
CHOICE = "Enter leaves it open]"


def test_the_decision_is_recorded_even_if_the_call_fails_then(cli: Cli, terminal: Open) -> None:
    tools = cli.home / "tools.py"
    tools.write_text(
        tools.read_text().replace('return {"erased": len(ids)}', 'raise planwarden.ToolError("it is locked")')
    )
    suspension_id = cli.run_to_question(ERASE)
    person = terminal("approve", suspension_id)
    person.expect(CHOICE)
    person.type("y")
    assert person.finish() == 0
    assert "it is locked" in person.text and cli.main("show", "--json").json["status"] == "failed"


def test_one_question_is_decided_and_the_command_says_what_waits_next(cli: Cli, terminal: Open) -> None:
    other = cli.run_to_question(ERASE)
    suspension_id = cli.run_to_question(ERASE, step("again", "erase", {"ids": [7]}))
    person = terminal("approve", suspension_id[:12])
    person.expect(CHOICE)
    person.type("y")
    assert person.finish() == 0
    [left, following] = [found["suspensionId"] for found in cli.main("list", "--json").json["suspensions"]]
    assert left == other and cli.ledger == ["erase [1, 2] none"]
    assert following[:8] in person.text and following not in person.text
    assert "1 other question waits for a person" in person.text


def test_alone_it_goes_through_the_open_ones_and_those_that_come_up(cli: Cli, terminal: Open) -> None:
    cli.run_to_question(ERASE, step("again", "erase", {"ids": [7]}))
    cli.run_to_question(step("third", "erase", {"ids": [3]}))
    person = terminal("approve")
    person.expect("2 waiting, oldest first")
    for ids, typed in (("[1, 2]", "y"), ("[3]", ""), ("[7]", "y")):
        person.expect(f"ids = {ids}")
        person.expect(CHOICE)
        person.type(typed)
    assert person.finish() == 3
    assert "2 decided, 1 left open." in person.text
    assert cli.ledger == ["erase [1, 2] none", "erase [7] none"]
    last = terminal("approve")
    last.expect("1 waiting")
    last.expect(CHOICE)
    last.type("no")
    last.expect("Why not?")
    last.type("")
    assert last.finish() == 0 and "1 decided, 0 left open." in last.text


def test_alone_it_needs_a_terminal_unless_nothing_waits(cli: Cli) -> None:
    nothing = cli.main("approve")
    assert nothing.code == 0 and "Nothing waits for a person." in nothing.out
    assert cli.main("approve", "--json").json == {"decided": [], "open": 0}
    cli.run_to_question(ERASE)
    assert cli.main("approve").code == 2 and cli.ledger == []


def test_a_code_approves_by_the_beginning_of_an_id_and_needs_one(cli: Cli) -> None:
    suspension_id = cli.run_to_question(ERASE)
    [asked] = cli.main("list", "--json").json["suspensions"]
    approve = ("--code", make_code(cli, "ann"), "--digest", asked["digest"])
    alone = cli.main("approve", *approve)
    assert alone.code == 2 and "go together" in alone.err
    assert cli.main("approve", suspension_id[:8], *approve).code == 0 and cli.ledger == ["erase [1, 2] none"]


async def _ask(home: Path) -> planwarden.Execution:
    async with planwarden.Warden(home=home, tools=Ledger().tools()) as warden:
        return await warden.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})), wait_seconds=30)


def test_the_command_of_a_question_in_an_embedded_warden_finds_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLANWARDEN_HOME", raising=False)
    home = tmp_path / "a home"
    asked = anyio.run(_ask, home)
    [question] = asked.suspensions
    command = question.how_to_answer.command
    assert command is not None and f"`{command}`" in asked.next_action
    program, *words = shlex.split(command)
    assert (program, words[-2:]) == ("planwarden", ["approve", question.suspension_id])
    assert main([*words[:-2], "reject", question.suspension_id]) == 0
