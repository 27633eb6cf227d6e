"""Reads a call that a host is about to make from the event of its hook, builds the execution that asks about the call,
and writes the answer to the host. A model chose everything in the call, so everything in it is treated as hostile.
"""

import json
import os
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Literal, cast

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.canonical import digest, exceeds, is_larger, read_json
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.core.binding.bindings import Path, replace_bindings_by_null
from planwarden.agent.core.binding.pointers import MAX_ARGUMENT_BYTES
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.plan import Plan, PlannedCall, PlanStep
from planwarden.agent.ports.store import StartRequest
from planwarden.agent.runtime.new_execution import NewExecution, ParsedPlan, PreparedThread
from planwarden.server.guard.hook_client import MAX_EVENT_BYTES
from planwarden.tools.guarded.hosts import GUARDED_HOSTS, GuardedHost, HostName, ShellTool

MAX_VALUES = 20_000
MAX_FOLDER_CHARS = 4_096
STEP = "call"
FOLDER = "cwd"
"""The argument in which people and rules see the folder of the call."""
INPUT = "input"
BLOCKED = 2
"""The exit code with which a hook's command denies the call."""
MAX_REASON_CHARS = 4_000
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_TOOL = re.compile(r"[A-Za-z0-9_.:-]{1,160}")


class GuardedCall:
    """One call of a host's own tool."""

    def __init__(
        self,
        host: GuardedHost,
        tool: str,
        arguments: Mapping[str, JsonValue],
        folder: str,
        session: str = "",
        words: str = "",
    ) -> None:
        self.host = host
        self.tool = tool
        shell = host.shells.get(tool)
        left_out = frozenset[str]() if shell is None else host.remarks
        self.given = {key: value for key, value in arguments.items() if key not in left_out}
        """The arguments without the model's remarks about the call, which the tool does not need."""
        self.folder = folder if shell is None else _find_place(shell, self.given, folder)
        """The folder in which the call runs: the host's, unless the call of a shell names another folder."""
        self.session = digest(session, context="guard session/v1")[:32]
        """A digest of the host's session id. Calls count as identical even if their sessions differ."""
        self.words = words or f"It is about to call {tool}."
        """A sentence that tells people what the host is about to do, or reports to have done."""

    @property
    def name(self) -> str:
        """The name by which rules know the tool, such as `claude-code/Bash`."""
        return f"{self.host.name}/{self.tool}"

    @cached_property
    def arguments(self) -> dict[str, JsonValue]:
        """The arguments and the folder, as `cwd`, which are judged, shown and digested together. If the tool itself has
        an argument `cwd`, its arguments are below `input`, so that rules see which `cwd` is which.
        """
        own: dict[str, JsonValue] = {INPUT: self.given} if FOLDER in self.given else self.given
        return {FOLDER: self.folder, **own}

    def compute_digest(self, principal: str) -> str:
        """Return a digest, which is the same for identical calls."""
        facts: JsonValue = [principal, self.name, self.folder, self.given]
        return digest(facts, context="guard/v1")


def read_event(host_name: str, text: bytes) -> GuardedCall:
    """Return the call in an event that the hook of a host sends.

    Raises:
        InvalidArguments: the text is not such an event, or the call cannot be shown to a person as it is.
        LimitExceeded: the text or the call is too large.
    """
    if len(text) > MAX_EVENT_BYTES:
        raise LimitExceeded(f"the host sent more than {MAX_EVENT_BYTES // 1024} KiB about one call")
    event = read_object(text)
    session = event.get("session_id", event.get("conversation_id"))
    return build_call(host_name, event.get("tool_name"), event.get("tool_input"), event.get("cwd"), session)


