"""A yes or no before a command changes something that cannot be taken back."""

from planwarden.agent.common.errors import UsageError
from planwarden.server.cli.terminal.terminal import Terminal

YES = ("y", "yes")


def confirm(terminal: Terminal, question: str, *, says_yes: bool) -> bool:
    """Returns whether the person agrees; `says_yes` is the option --yes, which agrees beforehand.

    Raises:
        UsageError: nobody can be asked here, and --yes was not given.
    """
    if says_yes:
        return True
    if not terminal.can_ask:
        raise UsageError("nothing was changed, because nobody can be asked here; run it in a terminal, or with --yes")
    return (terminal.ask(f"{question} [y yes · Enter no] ") or "").lower() in YES
