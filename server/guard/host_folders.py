"""Where hosts keep what runs in them: hooks, servers, and the folders of their code.

Sources: those of `planwarden.tools.guarded.hosts`, https://code.claude.com/docs/en/settings,
https://developers.openai.com/codex/config-reference, https://geminicli.com/docs/reference/configuration,
https://opencode.ai/docs/config, https://cursor.com/docs/agent/hooks.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from planwarden.server.guard.install.hook_files import find_hook_files
from planwarden.tools.guarded.hosts import HostName


class HostFolder(msgspec.Struct, frozen=True):
    """The folder of one host, in a project and in a home."""

    name: str
    """What it is called in a project, and in most homes."""
    code: tuple[str, ...]
    """What in it says what runs."""


HOST_FOLDERS: Mapping[HostName, HostFolder] = {
    "claude-code": HostFolder(
        ".claude",
        (
            *("settings.json", "settings.local.json", ".claude.json", "agents", "commands", "hooks", "plugins"),
            *("skills", "workflows"),
        ),
    ),
    "codex": HostFolder(
        ".codex",
        # Its sessions prove how a command ended.
        ("config.toml", "hooks.json", "agents", "hooks", "plugins", "prompts", "rules", "sessions", "skills"),
    ),
    "gemini": HostFolder(
        ".gemini",
        (
            *("settings.json", "trusted_hooks.json", "trustedFolders.json", "agents", "commands", "extensions"),
            *("hooks", "policies", "skills"),
        ),
    ),
    "opencode": HostFolder(
        ".opencode",
        (
            *("opencode.json", "opencode.jsonc", "config.json", "agent", "agents", "command", "commands", "mode"),
            *("modes", "plugin", "plugins", "skill", "skills", "tool", "tools"),
        ),
    ),
    "cursor": HostFolder(
        ".cursor", ("hooks.json", "mcp.json", "cli.json", "agents", "commands", "extensions", "plugins", "skills")
    ),
}
FILES = (
    *(".claude.json", ".mcp.json", "opencode.json", "opencode.jsonc", ".agents/skills"),
    *("claude-code/managed-settings.json", "ClaudeCode/managed-settings.json"),
)
"""What is code of a host outside of such a folder."""
_NAMES = frozenset(folder.name for folder in HOST_FOLDERS.values())
_ANYWHERE = tuple(
    f"/{name}".casefold()
    for name in (
        *FILES,
        *(f"{folder.name}/{code}" for folder in HOST_FOLDERS.values() for code in folder.code),
    )
)


def is_code_of_host(path: str) -> bool:
    """Return whether the path is called like what runs in a host, or like something in it."""
    folded = path.replace(os.sep, "/").casefold()
    return any(folded.endswith(ending) or f"{ending}/" in folded for ending in _ANYWHERE)


def is_host_folder(path: str) -> bool:
    """Return whether the path is called like the folder of a host."""
    return os.path.basename(path).casefold() in _NAMES


def list_code_of_hosts(environment: Mapping[str, str], folder: str) -> Iterator[str]:
    """Yield where the environment places the code of each host, and where projects around the folder have it.

    Links are followed, and the paths need not exist.
    """
    projects = [str(project) for project in (Path(folder), *Path(folder).parents)]
    for host, host_folder in HOST_FOLDERS.items():
        files = find_hook_files(host, environment, None)
        bases = [os.path.dirname(files[-1].path)]
        if host == "opencode" and environment.get("OPENCODE_CONFIG_DIR"):
            bases.append(environment["OPENCODE_CONFIG_DIR"])
        bases += filter(os.path.isdir, (os.path.join(project, host_folder.name) for project in projects))
        yield from (os.path.realpath(os.path.join(base, code)) for base in bases for code in host_folder.code)
        yield from (os.path.realpath(file.path) for file in files)
