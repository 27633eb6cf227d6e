"""The commands `audit show`, `audit verify` and `audit export`."""

import json
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from pydantic import JsonValue

from planwarden.agent.common.errors import StoreError, count_of
from planwarden.agent.common.paths import expand_home
from planwarden.agent.ports.store import Store
from planwarden.server.api.audit import (
    AuditPage,
    AuditVerdict,
    build_audit_line,
    read_audit_page,
    read_rows,
    verify_audit,
)
from planwarden.server.cli.arguments import CommandParser, read_path, read_settings
from planwarden.server.cli.home import open_home, use_store
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.terminal.terminal import Terminal, write_result
from planwarden.server.settings.configuration import Settings
from planwarden.server.signatures.signature import EXTRA
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text, shorten_id
from planwarden.server.views.instants import format_instant

Result = TypeVar("Result")


def add_audit(parser: CommandParser) -> None:
    show = parser.add_command("show", handle_show, "Show the record, oldest first.")
    show.declare("--thread THREAD", "only the rows of this thread")
    show.declare("--limit N", "rows, at most 500; default %(default)s", type=int, default=50)
    show.declare("--cursor CURSOR", "continue after the page that printed this cursor")
    text = "Check that the record is whole and agrees with everything stored."
    verification = parser.add_command("verify", handle_verify, text)
    verification.declare("--head HEAD", "the head that an earlier verify or export printed")
    writing = parser.add_command("export", handle_export, "Write the record as JSON lines.", has_json=False)
    writing.declare("file FILE", "a new file, or - for standard output", type=read_path)


def handle_show(arguments: Namespace) -> int:
    home = open_home(arguments)

    async def read(store: Store) -> AuditPage:
        thread_id = None
        if arguments.thread is not None:
            thread_id = (await home.find_thread(store, arguments.thread))[0].thread_id
        return await read_audit_page(store, thread_id=thread_id, limit=arguments.limit, cursor=arguments.cursor)

    page = _read(home.settings, read)
    return write_result(arguments, to_json(page), draw_rows, page)


def handle_verify(arguments: Namespace) -> int:
    verdict = _read(read_settings(arguments), partial(verify_audit, head=arguments.head))
    write_result(arguments, {"isWhole": verdict.is_whole, **to_json(verdict)}, draw_verdict, verdict)
    return DONE if verdict.is_whole else FAILED


def handle_export(arguments: Namespace) -> int:
    settings, target = read_settings(arguments), expand_home(arguments.file).absolute()
    try:
        with nullcontext(sys.stdout) if str(arguments.file) == "-" else target.open("x", encoding="ascii") as file:

            async def export(store: Store) -> AuditVerdict:
                async for row in read_rows(store):
                    file.write(json.dumps(to_json(build_audit_line(row)), ensure_ascii=True) + "\n")
                return await verify_audit(store)

            verdict = _read(settings, export)
    except FileExistsError:
        raise StoreError(f"{str(target)!r} exists already; choose another name") from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write {str(target)!r}: {error.strerror}") from error
    draw_verdict(Terminal(sys.stderr), verdict)
    return DONE if verdict.is_whole else FAILED


def _read(settings: Settings, read: Callable[[Store], Awaitable[Result]]) -> Result:
    """Return what `read` returns when called with the store. Raise `StoreError` if there is no database."""
    if not settings.store.is_made:
        raise StoreError(f"there is no database in {str(settings.home)!r} yet, so nothing was audited")
    return use_store(settings, read)


def draw_rows(terminal: Terminal, page: AuditPage) -> None:
    if not page.rows:
        terminal.say("The audit is empty.")
    for row in page.rows:
        at = format_instant(row.at)
        kind = row.kind.replace("_", " ").ljust(18)
        facts = [] if row.suspension_id is None else [f"suspension={shorten_id(row.suspension_id)}"]
        facts += [f"{name}={_shorten(value)}" for name, value in row.facts.items()]
        terminal.line((f"{row.sequence:>6}  {at}  ", "dim"), (kind, "bold"), "  ".join(map(escape_text, facts)))
    if page.next_cursor is not None:
        terminal.line((f"more: --cursor {page.next_cursor}", "dim"))


def draw_verdict(terminal: Terminal, verdict: AuditVerdict) -> None:
    for problem in verdict.problems:
        terminal.line((escape_text(problem), "bad"), mark="failed")
    if verdict.signatures:
        terminal.line((f"{count_of(verdict.signatures, 'signature')} verified", "good"), mark="done")
    if verdict.unverified:
        terminal.line((f"{count_of(verdict.unverified, 'signature')} not verified: {EXTRA}", "warn"), mark="asks")
    if verdict.is_whole:
        terminal.line((f"{verdict.rows} rows, whole; head {verdict.head}", "good"), mark="done")
    else:
        terminal.line((f"{verdict.rows} rows, {count_of(len(verdict.problems), 'problem')}", "bad"), mark="failed")


def _shorten(value: JsonValue) -> str:
    text = shorten_id(value) if isinstance(value, str) else json.dumps(value)
    is_digest = len(text) == 64 and text.isalnum()
    return text[:16] + "…" if is_digest else text[:80]
