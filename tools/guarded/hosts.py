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


class ShellTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a host that runs a command line. Of an argument that is not named here nobody knows what it does."""

    command: str
    """The argument with the command line."""
    places: frozenset[str] = frozenset()
    """Arguments with the folder that the line runs in, in place of the host's own."""
    harmless: frozenset[str] = frozenset({"timeout"})
    """Arguments that change neither what runs nor where."""
    is_posix: bool = True
    """Whether the line is one of a POSIX shell, whose grammar is known here."""

    @property
    def arguments(self) -> frozenset[str]:
        return frozenset({self.command}) | self.places | self.harmless


class GuardedHost(msgspec.Struct, frozen=True, kw_only=True):
    """One host."""

    name: HostName
    label: str
    reads: frozenset[str]
    """Tools that only read on this machine, or only steer the host: they pass where no rule says otherwise."""
    shells: Mapping[str, ShellTool]
    searches: Mapping[str, frozenset[str]]
    """Those of `reads` that look through all folders below theirs, and their arguments with patterns of paths."""
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
            shells={
                "Bash": ShellTool(command="command", harmless=frozenset({"timeout", "run_in_background"})),
                "Monitor": ShellTool(command="command", harmless=frozenset({"timeout_ms", "persistent"})),
                "PowerShell": ShellTool(command="command", is_posix=False),
            },
            searches={"Glob": frozenset({"pattern"}), "Grep": frozenset()},
            own_prefix="mcp__planwarden__",
        ),
        GuardedHost(
            name="codex",
            label="Codex",
            reads=frozenset({"update_plan", "view_image", "read_file", "list_dir", "grep_files", "request_user_input"}),
            shells={
                "Bash": ShellTool(command="command", places=frozenset({"workdir"})),
                **dict.fromkeys(
                    ("shell", "shell_command", "local_shell"),
                    ShellTool(
                        command="command",
                        places=frozenset({"workdir", "working_directory"}),
                        harmless=frozenset({"timeout_ms"}),
                    ),
                ),
                "exec_command": ShellTool(
                    command="cmd",
                    places=frozenset({"workdir"}),
                    harmless=frozenset({"yield_time_ms", "max_output_tokens"}),
                ),
            },
            searches={"grep_files": frozenset()},
            remarks=frozenset({"description", "justification"}),
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
            shells={
                "run_shell_command": ShellTool(
                    command="command",
                    places=frozenset({"dir_path", "directory"}),
                    harmless=frozenset({"is_background"}),
                )
            },
            searches={
                "read_many_files": frozenset({"include", "paths"}),
                "glob": frozenset({"pattern"}),
                **dict.fromkeys(("grep_search", "search_file_content"), frozenset[str]()),
            },
            own_prefix="mcp_planwarden_",
        ),
        GuardedHost(
            name="opencode",
            label="opencode",
            reads=frozenset({"read", "grep", "glob", "list", "todowrite", "todoread", "task", "question", "invalid"}),
            shells={"bash": ShellTool(command="command", places=frozenset({"workdir"}))},
            searches={"grep": frozenset(), "glob": frozenset({"pattern"}), "list": frozenset()},
            own_prefix="planwarden_",
        ),
        GuardedHost(
            name="cursor",
            label="Cursor",
            reads=frozenset({"Read", "Grep", "Glob", "LS", "Task", "TodoWrite"}),
            shells={"Shell": ShellTool(command="command", places=frozenset({"working_directory"}))},
            searches={"Grep": frozenset(), "Glob": frozenset({"pattern", "glob_pattern"})},
            own_prefix="MCP:planwarden:",
        ),
    )
}


def find_shell_tool(host: str, tool: str) -> ShellTool | None:
    """Return what is known of a tool that runs a command line; None for a tool that runs none."""
    guarded = GUARDED_HOSTS.get(cast("HostName", host))
    return None if guarded is None else guarded.shells.get(tool)
