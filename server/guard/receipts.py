"""The receipt of a host's session: what the host did, proved and owes, for a terminal, a pull request and the inbox."""

from datetime import UTC, datetime
from typing import Any

import anyio.to_thread
import msgspec

from planwarden.agent.common.errors import InvalidArguments, count_of
from planwarden.server.guard.done import judge_session, list_calls
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.promises import read_folder_file
from planwarden.storage.hosts import HostSession, TrustedFolder
from planwarden.storage.sql.records import RecordStore
from planwarden.tools.guarded.promises import PromiseVerdict, describe_call, format_time


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of one session."""

    session: HostSession
    title: str
    lines: tuple[str, ...]
    verdict: PromiseVerdict


async def list_sessions(store: Any) -> list[HostSession]:
    """Return the sessions of the last week, the newest first."""
    return sorted(await RecordStore(store, HostSession).all(), key=lambda session: -session.updated_at)


async def build_receipt(store: Any, settings: Settings, beginning: str = "") -> Receipt:
    """Return the receipt of the newest session whose id, planwarden's or the host's, begins with `beginning`.

    Raises `InvalidArguments` if there is no such session, or if its record cannot be read.
    """
    sessions = await list_sessions(store)
    session = next((s for s in sessions if s.session.startswith(beginning) or s.name.startswith(beginning)), None)
    if session is None:
        raise InvalidArguments("no session of a host was recorded within a week, or no id begins like that")
    calls = await list_calls(store, session)
    verdict = await judge_session(store, settings, session, calls)
    when = datetime.fromtimestamp(session.updated_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    failures = sum(call.succeeded is False for call in calls)
    lines = [f"{count_of(len(calls), 'call')}, {failures} failed"]
    lines += describe_verdict(verdict, session)
    for trusted in await RecordStore(store, TrustedFolder).all():
        if await anyio.to_thread.run_sync(has_changed, trusted):
            lines.append(f"changed since a person trusted it, so the old text counts: {trusted.folder}")
    title = f"{session.host}, session {session.session[:12]}, {session.folder}, {when}"
    return Receipt(session=session, title=title, lines=tuple(lines), verdict=verdict)


def describe_verdict(verdict: PromiseVerdict, session: HostSession) -> list[str]:
    """Return a line for each promise that is proven, owed or waived."""
    lines = [
        f"proven: {proven.promise.full_name}: {describe_call(proven.call, session.folder)} succeeded at "
        f"{format_time(proven.call.at)}"
        for proven in verdict.proven
    ]
    for owed in verdict.owed:
        waiver = session.waived.get(owed.promise.full_name)
        state = "owed" if waiver is None else f"waived by a person ({waiver})"
        lines.append(f"{state}: {owed.promise.full_name}: {owed.reason}")
    return lines


def has_changed(trusted: TrustedFolder) -> bool:
    """Return whether the folder's file differs from the text that a person trusted, or cannot be read."""
    try:
        return read_folder_file(trusted.folder) != trusted.text
    except InvalidArguments:
        return True
