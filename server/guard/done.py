"""Records how a host's calls ended, and checks the promises of its session when the host wants to stop.

A promise counts as kept only if the host itself reported the call; see `planwarden.tools.guarded.promises`. While a
strict promise is unproven, a stop is refused up to `retries` times. Then planwarden asks a person and lets the host
stop, so that no session loops forever. The user's own shell can forge such reports; the guard lets no model run
`planwarden guard hook`.
"""

import json
import os
import re
import shlex
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import anyio
import anyio.to_thread
import msgspec
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.canonical import check_depth, has_json_form
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, StoreError
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.runtime.real_paths import judge_with_paths
from planwarden.server.guard.calls import (
    MAX_FOLDER_CHARS,
    CommandAnswer,
    GuardedCall,
    Verdict,
    build_call,
    read_object,
)
from planwarden.server.guard.hook_client import (
    CALL_EVENTS,
    MAX_RECORD_BYTES,
    SESSIONS,
    STOPS,
    find_record,
    read_event_name,
    record_call,
)
from planwarden.server.guard.protected_paths import FILES_OF_PATCH
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.promises import read_promises
from planwarden.storage.hosts import KEEP_SESSIONS_S, HostSession, TrustedFolder
from planwarden.storage.sql.records import RecordStore, RecordTransaction
from planwarden.tools.guarded.hosts import GUARDED_HOSTS, HostName
from planwarden.tools.guarded.promises import (
    OwedPromise,
    PromiseVerdict,
    RecordedCall,
    describe_pattern,
    judge_promises,
)

MAX_VALUE_CHARS = 2_000
MAX_VALUES = 40
MAX_NAME_CHARS = 200
NOT_STORED = 0
"""The version of a session that is not stored yet."""
ATTEMPTS = 20
"""How many times a decision about a stop is tried while other processes keep changing the stored session."""
MAX_TIME = 2.0**37
"""The latest time in a transcript, in Unix seconds. It is in the year 6325; later times may have no date in Python."""
MAX_CALLS = 2_000
"""How many calls of a session count. Older calls are ignored."""
PATHS = ("file_path", "path", "filePath", "absolute_path", "notebook_path", "target_file")
STOP_TOOL = "Stop"
_EXECUTION = re.compile(r"executionId\W{1,8}([A-Za-z0-9_-]{8,64})")
Ask = Callable[[GuardedCall], Awaitable[Verdict]]


class StopDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What the host is told at the end of a turn."""

    refusal: str = ""
    """Why the host must go on; empty if the host may stop."""
    message: str = ""
    """A message for the person who uses the host; empty if there is none."""


class DoneKeeper:
    """Records and judges the sessions of hosts in one store."""

    def __init__(self, store: Any, settings: Settings, ask: Ask) -> None:
        """Take `ask`, which asks a person about a host's call, such as `HostGuard.decide`."""
        self._store = store
        self._settings = settings
        self._ask = ask
        self._sessions = RecordStore(store, HostSession)

    async def answer(self, host: str, text: bytes) -> CommandAnswer:
        """Record a call or judge a stop, and return the answer to the host's event."""
        if read_event_name(text) not in STOPS:
            answer = await anyio.to_thread.run_sync(record_call, str(self._settings.home), host, text)
            return msgspec.convert(answer, CommandAnswer)
        try:
            return _write_answer(host, await self.decide(host, read_object(text)))
        except PlanwardenError as error:
            return build_failure(host, text, self._settings.tables.guard.stop == "closed", error.message)

    async def decide(self, host: str, event: dict[str, JsonValue]) -> StopDecision:
        """Return the decision: unproven strict promises refuse a stop up to `retries` times; then a person is asked."""
        if event.get("agent_id") or _has_running_subagent(event):
            # A subagent owes nothing itself. While a subagent runs, no check is needed: the host stops again later.
            return StopDecision()
        fresh = _build_session(str(self._settings.home), host, event)
        for _ in range(ATTEMPTS):
            decision = await self._decide_once(fresh)
            if decision is not None:
                return decision
        raise StoreError("the session stops in too many processes at once")

    async def _decide_once(self, fresh: HostSession) -> StopDecision | None:
        """Return the decision; None if another process changed the stored session in the meantime."""
        session = await self._sessions.find(fresh.session, self._store.clock.now())
        if session is None:
            folder = await anyio.to_thread.run_sync(_find_first_folder, fresh.record)
            session = replace(fresh, folder=folder or fresh.folder)
        session = replace(session, name=fresh.name, record=fresh.record)
        verdict = await judge_session(self._store, self._settings, session, await list_calls(self._store, session))
        owed = [each for each in verdict.owed if each.promise.full_name not in session.waived]
        if not owed:
            return StopDecision() if await self._save(replace(session, refusals=0, question="")) else None
        names, rejection = _list_names(owed), ""
        strict = [each for each in owed if each.promise.mode == "strict"]
        limit = max((each.promise.retries for each in strict), default=0)
        answer = await self._ask(_build_question(session, owed)) if session.question == names else None
        if answer is not None and answer.person is not None:
            if answer.then == "allow":
                return await self._waive(session, owed, answer.person)
            rejection = f"A person said no{answer.person and ': '}{answer.person}. "
            limit = max(limit, 1)
        if session.refusals < limit:
            if not await self._save(replace(session, refusals=session.refusals + 1), "sent back", strict or owed):
                return None
            return StopDecision(refusal=f"Not done: {rejection}{_list_reasons(strict or owed)}")
        audited = "stopped unproven" if answer is None else ""
        if answer is None:
            answer = await self._ask(_build_question(session, owed))
        if not await self._save(replace(session, refusals=0, question=names), audited, owed):
            return None
        how = "" if answer.suspension_id is None else f" A person may waive it: question {answer.suspension_id}."
        label = GUARDED_HOSTS[cast("HostName", session.host)].label
        return StopDecision(message=f"{label} says it is done without: {names}. {rejection}{_list_reasons(owed)}{how}")

    async def _waive(self, session: HostSession, owed: Sequence[OwedPromise], reason: str) -> StopDecision:
        names = _list_names(owed)
        waived = {each.promise.full_name: reason[:500] or "without a reason" for each in owed}
        audited = f"waived: {reason[:500]}" if reason else "waived"
        while not await self._save(
            replace(session, refusals=0, question="", waived={**session.waived, **waived}), audited, owed
        ):
            # The person's answer can be used only once, so a concurrent change must not lose it.
            session = await self._sessions.find(session.session) or replace(session, version=NOT_STORED)
        return StopDecision(message=f"A person waived for this session: {names}.")

    async def _save(self, session: HostSession, answer: str = "", owed: Sequence[OwedPromise] = ()) -> bool:
        """Store the session, and return True; return False if another process changed the stored session. With an
        `answer`, also audit the stop. Delete the sessions whose last stop was more than `KEEP_SESSIONS_S` ago.
        """
        now = self._store.clock.now()
        record = replace(session, updated_at=now, expires_at=now + KEEP_SESSIONS_S)
        tool, names = f"{session.host}/{STOP_TOOL}", _list_names(owed)
        entry = AuditEntry(kind="guarded", facts={"tool": tool, "answer": answer, "promises": names})

        def store(transaction: RecordTransaction) -> bool:
            transaction.delete_due(HostSession, now)
            return transaction.insert(record) if record.version == NOT_STORED else transaction.change(record)

        is_stored = await self._sessions.write(store, entry if answer else None)
        await anyio.to_thread.run_sync(_delete_old_records, Path(session.record).parent)
        return is_stored


def _has_running_subagent(event: dict[str, JsonValue]) -> bool:
    tasks = event.get("background_tasks")
    return isinstance(tasks, list) and any(
        isinstance(task, dict) and (task.get("type"), task.get("status")) == ("subagent", "running") for task in tasks
    )


def _build_session(home: str, host: str, event: dict[str, JsonValue]) -> HostSession:
    name, folder = event.get("session_id"), event.get("cwd")
    if host not in GUARDED_HOSTS or not isinstance(name, str) or not name:
        raise InvalidArguments("the host did not say which session it is")
    if not isinstance(folder, str) or not os.path.isabs(folder):
        raise InvalidArguments("the host did not say in which folder it works")
    record = find_record(home, host, name)
    session = Path(record).stem
    # Codex's hooks do not say how a command ended; its own record of the session does.
    if host == "codex":
        record = str(event.get("transcript_path", ""))[:4_096]
    shown_name = name[:MAX_NAME_CHARS] if name.isprintable() else ""
    folder = os.path.normpath(folder)
    return HostSession(
        session=session, host=host, name=shown_name, folder=folder, record=record, expires_at=0.0, version=NOT_STORED
    )


