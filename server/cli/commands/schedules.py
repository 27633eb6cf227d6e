"""The commands `schedule add`, `list`, `pause`, `resume`, `remove` and `run-now`."""

from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from planwarden.agent.core.execution.requester import LOCAL
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.api.home import Home
from planwarden.server.api.service import Service
from planwarden.server.cli.arguments import CommandParser, split_pairs
from planwarden.server.cli.home import open_home
from planwarden.server.cli.output import FAILED, WAITING, print_json
from planwarden.server.cli.session import open_session
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal, write_result
from planwarden.server.schedules.schedule_commands import ScheduleBook, ScheduleRequest
from planwarden.server.settings.configuration import find_operator
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text, format_value, shorten_id
from planwarden.server.views.fields import read_inputs
from planwarden.server.views.listing import NOT_ATTENDED, ScheduleView, TickView
from planwarden.server.views.status_words import WORDS
from planwarden.storage.schedules import PlanSchedule

SHOWN_TICKS = 3


def add_schedule(parser: CommandParser) -> None:
    add = parser.add_command("add", handle_add, "Start a saved plan at the times of a cron expression.")
    add.declare("plan PLAN", "name of the saved plan")
    text = "minute, hour, day of month, month and day of week, as one argument: '0 9 * * 1'"
    add.declare("--cron CRON", text, required=True)
    add.declare("--timezone ZONE", "IANA time zone, such as Europe/Berlin; default %(default)s", default="UTC")
    text = "an input of the plan; the value is JSON, or text where the plan takes text"
    add.declare("--input NAME=VALUE", text, action="append", default=[])
    text = "what a tick does while the last run is unfinished: start nothing, or start after it; default %(default)s"
    add.declare("--overlap", text, choices=("skip", "queue"), default="skip")
    text = "what starts after a time without a server: the newest missed tick, or none; default %(default)s"
    add.declare("--missed", text, choices=("latest", "none"), default="latest")
    add.declare("--owner NAME", "principal to whom the runs belong; default %(default)s", default=LOCAL)
    parser.add_command("list", handle_list, "List schedules, their next times and their last ticks.")
    pause, resume = partial(_switch, ScheduleBook.pause), partial(_switch, ScheduleBook.resume)
    text = "Start a run now, as a tick would, and ask its questions here."
    for command in (
        parser.add_command("pause", pause, "Start nothing at its ticks until it is resumed."),
        parser.add_command("resume", resume, "Go on with the next tick; those missed during the pause start nothing."),
        parser.add_command("remove", handle_remove, "Delete a schedule. Runs that it started go on."),
        now := parser.add_command("run-now", handle_run_now, text, uses_servers=True),
    ):
        command.declare("schedule SCHEDULE", "id of the schedule, or the beginning of it")
    now.declare("--yes", "as for run")


def handle_add(arguments: Namespace) -> int:
    async def add(service: Service, book: ScheduleBook) -> PlanSchedule:
        # An unknown plan has no schema here; `book.add` refuses it.
        schemas = {line.name: line.inputs for line in await service.plans()}
        pairs = split_pairs(arguments.input, "--input", is_unique=True)
        request = ScheduleRequest(
            plan=arguments.plan,
            cron=arguments.cron,
            timezone=arguments.timezone,
            inputs=read_inputs(schemas.get(arguments.plan), pairs),
            overlap=arguments.overlap,
            missed=arguments.missed,
            owner=arguments.owner,
        )
        return await book.add(request)

    return _change_schedule(arguments, add)


def handle_list(arguments: Namespace) -> int:
    home = open_home(arguments)

    async def work(service: Service) -> tuple[tuple[ScheduleView, ...], bool]:
        book = build_book(service)
        return tuple(map(book.build_view, await book.list())), await book.has_scheduler()

    views, has_scheduler = home.run(work, "reader")
    draw = partial(draw_schedules, home=home, views=views, has_scheduler=has_scheduler)
    return write_result(arguments, {"schedules": [to_json(view) for view in views]}, draw)


def _switch(switch: Callable[[ScheduleBook, str], Awaitable[PlanSchedule]], arguments: Namespace) -> int:
    """Call `switch`, the method that pauses or resumes, for the schedule that the command line names."""

    async def change(_: Service, book: ScheduleBook) -> PlanSchedule:
        schedule = await book.find(arguments.schedule)
        # A schedule that cannot be shown is not changed.
        book.build_view(schedule)
        return await switch(book, schedule.schedule_id)

    return _change_schedule(arguments, change)


