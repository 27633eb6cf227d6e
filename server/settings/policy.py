"""The operator's policy: what a call of a given risk needs, and which assurance a decision has.

Risks and levels of assurance are those of docs/security.md. The policy comes only from the operator's file; its digest
is part of every approval digest and of every row of the audit.
"""

import os
import shlex
from collections.abc import Collection, Iterable, Mapping
from functools import cache, cached_property
from itertools import chain
from typing import Literal

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority
from planwarden.agent.approval.business_keys import explain_missing_key
from planwarden.agent.approval.rules import RuleBook
from planwarden.agent.common.canonical import digest
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import NO_ALARMS, Schedule
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.tool import HOST_SEPARATOR, Risk, ToolDefinition, highest_risk, is_of_host
from planwarden.agent.ports.policy import OnceRule, RealPaths, Requirement
from planwarden.tools.guarded.hosts import ShellTool, find_shell_tool
from planwarden.tools.guarded.shell import InnerCommands, ShellCommand, read_commands

NOT_ALLOWED = "the operator does not allow it"
"""Why a rule without `because` denies."""

FOLDER = "cwd"
CHANGING_FOLDER = ("cd", "chdir", "pushd", "popd")
"""Commands that change the folder. A rule on `cwd` does not see the new folder, in which later commands run."""
PERSON = Requirement("dangerous", "human")
UNREAD = "the call has something that a rule cannot see through, so a person is asked"
OAUTH_CHANNEL = "oauth"
"""Channel of decisions that only an OAuth login proves."""

_NEEDS: dict[Risk, ev.Needs | None] = {
    "read": None,
    "confirm": "client",
    "dangerous": "human",
    "critical": "signed",
}

_STRENGTH: dict[ev.Assurance, int] = {
    "claimed": 0,
    "caller": 0,
    "timeout": 0,
    "client": 1,
    "human": 2,
    "signed": 3,
    "second": 4,
    "embedder": 5,
}
"""How assurances rank; a program that embeds planwarden is the operator, so it may decide everything."""


