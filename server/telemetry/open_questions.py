"""Gauges for open questions, which have no span yet: how many there are, and how long the oldest has waited.

The numbers come from the store every few seconds, so they include questions of other processes. Every process that
shares a home reports the same numbers; take the maximum over processes, not the sum.
"""

import logging
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import anyio
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.common.task_groups import cancel_tasks
from planwarden.agent.ports.store import Store, SuspensionRow
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.server.telemetry.attributes import Attributes

logger = logging.getLogger(__name__)

EVERY_S = 15.0
PAGE = 100
MAX_GROUPED = 1_000
"""Questions that are counted by their kind; the others are counted together."""

QuestionGroup = tuple[str, str, str]
"""Kind, addressee, and what assurance it needs."""
OTHER: QuestionGroup = ("_OTHER", "_OTHER", "_OTHER")


class OpenQuestions:
    """The gauges of one store; as an async context manager it refreshes them in the background."""

    def __init__(self, meter: Meter, store: Store) -> None:
        self._store = store
        self._groups: dict[tuple[str, str], QuestionGroup] = {}
        """By suspension id and digest, which changes with every revision; only open questions."""
        self._counts: Counter[QuestionGroup] = Counter()
        self._oldest: float | None = None
        meter.create_observable_gauge(
            "planwarden.questions.open",
            [self._observe_counts],
            unit="{question}",
            description="Questions that are open, in the whole home.",
        )
        meter.create_observable_gauge(
            "planwarden.questions.oldest",
            [self._observe_oldest],
            unit="s",
            description="How long the oldest open question has waited.",
        )

    async def __aenter__(self) -> Self:
        """Refreshes the numbers every `EVERY_S` seconds while the block runs."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._watch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await cancel_tasks(self._tasks, error)

    async def refresh(self) -> None:
        """Counts what is open now. Raises `StoreError`."""
        rows: list[SuspensionRow] = []
        cursor: str | None = None
        while True:
            page = await self._store.suspensions(limit=PAGE, cursor=cursor)
            rows += page.rows
            cursor = page.next_cursor
            if cursor is None or len(rows) >= MAX_GROUPED:
                break
        groups = {(row.suspension_id, row.digest): await self._find_group(row) for row in rows}
        counts = Counter(groups.values())
        if page.total > len(rows):
            counts[OTHER] += page.total - len(rows)
        # A gauge keeps its last value, so groups without open questions report 0 from now on.
        self._groups, self._counts = groups, Counter({**dict.fromkeys(self._counts, 0), **counts})
        self._oldest = min((row.created_at for row in rows), default=None)

    async def _watch(self) -> None:
        while True:
            try:
                await self.refresh()
            except PlanwardenError as error:
                logger.debug("open questions were not counted: %s", error.message)
            # An execution must not fail because questions cannot be counted.
            except Exception:
                logger.exception("open questions were not counted")
            await anyio.sleep(EVERY_S)

    async def _find_group(self, row: SuspensionRow) -> QuestionGroup:
        known = self._groups.get((row.suspension_id, row.digest))
        if known is not None:
            return known
        execution = await load_execution(self._store, row)
        found = execution.suspensions.get(row.suspension_id)
        if found is None:
            return OTHER
        return found.question.kind, found.question.addressee, found.question.needs or "none"

    def _observe_counts(self, options: CallbackOptions) -> Iterable[Observation]:
        for (kind, addressee, needs), count in tuple(self._counts.items()):
            about: Attributes = {
                "planwarden.suspension.kind": kind,
                "planwarden.suspension.addressee": addressee,
                "planwarden.suspension.needs": needs,
            }
            yield Observation(count, about)

    def _observe_oldest(self, options: CallbackOptions) -> Iterable[Observation]:
        oldest = self._oldest
        yield Observation(0.0 if oldest is None else max(0.0, self._store.clock.now() - oldest))
