"""The executions that this process knows: those that run here, and the last state of idle ones."""

from collections import OrderedDict
from collections.abc import Iterator

from planwarden.agent.core.state import ExecutionState
from planwarden.agent.runtime.run import Run

MAX_IDLE = 512


class KnownExecutions:
    """A cache: the store says which state is the newest one."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        """By execution id."""
        self.idle: OrderedDict[str, ExecutionState] = OrderedDict()
        """Executions that need nothing from this process, by execution id, the least recently used first."""
        self._newest: dict[str, str] = {}
        """The newest idle execution of each thread."""

    @property
    def is_busy(self) -> bool:
        """Something is running or waiting to be recorded here."""
        return any(run.is_busy for run in self.runs.values())

    def list_states(self) -> Iterator[ExecutionState]:
        for run in self.runs.values():
            yield run.execution
        yield from self.idle.values()

    def find_idle_in_thread(self, thread_id: str) -> ExecutionState | None:
        """The newest idle execution of the thread."""
        return self.idle.get(self._newest.get(thread_id, ""))

    def cache_idle(self, execution: ExecutionState) -> None:
        self.idle[execution.execution_id] = execution
        self.idle.move_to_end(execution.execution_id)
        self._newest[execution.thread_id] = execution.execution_id
        if len(self.idle) > MAX_IDLE:
            _, oldest = self.idle.popitem(last=False)
            if self._newest.get(oldest.thread_id) == oldest.execution_id:
                del self._newest[oldest.thread_id]

    def remove_run(self, run: Run) -> None:
        """Forget the run, unless another one took its place; keep its state as idle."""
        execution = run.execution
        if self.runs.get(execution.execution_id) is run:
            del self.runs[execution.execution_id]
        if execution.version:
            self.cache_idle(execution)
