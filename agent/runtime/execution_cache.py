"""The executions that this process knows: those that run here, and the last states of idle ones."""

from collections import OrderedDict
from typing import cast

import msgspec

from planwarden.agent.common.errors import PlanUnfinished
from planwarden.agent.common.struct import plain_value
from planwarden.agent.core.execution.folds.transitions import LongTuple
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.store import StartRequest
from planwarden.agent.runtime.run import Run

MAX_IDLE = 256
"""With twice as many, executions take 3 % longer where 100 run at once: what is dropped has left the CPU's caches."""
MAX_IDLE_BYTES = 16 * 1024 * 1024
"""The limit of all idle executions, encoded: in memory they take up to 6 times as much."""
MAX_PLANS = 512

_ENCODER = msgspec.msgpack.Encoder(
    enc_hook=lambda value: (
        list(cast("LongTuple[object]", value)) if isinstance(value, LongTuple) else plain_value(value)
    )
)


class ExecutionCache:
    """A cache: the store says which state is the newest one."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        """By execution id."""
        self.idle: OrderedDict[str, ExecutionState] = OrderedDict()
        """Executions that need nothing from this process, by execution id, the least recently used first."""
        self._sizes: dict[str, int] = {}
        """Encoded bytes of idle executions."""
        self._newest: dict[str, str] = {}
        """The newest idle execution of each thread."""
        self._elsewhere: set[str] = set()
        """Ids of executions that another process owned when their header was last read."""
        self._plans: OrderedDict[tuple[str, str], PlanUnfinished] = OrderedDict()
        """The refusal that names the execution last started here, by principal and digest of the plan."""

    @property
    def is_busy(self) -> bool:
        """Something is running or waiting to be recorded here."""
        return any(run.is_busy for run in self.runs.values())

    def find_idle_in_thread(self, thread_id: str) -> ExecutionState | None:
        """Return the newest idle execution of the thread."""
        return self.idle.get(self._newest.get(thread_id, ""))

    def note_owner(self, execution_id: str, *, is_other: bool) -> None:
        """Remember whether another process owns the execution; it may have changed since, so nothing may rely on it."""
        self._elsewhere.discard(execution_id)
        if is_other:
            if len(self._elsewhere) >= MAX_IDLE:
                self._elsewhere.clear()
            self._elsewhere.add(execution_id)

    def seems_elsewhere(self, execution_id: str) -> bool:
        """Return whether another process owned the execution when its header was last read."""
        return execution_id in self._elsewhere

    def cache_idle(self, execution: ExecutionState) -> None:
        self.idle[execution.execution_id] = execution
        self.idle.move_to_end(execution.execution_id)
        self._newest[execution.thread_id] = execution.execution_id
        self._sizes[execution.execution_id] = _measure(execution)
        while len(self.idle) > MAX_IDLE or (len(self.idle) > 1 and sum(self._sizes.values()) > MAX_IDLE_BYTES):
            self.drop_idle(next(iter(self.idle)))

    def drop_idle(self, execution_id: str) -> None:
        """Forget the last state of an idle execution; the store has it."""
        execution = self.idle.pop(execution_id, None)
        self._sizes.pop(execution_id, None)
        if execution is not None and self._newest.get(execution.thread_id) == execution_id:
            del self._newest[execution.thread_id]

    def remember_plan(self, execution: ExecutionState, start: StartRequest) -> None:
        """Remember the execution that was started with the plan of the request."""
        if start.plan is not None:
            refusal = PlanUnfinished(execution.execution_id, execution.thread_id, start.key, start.plan)
            self._plans[execution.principal, start.plan] = refusal
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)

    def find_unfinished_plan(self, principal: str, start: StartRequest) -> PlanUnfinished | None:
        """Return the refusal that the store would give if the plan runs here already; this spares the attempt."""
        refusal = self._plans.get((principal, start.plan or ""))
        if refusal is None or not start.is_only:
            return None
        run = self.runs.get(refusal.execution_id)
        execution = run.execution if run is not None else self.idle.get(refusal.execution_id)
        return None if execution is None or execution.is_finished else refusal

    def remove_run(self, run: Run) -> None:
        """Forget the run, unless another one took its place; keep its state as idle."""
        execution = run.execution
        if self.runs.get(execution.execution_id) is run:
            del self.runs[execution.execution_id]
        if execution.version:
            self.cache_idle(execution)


def _measure(execution: ExecutionState) -> int:
    """Return the size of the encoded state in bytes; of its `repr` where some value cannot be encoded."""
    try:
        return len(_ENCODER.encode(execution))
    except (OverflowError, UnicodeEncodeError):
        # Integers of more than 64 bits, halves of surrogate pairs.
        return len(repr(execution))
