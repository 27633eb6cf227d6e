"""Every planted bug can still be planted, and the tests that must find it are there."""

from pathlib import Path

from tests.support.paths import ROOT
from tests.teeth.__main__ import Patch, apply, find_missing_tests, mend, read_patches

DIFF = """\
diff --git a/agent/old.py b/agent/old.py
--- a/agent/old.py
+++ b/agent/old.py
@@ -2 +2 @@
-TWO = 2
+TWO = 3
"""
HEAD = "Law: Two is two.\nTests: tests/test_two.py\n\n"


def test_every_planted_bug_fits_the_code() -> None:
    loose = {patch.name: fault for patch in read_patches() if (fault := apply(patch, ROOT, "--check"))}
    assert loose == {}, "run `python -m tests.teeth --mend` where code moved; where it changed, plant the bug anew"


def test_every_planted_bug_names_tests_that_are_there() -> None:
    assert {patch.name: missing for patch in read_patches() if (missing := [*find_missing_tests(patch)])} == {}


def test_a_patch_of_code_that_moved_names_its_new_file(tmp_path: Path) -> None:
    for folder in ("agent", "tools", "storage", "server"):
        (tmp_path / folder).mkdir()
    old, new = tmp_path / "agent" / "old.py", tmp_path / "tools" / "new.py"
    old.write_text("ONE = 1\nTWO = 2\n")
    path = tmp_path / "two.patch"
    path.write_text(HEAD + DIFF)
    patch = Patch(path, "Two is two.", ("tests/test_two.py",), DIFF)
    old.rename(new)
    new.write_text(f"ZERO = 0\n{new.read_text()}")
    assert apply(patch, tmp_path)
    mended = mend(patch, tmp_path)
    assert mended is not None and path.read_text() == HEAD + mended.diff
    assert "agent/old.py" not in path.read_text() and not apply(mended, tmp_path)
    assert new.read_text() == "ZERO = 0\nONE = 1\nTWO = 3\n"
    assert not apply(mended, tmp_path, "--reverse")
    old.write_text(new.read_text())
    assert mend(mended, tmp_path) is None, "two files have the lines"