class OperatorPolicy(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Implements the engine's `Policy` port."""

    trust_caller: bool = False
    """Whether the calling model's own approval counts; the audit records such an approval as `claimed`."""
    critical: Literal["signed", "second"] = "signed"
    """What a critical call needs: `second` is a person other than the owner, `signed` such a person or a signature."""
    quorum: int = 1
    """How many different people have to approve a critical call."""
    approvers: tuple[str, ...] = ()
    """The people who may approve critical calls; if empty, anybody with sufficient assurance."""
    same_person: frozenset[str] = frozenset()
    """Names that mean one person: the owner of local executions, and the operating system's user at the terminal."""
    facts: dict[str, JsonValue] = {}
    """The settings of the operator's file that the digest covers."""
    rules: RuleBook | None = None
    """The operator's rules on arguments; `facts` holds the part of them that the digest covers."""
    once: Mapping[str, OnceRule] = {}
    """The business keys of tools, by tool name; `facts` holds the part of them that the digest covers."""
    schedules: Mapping[str, Schedule] = {}
    """Reminders of questions, by tool name. The digest leaves them out, because they decide nothing."""
    default_schedule: Schedule = NO_ALARMS

    def requirement(
        self, definition: ToolDefinition, arguments: Mapping[str, JsonValue], paths: RealPaths | None = None
    ) -> Requirement:
        """Return what the call needs, as the port says. `Settings.apply_to` has already set the operator's risk."""
        if is_of_host(definition.name):
            return _limit_host_call(self, definition, arguments, paths)
        judgement = self.judge(definition, arguments, paths)
        once = self.once.get(definition.name)
        if once is None or judgement.denied is not None:
            return judgement
        text = explain_missing_key(once, definition.name, arguments)
        if text is None:
            return judgement
        at_least = self.for_risk(highest_risk(judgement.risk, "dangerous"))
        return replace(at_least, rule=judgement.rule, found=text, has_no_key=True)

    def looks_at_arguments(self, definition: ToolDefinition, names: Collection[str] | None = None) -> bool:
        if is_of_host(definition.name) or definition.name in self.once:
            return True
        rules = () if self.rules is None else self.rules.list_rules_for(definition.name)
        conditions = (part for rule in rules for part in (*rule.conditions, *(b.condition for b in rule.budgets)))
        # A condition without parts in its pointer covers all arguments, and a budget without a condition counts calls.
        return any(names is None or (part and (not part.parts or part.parts[0] in names)) for part in conditions)

    def find_once(self, tool_name: str) -> OnceRule | None:
        return self.once.get(tool_name)

    def judge(
        self, definition: ToolDefinition, arguments: Mapping[str, JsonValue], paths: RealPaths | None
    ) -> Requirement:
        """Return what the rules and the risk require.

        Rules never answer the question of a blocking tool, and never lower what a critical tool needs.
        """
        if self.rules is None or definition.is_blocking:
            return self.for_risk(definition.risk)
        judgement = self.rules.judge(definition.name, arguments, paths)
        if judgement is None:
            return self.for_risk(definition.risk)
        risk = definition.risk
        if judgement.then == "deny":
            return replace(self.for_risk(risk), rule=judgement.rule, denied=judgement.because or NOT_ALLOWED)
        if risk == "critical":
            return self.for_risk(risk)
        if judgement.then == "allow":
            return Requirement(risk, None, rule=judgement.rule, shares=judgement.shares)
        raised = highest_risk(risk, "dangerous") if judgement.then == "ask" else judgement.risk or risk
        return replace(self.for_risk(raised), rule=judgement.rule)

    def for_risk(self, risk: Risk) -> Requirement:
        if risk == "critical":
            return Requirement(risk, self.critical, self.quorum)
        return Requirement(risk, _NEEDS[risk])

    def worth(self, assurance: ev.Assurance, principal: str, owner: str, needs: ev.Needs | None) -> ev.Assurance | None:
        """Return the assurance that counts, or None. For `signed` or `second`, anybody but the owner counts as
        `second`."""
        if needs is None or assurance == "embedder" or (self.trust_caller and assurance == "claimed"):
            return assurance
        if needs in ("signed", "second"):
            if self.approvers and principal not in self.approvers:
                return None
            if assurance in ("human", "signed") and self.person(principal) != self.person(owner):
                assurance = "second"
        return assurance if _STRENGTH[assurance] >= _STRENGTH[needs] else None

    def schedule(self, tool_name: str) -> Schedule:
        return self.schedules.get(tool_name, self.default_schedule)

    def person(self, principal: str) -> str:
        return min(self.same_person) if principal in self.same_person else principal

    @property
    def policy_digest(self) -> str:
        return self._digest

    @cached_property
    def _digest(self) -> str:
        facts: dict[str, JsonValue] = {
            "trustCaller": self.trust_caller,
            "critical": self.critical,
            "quorum": self.quorum,
            "approvers": list[JsonValue](sorted(self.approvers)),
            **self.facts,
        }
        return digest(facts, context="policy/v1")


def _limit_host_call(
    policy: OperatorPolicy, definition: ToolDefinition, arguments: Mapping[str, JsonValue], paths: RealPaths | None
) -> Requirement:
    """Return what a host's call needs: the rules are stricter for what a host does itself than for tools of plans.

    A command line may hold several commands, but a rule matches only one. Each command must be allowed, both as written
    and as the shell reads its words. Rules that deny apply even to a line that cannot be read as a whole. Only a rule
    that names hosts allows their calls, so that `tool = "*"` does not open a shell. Any other call needs at least
    a person's approval outside the host, because the host controls its own forms.
    """
    judge, rules = policy.judge, policy.rules
    whole = judge(definition, arguments, paths)
    host, _, tool = definition.name.partition(HOST_SEPARATOR)
    shell = find_shell_tool(host, tool)
    if shell is None:
        return whole if _is_allowed_for_host(whole, rules) else _ask_a_person(whole)

    @cache
    def judge_line(line: str) -> Requirement:
        return judge(definition, {**arguments, shell.command: line}, paths)

    line = arguments.get(shell.command)
    inner = InnerCommands(line if isinstance(line, str) else "")
    nested = [judge_line(line) for line in inner.list_lines()]
    commands = _read_commands(shell, arguments)
    top_level = [judge_line(line) for command in commands for line in (command.text, shlex.join(command.words))]
    firmest = max((whole, *top_level, *nested), key=_rank)
    if _rank(firmest) > _rank(PERSON):
        return firmest
    if not top_level or not inner.is_whole:
        return _ask_a_person(whole if whole.needs is not None else replace(whole, found=UNREAD))
    # A rule that asks applies to a wrapped command only if the rule comes before the one that allows the wrapper.
    last = max(each.rule.number if each.rule is not None else 0 for each in top_level)
    behind = (each for each in nested if each.needs is not None and each.rule is not None and each.rule.number < last)
    asking = next(chain((each for each in top_level if not _is_allowed_for_host(each, rules)), behind), None)
    if asking is not None:
        return _ask_a_person(asking)
    return replace(
        top_level[0], shares=_add_up(share for command in commands for share in judge_line(command.text).shares)
    )


def _add_up(shares: Iterable[ev.BudgetShare]) -> tuple[ev.BudgetShare, ...]:
    """Return the summed share of each budget, because the store keeps only one share of a budget for each call."""
    sums: dict[str, ev.BudgetShare] = {}
    for share in shares:
        before = sums.get(share.budget)
        sums[share.budget] = share if before is None else replace(share, amount=before.amount + share.amount)
    return tuple(sums.values())


def _rank(requirement: Requirement) -> int:
    """Return how strict a requirement is: 3 for a denial, 2 for a signature or a second person, 1 for the rest."""
    if requirement.denied is not None:
        return 3
    return 2 if requirement.needs in ("signed", "second") else 1


def _is_allowed_for_host(requirement: Requirement, rules: RuleBook | None) -> bool:
    """Return whether a rule that names hosts allows the call."""
    rule = requirement.rule
    if requirement.needs is not None or requirement.denied is not None or rules is None or rule is None:
        return False
    return any(other.number == rule.number and HOST_SEPARATOR in other.tool for other in rules.rules)


def _ask_a_person(requirement: Requirement) -> Requirement:
    if requirement.denied is not None or requirement.needs not in (None, "client"):
        return requirement
    return replace(PERSON, rule=requirement.rule, found=requirement.found)


def _read_commands(shell: ShellTool, arguments: Mapping[str, JsonValue]) -> list[ShellCommand]:
    """Return the line's commands, except moves to the call's own folder; none if it is unclear what runs, or where."""
    line = arguments.get(shell.command)
    # On Windows, hosts start PowerShell or cmd.
    if not shell.is_posix or os.name != "posix" or not isinstance(line, str):
        return []
    if not arguments.keys() <= shell.arguments | {FOLDER}:
        return []
    if not all(_is_plain(value) for name, value in arguments.items() if name in shell.folders):
        return []
    commands = read_commands(line) or ()
    moves = [command for command in commands if command.words[0] in CHANGING_FOLDER]
    if any(command.words[1:] != (arguments.get(FOLDER),) for command in moves):
        return []
    return [command for command in commands if command not in moves]


def _is_plain(value: JsonValue) -> bool:
    """Return whether the value is a path to take literally: without `~` at the start, and without `..` as a part."""
    return isinstance(value, str) and not value.startswith("~") and ".." not in value.split("/")


def assess_authority(authority: Authority, execution: ExecutionState) -> Authority:
    """Return the authority with the assurance that its channel has for this execution. An OAuth login proves a person
    only if its client does not drive the execution: the driving client holds the person's token and could decide with
    it. A login without a client id does not count, because it may come from the driving client.
    """
    if authority.channel != OAUTH_CHANNEL or authority.assurance not in ("human", "signed", "second"):
        return authority
    if authority.client_id is not None and authority.client_id not in execution.client_ids:
        return authority
    return replace(authority, assurance="claimed")
