"""A hundred workers on paper: events in time, with the costs that `costs.py` recorded, and nothing drawn by chance.

Every worker has a core of its own and works on `IN_FLIGHT` executions, one slice of CPU before each append. Its writer
sends what waits as one group. The database has some cores, which serve groups, hints and looks in the order in
which they come, and one log: a flush takes all groups that are ready when it begins. After a commit every other worker
gets a hint, and looks at what came at most every `LOOK_S`.

Not in it: the sealing of the audit (1 % of the database's work), the network, locks, a database whose data does not fit
its memory, vacuum.
"""

from collections.abc import Generator
from dataclasses import dataclass

from simpy import Environment, Event, Resource, Store

from benchmarks.costs import Costs

IN_FLIGHT = 25
MAX_GROUP = 256
LOOK_S = 0.002
WARM_S, MEASURED_S = 0.4, 1.0

Steps = Generator[Event, object, None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a number of workers does with a database."""

    rate: float
    """Executions a second."""
    database: float
    """Share of the database's cores that is busy."""
    for_hints: float
    """Share of the database's work that hints and looks are."""


class Cores:
    """Serve in order, each job on one core."""

    def __init__(self, time: Environment, cores: int) -> None:
        self._time, self._cores, self.busy_s = time, Resource(time, cores), 0.0

    def serve(self, seconds: float) -> Steps:
        with self._cores.request() as turn:
            yield turn
            self.busy_s += seconds
            yield self._time.timeout(seconds)


class World:
    """The database with its log, and the workers. What waits for a commit is an event that happens then."""

    def __init__(self, costs: Costs, workers: int, cores: int) -> None:
        self.costs, self.time = costs, Environment()
        self.database = Cores(self.time, cores)
        self.finished, self.hint_s = 0, 0.0
        self._commits, self._hints = Store(self.time), [self.time.event() for _ in range(workers)]
        for number in range(workers):
            core, appends = Cores(self.time, 1), Store(self.time)
            for _ in range(IN_FLIGHT):
                self.time.process(self._execute(core, appends))
            self.time.process(self._write(number, appends))
            self.time.process(self._look(number, core))
        self.time.process(self._flush())

    def _execute(self, core: Cores, appends: Store) -> Steps:
        while True:
            for _ in range(self.costs.appends):
                yield from core.serve(self.costs.process_cpu / self.costs.appends)
                yield from self._wait_in(appends)
            self.finished += 1

    def _wait_in(self, queue: Store) -> Steps:
        is_done = self.time.event()
        queue.put(is_done)
        yield is_done

    def _write(self, number: int, appends: Store) -> Steps:
        costs, listeners = self.costs, len(self._hints) - 1
        while True:
            group = [(yield appends.get()), *appends.items[: MAX_GROUP - 1]]
            del appends.items[: MAX_GROUP - 1]
            yield from self.database.serve(costs.group_cpu + costs.append_cpu * len(group))
            yield from self._wait_in(self._commits)
            for append in group:
                append.succeed()
            # Each listener's own process of the database hands the hint on.
            yield from self._serve_hint(costs.hint_cpu + costs.listener_cpu * listeners)
            for hint in self._hints[:number] + self._hints[number + 1 :]:
                if not hint.triggered:
                    hint.succeed()

    def _look(self, number: int, core: Cores) -> Steps:
        while True:
            yield self._hints[number]
            self._hints[number] = self.time.event()
            yield from core.serve(self.costs.look_cpu)
            yield from self._serve_hint(self.costs.look_database_cpu)
            yield self.time.timeout(LOOK_S)

    def _serve_hint(self, seconds: float) -> Steps:
        self.hint_s += seconds
        yield from self.database.serve(seconds)

    def _flush(self) -> Steps:
        while True:
            ready = [(yield self._commits.get()), *self._commits.items]
            self._commits.items.clear()
            yield self.time.timeout(self.costs.flush)
            for commit in ready:
                commit.succeed()


def simulate(costs: Costs, workers: int, cores: int) -> Outcome:
    """Return what so many workers do with a database that has so many cores."""
    world = World(costs, workers, cores)
    world.time.run(WARM_S)
    finished, busy_s, hint_s = world.finished, world.database.busy_s, world.hint_s
    world.time.run(WARM_S + MEASURED_S)
    spent_s = world.database.busy_s - busy_s
    return Outcome(
        rate=(world.finished - finished) / MEASURED_S,
        database=min(1.0, spent_s / (cores * MEASURED_S)),
        for_hints=(world.hint_s - hint_s) / spent_s if spent_s else 0.0,
    )
