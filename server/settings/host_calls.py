"""How the operator's rules hold for what a host does itself: stricter than for tools of plans.

A command line may hold several commands, and a rule knows one: each must be let through, as it is written and as the
shell reads its words. What a rule denies is also looked for where the line cannot be read whole. A rule that lets calls
of a host pass has to name hosts, so that `tool = "*"` does not open a shell. What releases a call of the host is at
least a person, because the host's forms are the host's own.
"""

import os
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain

from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.approval.rules import RuleBook
from planwarden.agent.core.tool import HOST_SEPARATOR, ToolDefinition
from planwarden.agent.ports.policy import RealPaths, Requirement
from planwarden.tools.guarded.hosts import ShellTool, find_shell_tool
from planwarden.tools.guarded.shell import ShellCommand, read_commands
from planwarden.tools.guarded.wrappers import InnerCommands

FOLDER = "cwd"
CHANGING_FOLDER = ("cd", "pushd", "popd")
"""What follows runs in a folder that a rule on `cwd` does not see."""
PERSON = Requirement("dangerous", "human")
RuleJudge = Callable[[ToolDefinition, Mapping[str, JsonValue], RealPaths | None], Requirement]
"""Returns what the rules say about one call."""
UNREAD = "the call has something that a rule cannot see through, so a person is asked"


def limit_host_call(
    judge: RuleJudge,
    definition: ToolDefinition,
    arguments: Mapping[str, JsonValue],
    paths: RealPaths | None,
    rules: RuleBook | None,
) -> Requirement:
    """Return what a call of a host's tool needs. Raises `PathsNeeded` as the judge does."""
    whole = judge(definition, arguments, paths)
    host, _, tool = definition.name.partition(HOST_SEPARATOR)
    shell = find_shell_tool(host, tool)
    if shell is None:
        return whole if _is_let(whole, rules) else _ask_a_person(whole)

    @cache
    def judge_line(line: str) -> Requirement:
        return judge(definition, {**arguments, shell.command: line}, paths)

    line = arguments.get(shell.command)
    inner = InnerCommands(line if isinstance(line, str) else "")
    loose = [judge_line(line) for line in inner.list_lines()]
    commands = _read_commands(shell, arguments)
    spelled = [judge_line(line) for command in commands for line in (command.text, shlex.join(command.words))]
    firmest = max((whole, *spelled, *loose), key=_rank)
    if _rank(firmest) > _rank(PERSON):
        return firmest
    if not spelled or not inner.is_whole:
        return _ask_a_person(whole if whole.needs is not None else replace(whole, found=UNREAD))
    # What is behind a wrapper is asked about by a rule that comes before the one that lets the wrapper pass.
    last = max(each.rule.number if each.rule is not None else 0 for each in spelled)
    behind = (each for each in loose if each.needs is not None and each.rule is not None and each.rule.number < last)
    asking = next(chain((each for each in spelled if not _is_let(each, rules)), behind), None)
    if asking is not None:
        return _ask_a_person(asking)
    return replace(spelled[0], shares=tuple(share for command in commands for share in judge_line(command.text).shares))


def _rank(requirement: Requirement) -> int:
    """Return how strict it is: a denial, then what a single person may not decide, then the rest."""
    if requirement.denied is not None:
        return 3
    return 2 if requirement.needs in ("signed", "second") else 1


def _is_let(requirement: Requirement, rules: RuleBook | None) -> bool:
    """Return whether a rule lets it pass that names hosts."""
    rule = requirement.rule
    if requirement.needs is not None or requirement.denied is not None or rules is None or rule is None:
        return False
    return any(other.number == rule.number and HOST_SEPARATOR in other.tool for other in rules.rules)


def _ask_a_person(requirement: Requirement) -> Requirement:
    if requirement.denied is not None or requirement.needs not in (None, "client"):
        return requirement
    return replace(PERSON, rule=requirement.rule, found=requirement.found)


def _read_commands(shell: ShellTool, arguments: Mapping[str, JsonValue]) -> list[ShellCommand]:
    """Return the commands of the line that do something; none where nobody can say what runs, or where."""
    line = arguments.get(shell.command)
    # On Windows hosts start PowerShell or cmd.
    if not shell.is_posix or os.name != "posix" or not isinstance(line, str):
        return []
    if not arguments.keys() <= shell.arguments | {FOLDER}:
        return []
    if not all(_is_plain(place) for name, place in arguments.items() if name in shell.places):
        return []
    commands = read_commands(line) or ()
    moves = [command for command in commands if command.words[0] in CHANGING_FOLDER]
    if any(command.words[1:] != (arguments.get(FOLDER),) for command in moves):
        return []
    return [command for command in commands if command not in moves]


def _is_plain(place: JsonValue) -> bool:
    """Return whether a folder that the call names is the one that its name says, wherever links lead."""
    return isinstance(place, str) and not place.startswith("~") and ".." not in place.split("/")
