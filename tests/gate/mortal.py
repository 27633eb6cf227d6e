"""A gate that kills itself at a commit of its store: `python -m tests.gate.mortal AT WHEN AHEAD_S ARGUMENT...`.

The commits are counted from its first call on; without WHEN it is not killed, and with `broken` its engine cannot be
loaded. Its clock is some seconds ahead. One that may be killed gives no host that tries again the same answer for a
minute: that would hide a result that nobody got.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from planwarden.server.gate import calls
from planwarden.server.main import main
from planwarden.storage.sqlite.writer import Writer
from tests.harness.seams import replace, wrap


def die_at(at: int, when: str) -> None:
    number = 0
    is_called = False

    def calling(answer: Callable[..., Any]) -> Callable[..., Any]:
        def note(*arguments: Any) -> Any:
            nonlocal is_called
            is_called = True
            return answer(*arguments)

        return note

    def committing(commit: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any) -> Any:
            nonlocal number
            number += is_called
            if (number, when) == (at, "before") and is_called:
                os.kill(os.getpid(), signal.SIGKILL)
            outcome = commit(*arguments)
            if (number, when) == (at, "after") and is_called:
                os.kill(os.getpid(), signal.SIGKILL)
            return outcome

        return count

    wrap(calls.GatedCalls, "answer", calling)
    wrap(Writer, "_commit_together", committing)


if __name__ == "__main__":
    at, when, ahead_s, *words = sys.argv[1:]
    if when == "broken":
        sys.modules["planwarden.server.gate.judging"] = None  # pyright: ignore[reportArgumentType] (it cannot be imported)
    elif when:
        die_at(int(at), when)
        replace(calls, SAME_ANSWER_S=0.0)
    real = time.time
    replace(time, time=lambda: real() + float(ahead_s))
    sys.exit(main(words))
