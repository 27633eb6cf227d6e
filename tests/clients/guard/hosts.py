"""The guarded hosts without a person, set to ask nobody themselves: what stops a command is planwarden alone.

Sources of the settings: those of `tests/clients/hosts.py`, and https://code.claude.com/docs/en/settings,
https://developers.openai.com/codex/hooks.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import anyio.to_thread
from pydantic import JsonValue

from tests.clients import hosts
from tests.clients.guard.stage import GuardStage
from tests.clients.installed import path_with_node
from tests.server.cli.support import clean_environment
from tests.support.doubles.messages import ModelReply
from tests.support.doubles.wires import KEY, MODEL
from tests.support.screen import Screen, run_on_screen

URL = "http://127.0.0.1:9"
"""Stands for the provider's address where each session gives the right one."""


@dataclass(frozen=True)
class Guarded:
    """One host: its shell tool, its settings and its sessions."""

    name: str
    """As `guard install` knows it."""
    label: str
    version: str
    wire: hosts.HostWire
    shell: str
    """What its model calls to run a command."""
    judged: str
    """The tool as rules know it."""
    build: Callable[[str], dict[str, JsonValue]]
    """Builds the arguments of the model's call."""
    own_tool: str
    """What a model would call `guard_call`."""
    hook_file: str
    """The hook, below the person's home."""
    configure: Callable[[GuardStage], None]
    """Writes the host's settings, before the hook is installed."""
    start: Callable[[str], hosts.Session]
    """Prepares a session with the provider at the address."""
    place: str | None = None
    """The argument of that tool for another folder than the host's own; None where it has none."""
    trust: Callable[[GuardStage], None] = lambda stage: None
    """What a person does once, after the hook was installed."""


def build_env(stage: GuardStage, session: hosts.Session) -> dict[str, str]:
    given = {"HOME": str(stage.user), "PATH": path_with_node(), "PWD": str(stage.project)}
    return clean_environment({**given, **session.env})


def _configure_claude_code(stage: GuardStage) -> None:
    servers = json.loads(stage.config("claude-code"))
    (stage.user / ".claude.json").write_text(json.dumps(servers), encoding="utf-8")


def _start_claude_code(url: str) -> hosts.Session:
    words = ["--print", hosts.PROMPT, "--model", MODEL, "--dangerously-skip-permissions"]
    # Without it the host refuses these words to root, who runs tests in containers.
    return hosts.Session(
        [*hosts.CLAUDE_CODE.binary("claude"), *words], {**hosts.claude_code_env(url), "IS_SANDBOX": "1"}
    )


def _configure_codex(stage: GuardStage) -> None:
    (stage.user / ".codex").mkdir()
    more = f'check_for_update_on_startup = false\n\n[projects."{stage.project}"]\ntrust_level = "trusted"\n'
    provider = hosts.codex_provider(URL, "never", more)
    (stage.user / ".codex" / "config.toml").write_text(f"{provider}{stage.config('codex')}\n", encoding="utf-8")


def _codex_words(url: str) -> list[str]:
    return [*hosts.CODEX.binary("codex"), "-c", f'model_providers.double.base_url="{url}"']


def _start_codex(url: str) -> hosts.Session:
    words = ["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", hosts.PROMPT]
    return hosts.Session([*_codex_words(url), *words], {"DOUBLE_KEY": KEY})


def _trust_codex(stage: GuardStage) -> None:
    """Trusts the hook as a person does, with `t` in the list of hooks that Codex shows."""
    anyio.run(_trust_on_screen, stage)


async def _trust_on_screen(stage: GuardStage) -> None:
    async with hosts.serve_provider(hosts.HostResponsesWire(), lambda request: ModelReply(text="Hello")) as double:
        session = hosts.Session(_codex_words(double.url), {"DOUBLE_KEY": KEY})
        config = stage.user / ".codex" / "config.toml"

        def press(screen: Screen) -> None:
            screen.expect("Review hooks")
            screen.press("enter")
            screen.expect("trust all")
            screen.press("t")
            # The screen says so before it is written, and the process is killed afterwards.
            screen.wait_until(lambda: "trusted_hash" in config.read_text(encoding="utf-8"), "the hook was not trusted")

        def watch() -> None:
            env = build_env(stage, session)
            with run_on_screen(session.command, cwd=stage.project, env=env) as screen:
                press(screen)

        await anyio.to_thread.run_sync(watch)


def _configure_opencode(stage: GuardStage) -> None:
    folder = stage.user / ".config" / "opencode"
    folder.mkdir(parents=True)
    hosts.write_opencode_settings(stage.config("opencode"), folder)


def _described(command: str) -> dict[str, JsonValue]:
    return {"command": command, "description": "Write a note"}


HOSTS: tuple[Guarded, ...] = (
    Guarded(
        name="claude-code",
        label="Claude Code",
        version=hosts.CLAUDE_CODE.version,
        wire=hosts.HostAnthropicWire(),
        shell="Bash",
        judged="claude-code/Bash",
        build=_described,
        own_tool="mcp__planwarden__guard_call",
        hook_file=".claude/settings.json",
        configure=_configure_claude_code,
        start=_start_claude_code,
    ),
    Guarded(
        name="codex",
        label="Codex CLI",
        version=hosts.CODEX.version,
        wire=hosts.HostResponsesWire(),
        shell="exec_command",
        judged="codex/Bash",
        build=lambda command: {"cmd": command},
        own_tool="mcp__planwarden/guard_call",
        hook_file=".codex/hooks.json",
        place="workdir",
        configure=_configure_codex,
        start=_start_codex,
        trust=_trust_codex,
    ),
    Guarded(
        name="gemini",
        label="Gemini CLI",
        version=hosts.GEMINI_CLI.version,
        wire=hosts.HostGeminiWire(),
        shell="run_shell_command",
        judged="gemini/run_shell_command",
        build=_described,
        own_tool="mcp_planwarden_guard_call",
        hook_file=".gemini/settings.json",
        place="dir_path",
        configure=lambda stage: hosts.write_gemini_settings(stage.config("gemini"), stage.user),
        start=hosts.start_gemini,
    ),
    Guarded(
        name="opencode",
        label="opencode",
        version=hosts.OPENCODE.version,
        wire=hosts.HostChatWire(),
        shell="bash",
        judged="opencode/bash",
        build=_described,
        own_tool="planwarden_guard_call",
        hook_file=".config/opencode/plugins/planwarden-guard.js",
        place="workdir",
        configure=_configure_opencode,
        start=hosts.start_opencode,
    ),
)
