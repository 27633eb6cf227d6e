"""The run over the client fails when a scenario does, or warns, or was not run."""

from pathlib import Path

import pytest

from tests.conformance.client_leg import NOT_OFFERED, faults
from tests.conformance.suite import Found, Outcome, Suite

NAMED = "client:\n  - auth/scope-step-up\n"


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """With one scenario in its set for clients."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "2026-07-28.yaml").write_text(NAMED, encoding="utf-8")
    return Suite(Path("node"), tmp_path / "dist" / "index.js", "1", "v22")


def ran(
    scenario: str = "auth/scope-step-up", *, passed: int = 1, failed: tuple[str, ...] = (), warned: int = 0
) -> Found:
    return Found(scenario=scenario, passed=passed, failed=failed, warned=warned, skipped=0)


def test_a_run_in_which_everything_passed_has_no_fault(suite: Suite) -> None:
    """ours"""
    assert faults(suite, [("2026-07-28", Outcome(0, (ran(),), ""))]) == []


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Outcome(0, (ran(failed=("token-request",)),), ""), "token-request"),
        (Outcome(0, (ran(warned=1),), ""), "1 warnings"),
        (Outcome(0, (ran(passed=0),), ""), "nothing passed"),
        (Outcome(0, (ran("auth/other"),), ""), "was not run"),
        (Outcome(1, (ran(),), "it broke"), "ended with 1: it broke"),
        (Outcome(0, (ran(), ran(next(iter(NOT_OFFERED)))), ""), "documented as not offered"),
    ],
)
def test_what_is_not_as_it_should_be_is_a_fault(suite: Suite, outcome: Outcome, why: str) -> None:
    """ours"""
    [told] = faults(suite, [("2026-07-28", outcome)])
    assert why in told
