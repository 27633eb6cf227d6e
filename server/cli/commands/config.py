"""`config print` writes the block that a host needs to start planwarden, and `completion` writes a script for a shell.

The scripts are static, so a key press never starts Python. They do not complete ids: reading the ids takes as long as
`planwarden list`, and most commands accept the beginning of an id.
"""

import os
import sys
from argparse import Namespace

import shtab

from planwarden.agent.common.paths import expand_home
from planwarden.agent.models.endpoint import MODE_VARIABLE, PROVIDERS, TIMEOUT_VARIABLE, URL_VARIABLE
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.hosts import CLIENTS, LaunchCommand, find_launch_command
from planwarden.server.cli.output import DONE
from planwarden.server.cli.program import build_parser
from planwarden.server.settings.configuration import HOME_VARIABLE, MODEL_VARIABLE, STORE_VARIABLE
from planwarden.storage.location import read_location
from planwarden.storage.secret_files import SECRET_KEY_VARIABLE
from planwarden.tools.web.search import KEY_VARIABLE, SEARCH_VARIABLE

SHELLS = ("bash", "zsh", "fish")
VARIABLES = (HOME_VARIABLE, MODEL_VARIABLE, MODE_VARIABLE, TIMEOUT_VARIABLE, URL_VARIABLE, SEARCH_VARIABLE)
"""Variables that go into the block if set, because a host starts planwarden without this shell's environment."""


def add_config(parser: CommandParser) -> None:
    text = "Print the block for a host, ready to paste."
    block = parser.add_command("print", handle_print, text, has_json=False, needs_home=False)
    block.declare("host HOST", f"the host: {', '.join(CLIENTS)}", choices=sorted(CLIENTS))


def add_completion(parser: CommandParser) -> None:
    parser.handle(handle_completion, has_json=False, needs_home=False)
    parser.declare("shell SHELL", f"the shell: {', '.join(SHELLS)}", choices=SHELLS)


def handle_completion(arguments: Namespace) -> int:
    print(shtab.complete(build_parser(is_whole=True), shell=arguments.shell))
    return DONE


def handle_print(arguments: Namespace) -> int:
    host = CLIENTS[arguments.host]
    env = {name: text for name in VARIABLES if (text := os.environ.get(name, "").strip())}
    home = arguments.home or env.get(HOME_VARIABLE)
    model = arguments.model or env.get(MODEL_VARIABLE)
    store = arguments.store or os.environ.get(STORE_VARIABLE, "").strip()
    location = read_location(store) if store else None
    if location is not None and not location.has_password:
        env[STORE_VARIABLE] = store
    if home is not None:
        env[HOME_VARIABLE] = str(expand_home(home).absolute())
    if model is not None:
        kind, _, file = model.partition(":")
        env[MODEL_VARIABLE] = f"scripted:{expand_home(file).absolute()}" if kind == "scripted" else model
    # Standard error says where to paste the block, so that standard output can be redirected into a file.
    print(f"into {host.where}:", file=sys.stderr)
    provider = PROVIDERS.get((model or "").partition(":")[0])
    own_keys = provider.keys if provider is not None else ()
    keys = [name for name in (KEY_VARIABLE, *own_keys) if os.environ.get(name)]
    if location is not None and location.has_password:
        keys.append(STORE_VARIABLE)
    if os.environ.get(SECRET_KEY_VARIABLE) or (location is not None and location.path is None):
        keys.append(SECRET_KEY_VARIABLE)
    if keys:
        text = f"not written, because they are secrets: {', '.join(keys)}; the host has to give them to planwarden"
        print(text, file=sys.stderr)
    command, *args = find_launch_command()
    print(host.write(LaunchCommand(command, args, env)))
    return DONE
