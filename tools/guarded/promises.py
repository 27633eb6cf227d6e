"""The promises that an operator demands: which calls must have succeeded before a host may say that it is done.

Pure: recorded calls come in, what is still owed comes out. What counts is the host's report of a call that it made,
never text that a model wrote. The calls that a subagent makes are recorded with those of its parent session.
"""

import os.path
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from planwarden.agent.approval.conditions import MISSING, RuleCondition, RuleFault, compile_condition
from planwarden.agent.approval.rules import MAX_WORK, compile_glob
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.ports.policy import RealPaths
from planwarden.tools.guarded.command_proof import NOT_THERE, explain_unproven
from planwarden.tools.guarded.shell import InnerCommands

COMMAND = "command"
PATH = "file_path"
SHOWN_CHARS = 120


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a host reported as made."""

    tool: str
    """The tool's name as in rules: `claude-code/Bash`, `planwarden/files_write`."""
    at: float
    """Unix seconds."""
    succeeded: bool | None
    """Whether the call succeeded, as the host reported; None if the host did not say."""
    folder: str
    arguments: dict[str, JsonValue] = {}
    """The arguments that conditions can test; long values are cut or left out."""
    paths: tuple[str, ...]
    """The files that the call writes, for conditions on `file_path`."""
    line: str | None
    """The command line of the call; None for a tool that runs none."""
    is_background: bool = False
    """Whether the host answered before the command had ended."""
    digest: str = ""
    """Digest of all arguments."""
    execution: str = ""
    """The execution that the call started, if its tool is planwarden's own; its log says whether it has completed."""


class CallPattern(msgspec.Struct, frozen=True):
    """A description of calls, by their tools and their arguments."""

    tools: tuple[str, ...]
    """Names or globs, with the host (`claude-code/Bash`) or without it (`Bash`)."""
    matches: Mapping[str, Any] = {}
    """A condition for each argument, as in rules; a relative `under` is relative to the session's folder."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """One `[[promises]]` table."""

    name: str
    when: CallPattern
    """The calls after which the promise is owed; a failed call does not count."""
    requires: CallPattern
    """The later calls that prove that the promise was kept."""
    after: Literal["last", "first"] = "last"
    """Whether the proof must come after the last call that matches `when`, or only after the first."""
    mode: Literal["strict", "advisory"] = "strict"
    retries: int = 2
    because: str = ""
    source: str = ""
    """The folder whose file the promise comes from; empty for a promise of planwarden.toml."""

    @property
    def full_name(self) -> str:
        """The name, followed by the folder, if any: promises from different folders may have the same name."""
        return f"{self.name} ({self.source})" if self.source else self.name


class OwedPromise(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that is still owed, because no call has proven it yet."""

    promise: Promise
    reason: str
    """What is missing, in words that a model and a person read."""


