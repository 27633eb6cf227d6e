"""Starting the programs of `tests/crash_worker.py`, where needed on a disk that only they see."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import JsonValue

ROOT = Path(__file__).parent.parent
WORKER = (sys.executable, "-m", "tests.crash_worker")


def isolated(folder: Path, mount: str, program: str) -> dict[str, JsonValue]:
    """What a program says that runs where `mount` was done to `folder`, in a mount namespace of its own."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("needs Linux and unshare(1) to mount something that only one process sees")
    allowed = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip(f"this machine does not let us mount: {allowed.stderr.decode().strip()}")
    script = f'{mount} && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", *WORKER, program, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
