"""The command that a question names works as it is, in any terminal."""

import shlex
from pathlib import Path

import anyio
import pytest

import planwarden
from planwarden.server.main import main
from tests.support.wardens import Ledger, plan, tool_step


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
