"""What the crash tests rely on to know what really happened."""

from pathlib import Path

from tests.harness.ledger import Ledger


def test_a_line_torn_by_a_kill_spoils_no_other_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.write("before")
    with ledger.path.open("ab") as file:
        file.write(b'\n["torn", {"key": "a')
    ledger.write("after")
    assert [line.what for line in ledger.lines()] == ["before", "after"]
