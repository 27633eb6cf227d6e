"""How quick the disk is now."""

QUICK_S = 0.002
"""What the event loop may wait for by itself; handing work to a thread and back costs a good part of it."""
WEIGHT = 1 / 8


class Pace:
    """The moving average of waits for the disk, which decides whether the event loop may wait by itself."""

    def __init__(self) -> None:
        self._average_s = 0.0

    @property
    def is_quick(self) -> bool:
        return self._average_s <= QUICK_S

    def note(self, seconds: float) -> None:
        self._average_s += (seconds - self._average_s) * WEIGHT
