"""A hundred workers on paper: events in time, with the costs that `costs.py` recorded, and nothing drawn by chance.

Every worker has a core of its own and works on `IN_FLIGHT` executions, one slice of CPU before each append. Its writer
sends what waits as one group. The database has some cores, which serve groups, hints, looks and seals in the order in
which they come, and one log: a flush takes all groups that are ready when it begins. After a commit every other worker
gets a hint, and looks at what came at most every `LOOK_S`.

A process is a generator. What it yields is called with what resumes it, at the time when that is due.

Not in it: the network, locks, a database whose data does not fit its memory, vacuum.
"""

import heapq
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from itertools import count

from benchmarks.costs import Costs

IN_FLIGHT = 25
MAX_GROUP = 256
LOOK_S = 0.002
SEAL_S = 0.5
WARM_S, MEASURED_S = 0.4, 1.0

Resume = Callable[[], None]
Process = Generator[Callable[[Resume], None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a number of workers does with a database."""

    rate: float
    """Executions a second."""
    database: float
    """Share of the database's cores that is busy."""
    for_hints: float
    """Share of the database's work that hints and looks are."""


def begin(process: Process) -> None:
    """Run a process up to what it waits for."""

    def resume() -> None:
        if request := next(process, None):
            request(resume)

    resume()


class Timeline:
    """Events in the order of their time, and of their making where the time is the same."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Resume]] = []
        self._numbers = count()

    def sleep(self, seconds: float, resume: Resume) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), resume))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, resume = heapq.heappop(self._events)
            resume()
        self.now = until


class Cores:
    """Serve in order, each job on one core."""

    def __init__(self, timeline: Timeline, cores: int) -> None:
        self._timeline, self._free = timeline, cores
        self._waiting: deque[tuple[float, Resume]] = deque()
        self.busy_s = 0.0

    def serve(self, seconds: float, resume: Resume) -> None:
        if not self._free:
            self._waiting.append((seconds, resume))
            return
        self._free -= 1
        self._begin(seconds, resume)

    def _begin(self, seconds: float, resume: Resume) -> None:
        self.busy_s += seconds
        self._timeline.sleep(seconds, partial(self._end, resume))

    def _end(self, resume: Resume) -> None:
        if self._waiting:
            self._begin(*self._waiting.popleft())
        else:
            self._free += 1
        resume()


class Worker:
    """A process of planwarden."""

    def __init__(self, world: "World") -> None:
        self._world, self._core = world, Cores(world.timeline, 1)
        self._appends: list[Resume] = []
        self._is_writing = self._is_looking = self._has_hints = False
        for _ in range(IN_FLIGHT):
            begin(self._execute())

    def hear(self) -> None:
        """Take a hint."""
        self._has_hints = True
        if not self._is_looking:
            begin(self._look())

    def _execute(self) -> Process:
        costs = self._world.costs
        while True:
            for _ in range(costs.appends):
                yield partial(self._core.serve, costs.process_cpu / costs.appends)
                yield self._append
            self._world.finished += 1

    def _append(self, resume: Resume) -> None:
        self._appends.append(resume)
        if not self._is_writing:
            begin(self._write())

    def _write(self) -> Process:
        world, self._is_writing = self._world, True
        while self._appends:
            group, self._appends = self._appends[:MAX_GROUP], self._appends[MAX_GROUP:]
            yield partial(world.database.serve, world.costs.group_cpu + world.costs.append_cpu * len(group))
            yield world.commit
            for resume in group:
                resume()
            yield partial(world.hint, self)
        self._is_writing = False

    def _look(self) -> Process:
        self._is_looking = True
        while self._has_hints:
            self._has_hints = False
            yield partial(self._core.serve, self._world.costs.look_cpu)
            yield self._world.look
            yield partial(self._world.timeline.sleep, LOOK_S)
        self._is_looking = False


class World:
    """The database with its log, and the workers."""

    def __init__(self, costs: Costs, workers: int, cores: int) -> None:
        self.costs, self.timeline = costs, Timeline()
        self.database = Cores(self.timeline, cores)
        self.finished, self.hint_s = 0, 0.0
        self._commits: list[Resume] = []
        self._is_flushing = False
        self._workers = [Worker(self) for _ in range(workers)]
        begin(self._seal())

    def commit(self, resume: Resume) -> None:
        """Resume after a flush that begins from now on."""
        self._commits.append(resume)
        if not self._is_flushing:
            begin(self._flush())

    def hint(self, sender: Worker, resume: Resume) -> None:
        """Tell every worker but the sender. Each listener's own process of the database hands the hint on."""
        others = [worker for worker in self._workers if worker is not sender]

        def hear() -> None:
            resume()
            for worker in others:
                worker.hear()

        self._serve_hint(self.costs.hint_cpu + self.costs.listener_cpu * len(others), hear)

    def look(self, resume: Resume) -> None:
        """Answer what a hint was about."""
        self._serve_hint(self.costs.look_database_cpu, resume)

    def _serve_hint(self, seconds: float, resume: Resume) -> None:
        self.hint_s += seconds
        self.database.serve(seconds, resume)

    def _flush(self) -> Process:
        self._is_flushing = True
        while self._commits:
            ready, self._commits = self._commits, []
            yield partial(self.timeline.sleep, self.costs.flush)
            for resume in ready:
                resume()
        self._is_flushing = False

    def _seal(self) -> Process:
        sealed = 0
        while True:
            yield partial(self.timeline.sleep, SEAL_S)
            rows, sealed = (self.finished - sealed) * self.costs.rows, self.finished
            yield partial(self.database.serve, rows * self.costs.seal_cpu)


def simulate(costs: Costs, workers: int, cores: int) -> Outcome:
    """Return what so many workers do with a database that has so many cores."""
    world = World(costs, workers, cores)
    world.timeline.run(WARM_S)
    finished, busy_s, hint_s = world.finished, world.database.busy_s, world.hint_s
    world.timeline.run(WARM_S + MEASURED_S)
    spent_s = world.database.busy_s - busy_s
    return Outcome(
        rate=(world.finished - finished) / MEASURED_S,
        database=min(1.0, spent_s / (cores * MEASURED_S)),
        for_hints=(world.hint_s - hint_s) / spent_s if spent_s else 0.0,
    )
