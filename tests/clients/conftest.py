"""What every test with a client leaves behind is nothing: some hosts start daemons that outlive them."""

import os
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

END_S = 30.0


@pytest.fixture(autouse=True)
def nothing_is_left_running(tmp_path: Path) -> Generator[None]:
    """Ends every process that was started for this test, and fails when one cannot be ended."""
    yield
    end_processes(tmp_path)


def end_processes(folder: Path) -> None:
    """Kills the processes that name the folder in their environment or command line. Raises when one is left."""
    deadline = time.monotonic() + END_S
    while left := list(find_processes(folder)):
        for process_id in left:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        assert time.monotonic() < deadline, f"processes {left} cannot be ended"
        time.sleep(0.05)


def find_processes(folder: Path, word: bytes = b"") -> Iterator[int]:
    """Yields processes as `end_processes` means them; with `word`, only those that name it too.

    Only Linux has /proc; elsewhere nothing is found.
    """
    needle = os.fsencode(str(folder))
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # A killed process that its parent has not waited for yet has neither any more.
            facts = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            if needle in facts and word in facts and int(entry.name) != os.getpid():
                yield int(entry.name)
