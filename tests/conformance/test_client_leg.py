"""The client leg fails when a scenario fails, warns or did not run."""

from pathlib import Path

import pytest

from tests.conformance.client_leg import NOT_OFFERED, find_faults
from tests.conformance.suite import Outcome, ScenarioResult, Suite

NAMED = "client:\n  - auth/scope-step-up\n"


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """A suite with one scenario in its set for clients."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "2026-07-28.yaml").write_text(NAMED, encoding="utf-8")
    return Suite(Path("node"), tmp_path / "dist" / "index.js", "1", "v22")


def build_result(
    scenario: str = "auth/scope-step-up", *, passed: int = 1, failed: tuple[str, ...] = (), warned: int = 0
) -> ScenarioResult:
    return ScenarioResult(scenario=scenario, passed=passed, failed=failed, warned=warned, skipped=0)


def test_a_run_without_problems_has_no_faults(suite: Suite) -> None:
    assert find_faults(suite, [("2026-07-28", Outcome(0, (build_result(),), ""))]) == []


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Outcome(0, (build_result(failed=("token-request",)),), ""), "token-request"),
        (Outcome(0, (build_result(warned=1),), ""), "1 warnings"),
        (Outcome(0, (build_result(passed=0),), ""), "nothing passed"),
        (Outcome(0, (build_result("auth/other"),), ""), "was not run"),
        (Outcome(1, (build_result(),), "it broke"), "ended with 1: it broke"),
        (Outcome(0, (build_result(), build_result(next(iter(NOT_OFFERED)))), ""), "documented as not offered"),
    ],
)
def test_every_unexpected_result_is_a_fault(suite: Suite, outcome: Outcome, why: str) -> None:
    [found_faults] = find_faults(suite, [("2026-07-28", outcome)])
    assert why in found_faults