class ProvenPromise(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that was owed, and the call that proves it."""

    promise: Promise
    call: RecordedCall


class PromiseVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the promises of a session; a promise that was never owed is in neither list."""

    owed: tuple[OwedPromise, ...]
    proven: tuple[ProvenPromise, ...]


def judge_promises(
    promises: Sequence[Promise], calls: Sequence[RecordedCall], root: str, paths: RealPaths
) -> PromiseVerdict:
    """Return which promises are owed and which are proven. `calls` must be in the order in which the calls ended.

    `root` is the folder of the session.

    Raises:
        PathsNeeded: `paths` lacks some paths that conditions need.
    """
    owed: list[OwedPromise] = []
    proven: list[ProvenPromise] = []
    for promise in promises:
        when, requires = _Pattern(promise.when, root, paths), _Pattern(promise.requires, root, paths)
        # A call whose outcome is unknown counts too: it may have changed something.
        owing = [index for index, call in enumerate(calls) if call.succeeded is not False and when.is_trigger(call)]
        if not owing:
            continue
        begin = owing[-1] if promise.after == "last" else owing[0]
        reasons = [(call, requires.explain_unproven(call)) for call in calls[begin + 1 :]]
        proof = next((call for call, why in reversed(reasons) if why is None), None)
        if proof is not None:
            proven.append(ProvenPromise(promise=promise, call=proof))
        else:
            attempt = next(((call, why) for call, why in reversed(reasons) if why), None)
            owed.append(OwedPromise(promise=promise, reason=_describe(promise, calls[begin], root, attempt)))
    return PromiseVerdict(owed=tuple(owed), proven=tuple(proven))


class _Pattern:
    """Matches calls of a session whose folder is `root`."""

    def __init__(self, pattern: CallPattern, root: str, paths: RealPaths) -> None:
        self._root = root
        self._paths = paths
        self._tools = [compile_glob(tool) for tool in pattern.tools]
        self._conditions = [compile_matcher(name, matcher, root) for name, matcher in pattern.matches.items()]
        self._names_command = COMMAND in pattern.matches

    def is_trigger(self, call: RecordedCall) -> bool:
        """Return whether the call makes the promise owed, as a whole or by one command in its command line."""
        if not self._is_tool(call.tool):
            return False
        lines = InnerCommands(call.line).list_lines() if call.line and self._names_command else ()
        parts = (msgspec.structs.replace(call, arguments={**call.arguments, COMMAND: line}) for line in lines)
        return any(self._is_meant(each, if_unknown=True) for each in (call, *parts))

    def explain_unproven(self, call: RecordedCall) -> str | None:
        """Return why the call does not prove the promise; None if it does, `NOT_THERE` if it does not match at all."""
        if not self._is_tool(call.tool) or (call.line is None and not self._is_meant(call, if_unknown=False)):
            return NOT_THERE
        if call.line is None:
            why = None if os.path.normpath(call.folder) == os.path.normpath(self._root) else "it ran in another folder"
        else:

            def fits(command: str) -> bool:
                part = msgspec.structs.replace(call, arguments={**call.arguments, COMMAND: command}, line=command)
                return self._is_meant(part, if_unknown=False)

            why = explain_unproven(call.line, call.folder, self._root, fits)
        if why == NOT_THERE:
            return why
        if call.succeeded is False:
            return "it failed"
        if call.succeeded is None:
            return "the host did not say how it ended"
        return "it ran in the background, so nobody waited for its exit code" if call.is_background else why

    def _is_tool(self, name: str) -> bool:
        return any(glob.fullmatch(name) or glob.fullmatch(name.partition("/")[2]) for glob in self._tools)

    def _is_meant(self, call: RecordedCall, *, if_unknown: bool) -> bool:
        """Return whether a call of a matching tool meets the conditions; an unknown answer counts as `if_unknown`."""
        variants = ({**call.arguments, PATH: path} for path in call.paths) if call.paths else (call.arguments,)
        return any(
            all(self._holds(condition, call, arguments, if_unknown=if_unknown) for condition in self._conditions)
            for arguments in variants
        )

    def _holds(
        self, condition: RuleCondition, call: RecordedCall, arguments: Mapping[str, JsonValue], *, if_unknown: bool
    ) -> bool:
        value = condition.find_value(arguments)
        if value is MISSING:
            return False
        if condition.folders and isinstance(value, str):
            value = os.path.normpath(os.path.join(call.folder, value))
        answer, _ = condition.judge(cast("JsonValue", value), MAX_WORK, self._paths, loosens=not if_unknown)
        return answer == "yes" or (answer == "unknown" and if_unknown)


def check_pattern(pattern: CallPattern) -> None:
    """Raise `RuleFault` if a condition of the pattern makes no sense."""
    for name, matcher in pattern.matches.items():
        compile_matcher(name, matcher, os.path.sep)


def compile_matcher(name: str, matcher: object, root: str) -> RuleCondition:
    """Return the condition as rules mean it, except that a relative `under` is relative to `root`, and the `prefix` of
    a command must end where a word ends: `make test` does not match `make test-nothing`. Raises `RuleFault`."""
    if not isinstance(matcher, dict):
        return compile_condition(name, matcher)
    table = cast("dict[str, object]", matcher)
    if "under" in table:
        folders = [os.path.join(root, os.path.expanduser(text)) for text in _list_texts(table["under"])]
        return compile_condition(name, {**table, "under": folders})
    if name.removeprefix("/") == COMMAND and "prefix" in table:
        starts = "|".join(map(re.escape, _list_texts(table["prefix"])))
        return compile_condition(name, {**table, "pattern": f"^(?:{starts})(?: |$)"})
    return compile_condition(name, table)


def _list_texts(value: object) -> list[str]:
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text for text in values):
        raise RuleFault("takes a text, or a list of texts")
    return cast("list[str]", values)


def describe_pattern(pattern: CallPattern) -> str:
    """Return a few words that name the calls that match, such as `make test`."""
    command = pattern.matches.get(COMMAND, {})
    texts = next((command[key] for key in ("prefix", "in", "matches") if key in command), None)
    first = next(iter(cast("list[object]", texts)), None) if isinstance(texts, list) else texts
    return str(first if isinstance(first, str) else pattern.tools[0])[:SHOWN_CHARS]


def describe_call(call: RecordedCall, root: str) -> str:
    """Return a few words that describe the call: its command line, its files, or its tool."""
    if call.line is not None:
        return f"`{call.line[:SHOWN_CHARS]}`"
    files = [os.path.relpath(path, root) if os.path.isabs(path) else path for path in call.paths]
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0][:SHOWN_CHARS]}{more}" if files else call.tool


def format_time(at: float) -> str:
    """Return `at`, which is in Unix seconds, as local time of day, such as `14:05`."""
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M")


def _describe(promise: Promise, owing: RecordedCall, root: str, attempt: tuple[RecordedCall, str | None] | None) -> str:
    what = describe_call(owing, root)
    did = "changed" if owing.paths else "run" if owing.line is not None else "called"
    text = (
        f"{what} was {did} at {format_time(owing.at)} and no `{describe_pattern(promise.requires)}` has succeeded since"
    )
    if attempt is not None:
        call, why = attempt
        text += f": {describe_call(call, root)} at {format_time(call.at)} does not count, because {why}"
    return f"{text}. Run it."
