"""The key for request states: one for each home, private, whole, the same for every process."""

from pathlib import Path

import anyio
import pytest

from planwarden.agent.common.errors import StoreError
from planwarden.server.mcp.state_key import NAME, find_request_state_key, load_request_state_key
from planwarden.server.settings.configuration import Settings
from planwarden.storage.secret_files import SecretFiles

pytestmark = pytest.mark.anyio


async def test_the_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    key = await load_request_state_key(SecretFiles(home))
    assert len(key) == 32 and await load_request_state_key(SecretFiles(home)) == key
    assert oct((home / NAME).stat().st_mode)[-3:] == "600" and oct(home.stat().st_mode)[-3:] == "700"
    assert [path.name for path in home.iterdir()] == [NAME]


async def test_the_first_process_makes_the_key_for_all(tmp_path: Path) -> None:
    keys: list[bytes] = []

    async def ask() -> None:
        keys.append(await load_request_state_key(SecretFiles(tmp_path)))

    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            # Each file is written on a thread of its own.
            tasks.start_soon(ask)
    assert len(keys) == 16 and len(set(keys)) == 1


@pytest.mark.parametrize("content", ["", "abc", "zz" * 32, "00" * 31, "ü"])
async def test_what_is_not_a_key_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(content)
    with pytest.raises(StoreError, match="not a key"):
        await load_request_state_key(SecretFiles(tmp_path))
    assert (tmp_path / NAME).read_text() == content
    assert await find_request_state_key(Settings(home=tmp_path), SecretFiles(tmp_path)) is None
