"""The words of every status, which all that shows one to a person takes from one table."""

from typing import get_args

import pytest

from planwarden.agent.core.state import CallStatus, ExecutionStatus, StepStatus
from planwarden.server.cli.checks.report import CheckStatus
from planwarden.server.views.status_words import SIGNS, STATUSES, WORDS, Kind, Mark
from planwarden.storage.ports.schedules import TickOutcome


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [
        ("execution", ExecutionStatus),
        ("step", StepStatus),
        ("call", CallStatus),
        ("row", CallStatus),
        ("item", CallStatus),
        ("tick", TickOutcome),
        ("check", CheckStatus),
    ],
)
def test_every_status_has_a_word_and_a_mark(kind: Kind, statuses: object) -> None:
    assert set(get_args(statuses)) <= set(WORDS[kind])
    assert all(words.word and words.mark in SIGNS for words in WORDS[kind].values())


def test_only_what_is_done_looks_good() -> None:
    good = {
        (kind, status) for kind, statuses in WORDS.items() for status, found in statuses.items() if found.tone == "good"
    }
    assert {status for kind, status in good if kind in ("execution", "step")} == {"completed"}


def test_every_mark_is_drawn_and_no_two_marks_that_a_step_can_have_look_alike() -> None:
    assert set(SIGNS) == set(get_args(Mark))
    signs = [SIGNS[words.mark].text for words in WORDS["step"].values()]
    assert len(set(signs)) == len(signs)


def test_a_person_chooses_executions_by_every_state_but_one_that_nobody_sees() -> None:
    assert set(STATUSES.values()) == set(get_args(ExecutionStatus)) - {"new"}