async def list_calls(store: Any, session: HostSession) -> list[RecordedCall]:
    """Return the calls of a session. The success of a call is unknown while an execution that it started runs."""
    calls = await anyio.to_thread.run_sync(_read_record, session.host, session.record)
    headers = await store.headers({call.execution for call in calls} - {""})
    completed = {header.execution_id for header in headers if header.status == "completed"}
    return [
        call if not call.execution or call.execution in completed else replace(call, succeeded=None) for call in calls
    ]


async def judge_session(
    store: Any, settings: Settings, session: HostSession, calls: Sequence[RecordedCall]
) -> PromiseVerdict:
    """Return the verdict on the promises of the operator and of the trusted folders around the session's folder."""
    groups = [(session.folder, settings.promises)]
    for trusted in await RecordStore(store, TrustedFolder).all():
        if Path(session.folder).is_relative_to(trusted.folder):
            groups.append((trusted.folder, read_promises(trusted.text, trusted.folder)))
    judges = [partial(judge_promises, promises, calls, root) for root, promises in groups]
    verdicts = [await judge_with_paths(judge, in_thread=True) for judge in judges]
    return PromiseVerdict(
        owed=tuple(owed for verdict in verdicts for owed in verdict.owed),
        proven=tuple(proven for verdict in verdicts for proven in verdict.proven),
    )


def read_transcript(text: str, host: str) -> list[RecordedCall]:
    """Return the calls of a session that was recorded as JSON lines. Each line is an event as the host's hook sends it,
    with `at` in Unix seconds (default: the line's number). Events that report no call are skipped.

    Raises `InvalidArguments`: a line is not such an event.
    """
    calls: list[RecordedCall] = []
    # `splitlines` would also split at characters that JSON allows inside a text.
    for number, line in enumerate(filter(str.strip, text.split("\n")), 1):
        event = _read_loosely(line.encode())
        name, at = event.get("hook_event_name"), event.get("at", number)
        if not isinstance(name, str):
            raise InvalidArguments(f"line {number} has no 'hook_event_name', so it is not what a host's hook sends")
        if not isinstance(at, int | float) or not 0 <= at <= MAX_TIME:
            raise InvalidArguments(f"line {number} has an 'at' that is not a time in Unix seconds")
        if name in CALL_EVENTS:
            calls.append(_build_recorded(str(event.get("host", host)), event, float(at)))
    return calls


def _build_recorded(host: str, event: dict[str, JsonValue], at: float) -> RecordedCall:
    call, is_whole = _read_call(host, event)
    response = event.get("tool_response")
    succeeded = _read_outcome(host, event, response)
    shell = call.host.shells.get(call.tool)
    line = None if shell is None else call.given.get(shell.command)
    if isinstance(line, list):
        line = " ".join(map(str, line))
    short = [(name, value) for name, value in call.given.items() if isinstance(value, str | int | float | bool)]
    arguments: dict[str, JsonValue] = {
        name: value[:MAX_VALUE_CHARS] if isinstance(value, str) else value for name, value in short[:MAX_VALUES]
    }
    is_background = any(call.given.get(name) is True for name in ("run_in_background", "is_background"))
    if isinstance(response, dict):
        is_background |= "backgroundTaskId" in response
        is_background |= "\nCommand moved to background" in str(response.get("llmContent", ""))[:200]
    executions = _EXECUTION.findall(str(response)) if call.tool.startswith(call.host.own_prefix) else []
    # If the ids differ, at least one comes from a text that a model wrote.
    execution = "" if not executions else executions[0] if len({*executions}) == 1 else "several"
    return RecordedCall(
        tool=call.name,
        at=at,
        # A call whose arguments are incomplete proves nothing, but it may have changed files.
        succeeded=succeeded if is_whole or succeeded is False else None,
        folder=call.folder[:MAX_FOLDER_CHARS],
        arguments=arguments,
        paths=_list_paths(call),
        # A command line that is too long is left out, because its beginning alone could mean something else.
        line=None if shell is None else line if isinstance(line, str) and len(line) <= MAX_VALUE_CHARS * 4 else "",
        is_background=is_background,
        digest=call.compute_digest("")[:32],
        execution=execution,
    )


