"""One step at a terminal; of a loop a page of its items, one a line."""

from collections.abc import Callable

from planwarden.agent.core.state import ExecutionState
from planwarden.server.cli.terminal.lines import RESULT_CHARS, TerminalLine, one_line, step_lines, value_summary
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.execution import Execution
from planwarden.server.views.loop_items import LoopItem
from planwarden.server.views.status_words import WORDS


def draw_step(
    terminal: Terminal, execution: ExecutionState, view: Execution, build_command: Callable[..., str]
) -> None:
    """Draws the only step of the view; `build_command` makes a command to type from its words."""
    [step] = view.steps
    state = execution.steps[step.id]
    if step.items is None:
        terminal.say(*step_lines(execution, state))
        return
    terminal.say(step_lines(execution, state)[0])
    counts = f"{step.items.total} items: {step.items.succeeded} succeeded, {step.items.failed} failed"
    terminal.say(TerminalLine(((f"{counts}, {step.items.rejected} rejected", "dim"),), indent=1))
    terminal.say(*map(_item_line, step.item_results))
    if step.items.next is not None:
        command = build_command("show", view.thread_id, "--step", step.id, "--items-from", str(step.items.next))
        terminal.say(TerminalLine(((f"more: {command}", "dim"),)))


def _item_line(item: LoopItem) -> TerminalLine:
    text = "" if item.result is None else f" → {value_summary(item.result)}"
    if item.error is not None:
        text = f" → {one_line(item.error.message, RESULT_CHARS * 2)}"
    words = WORDS["item"][item.status]
    return TerminalLine(((f"item {item.item}  ", "dim"), words.word, (text, "dim")), words.mark, 1)
