"""A gate that kills itself at a commit of its store: `python -m tests.gate.mortal AT WHEN AHEAD_S ARGUMENT...`.

The commits are counted from its first call on; without WHEN it is not killed, with `broken` its engine cannot be
loaded, and with `slow` it takes long to follow a path below /slow after the first judgement. Its clock is some seconds
ahead. One that may be killed gives no host that tries again the same answer for a minute: that would hide a result that
nobody got.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from planwarden.agent.runtime.real_paths import LIMIT_S
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


def slow_down() -> None:
    real, counts = os.path.realpath, Counter[str]()

    def follow(path: Any, **more: Any) -> str:
        counts[str(path)] += str(path).startswith("/slow/")
        # The first judgement looks twice, because nothing is there.
        time.sleep(LIMIT_S if counts[str(path)] > 2 else 0)
        return real(path, **more)

    replace(os.path, realpath=follow)


if __name__ == "__main__":
    at, when, ahead_s, *words = sys.argv[1:]
    if when == "broken":
        sys.modules["planwarden.server.gate.judging"] = None  # pyright: ignore[reportArgumentType] (it cannot be imported)
    elif when == "slow":
        slow_down()
    elif when:
        die_at(int(at), when)
        replace(calls, SAME_ANSWER_S=0.0)
    real = time.time
    replace(time, time=lambda: real() + float(ahead_s))
    sys.exit(main(words))