def read_object(text: bytes) -> dict[str, JsonValue]:
    """Return the JSON object that a host sent. Raises what `read_event` raises."""
    try:
        event = read_json(text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InvalidArguments("the host sent something that is not UTF-8") from None
    if not isinstance(event, dict):
        raise InvalidArguments("the host did not send a JSON object")
    return event


def build_call(
    host_name: object, tool: object, arguments: object, folder: object, session: object = None
) -> GuardedCall:
    """Return the call. Arguments may be the JSON text of an object. Raises what `read_event` raises."""
    if host_name not in GUARDED_HOSTS:
        names = ", ".join(GUARDED_HOSTS)
        raise InvalidArguments(f"there is no guarded host {str(host_name)[:64]!r}; the guarded hosts are {names}")
    if not isinstance(tool, str) or not _TOOL.fullmatch(tool):
        raise InvalidArguments(f"the host named a tool {str(tool)[:64]!r}, which is not a usable name")
    if isinstance(arguments, str):
        if len(arguments) > MAX_EVENT_BYTES:
            raise LimitExceeded("the arguments of the call are too large")
        arguments = read_json(arguments)
    if not isinstance(arguments, dict):
        raise InvalidArguments("the host sent no arguments for the call")
    if not isinstance(folder, str) or "\0" in folder or len(folder) > MAX_FOLDER_CHARS or not os.path.isabs(folder):
        raise InvalidArguments("the host did not say in which folder the call runs")
    json_arguments = cast("dict[str, JsonValue]", arguments)
    _check_values(json_arguments)
    if _SURROGATE.search(json.dumps([json_arguments, folder], ensure_ascii=False)):
        raise InvalidArguments("the call has half of a surrogate pair, which cannot be shown to a person")
    session_id = session if isinstance(session, str) and not _SURROGATE.search(session) else ""
    call = GuardedCall(GUARDED_HOSTS[cast("HostName", host_name)], tool, json_arguments, folder, session_id)
    if len(call.folder) > MAX_FOLDER_CHARS:
        raise LimitExceeded(f"the call names a folder of more than {MAX_FOLDER_CHARS} characters; name a shorter one")
    return call


def _find_place(shell: ShellTool, arguments: Mapping[str, JsonValue], folder: str) -> str:
    """Return the folder in which a command line runs."""
    for name in sorted(shell.folders & arguments.keys()):
        path = arguments[name]
        if isinstance(path, str) and path:
            joined = os.path.join(folder, path)
            # A `..` after a symbolic link leads to a different folder than the path suggests.
            folder = joined if ".." in path else os.path.normpath(joined)
    return folder


def _check_values(arguments: dict[str, JsonValue]) -> None:
    limit = f"{MAX_ARGUMENT_BYTES // 1024} KiB or {MAX_VALUES} values"
    if exceeds(arguments, MAX_VALUES, MAX_ARGUMENT_BYTES) or is_larger(arguments, MAX_ARGUMENT_BYTES - 8192):
        raise LimitExceeded(f"the arguments of the call are larger than {limit}, which nobody could judge")
    bound: list[Path] = []
    replace_bindings_by_null(arguments, bound)
    if bound:
        raise InvalidArguments("the arguments have a '$from' or '$text' key, which has a meaning in plans")


def build_single_call(
    thread: PreparedThread,
    requester: Requester,
    goal: str,
    call: PlannedCall,
    words: str,
    newest: ExecutionState | None,
    pins: tuple[str, ...] | None = None,
) -> NewExecution:
    """Return an execution that only makes the call. It starts only while `newest` is the newest of its thread."""
    step = PlanStep(
        step_id=STEP, description=words, step_type="tool", required_tools=(call.tool_name,), tool_calls=(call,)
    )
    start = StartRequest()
    if newest is not None:
        start = StartRequest(after=newest.execution_id, after_version=newest.version)
    plan = ParsedPlan(Plan(steps=(step,)))
    return NewExecution(thread=thread, requester=requester, goal=goal, parsed=plan, start=start, pins=pins)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the host."""

    then: Literal["allow", "no opinion", "deny"]
    """`allow` lets the call run, `deny` blocks it; with `no opinion`, the host's own rules decide."""
    reason: str = ""
    """The reason, for the model and for the person who uses the host."""
    suspension_id: str | None = None
    """The id of the open question about the call; None if no question is open."""
    person: str | None = None
    """The reason that a person gave for the decision, or an empty text; None if no person decided."""
    facts: dict[str, JsonValue] | None = None
    """What the audit records, if a rule decided; None if the audit records nothing."""


def deny(reason: str, *, facts: dict[str, JsonValue] | None = None) -> Verdict:
    return Verdict(then="deny", reason=reason, facts=facts)


class CommandAnswer(msgspec.Struct, frozen=True):
    """What the command prints, and its exit code."""

    out: str
    error: str
    code: int


def build_command_answer(host: str, verdict: Verdict) -> CommandAnswer:
    """Return the answer of `planwarden guard hook HOST`, even for an unknown host."""
    reason = f"planwarden: {verdict.reason[:MAX_REASON_CHARS]}"
    if verdict.then == "deny":
        document: JsonValue = {"permission": "deny", "user_message": reason, "agent_message": reason}
        return CommandAnswer(json.dumps(document) if host == "cursor" else "", reason, BLOCKED)
    if host == "claude-code":
        return CommandAnswer(json.dumps(build_claude_document(verdict)), "", 0)
    # An empty object leaves the decision to the host's own rules; a Cursor hook can only be trusted to deny.
    return CommandAnswer(json.dumps({"planwarden": verdict.then} if host == "opencode" else {}), "", 0)


def build_claude_document(verdict: Verdict) -> JsonValue:
    """Return the JSON that a `PreToolUse` hook of Claude Code answers with."""
    if verdict.then == "no opinion":
        return {}
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": verdict.then,
            "permissionDecisionReason": f"planwarden: {verdict.reason[:MAX_REASON_CHARS]}",
        }
    }
