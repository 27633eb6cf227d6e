"""A plugin of pytest for the copy of the tree: see that the copy's code runs, and write down which tests fail."""

import os
from pathlib import Path

import pytest

import planwarden.agent

JOURNAL = "TEETH_JOURNAL"
"""The variable with the path of the file that is written: `began`, `failed` or `ended`, and the id of the test."""


def pytest_configure(config: pytest.Config) -> None:
    code = Path(planwarden.agent.__file__).resolve()
    if not code.is_relative_to(config.rootpath.resolve()):
        raise pytest.UsageError(f"the planted bug is not in the code that runs, which is {code}")


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(f"began {nodeid}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _write(f"failed {report.nodeid}")


def pytest_runtest_logfinish(nodeid: str) -> None:
    _write(f"ended {nodeid}")


def _write(line: str) -> None:
    with Path(os.environ[JOURNAL]).open("a", encoding="utf-8") as journal:
        journal.write(f"{line}\n")
