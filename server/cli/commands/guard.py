"""The commands `guard hook`, `guard install`, `guard status` and `guard uninstall`.

A hook waits for every import, so each of them imports its own.
"""

import sys
from argparse import Namespace


def handle_hook(arguments: Namespace) -> int:
    from planwarden.server.cli.guard_hook import answer_hook
    from planwarden.server.guard.quick import set_deadline

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
