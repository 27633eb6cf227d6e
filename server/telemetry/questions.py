"""How many questions are open, and how long the oldest has waited: what has no span yet because it is not over.

Read from the store now and then, so that it is true whoever asked and whoever ended meanwhile. Every process that shares
a home tells the same numbers; take the maximum over processes, not the sum.
"""

import logging
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import anyio
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.ports.store import Store, SuspensionRow
from planwarden.agent.runtime.run import load_execution
from planwarden.server.telemetry.attributes import Attributes

logger = logging.getLogger(__name__)

EVERY_S = 15.0
PAGE = 100
MOST = 1_000
"""Questions that are told apart; the number of the others is told without their kinds."""

Sort = tuple[str, str, str]
"""Kind, addressee, and what assurance it needs."""
OTHER: Sort = ("_OTHER", "_OTHER", "_OTHER")


class OpenQuestions:
    """The instruments, and the newest look at one store; use as an async context manager to keep looking."""

    def __init__(self, meter: Meter, store: Store) -> None:
        self._store = store
        self._sorts: dict[tuple[str, str], Sort] = {}
        """By suspension id and digest, which changes with every revision; only of open ones."""
        self._counts: Counter[Sort] = Counter()
        self._oldest: float | None = None
        meter.create_observable_gauge(
            "planwarden.questions.open",
            [self._tell_counts],
            unit="{question}",
            description="Questions that are open, in the whole home.",
        )
        meter.create_observable_gauge(
            "planwarden.questions.oldest",
            [self._tell_oldest],
            unit="s",
            description="How long the oldest open question has waited.",
        )

    async def __aenter__(self) -> Self:
        """Look every `EVERY_S` seconds until it is left."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._watch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        if isinstance(error, Exception):
            # What the body raised is the body's own; a task group would wrap it in a group.
            await self._tasks.__aexit__(None, None, None)
        else:
            await self._tasks.__aexit__(kind, error, traceback)

    async def look(self) -> None:
        """Read what is open now. Raises `StoreError`."""
        rows: list[SuspensionRow] = []
        cursor: str | None = None
        while True:
            page = await self._store.suspensions(limit=PAGE, cursor=cursor)
            rows += page.rows
            cursor = page.next_cursor
            if cursor is None or len(rows) >= MOST:
                break
        sorts = {(row.suspension_id, row.digest): await self._sort(row) for row in rows}
        counts = Counter(sorts.values())
        if page.total > len(rows):
            counts[OTHER] += page.total - len(rows)
        # What was counted before and is gone is told as none, once and for all: a gauge keeps its last value.
        self._sorts, self._counts = sorts, Counter({**dict.fromkeys(self._counts, 0), **counts})
        self._oldest = min((row.created_at for row in rows), default=None)

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except PlanwardenError as error:
                logger.debug("open questions were not counted: %s", error.message)
            # An execution must not end because questions cannot be counted.
            except Exception:
                logger.exception("open questions were not counted")
            await anyio.sleep(EVERY_S)

    async def _sort(self, row: SuspensionRow) -> Sort:
        known = self._sorts.get((row.suspension_id, row.digest))
        if known is not None:
            return known
        execution = await load_execution(self._store, row)
        found = execution.suspensions.get(row.suspension_id)
        if found is None:
            return OTHER
        return found.question.kind, found.question.addressee, found.question.needs or "none"

    def _tell_counts(self, options: CallbackOptions) -> Iterable[Observation]:
        for (kind, addressee, needs), count in tuple(self._counts.items()):
            about: Attributes = {
                "planwarden.suspension.kind": kind,
                "planwarden.suspension.addressee": addressee,
                "planwarden.suspension.needs": needs,
            }
            yield Observation(count, about)

    def _tell_oldest(self, options: CallbackOptions) -> Iterable[Observation]:
        oldest = self._oldest
        yield Observation(0.0 if oldest is None else max(0.0, self._store.clock.now() - oldest))
