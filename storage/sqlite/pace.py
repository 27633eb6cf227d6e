"""Whether the event loop may wait for the disk by itself."""

from collections.abc import Callable
from time import monotonic

QUICK_S = 0.002
"""What the loop may wait for, on average; handing work to a thread and back costs a good part of it."""
WEIGHT = 1 / 8
REST_S, MAX_REST_S = 0.1, 10.0
"""How long a slow disk is left to the thread before the loop tries it again: twice as long after each slow try."""
TRY_S = 0.05
"""The loop does not try a disk on which the thread waited longer than this, last time."""


class Pace:
    """What the disk took lately.

    Only the loop's own waits tell exactly: a thread that waited for the disk then waits for the interpreter, which the
    loop has. So the loop looks again after a rest, unless the thread's last wait was long by any measure.
    """

    def __init__(self, steady: Callable[[], float] = monotonic) -> None:
        self._steady = steady
        self._average_s = 0.0
        """Of the loop's own waits, a moving one."""
        self._elsewhere_s = 0.0
        self._rest_s = REST_S
        self._rests_until: float | None = None

    @property
    def is_quick(self) -> bool:
        if self._rests_until is None:
            return self._average_s <= QUICK_S
        return self._elsewhere_s <= TRY_S and self._steady() >= self._rests_until

    def note(self, seconds: float) -> None:
        """The loop waited that long."""
        if self._rests_until is None:
            self._average_s += (seconds - self._average_s) * WEIGHT
        else:
            self._average_s = seconds
        if self._average_s > QUICK_S:
            self._rests_until = self._steady() + self._rest_s
            self._rest_s = min(self._rest_s * 2, MAX_REST_S)
        elif self._rests_until is not None:
            self._rests_until, self._rest_s = None, REST_S

    def note_elsewhere(self, seconds: float) -> None:
        """A thread waited that long, for the disk or for the interpreter."""
        self._elsewhere_s = seconds
