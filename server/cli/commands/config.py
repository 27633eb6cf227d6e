"""The command `config print`: the block that a host of MCP servers needs to start planwarden."""

import sys
from argparse import Namespace

from planwarden.agent.common.paths import expand_home
from planwarden.server.cli.exit_codes import DONE
from planwarden.server.cli.hosts import CLIENTS, find_launch_command


def handle_print(arguments: Namespace) -> int:
    host = CLIENTS[arguments.client]
    env: dict[str, str] = {}
    if (home := arguments.home) is not None:
        env["PLANWARDEN_HOME"] = str(expand_home(home).absolute())
    if (model := arguments.model) is not None:
        kind, _, file = model.partition(":")
        env["PLANWARDEN_MODEL"] = f"scripted:{expand_home(file).absolute()}" if kind == "scripted" else model
    # The place goes to standard error, so that standard output can be redirected into a file.
    print(f"into {host.where}:", file=sys.stderr)
    print(host.write(find_launch_command(env)))
    return DONE
