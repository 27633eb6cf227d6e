"""Decides whether the event loop itself may wait for the disk."""

from time import monotonic

QUICK_S = 0.002
"""The longest average wait that is allowed on the loop; handing work to a thread and back costs almost as much."""
WEIGHT = 1 / 8
REST_S, MAX_REST_S = 0.1, 10.0
"""The first and the longest time for which the loop leaves a slow disk to a thread; it doubles after each slow try."""
MAX_THREAD_WAIT_S = 0.05
"""If the last wait of the thread was longer than this, the loop does not try the disk again yet."""


class Pace:
    """How long recent waits for the disk took.

    Only waits on the loop are exact: the wait of a thread includes its wait for the interpreter's lock, which the loop
    holds. So the loop tries again after a rest, unless the thread's last wait was longer than `MAX_THREAD_WAIT_S`.
    """

    def __init__(self) -> None:
        self._average_s = 0.0
        """A moving average of the waits on the loop."""
        self._thread_wait_s = 0.0
        self._rest_s = REST_S
        self._rests_until: float | None = None

    @property
    def is_quick(self) -> bool:
        if self._rests_until is None:
            return self._average_s <= QUICK_S
        return self._thread_wait_s <= MAX_THREAD_WAIT_S and monotonic() >= self._rests_until

    def note_loop_wait(self, seconds: float) -> None:
        """Note how long the loop waited for the disk."""
        if self._rests_until is None:
            self._average_s += (seconds - self._average_s) * WEIGHT
        else:
            self._average_s = seconds
        if self._average_s > QUICK_S:
            self._rests_until = monotonic() + self._rest_s
            self._rest_s = min(self._rest_s * 2, MAX_REST_S)
        elif self._rests_until is not None:
            self._rests_until, self._rest_s = None, REST_S

    def note_thread_wait(self, seconds: float) -> None:
        """Note how long a thread waited, for the disk or for the interpreter's lock."""
        self._thread_wait_s = seconds
