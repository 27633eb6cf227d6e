"""A hundred workers on paper: events in time, with the costs that `costs.py` recorded, and nothing drawn by chance.

Every worker has a core of its own and works on `IN_FLIGHT` executions, one slice of CPU before each append. Its writer
sends what waits as one group. The database has some cores, which serve groups, hints, looks and seals in the order in
which they come, and one log: a flush takes all groups that are ready when it begins. After a commit every other worker
gets a hint, and looks at what came at most every `LOOK_S`.

Not in it: the network, locks, a database whose data does not fit its memory, vacuum.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from benchmarks.scale.costs import Costs

IN_FLIGHT = 25
MAX_GROUP = 256
LOOK_S = 0.002
SEAL_S = 0.5
WARM_S, MEASURED_S = 0.4, 1.0

Then = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a number of workers does with a database."""

    rate: float
    """Executions a second."""
    database: float
    """Share of the database's cores that is busy."""
    for_hints: float
    """Share of the database's work that hints and looks are."""


class _Cores:
    """Serves in order, each job on one core."""

    def __init__(self, timeline: "_Timeline", cores: int) -> None:
        self._timeline = timeline
        self._free = cores
        self._waiting: deque[tuple[float, Then]] = deque()
        self.busy_s = 0.0

    def serve(self, seconds: float, then: Then) -> None:
        if not self._free:
            self._waiting.append((seconds, then))
            return
        self._free -= 1
        self._begin(seconds, then)

    def _begin(self, seconds: float, then: Then) -> None:
        self.busy_s += seconds
        self._timeline.after(seconds, lambda: self._end(then))

    def _end(self, then: Then) -> None:
        if self._waiting:
            self._begin(*self._waiting.popleft())
        else:
            self._free += 1
        then()


class _Timeline:
    """Events in the order of their time, and of their making where the time is the same."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._numbers = count()

    def after(self, seconds: float, then: Then) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), then))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, then = heapq.heappop(self._events)
            then()
        self.now = until


class _Log:
    """One flush at a time."""

    def __init__(self, timeline: _Timeline, flush_s: float) -> None:
        self._timeline = timeline
        self._flush_s = flush_s
        self._ready: list[Then] = []
        self._is_flushing = False

    def commit(self, then: Then) -> None:
        self._ready.append(then)
        if not self._is_flushing:
            self._flush()

    def _flush(self) -> None:
        self._is_flushing = True
        taken, self._ready = self._ready, []
        self._timeline.after(self._flush_s, lambda: self._end(taken))

    def _end(self, taken: list[Then]) -> None:
        self._is_flushing = False
        for then in taken:
            then()
        if self._ready and not self._is_flushing:
            self._flush()


class _Worker:
    def __init__(self, world: "_World") -> None:
        self._world = world
        self._core = _Cores(world.timeline, 1)
        self._pending: deque[int] = deque()
        """How many appends each execution that waits for its commit has made before."""
        self._is_writing = False
        self._has_hints = False
        self._is_looking = False
        for _ in range(IN_FLIGHT):
            self._go_on(0)

    def _go_on(self, appends: int) -> None:
        if appends == self._world.costs.appends:
            self._world.finished += 1
            appends = 0
        slice_s = self._world.costs.process_cpu / self._world.costs.appends
        self._core.serve(slice_s, lambda: self._append(appends))

    def _append(self, appends: int) -> None:
        self._pending.append(appends)
        self._write()

    def _write(self) -> None:
        if self._is_writing or not self._pending:
            return
        self._is_writing = True
        group = [self._pending.popleft() for _ in range(min(MAX_GROUP, len(self._pending)))]
        costs = self._world.costs
        seconds = costs.group_cpu + costs.append_cpu * len(group)
        self._world.database.serve(seconds, lambda: self._world.log.commit(lambda: self._committed(group)))

    def _committed(self, group: list[int]) -> None:
        for appends in group:
            self._go_on(appends + 1)
        self._world.hint(self, self._hinted)

    def _hinted(self) -> None:
        self._is_writing = False
        self._write()

    def hear(self) -> None:
        """A hint came."""
        self._has_hints = True
        if not self._is_looking:
            self._look()

    def _look(self) -> None:
        self._is_looking, self._has_hints = True, False
        world = self._world

        def rest() -> None:
            world.timeline.after(LOOK_S, self._rest)

        self._core.serve(world.costs.look_cpu, lambda: world.look(rest))

    def _rest(self) -> None:
        self._is_looking = False
        if self._has_hints:
            self._look()


class _World:
    """The database and its workers."""

    def __init__(self, costs: Costs, workers: int, cores: int) -> None:
        self.costs = costs
        self.timeline = _Timeline()
        self.database = _Cores(self.timeline, cores)
        self.log = _Log(self.timeline, costs.flush)
        self.finished = 0
        self.hint_s = 0.0
        self._sealed = 0
        self._workers = [_Worker(self) for _ in range(workers)]
        self.timeline.after(SEAL_S, self._seal)

    def hint(self, sender: _Worker, then: Then) -> None:
        """Tells every worker but the sender."""
        others = len(self._workers) - 1
        seconds = self.costs.hint_cpu + self.costs.listener_cpu * others
        self.hint_s += seconds

        def heard() -> None:
            then()
            for worker in self._workers:
                if worker is not sender:
                    worker.hear()

        # Each listener's own process of the database hands the hint on, but the order of jobs is the same.
        self.database.serve(seconds, heard)

    def look(self, then: Then) -> None:
        self.hint_s += self.costs.look_database_cpu
        self.database.serve(self.costs.look_database_cpu, then)

    def _seal(self) -> None:
        rows = (self.finished - self._sealed) * self.costs.rows
        self._sealed = self.finished
        self.database.serve(rows * self.costs.seal_cpu, lambda: self.timeline.after(SEAL_S, self._seal))


def simulate(costs: Costs, workers: int, cores: int) -> Outcome:
    """What so many workers do with a database that has so many cores."""
    world = _World(costs, workers, cores)
    world.timeline.run(WARM_S)
    finished, busy, hints = world.finished, world.database.busy_s, world.hint_s
    world.timeline.run(WARM_S + MEASURED_S)
    spent = world.database.busy_s - busy
    return Outcome(
        rate=(world.finished - finished) / MEASURED_S,
        database=min(1.0, spent / (cores * MEASURED_S)),
        for_hints=(world.hint_s - hints) / spent if spent else 0.0,
    )