def handle_remove(arguments: Namespace) -> int:
    async def remove(service: Service) -> str:
        book = build_book(service)
        schedule_id = await book.find_id(arguments.schedule)
        await book.remove(schedule_id)
        return schedule_id

    removed = open_home(arguments).run(remove, "recorder")
    text = "The schedule is removed. Runs that it started go on."
    return write_result(arguments, {"scheduleId": removed, "removed": True}, Terminal.say, text)


def handle_run_now(arguments: Namespace) -> int:
    with open_session(arguments, says_yes=arguments.yes) as session:
        schedule_id = session.home.run(lambda service: build_book(service).find_id(arguments.schedule), "reader")

        async def start(service: Service) -> ExecutionState:
            record = await build_book(service).run_now(schedule_id)
            if record is None:
                raise _NothingStarted("queued", "The last run is not finished; this one starts after it.")
            if record.execution_id is None:
                raise _NothingStarted(record.outcome, f"Nothing was started: {escape_text(record.reason)}.")
            return await service.find(record.execution_id)

        try:
            execution = session.run_to_end(start)
        except _NothingStarted as outcome:
            kind, text = outcome.args
            session.terminal.line((text, "warn"), mark="note")
            if arguments.json:
                print_json({"scheduleId": schedule_id, "outcome": kind, "reason": text})
            return WAITING if kind == "queued" else FAILED
        return session.finish(arguments, execution, scheduleId=schedule_id)


class _NothingStarted(Exception):
    """No run starts now. The arguments are the outcome of the tick, or `queued`, and a sentence for people."""


def build_book(service: Service) -> ScheduleBook:
    """Return the schedules of the service's store, for the person at this terminal."""
    return ScheduleBook(service.store, service, find_operator(), channel="terminal")


def draw_schedules(terminal: Terminal, home: Home, views: Sequence[ScheduleView], *, has_scheduler: bool) -> None:
    if not views:
        command = home.command("schedule", "add", "PLAN", "--cron", "0 9 * * 1", "--timezone", "Europe/Berlin")
        terminal.say("No schedules.", TerminalLine((command, "dim"), indent=1))
    for view in views:
        is_paused = view.paused_at is not None
        options = f"overlap {view.overlap}, missed {view.missed}, owner {escape_text(view.owner)}"
        terminal.line(
            (escape_text(view.plan), "bold"),
            f"  {view.cron}  {view.timezone}  ",
            ("paused" if is_paused else "active", "dim" if is_paused else "good"),
            mark="waits" if is_paused else "done",
        )
        terminal.line((f"{shorten_id(view.schedule_id)}  {options}", "dim"), indent=1)
        for name, value in view.inputs.items():
            terminal.line(f"{escape_text(name)} = {format_value(value)}", indent=1)
        if view.next_ticks:
            times = ", ".join(tick.strftime("%a %Y-%m-%d %H:%M %Z") for tick in view.next_ticks)
            terminal.line(("next: ", "dim"), times, indent=1)
        if view.queued_ticks:
            terminal.line(f"{len(view.queued_ticks)} waiting until the last run has ended", indent=1)
        for tick in view.recent[:SHOWN_TICKS]:
            terminal.say(_build_tick_line(tick))
    if not has_scheduler and any(view.paused_at is None for view in views):
        text = f"{NOT_ATTENDED}: a host with planwarden, or {home.command('serve', '--http')}"
        terminal.line((text, "warn"), mark="note")


def _build_tick_line(tick: TickView) -> TerminalLine:
    what = f"thread {shorten_id(tick.thread_id)}" if tick.thread_id is not None else one_line(tick.reason or "", 200)
    when = tick.tick_at.strftime("%Y-%m-%d %H:%M %Z")
    words = WORDS["tick"][tick.outcome]
    return TerminalLine((f"{when}  {words.word}: ", "dim"), what, mark=words.mark, indent=1)


def _change_schedule(arguments: Namespace, change: Callable[[Service, ScheduleBook], Awaitable[PlanSchedule]]) -> int:
    """Change a schedule, show it, and return the exit code; warn if it is active and no process starts its runs."""
    home = open_home(arguments)

    async def work(service: Service) -> tuple[ScheduleView, bool]:
        book = build_book(service)
        return book.build_view(await change(service, book)), await book.has_scheduler()

    view, has_scheduler = home.run(work, "recorder")
    draw = partial(draw_schedules, home=home, views=(view,), has_scheduler=has_scheduler)
    return write_result(arguments, to_json(view), draw)
