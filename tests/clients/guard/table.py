"""The table of docs/guard.md, from what a run saw."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.clients.guard.hosts import HOSTS, Guarded
from tests.support.paths import DOCS

PAGE = DOCS / "guard.md"
BEGIN, END = "<!-- hosts: written by `make guard` -->\n", "<!-- /hosts -->"


@dataclass
class Table:
    """What each host did with what its model tried; rows in the order in which they came."""

    cells: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def add(self, host: Guarded, tried: str, outcome: str) -> None:
        self.cells.setdefault(tried, {})[host.name] = outcome

    def is_complete(self, rows: int) -> bool:
        """Whether all hosts were seen in so many rows."""
        return len(self.cells) == rows and all(len(row) == len(HOSTS) for row in self.cells.values())

    @property
    def text(self) -> str:
        heads = ["the model", *(f"{host.label} {host.version}" for host in HOSTS)]
        rows = [[tried, *(row.get(host.name, "not run") for host in HOSTS)] for tried, row in self.cells.items()]
        return "".join(map(_format_row, [heads, ["---"] * len(heads), *rows]))


def write_page(table: Table) -> None:
    """Puts the table between the marks of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{table.text}{END}{after}", encoding="utf-8")


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"
