"""What docs/saved-plans.md says is what happens, with real servers and in a real host."""

from pathlib import Path

import pytest
from dev.show.page import PAGE
from dev.show.show import run_show
from dev.show.transcript import mask

from tests.clients.installed import Unavailable

pytestmark = pytest.mark.clients


def test_a_saved_plan_is_run_killed_retried_scheduled_and_granted_as_the_page_says(tmp_path: Path) -> None:
    try:
        page = run_show(tmp_path)
    except Unavailable as error:
        pytest.skip(str(error))
    assert mask(page) == mask(PAGE.read_text(encoding="utf-8")), "run `make show`"
