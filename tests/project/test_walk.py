"""What docs/walk.md says is what happens."""

from pathlib import Path

import pytest
from dev.walk import PAGE, walk

from tests.requirements import requirement

pytestmark = pytest.mark.anyio


@requirement("approval:walk")
async def test_a_model_cannot_approve_itself_and_a_person_who_edits_gets_exactly_that_once(tmp_path: Path) -> None:
    taken = await walk(tmp_path)
    assert taken.ledger == ["erase [9]"]
    counts = [count for _, _, count in taken.rows]
    assert counts == sorted(counts) and counts[:7] == [0] * 7
    assert "whole" in taken.rows[-2][1] and "row" in taken.rows[-1][1]
    assert taken.page == PAGE.read_text(encoding="utf-8"), "run `make walk`"
