"""The command `doctor`: checks everything that planwarden needs, and says what to do about each problem."""

from argparse import Namespace

from pydantic import JsonValue

from planwarden.agent.common.errors import UsageError
from planwarden.server.cli.checks.doctor import run_checks
from planwarden.server.cli.checks.replay import Replay
from planwarden.server.cli.checks.report import DoctorReport
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.results import write_result
from planwarden.server.cli.terminal.lines import Part, TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.encoding import to_json
from planwarden.server.views.status_words import WORDS


def add_doctor(parser: CommandParser) -> None:
    parser.handle(handle_doctor, uses_servers=True, needs_home=False)
    parser.add_argument(
        "--replay", action="store_true", help="also check that this version can continue every stored execution"
    )
    parser.add_argument("--all", action="store_true", help="with --replay: check the finished ones as well")


def handle_doctor(arguments: Namespace) -> int:
    if arguments.all and not arguments.replay:
        raise UsageError("--all says which logs --replay checks; give both")
    replay: Replay | None = None if not arguments.replay else "all" if arguments.all else "unfinished"
    report = run_checks(arguments, replay)
    document: dict[str, JsonValue] = {"healthy": report.is_healthy, **to_json(report)}
    write_result(arguments, document, lambda terminal: draw_report(terminal, report))
    return DONE if report.is_healthy else FAILED


def draw_report(terminal: Terminal, report: DoctorReport) -> None:
    terminal.say(TerminalLine((f"planwarden {report.version}", "bold"), (f"  Python {report.python}", "dim")))
    terminal.say(TerminalLine((f"home {report.home}", "dim")))
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        title: Part = (check.name.ljust(width), "dim" if check.status == "off" else "bold")
        terminal.say(TerminalLine(title, "  ", one_line(check.message, 400), mark=WORDS["check"][check.status].mark))
        unavailable = check.facts.get("unavailable")
        for name, reason in unavailable.items() if isinstance(unavailable, dict) else ():
            terminal.say(TerminalLine((one_line(f"{name}: {reason}", 300), "dim"), indent=1))
    if report.is_healthy:
        terminal.say(TerminalLine(("Everything that planwarden needs is there.", "good"), mark="done"))
    else:
        broken = ", ".join(check.name for check in report.checks if check.status == "broken")
        terminal.say(TerminalLine((f"Broken: {broken}.", "bad"), mark="failed"))
