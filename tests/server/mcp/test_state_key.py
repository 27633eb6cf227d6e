"""The key for request states: one for each home, private, whole, the same for every process."""

import threading
from pathlib import Path

import pytest

from planwarden.agent.common.errors import StoreError
from planwarden.server.mcp.state_key import FILE, load_request_state_key


def test_the_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    key = load_request_state_key(home)
    assert len(key) == 32 and load_request_state_key(home) == key
    assert oct((home / FILE).stat().st_mode)[-3:] == "600" and oct(home.stat().st_mode)[-3:] == "700"
    assert [path.name for path in home.iterdir()] == [FILE]


def test_the_first_process_makes_the_key_for_all(tmp_path: Path) -> None:
    keys: list[bytes] = []
    barrier = threading.Barrier(16)

    def ask() -> None:
        barrier.wait()
        keys.append(load_request_state_key(tmp_path))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 16 and len(set(keys)) == 1


@pytest.mark.parametrize("content", ["", "abc", "zz" * 32, "00" * 31])
def test_what_is_not_a_key_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(StoreError, match="not a key"):
        load_request_state_key(tmp_path)
    assert (tmp_path / FILE).read_text() == content
