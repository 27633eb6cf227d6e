"""Claude Code, Codex, Gemini CLI and opencode, whose models want to run commands: planwarden says what runs."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from dev.page import write_parts, write_table

from tests.clients.guard.hosts import HOSTS, Guarded
from tests.clients.guard.scenes import (
    Cells,
    decide_commands,
    fail_closed,
    refuse_stop,
    release_nothing,
    work_elsewhere,
)
from tests.clients.guard.stage import FAULTS, GuardStage
from tests.clients.installed import Unavailable
from tests.requirements import requirement
from tests.support.paths import DOCS

pytestmark = pytest.mark.guard
ROWS = 6 + 1 + len(FAULTS) + 3
STOP_ROWS = 3
each_host = pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)


@dataclass
class Table:
    """What each host did with what its model tried; rows in the order in which they came."""

    cells: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def add(self, host: Guarded, tried: str, outcome: str) -> None:
        self.cells.setdefault(tried, {})[host.name] = outcome

    def is_complete(self, rows: int) -> bool:
        return len(self.cells) == rows and all(len(row) == len(HOSTS) for row in self.cells.values())

    @property
    def text(self) -> str:
        heads = ["the model", ", ".join(f"{host.label} {host.version}" for host in HOSTS)]
        rows = [[tried, _join_outcomes(row)] for tried, row in self.cells.items()]
        return write_table(heads, rows, below="---")


def _join_outcomes(row: dict[str, str]) -> str:
    labels: dict[str, list[str]] = {}
    for host in HOSTS:
        labels.setdefault(row.get(host.name, "not run"), []).append(host.label)
    if len(labels) == 1:
        return next(iter(labels))
    return "; ".join(f"{', '.join(names)}: {outcome}" for outcome, names in labels.items())


@pytest.fixture(scope="session")
def table() -> Generator[Table]:
    """Prints the table, and writes it into the page when every host was seen in every row."""
    yield from fill_table("guard.md", ROWS)


@pytest.fixture(scope="session")
def stops() -> Generator[Table]:
    """Does the same for what the hosts do at the end of a turn."""
    yield from fill_table("done.md", STOP_ROWS)


def fill_table(page: str, rows: int) -> Generator[Table]:
    made = Table()
    yield made
    if made.is_complete(rows):
        write_parts(DOCS / page, {"hosts": made.text})
    else:
        print(f"\n{made.text}")


def add_cells(table: Table, host: Guarded, cells: Cells) -> None:
    try:
        for tried, outcome in cells:
            table.add(host, tried, outcome)
    except Unavailable as error:
        pytest.skip(f"{host.label} {host.version}: {error}")


SCENES: dict[str, Callable[[Guarded, GuardStage], Cells]] = {
    "rules and a person decide": decide_commands,
    "a rule for a folder lets nothing run in another": work_elsewhere,
    **{f"nothing runs without an answer: {fault}": partial(fail_closed, fault=fault) for fault in FAULTS},
    "its model releases nothing itself": release_nothing,
}


@requirement("guard:hosts")
@pytest.mark.parametrize("scene", SCENES.values(), ids=[name.replace(" ", "-") for name in SCENES])
@each_host
def test_a_real_host_runs_what_a_rule_or_a_person_lets_pass_and_nothing_else(
    host: Guarded, scene: Callable[[Guarded, GuardStage], Cells], tmp_path: Path, table: Table
) -> None:
    add_cells(table, host, scene(host, GuardStage(tmp_path)))


@requirement("done:hosts")
@each_host
def test_a_real_host_sends_a_model_back_that_says_it_is_done_without_what_was_promised(
    host: Guarded, tmp_path: Path, stops: Table
) -> None:
    add_cells(stops, host, refuse_stop(host, GuardStage(tmp_path)))