def _read_call(host: str, event: dict[str, JsonValue]) -> tuple[GuardedCall, bool]:
    """Return the call, and whether its arguments are complete. If the arguments cannot be judged, keep only the plain
    values. Raises the same errors as `read_event` if the tool or the folder is unclear.
    """
    tool, arguments, folder = event.get("tool_name"), event.get("tool_input"), event.get("cwd")
    try:
        if isinstance(arguments, str):
            arguments = _read_loosely(arguments.encode(errors="replace"))
        check_depth(arguments)
        return build_call(host, tool, arguments, folder), True
    except PlanwardenError:
        call, items = build_call(host, tool, {}, folder), arguments.items() if isinstance(arguments, dict) else ()
        plain: dict[str, JsonValue] = {}
        for name, value in items:
            if isinstance(value, str):
                plain[name] = value.encode(errors="replace").decode()
            elif isinstance(value, int | float) and has_json_form(value):
                plain[name] = value
        return GuardedCall(call.host, call.tool, plain, call.folder), False


def _list_paths(call: GuardedCall) -> tuple[str, ...]:
    if call.tool in call.host.shells or call.tool in call.host.reads:
        return ()
    texts = [value for name in PATHS if isinstance(value := call.given.get(name), str)]
    patches = [value for value in call.given.values() if isinstance(value, str) and "*** " in value]
    texts += [match.strip() for patch in patches for match in FILES_OF_PATCH.findall(patch)]
    return tuple(os.path.normpath(os.path.join(call.folder, text[:4_096])) for text in texts[:200])


def _read_outcome(host: str, event: dict[str, JsonValue], response: JsonValue) -> bool | None:
    """Return whether the host says that the call succeeded; None if it does not say."""
    match event.get("hook_event_name"):
        case "PostToolUseFailure":
            return False
        case "PostToolUse":
            # Codex sends only the output, which does not say whether the call succeeded.
            if host == "codex" or response is None:
                return None
            return not (isinstance(response, dict) and response.get("interrupted"))
        case "AfterTool" if isinstance(response, dict):
            # The host wrote only the last lines; the lines before them are the output of the command.
            output, end, _ = str(response.get("llmContent", "")).rpartition("\nProcess Group PGID:")
            if not end and event.get("tool_name") == "run_shell_command":
                return None
            last = output.splitlines()[-3:]
            return not response.get("error") and not any(
                each.startswith(("Exit Code:", "Signal:", "Error:")) for each in last
            )
        case _:
            return None


def _read_record(host: str, path: str) -> list[RecordedCall]:
    """Return the newest calls in the record of a session: Codex's own file, or the file that `record_call` wrote."""
    lines: list[bytes] = []
    for name in (f"{path}.old", path):
        try:
            with open(name, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_RECORD_BYTES))
                lines += file.read(MAX_RECORD_BYTES).splitlines()
        except OSError as error:
            # A session without calls has no record, and most records have no `.old` file.
            if not isinstance(error, FileNotFoundError) or (host == "codex" and name == path):
                raise InvalidArguments(f"the record of the session cannot be read: {error.strerror}") from None
    if host == "codex":
        lines = [line for line in lines if b'"item_completed"' in line[:500]]
    calls = filter(None, map(partial(_read_line, host), reversed(lines)))
    return [*islice(calls, MAX_CALLS)][::-1]


def _find_first_folder(record: str) -> str:
    """Return the folder in which the host made its first recorded call; empty if unknown."""
    for name in (f"{record}.old", record):
        with suppress(OSError, PlanwardenError), open(name, "rb") as file:
            folder = read_object(file.readline()).get("cwd")
            return os.path.normpath(folder) if isinstance(folder, str) and os.path.isabs(folder) else ""
    return ""


