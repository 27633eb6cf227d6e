"""The documentation is true: its snippets run, and everything that can be called is described."""

import json
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from dev import site
from dev.reference import pages as reference
from dev.reference.values import IN_LOGS, error_codes
from dev.show.stage import read_block
from dev.walk import PAGE, walk
from pydantic import JsonValue

import planwarden
from planwarden.server.cli.commands.init import create_home
from planwarden.server.cli.program import build_parser
from planwarden.server.settings.configuration import load_settings
from tests.clients.roster import CLIENTS as DRIVEN
from tests.requirements import requirement
from tests.support.paths import ROOT

DOCUMENTS = [*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
LIST = re.compile(r"\s*([*-]|\d+\.) ")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(language: str, page: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", read(page), re.DOTALL)


def test_the_program_of_the_python_page_runs_and_deletes_after_the_decision(tmp_path: Path) -> None:
    [program] = blocks("python", "docs/python.md")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "completed {'deleted': 2}"


def test_the_tools_and_settings_of_the_first_plan_load_beside_those_that_init_makes(tmp_path: Path) -> None:
    create_home(tmp_path)
    [tools] = blocks("python", "docs/first-plan.md")
    [settings] = blocks("toml", "docs/first-plan.md")
    for name, added in (("tools.py", tools), ("planwarden.toml", settings)):
        path = tmp_path / name
        path.write_text(f"{path.read_text(encoding='utf-8')}\n{added}", encoding="utf-8")
    made = planwarden.Warden(settings=load_settings(home=tmp_path, environment={}))
    find, delete = made.tools.get("crm_find"), made.tools.get("crm_delete")
    assert find is not None and find.risk == "read" and delete is not None
    assert delete.risk == "dangerous", "a newcomer can approve what the page has them copy"


async def test_the_first_plan_is_the_one_that_init_makes_and_runs_up_to_its_question(tmp_path: Path) -> None:
    create_home(tmp_path)
    [plan] = [json.loads(block) for block in blocks("json", "docs/first-plan.md")]
    assert plan == json.loads((tmp_path / "plans" / "first.json").read_text(encoding="utf-8"))
    checked: dict[str, JsonValue] = plan
    async with planwarden.Warden(settings=load_settings(home=tmp_path, environment={})) as w:
        execution = await w.execute_plan(checked)
        [question] = execution.suspensions
        assert question.tool_call is not None and question.tool_call.tool_name == "write_note"


async def test_the_tools_of_the_page_about_them_read_ask_and_act_in_its_plan(tmp_path: Path) -> None:
    create_home(tmp_path)
    [tools], [plan] = blocks("python", "docs/tools.md"), blocks("json", "docs/tools.md")
    (tmp_path / "tools.py").write_text(tools, encoding="utf-8")
    (tmp_path / "plans" / "remind.json").write_text(plan, encoding="utf-8")
    async with planwarden.Warden(settings=load_settings(home=tmp_path, environment={})) as w:
        asked = await w.run_plan("remind")
        [form] = asked.suspensions
        tone = planwarden.Decision(content={"tone": "firm"})
        asked = await w.resume_execution(asked.thread_id, form.suspension_id, tone)
        [question] = asked.suspensions
        assert (form.kind, question.kind) == ("input", "approval") and not (tmp_path / "sent.txt").exists()
        yes = planwarden.Decision(approved=True)
        assert (await w.resume_execution(asked.thread_id, question.suspension_id, yes)).status == "completed"
    sent = (tmp_path / "sent.txt").read_text(encoding="utf-8")
    assert sent == "Acme: This is the last reminder: Acme, you owe 120 €.\n"


async def test_the_plan_and_the_settings_of_the_page_of_saved_plans_are_read(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    files = {"plans/archive.yaml": "yaml", "planwarden.toml": "toml", "planwarden.json": "json"}
    for name, language in files.items():
        (tmp_path / name).write_text(read_block(language), encoding="utf-8")
    async with planwarden.Warden(settings=load_settings(home=tmp_path, environment={})) as w:
        [plan] = await w.plans()
        assert {server.name for server in w.downstream.health()} == {"files", "repo"}
    assert plan.name == "archive" and plan.inputs is not None and plan.inputs["required"] == ["to"]


def test_the_block_to_paste_starts_the_command_that_exists() -> None:
    [host] = [json.loads(block) for block in blocks("json", "README.md")]
    assert host == {"mcpServers": {"planwarden": {"command": "uvx", "args": ["planwarden"]}}}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert "planwarden" in scripts


def test_the_first_screen_of_the_readme_has_a_picture_and_commands_that_work_before_the_block_of_the_release() -> None:
    screen = read("README.md").split("\n## ")[0]
    assert len(read("README.md").splitlines()) <= 80
    assert screen.count("![") == 1
    first, second = re.findall(r"```console\n\$ (.*?)\n```", screen)
    assert re.search(rf"^{first.removeprefix('make ')}:", read("Makefile"), re.MULTILINE)
    assert second.startswith(".venv/bin/planwarden config print ")
    assert build_parser().parse_args(second.split()[1:]).handler
    assert screen.index(second) < screen.index("not on PyPI yet") < screen.index('"mcpServers"')


def test_every_command_is_in_the_table_of_commands() -> None:
    names = re.findall(r"^    ([a-z-]+) ", build_parser().format_help(), re.MULTILINE)
    assert {"serve", "approve", "doctor", "config"} <= set(names)
    table = _section("docs/reference/commands.md", "The commands at a glance")
    assert [name for name in names if not re.search(rf"`(planwarden )?{name}\b", table)] == []


def test_every_mcp_tool_is_in_the_table_of_mcp_tools() -> None:
    table = _section("docs/reference/mcp.md", "Tools").split("<!-- generated: tools -->")[0]
    listed = [tool["name"] for tool in json.loads(read("manifest.json"))["tools"]]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(listed)


def test_the_tests_that_the_security_page_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", read("docs/security.md")))
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 15
    assert [name for name in sorted(named) if f"def {name}(" not in written] == []


def test_folders_and_modules_that_documents_name_exist() -> None:
    path = re.compile(r"`((?:agent|benchmarks|dev|docs|server|src|storage|tests|tools)/[\w./-]*(?:/|\.\w+))`")
    named = {(page.name, found) for page in DOCUMENTS for found in path.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert sorted((page, found) for page, found in named if not (ROOT / found).exists()) == []


def test_links_between_documents_lead_to_files_and_headings() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in DOCUMENTS
        for target in _links(document)
        if "://" not in target and not _leads_somewhere(document, target)
    ]
    assert broken == []


def test_addresses_on_the_web_are_written_as_addresses() -> None:
    addresses = [(document, target) for document in DOCUMENTS for target in _links(document) if "://" in target]
    assert len(addresses) > 20
    wrong = [
        f"{document.relative_to(ROOT)}: {target}"
        for document, target in addresses
        if (parts := urlsplit(target)).scheme not in ("https", "planwarden") or not parts.hostname or " " in target
    ]
    assert wrong == []


def test_a_list_has_an_empty_line_before_it() -> None:
    joined = [
        f"{document.relative_to(ROOT)}: {line}"
        for document in DOCUMENTS
        for before, line in pairwise(_prose(document).splitlines())
        if LIST.match(line) and before.strip() and not LIST.match(before) and not before.startswith((" ", "#"))
    ]
    assert joined == []


def test_the_glossary_is_short() -> None:
    assert 9 <= len(re.findall(r"\*\*[^*]+\*\*", _section("docs/concepts.md", "Glossary"))) <= 25


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    listed = [
        place for section in menu for entries in section.values() for entry in entries for place in entry.values()
    ]
    assert sorted(listed) == sorted(site.sources())


def test_a_staged_page_links_to_places_on_the_site() -> None:
    source = ROOT / "docs" / "hosts" / "zed.md"
    text = "[a](../hosts.md#as-a-bundle) [b](../../README.md) [c](../../pyproject.toml) [d](https://zed.dev) `x\\|y`\n"
    assert site.stage_page(text, source, "hosts/zed.md") == (
        "[a](../hosts.md#as-a-bundle) [b](../index.md) c [d](https://zed.dev) `x|y`\n"
    )
    fenced = "```\n[a](nowhere.md)\n```\n"
    assert site.stage_page(fenced, source, "hosts/zed.md") == fenced
    with pytest.raises(site.BrokenLink, match=r"hosts/zed.md links to 'nowhere.md'"):
        site.stage_page("[a](nowhere.md)", source, "hosts/zed.md")


def test_a_page_that_fetches_something_from_elsewhere_is_found(tmp_path: Path) -> None:
    page = '<a href="https://x.example">x</a><link rel="stylesheet" href="site.css"><script src="a.js"></script>'
    (tmp_path / "good.html").write_text(page, encoding="utf-8")
    assert site.find_remote_fetches(tmp_path) == []
    (tmp_path / "bad.html").write_text('<script src="https://cdn.example/x.js">', encoding="utf-8")
    assert [found.split(":")[0] for found in site.find_remote_fetches(tmp_path)] == ["bad.html"]


def test_the_index_for_models_names_every_document_and_nothing_else() -> None:
    index = read("llms.txt")
    assert index.startswith("# planwarden\n\n> ")
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", index, re.MULTILINE)
    assert len(links) == index.count("](") == len(set(links))
    assert [link for link in links if not (ROOT / link).is_file()] == []
    assert {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")} <= set(links)


def _section(page: str, heading: str) -> str:
    return read(page).split(f"\n## {heading}\n")[1].split("\n## ")[0]


def _prose(document: Path) -> str:
    return re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def _links(document: Path) -> list[str]:
    text = re.sub(r"`[^`\n]+`", "", _prose(document))
    return [*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r"^\[[^\]]+\]: (\S+)", text, re.MULTILINE)]


def _leads_somewhere(document: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = document.parent / path if path else document
    return file.exists() and (not anchor or anchor in _anchors(file))


def _anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


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
    paths = [path for path in sorted((ROOT / "agent").rglob("*.py")) if path.name != "errors.py"]
    texts = [path.read_text(encoding="utf-8") for path in paths]
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


@requirement("approval:walk")
async def test_a_model_cannot_approve_itself_and_a_person_who_edits_gets_exactly_that_once(tmp_path: Path) -> None:
    taken = await walk(tmp_path)
    assert taken.ledger == ["erase [9]"]
    counts = [count for _, _, count in taken.rows]
    assert counts == sorted(counts) and counts[:7] == [0] * 7
    assert "whole" in taken.rows[-2][1] and "row" in taken.rows[-1][1]
    assert taken.page == PAGE.read_text(encoding="utf-8"), "run `make walk`"
