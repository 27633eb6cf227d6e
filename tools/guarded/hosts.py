"""The hosts that planwarden guards: their tools, which of these pass without a question, and records of their calls.

planwarden's name for a host's tool, such as `claude-code/Bash`, has a `/`. No name in the catalogue can have one, so
plans and models cannot name such a tool. Only the guard starts executions with such a call. The call itself does
nothing: its success records that a person, a grant or a rule let the identical call of the host pass.

Sources: https://code.claude.com/docs/en/tools-reference, https://developers.openai.com/codex/hooks,
https://geminicli.com/docs/tools, https://opencode.ai/docs/tools, https://cursor.com/docs/agent/hooks.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, cast

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.schema import Schema
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.tools.base import Tool, define

HostName = Literal["claude-code", "codex", "gemini", "opencode", "cursor"]

GUARD_TOOL = "guard_call"
"""The MCP tool that a host's hook calls. It is not listed, so that hosts do not offer it to a model."""
ANSWER_WITHIN_S = 24 * 3600.0
PASS_LIFETIME_S = 3600.0
"""How long after a decision the host may make the call."""
OWN_TOOLS = frozenset(
    {
        *("search_tools", "get_tool_schemas", "create_plan", "run_goal", "execute_plan", "run_plan", "retry_execution"),
        *("ask_person", "get_execution", "list_suspensions", "submit_answer", "resume_execution", "cancel_execution"),
    }
)
"""The tools of planwarden's MCP server. Compare whole names: another server may be called `planwarden_other`."""
_NAME = re.compile(r"(?P<host>[a-z][a-z-]{0,31})/[A-Za-z0-9_.:-]{1,160}")
_SCHEMA: dict[str, JsonValue] = {"type": "object"}


class ShellTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a host that runs a command line. The effect of an argument that no field names is unknown."""

    command: str
    """The name of the argument with the command line."""
    folders: frozenset[str] = frozenset()
    """Arguments with the folder in which the line runs, if that is not the host's own folder."""
    harmless: frozenset[str] = frozenset({"timeout"})
    """Arguments that change neither what runs nor where."""
    is_posix: bool = True
    """Whether a POSIX shell runs the line. planwarden knows the grammar of no other shell."""

    @property
    def arguments(self) -> frozenset[str]:
        return frozenset({self.command}) | self.folders | self.harmless


class GuardedHost(msgspec.Struct, frozen=True, kw_only=True):
    """One host."""

    name: HostName
    label: str
    reads: frozenset[str]
    """Tools that only read on this machine, or only steer the host: they pass unless a rule says otherwise."""
    shells: Mapping[str, ShellTool]
    searches: Mapping[str, frozenset[str]]
    """Tools of `reads` that search a folder and all below it, with the names of their arguments for path patterns."""
    remarks: frozenset[str] = frozenset({"description"})
    """Arguments of `shells` in which a model explains itself. They are not facts, and not part of what runs."""
    own_prefix: str
    """The beginning of the names that the host gives planwarden's own tools."""
    folder: str
    """The name of its folder in projects and most homes."""


def _words(text: str = "") -> frozenset[str]:
    return frozenset(text.split())


GUARDED_HOSTS: Mapping[HostName, GuardedHost] = {
    host.name: host
    for host in (
        GuardedHost(
            name="claude-code",
            label="Claude Code",
            reads=_words(
                "Read Glob Grep LS NotebookRead ToolSearch ListMcpResourcesTool TodoWrite TaskCreate TaskGet "
                "TaskList TaskUpdate TaskOutput BashOutput AskUserQuestion EnterPlanMode ExitPlanMode Agent Task "
                "StructuredOutput"
            ),
            shells={
                "Bash": ShellTool(command="command", harmless=_words("timeout run_in_background")),
                "Monitor": ShellTool(command="command", harmless=_words("timeout_ms persistent")),
                "PowerShell": ShellTool(command="command", is_posix=False),
            },
            searches={"Glob": _words("pattern"), "Grep": _words()},
            own_prefix="mcp__planwarden__",
            folder=".claude",
        ),
        GuardedHost(
            name="codex",
            label="Codex",
            reads=_words("update_plan view_image read_file list_dir grep_files request_user_input"),
            shells={
                "Bash": ShellTool(command="command", folders=_words("workdir")),
                **dict.fromkeys(
                    ("shell", "shell_command", "local_shell"),
                    ShellTool(
                        command="command", folders=_words("workdir working_directory"), harmless=_words("timeout_ms")
                    ),
                ),
                "exec_command": ShellTool(
                    command="cmd", folders=_words("workdir"), harmless=_words("yield_time_ms max_output_tokens")
                ),
            },
            searches={"grep_files": _words()},
            remarks=_words("description justification"),
            own_prefix="mcp__planwarden__",
            folder=".codex",
        ),
        GuardedHost(
            name="gemini",
            label="Gemini CLI",
            reads=_words(
                "read_file read_many_files list_directory glob grep_search search_file_content write_todos ask_user "
                "enter_plan_mode exit_plan_mode get_internal_docs"
            ),
            shells={
                "run_shell_command": ShellTool(
                    command="command", folders=_words("dir_path directory"), harmless=_words("is_background")
                )
            },
            searches={
                "read_many_files": _words("include paths"),
                "glob": _words("pattern"),
                **dict.fromkeys(("grep_search", "search_file_content"), _words()),
            },
            own_prefix="mcp_planwarden_",
            folder=".gemini",
        ),
        GuardedHost(
            name="opencode",
            label="opencode",
            reads=_words("read grep glob list todowrite todoread task question invalid"),
            shells={"bash": ShellTool(command="command", folders=_words("workdir"))},
            searches={"grep": _words(), "glob": _words("pattern"), "list": _words()},
            own_prefix="planwarden_",
            folder=".opencode",
        ),
        GuardedHost(
            name="cursor",
            label="Cursor",
            reads=_words("Read Grep Glob LS Task TodoWrite"),
            shells={"Shell": ShellTool(command="command", folders=_words("working_directory"))},
            searches={"Grep": _words(), "Glob": _words("pattern glob_pattern")},
            own_prefix="MCP:planwarden:",
            folder=".cursor",
        ),
    )
}
HOST_FOLDERS = frozenset(host.folder for host in GUARDED_HOSTS.values())


async def _let_pass(arguments: dict[str, JsonValue], context: CallContext) -> object:
    return {"passes": "once", "withinSeconds": PASS_LIFETIME_S}


@lru_cache(maxsize=256)
def find_host_tool(name: str) -> Tool | None:
    """Return the host's tool of that name; None for a name of another form."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    definition = ToolDefinition(
        name=name,
        description=f"A call that {match['host']} makes itself.\n\nAn approval lets the identical call pass once, "
        "within an hour.",
        input_schema=_SCHEMA,
        risk="dangerous",
        effect="idempotent",
        source="builtin",
        answer_within_s=ANSWER_WITHIN_S,
    )
    return Tool(define(definition), _let_pass, schema=Schema(_SCHEMA))


def find_shell_tool(host: str, tool: str) -> ShellTool | None:
    """Return the host's tool of that name if it runs a command line; None for any other tool."""
    guarded = GUARDED_HOSTS.get(cast("HostName", host))
    return None if guarded is None else guarded.shells.get(tool)
