"""What people see in real hosts, and what their keys do."""

from pathlib import Path

import pytest

from tests.clients.installed import Unavailable
from tests.clients.interactive import TOOLS
from tests.clients.scenes import SCENES, Scene
from tests.clients.stage import Stage
from tests.requirements import requirement
from tests.support.screen import Screen

pytestmark = pytest.mark.clients


@requirement("hosts:person")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_person_answers_in_a_real_host_and_the_plan_continues(scene: Scene, tmp_path: Path) -> None:
    try:
        scene(Stage(tmp_path, tools=TOOLS, kills=False), _check_not_empty)
    except Unavailable as error:
        pytest.skip(str(error))


def _check_not_empty(name: str, screen: Screen) -> None:
    """Takes no picture."""
    assert screen.text.strip(), name
