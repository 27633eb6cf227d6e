"""The command `move`: everything that the store holds, to another store."""

from argparse import Namespace

from pydantic import JsonValue

from planwarden.server.cli.arguments import read_settings
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE, build_terminal, write_result
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.settings.configuration import STORE_VARIABLE
from planwarden.storage.location import SQLITE, read_location
from planwarden.storage.moving.move import MoveReport, move
from planwarden.storage.moving.tables import TABLES


def add_move(parser: CommandParser) -> None:
    parser.handle(handle_move)
    parser.add_argument(
        "--to",
        required=True,
        metavar="URL",
        help="an empty PostgreSQL or a new file, named as for --store; run it again if it was broken off",
    )


def handle_move(arguments: Namespace) -> int:
    source, target = read_settings(arguments).store, read_location(arguments.to)
    build_terminal(arguments).say(f"Moving {source} to {target}.")
    report = move(source, target)
    document: dict[str, JsonValue] = {
        "from": report.source,
        "to": report.target,
        "rows": dict[str, JsonValue](report.rows),
        "auditHead": report.audit_head,
    }
    write_result(arguments, document, lambda terminal: draw_report(terminal, report, has_password=target.has_password))
    return DONE


def draw_report(terminal: Terminal, report: MoveReport, *, has_password: bool) -> None:
    counts = ", ".join(f"{TABLES[name]}: {count}" for name, count in report.rows.items() if count)
    terminal.say(f"Moved from {report.source} to {report.target}, read back; the old store refuses to be used.")
    terminal.say(counts or "It was empty.")
    terminal.say(f"head of the audit: {report.audit_head}")
    if not all(place.startswith(SQLITE) for place in (report.source, report.target)):
        secrets = "Logins to servers and the passphrase of the inbox"
        terminal.say(f"{secrets} are not moved; set them again.")
    added = " (add the password)" if has_password else ""
    terminal.say(f"Set {STORE_VARIABLE}={report.target}{added}, or [store] url, before you start anything.")
