"""The check that nothing is left running after a test with a client."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import end_processes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_daemon_that_a_client_left_is_ended(tmp_path: Path) -> None:
    """A daemon has a session of its own, and no parent that waits for it."""
    daemon = subprocess.Popen(
        [sys.executable, "-c", "print('runs', flush=True); input()"],
        env={**os.environ, "CODEX_HOME": str(tmp_path / "codex")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with daemon:
        assert daemon.stdout is not None and daemon.stdout.readline() == b"runs\n"
        end_processes(tmp_path)
        assert daemon.wait(60) != 0
