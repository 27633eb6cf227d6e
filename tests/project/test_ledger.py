"""What the crash tests rely on to know what really happened."""

from pathlib import Path

from tests.support.json_lines import append_line, read_lines


def test_a_line_torn_by_a_kill_spoils_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    append_line(path, ["before"])
    with path.open("ab") as file:
        file.write(b'\n["torn", {"key": "a')
    append_line(path, ["after"])
    assert read_lines(path) == [["before"], ["after"]]
