"""A schedule as its pages show it: when it ticks next, and what became of the ticks and of what they started."""

from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec.structs import replace

from planwarden.agent.common.errors import PlanwardenError, StoreError
from planwarden.agent.ports.store import Store
from planwarden.server.api.service import Service
from planwarden.server.inbox.decision import CHANNEL
from planwarden.server.inbox.request import InboxRequest
from planwarden.server.schedules.schedule_commands import ScheduleBook
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.listing import TickView
from planwarden.server.views.status_words import WORDS, Tone
from planwarden.server.views.value_view import ValueView, format_name
from planwarden.storage.schedules import PlanSchedule, ScheduleStore
from planwarden.storage.sql.records import HasRecords

OVERLAPS: Mapping[str, str] = {
    "skip": "start nothing",
    "queue": "wait until it has ended",
}
MISSED: Mapping[str, str] = {
    "latest": "start once, as soon as one runs",
    "none": "leave it out",
}


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one tick, and of the run that it started."""

    at: datetime
    """When it ticked, in the zone of the schedule."""
    words: str
    tone: Tone
    reason: str = ""
    """Why nothing was started, escaped."""
    execution_id: str | None = None
    """The run, unless it was deleted since."""


class ScheduleCard(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, in escaped words."""

    schedule_id: str
    plan: str
    cron: str
    timezone: str
    inputs: tuple[tuple[str, ValueView], ...] = ()
    overlap: str = ""
    missed: str = ""
    owner: str
    created_by: str
    created_at: datetime | None = None
    paused_at: datetime | None = None
    next_ticks: tuple[datetime, ...] = ()
    """In the zone of the schedule."""
    queued: int = 0
    version: int
    """Of the stored row: what was shown."""
    runs: tuple[RunLine, ...] = ()
    """Newest first."""
    fault: str = ""
    """Why it never ticks here, escaped."""


def open_book(request: InboxRequest) -> ScheduleBook:
    """Return the schedules of the inbox's store, for the person of this session. Raises `UsageError` when it keeps
    none."""
    service = request.service
    return ScheduleBook(service.store, service.ids, service, request.session.principal, channel=CHANNEL)


async def list_schedules(service: Service) -> tuple[tuple[PlanSchedule, ...], str]:
    """Return all schedules, oldest first, and why they cannot be read; a store that keeps none has none."""
    store = service.store
    if not isinstance(store, HasRecords):
        return (), ""
    try:
        return await ScheduleStore(store).all(), ""
    except StoreError as error:
        return (), escape_text(error.message)


async def build_schedule_card(
    request: InboxRequest, book: ScheduleBook, schedule: PlanSchedule, shown_runs: int
) -> ScheduleCard:
    """Return the schedule with its newest ticks, and the last one that started a run; looks up `shown_runs` runs at
    most."""
    card = ScheduleCard(
        schedule_id=schedule.schedule_id,
        plan=escape_text(schedule.plan),
        cron=escape_text(schedule.cron),
        timezone=escape_text(schedule.timezone),
        owner=escape_text(schedule.owner),
        created_by=escape_text(schedule.created_by),
        version=schedule.version,
    )
    try:
        view = book.build_view(schedule)
    except PlanwardenError as error:
        # A zone that this machine does not know.
        return replace(card, fault=escape_text(error.message))
    store = request.service.store
    ticks = list(view.recent[:shown_runs])
    if all(tick.execution_id is None for tick in ticks):
        ticks += [tick for tick in view.recent[shown_runs:] if tick.execution_id is not None][:1]
    return replace(
        card,
        inputs=tuple((format_name(name), ValueView(value)) for name, value in view.inputs.items()),
        overlap=OVERLAPS[view.overlap],
        missed=MISSED[view.missed],
        created_at=view.created_at,
        paused_at=view.paused_at,
        next_ticks=view.next_ticks,
        queued=len(view.queued_ticks),
        runs=tuple([await _build_run_line(store, tick) for tick in ticks]),
    )


async def _build_run_line(store: Store, tick: TickView) -> RunLine:
    if tick.execution_id is None:
        words = WORDS["tick"][tick.outcome]
        return RunLine(at=tick.tick_at, words=words.word, tone=words.tone, reason=escape_text(tick.reason or ""))
    header = await store.header(tick.execution_id)
    if header is None:
        return RunLine(at=tick.tick_at, words="started; its run was deleted since", tone="dim")
    words = WORDS["execution"][header.status]
    return RunLine(at=tick.tick_at, words=words.word, tone=words.tone, execution_id=tick.execution_id)
