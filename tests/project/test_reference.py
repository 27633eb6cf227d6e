"""The reference says what the code says: every generated block is as `dev.reference` would write it now."""

import re
from pathlib import Path

import pytest
from dev.reference import pages as reference
from dev.reference.code import table
from dev.reference.settings import variables
from dev.reference.values import IN_LOGS, error_codes

from planwarden.server.cli.hosts import CLIENTS
from tests.clients.roster import CLIENTS as DRIVEN
from tests.requirements import requirement
from tests.support.paths import ROOT

CODE = re.compile(r"\bcode=\"(\w+)\"|_fail\(\s*call, \"(\w+)\"(?: if is_late else \"(\w+)\")?|error_code=\"(\w+)\"")


@requirement("docs:reference")
@pytest.mark.parametrize("page", reference.pages(), ids=lambda page: page.relative_to(reference.DOCS).as_posix())
def test_the_generated_parts_of_a_page_are_as_the_code_has_them(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- generated: ") == text.count("<!-- end -->") == len(reference.block_names(text))
    assert reference.fill(text) == text, f"{page.name} is not up to date; run `python -m dev.reference`"


@requirement("docs:reference")
def test_every_generated_block_is_in_exactly_one_page() -> None:
    shown = [name for page in reference.pages() for name in reference.block_names(page.read_text(encoding="utf-8"))]
    assert set(shown) == set(reference.BLOCKS)
    assert [name for name in shown if shown.count(name) > 1] == []


@requirement("docs:reference")
def test_every_code_that_the_engine_records_is_explained() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "agent").rglob("*.py"))]
    recorded = {code for text in texts for found in CODE.findall(text) for code in found if code}
    assert {"tools_not_called", "timeout", "digest_mismatch"} <= recorded
    assert sorted(recorded - error_codes().keys() - IN_LOGS.keys()) == []
    assert sorted(IN_LOGS.keys() - recorded - error_codes().keys()) == []


def test_a_page_that_differs_from_the_code_is_found_and_written_again() -> None:
    good = "by hand\n<!-- generated: exit codes -->\n" + reference.BLOCKS["exit codes"]() + "\n<!-- end -->\nby hand\n"
    assert reference.fill(good) == good
    stale = good.replace("interrupted", "in trouble")
    assert stale != good and reference.fill(stale) == good
    with pytest.raises(KeyError):
        reference.fill("<!-- generated: nothing of ours -->\n<!-- end -->")


def test_our_variables_are_found_in_the_code() -> None:
    assert {"PLANWARDEN_HOME", "PLANWARDEN_MODEL", "PLANWARDEN_SEARCH", "PLANWARDEN_LOG_FORMAT"} <= variables().keys()


def test_a_cell_that_would_break_its_table_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit into a cell"):
        table(("a",), (("one | two",),))


def test_every_host_has_a_guide_with_its_block() -> None:
    guides = {page.stem: page.read_text(encoding="utf-8") for page in (reference.DOCS / "hosts").glob("*.md")}
    assert [
        client for client in CLIENTS if f"config {client}" not in reference.block_names(guides.get(client, ""))
    ] == []


def test_the_guides_of_driven_hosts_name_what_is_driven() -> None:
    driven = {"claude-code": "Claude Code", "codex": "Codex CLI", "gemini": "Gemini CLI", "opencode": "opencode"}
    hosts = {client.name: client for client in DRIVEN}
    overview = (reference.DOCS / "hosts.md").read_text(encoding="utf-8")
    for name, title in driven.items():
        guide = (reference.DOCS / "hosts" / f"{name}.md").read_text(encoding="utf-8")
        assert f"Driven in tests, version {hosts[title].version}," in guide
        assert f"| [{title}](hosts/{name}.md) | yes | {hosts[title].speaks} |" in overview
    others = [page for page in (reference.DOCS / "hosts").glob("*.md") if page.stem not in driven]
    assert [page.name for page in others if "Driven in tests" in page.read_text(encoding="utf-8")] == []
