"""`--no-skips`, with which `.ci/run` tests: what was skipped has not passed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SKIPPED = "import pytest\n\n\ndef test_a():\n    pytest.skip('there is no such program')\n"
PASSED = "def test_a():\n    pass\n"


def run_pytest(folder: Path, content: str, *options: str) -> tuple[int, str]:
    """Returns the exit code and the output of a session over one file, with our options."""
    file = folder / "test_one.py"
    file.write_text(content, encoding="utf-8")
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, "-ra", *options, str(file)]
    # What the outer session was told does not count for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [["-n", "1"], []])
def test_a_skipped_test_fails_a_session_that_allows_none_and_is_named(tmp_path: Path, workers: list[str]) -> None:
    code, said = run_pytest(tmp_path, SKIPPED, "--no-skips", *workers)
    assert (code, "there is no such program" in said) == (pytest.ExitCode.TESTS_FAILED, True)


@pytest.mark.exhaustive
def test_a_skipped_test_fails_no_session_that_was_not_told_so(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, SKIPPED)[0] == pytest.ExitCode.OK
    assert run_pytest(tmp_path, PASSED, "--no-skips")[0] == pytest.ExitCode.OK
