"""A jail for shells: an empty folder, recorders in place of programs, no network, and nothing of the machine.

`open_jail` makes a folder with bash, dash and their libraries, and starts this module in it as the first process of
namespaces of its own. That process runs one line after the other, waits until everything that a line started has
ended, and answers with the programs that were run, as their words. A line has five seconds.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

SHELLS = ("bash", "dash")
PROGRAMS = ("a", "b", "git", "npm", "push", "rm", "x", "ab", "env", "1", "2", "f")
"""What the shells find in their PATH: each writes its words down and does nothing."""
LINE_S = 5
MAX_BYTES = 1 << 20
_RECORDER = "#!/sh/dash\nprintf '%s\\037' \"${0##*/}\" \"$@\" '\036' >> /log\n"


def is_possible() -> bool:
    """Whether the system has what a jail takes: namespaces, and both shells."""
    return all(shutil.which(name) is not None for name in ("unshare", "ldd", *SHELLS))


class Jail:
    """Runs lines. Use it from one task at a time."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        self._process = process
        self._answers = BufferedByteReceiveStream(process.stdout)

    async def run(self, shell: str, line: str) -> tuple[list[list[str]], list[str]]:
        """Return the programs that the shell ran, as their words, and the files that are in its folder now."""
        assert self._process.stdin is not None
        await self._process.stdin.send(json.dumps([shell, line]).encode() + b"\n")
        answer: Any = json.loads(await self._answers.receive_until(b"\n", MAX_BYTES))
        return answer["ran"], answer["files"]


@asynccontextmanager
async def open_jail(root: Path, programs: Iterable[str] = PROGRAMS) -> AsyncGenerator[Jail]:
    """Builds the jail in an empty folder, and opens it. Raises `OSError` where the system has no namespaces."""
    _build(root, programs)
    words = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--mount", "--ipc", "--fork", "--kill-child")
    # The module alone: what it imports is read before the jail is closed.
    command = [*words, sys.executable, "-I", __file__, str(root)]
    async with await anyio.open_process(command, stderr=subprocess.STDOUT, env={}) as process:
        try:
            jail = Jail(process)
            if await jail.run("dash", "a 'b c'") != ([["a", "b c"]], []):
                raise OSError("the jail does not record what is run in it")
            yield jail
        finally:
            with suppress(ProcessLookupError):
                process.kill()


def _build(root: Path, programs: Iterable[str]) -> None:
    for name in ("bin", "sh", "dev", "work"):
        (root / name).mkdir()
    (root / "dev" / "null").touch()
    for name in programs:
        (root / "bin" / name).write_text(_RECORDER)
        (root / "bin" / name).chmod(0o755)
    for shell in SHELLS:
        found = shutil.which(shell)
        if found is None:
            raise OSError(f"there is no {shell} here")
        shutil.copy(found, root / "sh" / shell)
        for library in _list_libraries(found):
            place = root / library.relative_to("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, place)


def _list_libraries(program: str) -> Iterator[Path]:
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True, timeout=60).stdout
    for word in told.split():
        if word.startswith("/") and Path(word).is_file():
            yield Path(word)


def _serve(root: str) -> None:
    os.chroot(root)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # This is the first process of its namespace, and is not killed by this.
    signal.signal(signal.SIGALRM, lambda number, frame: os.kill(-1, signal.SIGKILL))
    for text in sys.stdin:
        shell, line = json.loads(text)
        os.chdir("/work")
        Path("/log").write_bytes(b"")
        signal.alarm(LINE_S)
        _run(shell, line)
        signal.alarm(0)
        words = Path("/log").read_bytes().decode("utf-8", "surrogateescape").split("\x1e\x1f")
        files = os.listdir("/work")
        for name in files:
            os.unlink(f"/work/{name}")
        print(json.dumps({"ran": [ran.split("\x1f")[:-1] for ran in words[:-1]], "files": files}), flush=True)


def _run(shell: str, line: str) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in range(3)]
    try:
        os.posix_spawn(f"/sh/{shell}", [shell, "-c", line], {"PATH": "/bin", "HOME": "/work"}, file_actions=actions)
    except (OSError, ValueError):
        # Such as a line with a NUL, which no shell can be given.
        return
    finally:
        os.close(null)
    with suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    _serve(sys.argv[1])
