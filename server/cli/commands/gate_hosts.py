"""`gate install` puts a host's servers behind the gate; `gate uninstall` undoes that; `gate status` lists servers."""

import os
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from planwarden.agent.common.errors import InvalidArguments, UsageError
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.server.cli.hosts import build_change, find_launch_command, make_changes
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.terminal.lines import one_line
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal, write_result
from planwarden.server.gate.host_servers import (
    HOSTS,
    FileStatus,
    HostServer,
    ServerFile,
    find_server_files,
    read_statuses,
)
from planwarden.server.settings.configuration import find_home
from planwarden.server.views.escaping import escape_text


def install(arguments: Namespace) -> int:
    home = find_home(arguments.home, os.environ)
    return _change(arguments, (*find_launch_command(), "--home", str(home)))


def uninstall(arguments: Namespace) -> int:
    return _change(arguments, None)


def show_status(arguments: Namespace) -> int:
    statuses = read_statuses(os.environ, Path.cwd() if arguments.project else None)
    write_result(arguments, {"hosts": [status.to_json() for status in statuses]}, draw_statuses, statuses)
    return FAILED if any(status.problem for status in statuses) else DONE


def draw_statuses(terminal: Terminal, statuses: Sequence[FileStatus]) -> None:
    for status in statuses:
        about = "" if status.servers or status.problem else ": no servers"
        path = (f"  {escape_text(str(status.file.path))}", "dim")
        terminal.line((f"{HOSTS[status.file.host].label}{about}", "bold"), path)
        if status.problem:
            terminal.line((one_line(status.problem, 300), "bad"), mark="failed", indent=1)
        for server in status.servers:
            why = f", because {server.problem}" if server.problem else ""
            mark = "waits" if server.state == "passes by" else "done"
            terminal.line(f"{one_line(server.name, 80)}: {server.state}{why}", mark=mark, indent=1)


def _change(arguments: Namespace, program: Sequence[str] | None) -> int:
    """Put the servers behind the gate of the program; without a program, remove the gate."""
    if arguments.command:
        verb = "uninstall" if program is None else "install"
        raise UsageError(f"servers are named without two hyphens: planwarden gate {verb} {arguments.host} SERVER")
    files = find_server_files(arguments.host, os.environ, Path.cwd() if arguments.project else None)
    if not files:
        raise UsageError(f"{HOSTS[arguments.host].label} has no servers of a project; leave --project out")
    terminal, names = build_terminal(arguments), set[str]()

    def change(file: ServerFile, text: str) -> str:
        listed = file.list_servers(text) if text.strip() else []
        names.update(server.name for server in listed)
        selection = [server for server in listed if not arguments.servers or server.name in arguments.servers]
        for server in selection:
            try:
                text = _change_entry(file, text, server, program)
            except InvalidArguments as obstacle:
                terminal.say(f"{one_line(server.name, 80)} is left as it is: {obstacle.message}.")
        return text

    changes = [build_change(file.path, partial(change, file), is_project=file.is_project) for file in files]
    places = " or ".join(repr(str(file.path)) for file in files)
    for name in arguments.servers:
        if name not in names:
            raise UsageError(f"there is no server {name[:80]!r} in {places}{did_you_mean(name, sorted(names))}")
    outcome = f"{'removed' if program is None else 'installed'}. Start {HOSTS[arguments.host].label} again."
    why = "" if names else f": {places} lists no servers"
    return make_changes(arguments, changes, f"There is nothing to change{why}.", outcome)


def _change_entry(file: ServerFile, text: str, server: HostServer, program: Sequence[str] | None) -> str:
    """Return the text with the server behind the gate of the program; without a program, remove the gate.

    Raises `InvalidArguments` with the reason why the entry stays unchanged.
    """
    if program is None:
        return file.remove(text, server) if server.own_words else text
    if server.own_words and server.words[: len(program)] != tuple(program):
        raise InvalidArguments("it is behind the gate of another home or installation; use `gate uninstall` first")
    if obstacle := "it is planwarden" if server.state == "planwarden itself" else server.problem:
        raise InvalidArguments(obstacle)
    return text if server.own_words else file.add(text, server.name, program)
