"""The hosts that planwarden guards: what their tools are called, and what passes without being asked about.

Sources: https://code.claude.com/docs/en/tools-reference, https://developers.openai.com/codex/hooks,
https://geminicli.com/docs/tools, https://opencode.ai/docs/tools, https://cursor.com/docs/agent/hooks.
"""

from collections.abc import Mapping
from typing import Literal, cast

import msgspec

HostName = Literal["claude-code", "codex", "gemini", "opencode", "cursor"]

GUARD_TOOL = "guard_call"
OWN_TOOLS = frozenset(
    {
        *("search_tools", "get_tool_schemas", "create_plan", "run_goal", "execute_plan", "run_plan", "retry_execution"),
        *("ask_person", "get_execution", "list_suspensions", "submit_answer", "resume_execution", "cancel_execution"),
    }
)
"""The tools of planwarden's MCP server. Their exact names count: another server may be called `planwarden_other`."""


class GuardedHost(msgspec.Struct, frozen=True, kw_only=True):
    """One host."""

    name: HostName
    label: str
    reads: frozenset[str]
    """Tools that only read on this machine, or only steer the host: they pass where no rule says otherwise."""
    shells: Mapping[str, str]
    """Tools that run a command, and the argument that has it."""
    remarks: frozenset[str] = frozenset({"description"})
    """Arguments of those tools in which a model says what it means: no fact, and no part of what runs."""
    own_prefix: str
    """What the names of planwarden's own tools begin with."""


GUARDED_HOSTS: Mapping[HostName, GuardedHost] = {
    host.name: host
    for host in (
        GuardedHost(
            name="claude-code",
            label="Claude Code",
            reads=frozenset(
                {
                    *("Read", "Glob", "Grep", "LS", "NotebookRead", "ToolSearch", "ListMcpResourcesTool"),
                    *("TodoWrite", "TaskCreate", "TaskGet", "TaskList", "TaskUpdate", "TaskOutput", "BashOutput"),
                    *("AskUserQuestion", "EnterPlanMode", "ExitPlanMode", "Agent", "Task", "StructuredOutput"),
                }
            ),
            shells={"Bash": "command", "PowerShell": "command", "Monitor": "command"},
            own_prefix="mcp__planwarden__",
        ),
        GuardedHost(
            name="codex",
            label="Codex",
            reads=frozenset({"update_plan", "view_image", "read_file", "list_dir", "grep_files", "request_user_input"}),
            shells={"Bash": "command", "shell": "command", "exec_command": "cmd", "local_shell": "command"},
            own_prefix="mcp__planwarden__",
        ),
        GuardedHost(
            name="gemini",
            label="Gemini CLI",
            reads=frozenset(
                {
                    *("read_file", "read_many_files", "list_directory", "glob", "grep_search", "search_file_content"),
                    *("write_todos", "ask_user", "enter_plan_mode", "exit_plan_mode", "get_internal_docs"),
                }
            ),
            shells={"run_shell_command": "command"},
            own_prefix="mcp_planwarden_",
        ),
        GuardedHost(
            name="opencode",
            label="opencode",
            reads=frozenset({"read", "grep", "glob", "list", "todowrite", "todoread", "task", "question", "invalid"}),
            shells={"bash": "command"},
            own_prefix="planwarden_",
        ),
        GuardedHost(
            name="cursor",
            label="Cursor",
            reads=frozenset({"Read", "Grep", "Glob", "LS", "Task", "TodoWrite"}),
            shells={"Shell": "command"},
            own_prefix="MCP:planwarden:",
        ),
    )
}


def find_shell_argument(host: str, tool: str) -> str | None:
    """Returns the argument of the tool that has a command line; None for a tool that runs none."""
    known = GUARDED_HOSTS.get(cast("HostName", host))
    return None if known is None else known.shells.get(tool)
