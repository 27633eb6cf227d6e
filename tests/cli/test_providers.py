"""`planwarden run-goal` with a model of each provider, as an operator runs it; and what it says when the settings are wrong."""

import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.streams.text import TextReceiveStream
from benchmarks.providers import PAGE, section

from tests.cli.support import Cli
from tests.doubles.manners import MANNERS
from tests.doubles.server import serving
from tests.doubles.wire import KEY
from tests.provider.runs import DONE, GOAL, WAYS, ledger_of, make_home, run_command, run_goal
from tests.requirements import requirement

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@requirement("provider:run-goal")
@pytest.mark.parametrize("name", WAYS)
async def test_a_goal_is_planned_and_really_done_with_each_provider(tmp_path: Path, name: str) -> None:
    """spec: issue, show; the page shows what happens here"""
    with anyio.fail_after(90):
        run = await run_goal(WAYS[name], make_home(tmp_path / "home"))
    assert (run.code, run.err, run.ledger) == (0, "", DONE)
    assert "3 of 3 steps completed · 2 tool calls · 5 model replies" in run.out and KEY not in run.out
    assert section(WAYS[name], run) in PAGE.read_text(encoding="utf-8"), "run `make providers`"


@asynccontextmanager
async def double_process(*words: str) -> AsyncGenerator[dict[str, str]]:
    """The environment that `python -m tests.doubles` prints, while it runs."""
    async with await anyio.open_process([sys.executable, "-m", "tests.doubles", *words], stderr=None) as process:
        assert process.stdout is not None
        said = ""
        async for text in TextReceiveStream(process.stdout):
            said += text
            if said.count("\n") == 3:
                break
        try:
            yield dict(re.findall(r"export (\w+)=(\S+)", said))
        finally:
            process.kill()


@requirement("provider:run-goal")
async def test_a_double_that_was_started_by_hand_is_a_provider_like_any_other(tmp_path: Path) -> None:
    """spec: issue, show; a model that only writes prose at first is made to call its tools"""
    home, plan = make_home(tmp_path / "home"), tmp_path / "plan.json"
    plan.write_text('{"todoList": [{"id": "a", "description": "note", "requiredTools": ["write_note"]}]}')
    with anyio.fail_after(90):
        async with double_process("anthropic", "prose first", str(plan)) as environment:
            code, out, err = await run_command(home, environment, "run-goal", GOAL)
    assert (code, err, ledger_of(home)) == (0, "", ["write_note the text"])
    assert "not accepted: nothing called write_note; told once to call it" in out


async def refused(home: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and the one sentence, whichever stream it is on."""
    with anyio.fail_after(90):
        code, out, err = await run_command(home, environment, "run-goal", GOAL)
    said = out + err
    assert "Traceback" not in said and KEY not in said and ledger_of(home) == []
    [sentence] = [line for line in said.splitlines() if ": " in line]
    return code, sentence


@requirement("provider:bad-settings")
@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"PLANWARDEN_MODEL": "anthropic:m"}, "the model 'anthropic:m' needs a key; set ANTHROPIC_API_KEY"),
        ({"PLANWARDEN_MODEL": "openai:m"}, "the model 'openai:m' needs a key; set OPENAI_API_KEY"),
        ({"PLANWARDEN_MODEL": "google:m"}, "needs a key; set GOOGLE_API_KEY or GEMINI_API_KEY"),
        ({"PLANWARDEN_MODEL": "openai:"}, "'openai:' names no model; write openai:MODEL"),
        ({"PLANWARDEN_MODEL": "gpt-9"}, "unknown model 'gpt-9'; use 'caller', 'scripted:FILE', or one of 'anthropic:"),
        ({"PLANWARDEN_MODEL": "openai:m", "PLANWARDEN_MODEL_URL": f"http://u:{KEY}@h"}, "must hold neither a password"),
        ({"PLANWARDEN_MODEL": "openai:m", "OPENAI_API_KEY": f"{KEY} {KEY}"}, "OPENAI_API_KEY holds no key"),
        ({"PLANWARDEN_MODEL": "ollama:m", "PLANWARDEN_MODEL_MODE": "magic"}, "'magic'; use 'tools' or 'text'"),
        ({"PLANWARDEN_MODEL": "scripted:/nowhere.json"}, "cannot read the model script '/nowhere.json'"),
    ],
)
def test_a_setting_that_cannot_be_right_is_one_sentence_before_anything_starts(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    why: str,
) -> None:
    """spec: issue, bad input"""
    for name in [*os.environ]:
        if name.startswith("PLANWARDEN_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = Cli(make_home(tmp_path / "home"), capsys).main("run-goal", GOAL)
    assert said.code == 2 and said.out == "" and said.err.count("\n") == 1
    assert why in said.err and KEY not in said.err
    assert not (tmp_path / "home" / "planwarden.db").exists()


@requirement("provider:bad-settings")
async def test_an_unknown_model_and_a_wrong_key_are_one_sentence_each(tmp_path: Path) -> None:
    """spec: issue, bad input; `test_provider_faults.py` has every wire format"""
    home = make_home(tmp_path / "home")
    async with serving("anthropic", MANNERS["obedient"]) as double:
        provider, _, _ = double.wire.setting.partition(":")
        unknown = {"PLANWARDEN_MODEL": f"{provider}:nope", **double.environment}
        assert await refused(home, unknown) == (
            1,
            f"model_error: {provider}:nope was not found at {double.url} (404); check the model's name and the address",
        )
        wrong = {
            "PLANWARDEN_MODEL": double.wire.setting,
            **double.environment,
            double.wire.key_variable: "sk-" + "x" * 40,
        }
        code, sentence = await refused(home, wrong)
    assert code == 1 and f"the key was refused (401); check {double.wire.key_variable}" in sentence
    assert "xxxx" not in sentence


@requirement("provider:bad-settings")
async def test_an_endpoint_that_nobody_serves_is_one_sentence(tmp_path: Path) -> None:
    """spec: issue, bad input"""
    environment = {"PLANWARDEN_MODEL": "ollama:m", "PLANWARDEN_MODEL_URL": "http://127.0.0.1:9/v1"}
    code, sentence = await refused(make_home(tmp_path / "home"), environment)
    assert code == 1 and "ollama:m cannot be reached at http://127.0.0.1:9/v1 (4 attempts)" in sentence
