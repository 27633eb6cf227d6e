"""A program on a screen of its own: a terminal that somebody reads, types on, and draws as HTML.

The emulator is pyte (https://pyte.readthedocs.io); what it takes for something else is put right here.
"""

import html
import os
import re
import select
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

import pyte
import pyte.screens

from tests.server.cli.support import open_terminal

ANSWER_S = 180.0
"""A screen on which nothing of what is expected appears for so long has failed."""
LOOK_S = 0.2
QUIET_S = 0.7
"""A screen that has not changed for so long has been drawn."""
MOVES_S = 2.0
"""Something that moves for so long is a part of the picture."""
KEYS = {"enter": "\r", "up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D", "next": "\x0e"}
UNKNOWN = re.compile(rb"\x1b\[[<>=][0-9;]*[ -/]*[@-~]|\x1bP.*?\x1b\\", re.DOTALL)
"""Private sequences and strings to the terminal itself: pyte takes the first for public ones and prints the second."""
UNFINISHED = re.compile(rb"\x1b(\[[0-9;<=>?]*|P[^\x1b]*\x1b?)?$")

GROUND, INK = "#1e1e2e", "#d9def4"
NAMED = {
    "black": "#45475a",
    "red": "#f38ba8",
    "green": "#a6e3a1",
    "brown": "#f9e2af",
    "blue": "#89b4fa",
    "magenta": "#cba6f7",
    "cyan": "#89dceb",
    "white": "#cdd6f4",
    "brightblack": "#7f849c",
}
SUBSTITUTES = {"⎿": "└"}
"""Characters that the font does not have."""
PAGE = """<!DOCTYPE html><meta charset="utf-8"><style>
body {{ margin: 0; display: inline-block; }}
main {{ background: {ground}; color: {ink}; border-radius: 8px; overflow: hidden; padding-bottom: 10px; }}
header {{ background: #313244; color: #a6adc8; font: 11px/13px "DejaVu Sans", sans-serif;
  padding: 6px 12px; text-align: center; }}
header i {{ float: left; width: 9px; height: 9px; border-radius: 50%; margin: 2px 6px 0 0; background: #585b70; }}
pre {{ font: 12.458px/14.375px "DejaVu Sans Mono", monospace; margin: 8px 12px 0; font-variant-emoji: text; }}
pre span, pre s {{ display: inline-block; height: 14.375px; vertical-align: top; }}
pre s {{ width: 7.5px; text-decoration: none; }}
pre s.wide {{ width: 15px; }}
</style><main><header><i></i><i></i><i></i>{title}</header><pre>{rows}</pre></main>"""


class Emulator(pyte.Screen):
    """pyte's screen, which also has faint text and answers what programs ask their terminal.

    pyte has no attribute for faint; `blink`, which is not drawn, holds it.
    """

    def __init__(self, columns: int, lines: int, descriptor: int) -> None:
        super().__init__(columns, lines)
        self.descriptor = descriptor

    def select_graphic_rendition(self, *attrs: int) -> None:
        super().select_graphic_rendition(*_map_faint_to_blink(attrs))

    def write_process_input(self, data: str) -> None:
        os.write(self.descriptor, data.encode())


