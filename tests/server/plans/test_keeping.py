"""Writing a saved plan."""

import os
from pathlib import Path

import pytest

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.server.plans.keeping import write_plan
from tests.requirements import requirement

DOCUMENT: dict[str, JsonValue] = {"todoList": [{"id": "s1", "description": "Say hello"}]}


@requirement("inbox:keep")
def test_a_plan_is_in_its_folder_only_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    sync = os.fsync

    def look(descriptor: int) -> None:
        seen.append([path.name for path in tmp_path.iterdir() if not path.name.startswith(".")])
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    path = write_plan(tmp_path, "hello", DOCUMENT, "kept by a test")
    with pytest.raises(InvalidArguments, match="already"):
        write_plan(tmp_path, "hello", DOCUMENT, "kept by a test")
    assert seen == [[], ["hello.yaml"]]
    assert [found.name for found in tmp_path.iterdir()] == ["hello.yaml"]
    assert path.stat().st_mode & 0o777 == 0o600