def _delete_old_records(folder: Path) -> None:
    """Delete the records in planwarden's own folder that have not changed for `KEEP_SESSIONS_S`."""
    for file in folder.glob("*.jsonl*") if folder.name == SESSIONS else ():
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > KEEP_SESSIONS_S:
                file.unlink()


def _read_line(host: str, line: bytes) -> RecordedCall | None:
    try:
        event: Any = _read_loosely(line)
        return _build_item(event["payload"]) if host == "codex" else _build_recorded(host, event, float(event["at"]))
    # The first line may be incomplete, and a host may change its format.
    except (PlanwardenError, KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _read_loosely(text: bytes) -> dict[str, JsonValue]:
    """Return the object like `read_object`, but accept deep nesting, repeated keys and NaN (read as null). Raises the
    same errors as `read_event`.
    """
    try:
        return read_object(text)
    except PlanwardenError:
        with suppress(ValueError, RecursionError):
            value: object = json.loads(text, parse_constant=lambda _: None)
            if isinstance(value, dict):
                return cast("dict[str, JsonValue]", value)
        raise


def _build_item(payload: Any) -> RecordedCall | None:
    """Return the call in an item of Codex's record; None for an item of another type."""
    item = payload["item"]
    if item["type"] not in ("FileChange", "CommandExecution"):
        return None
    at, succeeded = float(payload["completed_at_ms"]) / 1_000, item["status"] == "completed"
    if item["type"] == "FileChange":
        files = tuple(str(name)[:4_096] for name in list(item["changes"])[:200])
        folder = os.path.dirname(files[0]) if files else "/"
        return RecordedCall(tool="codex/apply_patch", at=at, succeeded=succeeded, folder=folder, paths=files, line=None)
    line = shlex.join(map(str, item["command"]))
    return RecordedCall(
        tool="codex/Bash",
        at=at,
        succeeded=succeeded and item["exit_code"] == 0,
        folder=unquote(str(item["cwd"]).removeprefix("file://")),
        arguments={"command": line[:MAX_VALUE_CHARS]},
        paths=(),
        line=line if len(line) <= MAX_VALUE_CHARS * 4 else "",
    )


def _list_names(owed: Sequence[OwedPromise]) -> str:
    return ", ".join(each.promise.full_name for each in owed)


def _list_reasons(owed: Sequence[OwedPromise]) -> str:
    return " ".join(f"{each.reason} ({each.promise.because})" if each.promise.because else each.reason for each in owed)


def _build_question(session: HostSession, owed: Sequence[OwedPromise]) -> GuardedCall:
    """Return the stop in the form of a call, so that a person can be asked about it. While a session owes the same
    promises, its stops give identical calls."""
    missing = "; ".join(f"no `{describe_pattern(each.promise.requires)}` has succeeded" for each in owed)
    arguments: dict[str, JsonValue] = {
        "done_without": _list_names(owed),
        "missing": missing,
        "session": session.session,
    }
    host = GUARDED_HOSTS[cast("HostName", session.host)]
    words = f"It says it is done without: {_list_names(owed)}."
    return GuardedCall(host, STOP_TOOL, arguments, session.folder, session.session, words)


def _write_answer(host: str, decision: StopDecision) -> CommandAnswer:
    document: dict[str, JsonValue] = {}
    if decision.refusal:
        document = {"decision": "deny" if host == "gemini" else "block", "reason": f"planwarden: {decision.refusal}"}
    if decision.message:
        document["systemMessage"] = f"planwarden: {decision.message}"[:4_000]
    return CommandAnswer(json.dumps(document), "", 0)


def build_failure(host: str, event: bytes, is_closed: bool, reason: str) -> CommandAnswer:
    """Return the answer when planwarden itself has failed. With `is_closed`, refuse a stop, but not twice in a row."""
    document: dict[str, JsonValue] = {}
    # If the event cannot be read, let the host stop: otherwise the session could never end.
    with suppress(PlanwardenError):
        document = read_object(event) if read_event_name(event) in STOPS else {}
    if not is_closed or not document or document.get("stop_hook_active"):
        return CommandAnswer("{}", f"planwarden: what was promised could not be checked: {reason}", 0)
    refusal = f"Not done: what was promised could not be checked: {reason}"
    return _write_answer(host, StopDecision(refusal=refusal))
