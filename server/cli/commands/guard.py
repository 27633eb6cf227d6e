"""The commands `guard hook`, `guard install`, `guard status` and `guard uninstall`."""

import signal
import sys
from argparse import Namespace

# A hook waits for every import, so each command imports its own.
DEADLINE_S = 20
"""After this the system ends the process, whatever it is doing; the hook's shell then blocks the call."""


def handle_hook(arguments: Namespace) -> int:
    if hasattr(signal, "SIGALRM"):
        # The default action of the signal needs no Python to run.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(DEADLINE_S)
    from planwarden.server.cli.guard_hook import answer_hook

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
