"""The exit codes of every command."""

from planwarden.agent.core.state import ExecutionState

DONE, FAILED, USAGE, WAITING, INTERRUPTED = 0, 1, 2, 3, 130

EXIT_CODES = """\
exit codes:
  0    done
  1    the command failed, or the execution (also a step of a rehearsal) failed or was rejected
  2    the command was used wrongly
  3    the execution waits for an answer
  130  interrupted; an execution that has started can continue
"""


def exit_code(execution: ExecutionState) -> int:
    """Returns the exit code of a command that ran this execution."""
    if execution.status in ("completed", "planned"):
        return DONE
    if execution.status == "rehearsed":
        return FAILED if any(state.status == "failed" for state in execution.steps.values()) else DONE
    return WAITING if execution.status in ("running", "suspended") else FAILED
