"""Where paths lead, for rules: off the event loop, and nobody waits long for a file system that does not answer."""

import threading
from pathlib import Path

import anyio
import pytest

from planwarden.agent.runtime import real_paths
from planwarden.agent.runtime.real_paths import MAX_THREADS, find_real_paths
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path.resolve()
    (home / "out").symlink_to("/etc")
    (home / "new").symlink_to("/etc/not-there")
    (home / "loop").symlink_to(home / "loop")
    (home / "file").write_text("")
    return home


@requirement("rules:under")
async def test_a_path_leads_where_its_links_lead_and_what_cannot_be_known_is_none(home: Path) -> None:
    wanted = {
        f"{home}/a/b": f"{home}/a/b",
        f"{home}/out/passwd": "/etc/passwd",
        f"{home}/new": "/etc/not-there",
        f"{home}/a/../out/x": "/etc/x",
        f"{home}/loop/x": None,
        f"{home}/file/x": None,
        f"{home}/{'n' * 300}": None,
        f"{home}/\ud800": None,
    }
    assert await find_real_paths(wanted) == wanted


@requirement("rules:bounded")
async def test_a_file_system_that_does_not_answer_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def hang(path: str) -> str:
        answered.wait(60)
        return path

    monkeypatch.setattr(real_paths, "LIMIT_S", 0.01)
    monkeypatch.setattr(real_paths, "_follow", hang)
    try:
        async with anyio.create_task_group() as tasks:
            # More than there are threads: the others wait for one no longer than these.
            for _ in range(MAX_THREADS + 2):
                tasks.start_soon(find_real_paths, ["/a"])
        assert await find_real_paths(["/a", "/b"]) == {"/a": None, "/b": None}
    finally:
        answered.set()
