"""Finds what says which code a host runs: settings, hooks, servers and extensions, in projects and in homes."""

import os
from collections.abc import Iterator, Mapping

from planwarden.server.guard.install.hook_files import find_hook_files
from planwarden.tools.guarded.hosts import HostName

HOST_FOLDERS: Mapping[HostName, tuple[str, str]] = {
    "claude-code": (
        ".claude",
        "settings.json settings.local.json .claude.json agents commands hooks plugins skills workflows",
    ),
    # Codex's sessions prove how a command ended.
    "codex": (".codex", "config.toml hooks.json agents hooks plugins prompts rules sessions skills"),
    "gemini": (
        ".gemini",
        "settings.json trusted_hooks.json trustedFolders.json agents commands extensions hooks policies skills",
    ),
    "opencode": (
        ".opencode",
        (
            "opencode.json opencode.jsonc config.json agent agents command commands mode modes plugin plugins skill "
            "skills tool tools"
        ),
    ),
    "cursor": (".cursor", "hooks.json mcp.json cli.json agents commands extensions plugins skills"),
}
"""The name of each host's folder in projects and most homes, and the entries there that say what the host runs.

Sources: those of `planwarden.tools.guarded.hosts`, https://code.claude.com/docs/en/settings,
https://developers.openai.com/codex/config-reference, https://geminicli.com/docs/reference/configuration,
https://opencode.ai/docs/config, https://cursor.com/docs/agent/hooks."""
HOST_FILES = (
    *(".claude.json", ".mcp.json", "opencode.json", "opencode.jsonc", ".agents/skills"),
    *("claude-code/managed-settings.json", "ClaudeCode/managed-settings.json"),
)
"""Files outside `HOST_FOLDERS` that say what a host runs."""
HOST_FOLDER_NAMES = frozenset(name for name, _ in HOST_FOLDERS.values())
_CODE_ANYWHERE = tuple(
    f"/{name}".casefold()
    for name in (*HOST_FILES, *(f"{name}/{code}" for name, codes in HOST_FOLDERS.values() for code in codes.split()))
)


def is_code_of_host(path: str) -> bool:
    """Return whether the path has the name of a host's code, or is inside such a path."""
    folded = path.replace(os.sep, "/").casefold()
    return any(folded.endswith(ending) or f"{ending}/" in folded for ending in _CODE_ANYWHERE)


def list_code_of_hosts(environment: Mapping[str, str], folder: str) -> Iterator[str]:
    """Yield the places of each host's code: those that the environment names, and those in projects around the folder.

    Links are followed, and the paths need not exist.
    """
    for host, (name, codes) in HOST_FOLDERS.items():
        files = find_hook_files(host, environment, None)
        bases = [os.path.dirname(files[-1].path)]
        if host == "opencode" and environment.get("OPENCODE_CONFIG_DIR"):
            bases.append(environment["OPENCODE_CONFIG_DIR"])
        bases += filter(os.path.isdir, (os.path.join(project, name) for project in _list_upwards(folder)))
        yield from (os.path.realpath(os.path.join(base, code)) for base in bases for code in codes.split())
        yield from (os.path.realpath(file.path) for file in files)


def list_around(path: str) -> frozenset[str]:
    """Return the path and every folder above it, in one spelling for file systems that ignore case."""
    return frozenset(_list_upwards(path.casefold()))


def _list_upwards(path: str) -> Iterator[str]:
    yield path
    while path != (path := os.path.dirname(path)):
        yield path
