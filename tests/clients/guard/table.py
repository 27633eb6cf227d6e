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
        heads = ["the model", ", ".join(f"{host.label} {host.version}" for host in HOSTS)]
        rows = [[tried, _join_outcomes(row)] for tried, row in self.cells.items()]
        return "".join(map(_format_row, [heads, ["---"] * len(heads), *rows]))


def write_page(table: Table) -> None:
    """Puts the table between the marks of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{table.text}{END}{after}", encoding="utf-8")


def _join_outcomes(row: dict[str, str]) -> str:
    """Return the outcome, or each with the hosts that had it."""
    labels: dict[str, list[str]] = {}
    for host in HOSTS:
        labels.setdefault(row.get(host.name, "not run"), []).append(host.label)
    return (
        next(iter(labels)) if len(labels) == 1 else "; ".join(f"{', '.join(of)}: {told}" for told, of in labels.items())
    )


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"
