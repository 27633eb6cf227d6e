"""The commands `guard hook`, `guard install`, `guard status` and `guard uninstall`.

A hook waits for every import, so each of them imports its own.
"""

import sys
from argparse import Namespace

from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.guard.quick import set_deadline
from planwarden.tools.guarded.hosts import GUARDED_HOSTS


def add_guard(parser: CommandParser) -> None:
    commands = parser.add_commands("install|status|uninstall|hook")
    for name, handler, text in (
        (
            "install",
            handle_install,
            "Show what the host's file gets so that it asks planwarden before each call, ask, and write it.",
        ),
        (
            "uninstall",
            handle_uninstall,
            "Show which lines of planwarden the host's file loses, ask, and write it.",
        ),
    ):
        changing = commands.add(name, handler, text, needs_home=False)
        hosts = tuple(GUARDED_HOSTS)
        changing.add_argument("host", choices=hosts, metavar="HOST", help=f"the host: {', '.join(hosts)}")
        changing.add_argument(
            "--project", action="store_true", help="in the project of the working directory; default: for this user"
        )
        changing.add_argument("--yes", action="store_true", help="do not ask before writing; needed without a terminal")
    text = "Run each hook as its host would, also broken ones, and say what the host does."
    status = commands.add("status", handle_status, text, needs_home=False)
    text = "of the project of the working directory; default: of this user"
    status.add_argument("--project", action="store_true", help=text)
    text = "Answer a host's hook: the event on standard input."
    hook = commands.add("hook", handle_hook, text, has_json=False, needs_home=False)
    hook.add_argument("host", metavar="HOST", help="the host that asks")


def handle_hook(arguments: Namespace) -> int:
    from planwarden.server.cli.guard_hook import answer_hook

    set_deadline()
    answer = answer_hook(arguments, sys.stdin.buffer)
    if answer.error:
        print(answer.error, file=sys.stderr, flush=True)
    if answer.out:
        print(answer.out, flush=True)
    return answer.code


def handle_install(arguments: Namespace) -> int:
    from planwarden.server.cli.guard_install import install

    return install(arguments)


def handle_uninstall(arguments: Namespace) -> int:
    from planwarden.server.cli.guard_install import uninstall

    return uninstall(arguments)


def handle_status(arguments: Namespace) -> int:
    from planwarden.server.cli.guard_install import show_status

    return show_status(arguments)
