"""Starts the programs of `tests/crash/worker.py`, some of them on a disk that only they see."""

import json
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.support.forking.command import forked_command_line
from tests.support.paths import ROOT

WORKER = (sys.executable, "-m", "tests.crash.worker")


class Worker:
    """A running program and every line that it has printed. Threads read, so it never waits for a full pipe."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            forked_command_line("-m", module, *arguments),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[list[JsonValue]] = []
        self._errors = ""
        self._changed = threading.Condition()
        self._has_ended = False
        self._threads = [threading.Thread(target=read) for read in (self._read_lines, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors = self.process.stderr.read()

    def wait_for(self, lines: int, *, last: list[JsonValue] | None = None, timeout_s: float = 60) -> None:
        """Returns when the program has printed this many lines, with `last` as the last one, or has ended."""

        def is_there() -> bool:
            return self._has_ended or (len(self.lines) >= lines and (last is None or self.lines[-1] == last))

        with self._changed:
            assert self._changed.wait_for(is_there, timeout_s), "no answer"

    def ask(self, question: JsonValue) -> list[JsonValue]:
        """Sends one line, and returns the next line that the program prints."""
        count = len(self.lines)
        self.send(question)
        self.wait_for(count + 1)
        if len(self.lines) == count:
            # Its errors are complete when the thread that reads them has ended.
            self.kill()
            raise AssertionError(f"it ended with {self.process.returncode}: {self._errors}")
        return self.lines[count]

    def send(self, question: JsonValue) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(question)}\n")
        self.process.stdin.flush()

    def check(self) -> None:
        """Raises with the program's errors when it has ended by itself."""
        if self.process.poll() is not None:
            self.kill()
            raise AssertionError(self._errors)

    def kill(self) -> None:
        """Sends SIGKILL. Afterwards the program is gone, and `lines` holds everything that it printed."""
        self.process.kill()
        self._end()

    def close(self) -> None:
        """Ends the program by closing its standard input. Raises with its errors when it fails."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.finish(60)

    def finish(self, timeout_s: float = 150) -> None:
        """Waits until the program ends by itself. Raises with its errors when it fails."""
        try:
            self.process.wait(timeout_s)
        finally:
            self.kill()
        assert self.process.returncode == 0, self._errors

    def _end(self) -> None:
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def run_on_mount(folder: Path, mount: str, program: str) -> dict[str, JsonValue]:
    """Runs a program in its own mount namespace, after the shell command `mount`. Returns the JSON that it prints."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("needs Linux and unshare(1) to mount something that only one process sees")
    allowed = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip(f"this machine does not let us mount: {allowed.stderr.decode().strip()}")
    script = f'{mount} && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", *WORKER, program, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
