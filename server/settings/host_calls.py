"""How the operator's rules hold for what a host does itself: stricter than for tools of plans.

A command line may hold several commands, and a rule knows one: each part must be let through. A rule that lets calls
of a host pass has to name hosts, so that `tool = "*"` does not open a shell. What releases a call of the host is at
least a person, because the host's forms are the host's own.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.core.tool import HOST_SEPARATOR, ToolDefinition
from planwarden.agent.ports.policy import RealPaths, Requirement
from planwarden.tools.guarded.hosts import find_shell_argument
from planwarden.tools.guarded.shell import split_parts

if TYPE_CHECKING:
    from planwarden.agent.approval.rules import RuleBook

CHANGING_FOLDER = ("cd", "pushd", "popd")
"""What follows runs in a folder that a rule on `cwd` does not see."""
PERSON = Requirement("dangerous", "human")


class RuleJudge(Protocol):
    """Says what the rules say about one call."""

    def __call__(
        self, definition: ToolDefinition, arguments: Mapping[str, JsonValue], paths: RealPaths | None
    ) -> Requirement: ...


def limit_host_call(
    judge: RuleJudge,
    definition: ToolDefinition,
    arguments: Mapping[str, JsonValue],
    paths: RealPaths | None,
    rules: "RuleBook | None",
) -> Requirement:
    """Returns what a call of a host's tool needs. Raises `PathsNeeded` as the judge does."""
    whole = judge(definition, arguments, paths)
    parts = _list_parts(definition, arguments)
    if whole.denied is not None or parts is None:
        return _ask_a_person(whole)
    found = [judge(definition, part, paths) for part in parts]
    strictest = next((part for part in found if part.denied is not None), None) or next(
        (part for part in found if part.needs is not None or not _names_hosts(part, rules)), None
    )
    if strictest is not None:
        return _ask_a_person(strictest)
    return replace(found[0], shares=tuple(share for part in found for share in part.shares))


def _ask_a_person(found: Requirement) -> Requirement:
    return replace(PERSON, rule=found.rule, denied=found.denied) if found.needs in (None, "client") else found


def _names_hosts(found: Requirement, rules: "RuleBook | None") -> bool:
    if rules is None or found.rule is None:
        return False
    return any(rule.number == found.rule.number and HOST_SEPARATOR in rule.tool for rule in rules.rules)


def _list_parts(
    definition: ToolDefinition, arguments: Mapping[str, JsonValue]
) -> tuple[Mapping[str, JsonValue], ...] | None:
    """Returns the arguments with each part of the command line alone; None where the parts cannot be told apart."""
    host, _, tool = definition.name.partition(HOST_SEPARATOR)
    key = find_shell_argument(host, tool)
    if key is None:
        return (arguments,)
    command = arguments.get(key)
    parts = split_parts(command) if isinstance(command, str) else None
    if parts is None:
        return None
    stays = {f"{word} {arguments.get('cwd')}" for word in CHANGING_FOLDER}
    found = tuple({**arguments, key: part} for part in parts if part not in stays)
    is_elsewhere = any(part.partition(" ")[0] in CHANGING_FOLDER and part not in stays for part in parts)
    return None if is_elsewhere or not found else found
