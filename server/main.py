"""The command `planwarden`, as a function and as a process of its own.

A person waits while the process starts and ends. Python's garbage collector would take a third of that time and find
nothing: imported objects live until the process ends, and then the operating system frees them at once.
"""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

_HOOK = ["guard", "hook"]
_PROGRAM = "planwarden.server.cli.program"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command in the current process, which may belong to another program, and return its exit code."""
    _open_missing_streams()
    return import_module(_PROGRAM).run_program(argv, lambda: None)


def run() -> NoReturn:
    """Run the command that the process's arguments name, and end the process."""
    gc.disable()
    _open_missing_streams()
    words = sys.argv[1:]
    if words[:1] == ["--home"]:
        # The hooks that `guard install` writes have `--home HOME` before the command.
        words = [*words[2:], *words[:2]]
    if words[:2] == _HOOK:
        # A host waits for this hook before each of its calls.
        code = import_module("planwarden.server.guard.hook_client").answer_quickly(words[2:])
        if code is not None:
            sys.exit(code)
    try:
        sys.exit(import_module(_PROGRAM).run_program(None, _keep_imported))
    finally:
        gc.freeze()


def _open_missing_streams() -> None:
    """Open the null device as each standard stream that the process was started without.

    Otherwise a file that is opened later gets the descriptor of such a stream, and with it the stream's output.
    """
    sys.stdin = sys.stdin or os.fdopen(os.open(os.devnull, os.O_RDONLY))
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _keep_imported() -> None:
    """Exempt everything imported so far from garbage collection, and turn collection on."""
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    run()
