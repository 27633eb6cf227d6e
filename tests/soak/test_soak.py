"""The soak's own judgement, and each of its scenes once; `make soak` runs them for an hour."""

from pathlib import Path

import anyio
import pytest

from planwarden.server.settings.configuration import DATABASE
from tests.soak.__main__ import open_soak, settle
from tests.soak.load import PAUSES_S
from tests.soak.samples import MIB, Sample, draw, judge_all, read_files, read_process


def build_samples(*, leak_bytes: float = 0, leaked_files: float = 0) -> list[Sample]:
    """A warm-up and an hour of a server that holds so much more with each sample."""
    return [
        {
            "minute": number / 12,
            "memory of http": 100 * MIB + min(number, 100) * MIB / 10 + number * leak_bytes,
            "descriptors of http": 20 + number % 3 + number * leaked_files,
            "threads of http": 6.0,
            "wal": 4.0 * MIB,
            "database": number * 1000.0,
        }
        for number in range(1140)
    ]


@pytest.mark.parametrize(
    ("leak_bytes", "leaked_files", "grown"),
    [(0, 0, []), (40_000, 0, ["memory of http"]), (0, 0.05, ["descriptors of http"])],
)
def test_a_leak_is_found_and_a_server_that_warms_up_and_then_stays_is_flat(
    leak_bytes: float, leaked_files: float, grown: list[str]
) -> None:
    samples = build_samples(leak_bytes=leak_bytes, leaked_files=leaked_files)
    assert [verdict.series for verdict in judge_all(samples, ["http"]) if not verdict.is_flat] == grown
    assert "one &amp; &lt;two&gt;" in draw(samples, ["http"], "one & <two>")


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux has /proc")
async def test_each_scene_ends_as_it_expects(tmp_path: Path) -> None:
    async with open_soak(tmp_path) as (stage, load):
        async with anyio.create_task_group() as tasks:
            for scene in PAUSES_S:
                tasks.start_soon(load.play, scene)
        sample = {**read_process(stage.servers[0].process.pid), **read_files(stage.home / DATABASE)}
        assert all(value > 0 for value in sample.values()), sample
        faults = [*load.faults, *await settle(stage)]
    assert not faults, "\n".join(faults)
    assert set(load.visits) == {scene.__name__ for scene in PAUSES_S}
