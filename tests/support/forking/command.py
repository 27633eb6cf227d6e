"""The command line of a forked planwarden, for tests of what it does rather than of how it starts."""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.paths import ROOT

START = Path(__file__).with_name("start.py")


def forked_command_line(*words: str) -> Sequence[str]:
    """Like `python -m planwarden.server.main WORD...`, except that everything has been imported. Signals reach it, and
    it is killed with the process that this starts, and then its streams end. `-m MODULE` runs a module instead."""
    if sys.platform == "linux":
        return [sys.executable, "-S", "-E", str(START), fork_server(), *words]
    # Others lack such sockets, or must not fork what has threads.
    return [sys.executable, *([] if words[:1] == ("-m",) else ["-m", "planwarden.server.main"]), *words]


@functools.cache
def fork_server(python_path: str = "") -> str:
    """Return the socket of the server of this process, which ends with it; one for each `PYTHONPATH`."""
    folder = tempfile.mkdtemp(prefix="planwarden-fork-")
    path = f"{folder}/socket"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forking.server", path],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": python_path} if python_path else None,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return path