@dataclass
class Screen:
    process: "subprocess.Popen[bytes]"
    descriptor: int
    emulator: Emulator
    stream: pyte.ByteStream
    _held: bytes = b""

    @property
    def text(self) -> str:
        """The text on the screen now, line by line."""
        return "\n".join(line.rstrip() for line in self.emulator.display)

    def expect(self, text: str) -> None:
        """Reads until `text` is on the screen. Raises `AssertionError` with the screen."""
        self.wait_until(lambda: text in self.text, f"{text!r} did not appear")

    def wait_until(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Reads until `holds` returns true. Raises `AssertionError` with the screen."""
        deadline = time.monotonic() + ANSWER_S
        while not holds():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"{otherwise}; the screen shows:\n{self.text.strip()}")
            self._read(LOOK_S)

    def settle(self) -> None:
        """Reads until the screen has been drawn."""
        deadline = time.monotonic() + MOVES_S
        while time.monotonic() < deadline and self._read(QUIET_S):
            pass

    def press(self, *keys: str) -> None:
        """Types the keys one after the other, each after the screen has been drawn."""
        for key in keys:
            self.settle()
            os.write(self.descriptor, KEYS.get(key, key).encode())

    def paste(self, text: str) -> None:
        """Pastes the text and presses Enter. Hosts would treat Enter as text if the text were typed at this speed."""
        self.press(f"\x1b[200~{text}\x1b[201~", "enter")

    def finish(self) -> int:
        while self._read(ANSWER_S):
            pass
        return self.process.wait(timeout=ANSWER_S)

    def render_page(self, title: str, *, since: str = "") -> str:
        """Returns the screen as an HTML document, from the line with `since` to the last line that is not empty."""
        cursor = self.emulator.cursor
        at = -1 if cursor.hidden or self.process.poll() is not None else cursor.y
        rows = [_render_row(self.emulator, y, has_cursor=y == at) for y in range(self.emulator.lines)]
        lines = self.text.rstrip().splitlines()
        start = next((y for y, line in enumerate(lines) if since in line), 0)
        return PAGE.format(ground=GROUND, ink=INK, title=html.escape(title), rows="\n".join(rows[start : len(lines)]))

    def _read(self, seconds: float) -> bool:
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return False
        try:
            data = self._held + os.read(self.descriptor, 65_536)
        except OSError:
            # Linux reports EIO when the last process has closed its side.
            return False
        rest = UNFINISHED.search(data)
        self._held = data[rest.start() :] if rest else b""
        self.stream.feed(UNKNOWN.sub(b"", data[: rest.start()] if rest else data))
        return True


@contextmanager
def run_on_screen(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], columns: int = 100, lines: int = 46
) -> Generator[Screen]:
    terminal = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PWD": str(cwd)}
    process, ours = open_terminal(command, {**env, **terminal}, columns, lines, cwd)
    emulator = Emulator(columns, lines, ours)
    try:
        yield Screen(process, ours, emulator, pyte.ByteStream(emulator))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)


def _map_faint_to_blink(attrs: tuple[int, ...]) -> list[int]:
    """Returns the attributes with faint (2) as blink (5), and its end (22) as the end of both."""
    made: list[int] = []
    left = iter(attrs)
    for attr in left:
        if attr in (38, 48):
            kind = next(left, 0)
            made += [attr, kind, *islice(left, 3 if kind == 2 else 1)]
        else:
            made += {2: [5], 22: [22, 25]}.get(attr, [attr])
    return made or [0]


def _render_row(emulator: Emulator, y: int, *, has_cursor: bool) -> str:
    cells = [emulator.buffer[y][x] for x in range(emulator.columns)]
    if has_cursor and emulator.cursor.x < len(cells):
        at = emulator.cursor.x
        cells[at] = cells[at]._replace(reverse=not cells[at].reverse)
    return "".join(
        f'<span style="{look}">{"".join(_render_cell(cell.data, after) for cell, after in pairs)}</span>'
        for look, pairs in groupby(_pair_with_next(cells), key=lambda pair: _style_of(pair[0]))
    )


def _pair_with_next(cells: list[pyte.screens.Char]) -> Iterator[tuple[pyte.screens.Char, str]]:
    """Yields each cell with the text of the next one: an empty cell belongs to a wide character before it."""
    yield from zip(cells, [*(cell.data for cell in cells[1:]), " "], strict=True)


def _render_cell(data: str, after: str) -> str:
    """Returns a character in a box of fixed width: fonts differ in widths, and lines must meet."""
    shown = html.escape(SUBSTITUTES.get(data, data))
    return f"<s{'' if after else ' class=wide'}>{shown}</s>" if data else ""


def _style_of(cell: pyte.screens.Char) -> str:
    ink, ground = _css_colour(cell.fg) or INK, _css_colour(cell.bg)
    if cell.reverse:
        ink, ground = ground or GROUND, ink
    parts = [f"color:{ink}"] if ink != INK else []
    parts += [f"background:{ground}"] if ground else []
    parts += ["font-weight:700"] if cell.bold else []
    parts += ["font-style:italic"] if cell.italics else []
    parts += ["opacity:.6"] if cell.blink else []
    parts += ["text-decoration:underline"] if cell.underscore else []
    return ";".join(parts)


def _css_colour(name: str) -> str:
    if name == "default":
        return ""
    return NAMED.get(name) or NAMED.get(name.removeprefix("bright")) or f"#{name}"
