"""`planwarden run-goal` with a model of each provider, and its messages when the settings are wrong."""

import logging
import os
from collections.abc import Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from benchmarks.providers import PAGE, list_requests, write_row

from tests.agent.models import runs
from tests.agent.models.runs import obedient
from tests.requirements import requirement
from tests.server.cli.support import CommandResult, run_in_process
from tests.support.doubles.manners import MANNERS
from tests.support.doubles.server import ProviderDouble, serve_double
from tests.support.doubles.wires import KEY


@dataclass(frozen=True)
class Operator:
    """Sets variables and runs the command in this process, which imports each provider's SDK once."""

    home: Path
    capture: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    caplog: pytest.LogCaptureFixture

    def run(self, environment: Mapping[str, str], *words: str) -> CommandResult:
        """Returns the result of the command; its log is part of standard error."""
        for name, value in {"PLANWARDEN_HOME": str(self.home), **environment}.items():
            self.monkeypatch.setenv(name, value)
        self.caplog.clear()
        result = run_in_process(self.capture, *words)
        logged = [record.getMessage() + "\n" for record in self.caplog.records if record.levelno >= logging.ERROR]
        return replace(result, err="".join([result.err, *logged]))

    def run_refused(self, environment: Mapping[str, str]) -> tuple[int, str]:
        """Returns the exit code and the one sentence, from either stream."""
        result = self.run(environment, "run-goal", runs.GOAL)
        everything = result.out + result.err
        assert "Traceback" not in everything and KEY not in everything and runs.ledger_of(self.home) == []
        [sentence] = [line for line in everything.splitlines() if ": " in line]
        return result.code, sentence


@pytest.fixture
def operator(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Operator:
    for name in [*os.environ]:
        if name.startswith("PLANWARDEN_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    return Operator(runs.make_home(tmp_path / "home"), capsys, monkeypatch, caplog)


@contextmanager
def run_in_thread(double: AbstractAsyncContextManager[ProviderDouble]) -> Generator[ProviderDouble]:
    """Runs the double in another thread, because the command runs its own event loop."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(double) as served:
        yield served


@requirement("provider:run-goal")
@pytest.mark.parametrize("name", runs.WAYS)
def test_each_provider_plans_a_goal_and_its_calls_really_run(operator: Operator, name: str) -> None:
    with run_in_thread(obedient(runs.WAYS[name])) as double:
        environment = runs.environment_for(runs.WAYS[name], double)
        result = operator.run(environment, "run-goal", runs.GOAL)
        run = runs.finished(double, environment, operator.home, result.code, result.out, result.err)
    assert (run.code, run.err, run.ledger) == (0, "", runs.DONE)
    assert "3 of 3 steps completed · 2 tool calls · 5 model replies" in run.out and KEY not in run.out
    page = PAGE.read_text(encoding="utf-8")
    parts = write_row(runs.WAYS[name], run), list_requests(run), run.transcript
    assert all(part in page for part in parts), "run `make providers`"


@requirement("provider:bad-settings")
def test_an_impossible_setting_is_one_sentence_before_anything_starts(operator: Operator) -> None:
    for environment, why in (
        ({"PLANWARDEN_MODEL": "openai:m", "PLANWARDEN_MODEL_URL": f"http://u:{KEY}@h"}, "must hold neither a password"),
        ({"PLANWARDEN_MODEL": "scripted:/nowhere.json"}, "cannot read the model script '/nowhere.json'"),
    ):
        result = operator.run(environment, "run-goal", runs.GOAL)
        assert result.code == 2 and result.out == "" and result.err.count("\n") == 1
        assert why in result.err and KEY not in result.err
        assert not (operator.home / "planwarden.db").exists()


@requirement("provider:bad-settings")
def test_an_unknown_model_a_wrong_key_and_an_endpoint_without_a_server_are_a_sentence_each(operator: Operator) -> None:
    with run_in_thread(serve_double("anthropic", MANNERS["obedient"])) as double:
        provider, _, _ = double.wire.setting.partition(":")
        unknown = {"PLANWARDEN_MODEL": f"{provider}:nope", **double.environment}
        assert operator.run_refused(unknown) == (
            1,
            f"model_error: {provider}:nope was not found at {double.url} (404); check the model's name and the address",
        )
        wrong = {
            "PLANWARDEN_MODEL": double.wire.setting,
            **double.environment,
            double.wire.key_variable: "sk-" + "x" * 40,
        }
        code, sentence = operator.run_refused(wrong)
    assert code == 1 and f"the key was refused (401); check {double.wire.key_variable}" in sentence
    assert "xxxx" not in sentence
    with (operator.home / "planwarden.toml").open("a") as file:
        file.write("[execution]\nmodelPatienceS = 0\n")
    nobody = {"PLANWARDEN_MODEL": "ollama:m", "PLANWARDEN_MODEL_URL": "http://127.0.0.1:9/v1"}
    code, sentence = operator.run_refused(nobody)
    assert code == 1 and sentence.startswith("model_error: the provider was asked once without an answer")
    assert "ollama:m cannot be reached at http://127.0.0.1:9/v1 (4 attempts)" in sentence
