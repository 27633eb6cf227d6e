"""The documentation is true: its snippets run, and everything that can be called is described."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.clients import CLIENTS
from planwarden.server.commands.parser import parser
from planwarden.server.configuration import load_settings
from tests.support import warden

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
ID = re.compile(r"[0-9a-f]{32}")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_program_of_the_readme_runs_and_deletes_after_the_decision(tmp_path: Path) -> None:
    """ours"""
    [program] = [block for block in blocks("python") if "asyncio.run" in block]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "completed {'deleted': 2}"


def test_the_tools_and_settings_of_the_readme_load_together(tmp_path: Path) -> None:
    """ours"""
    [tools] = [block for block in blocks("python") if "asyncio.run" not in block]
    [settings] = blocks("toml")
    assert tomllib.loads(settings)["tools"]["python"] == ["tools.py"]
    (tmp_path / "tools.py").write_text(tools, encoding="utf-8")
    (tmp_path / "planwarden.toml").write_text(settings, encoding="utf-8")
    made = planwarden.Warden(settings=load_settings(home=tmp_path, environment={}))
    find, delete = made.tools.get("crm_find"), made.tools.get("crm_delete")
    assert find is not None and find.risk == "read" and delete is not None and delete.risk == "critical"


@pytest.mark.anyio
async def test_the_plan_of_the_readme_runs_up_to_its_question() -> None:
    """ours"""
    [plan] = [json.loads(block) for block in blocks("json") if "todoList" in block]
    checked: dict[str, JsonValue] = plan
    async with warden() as w:
        execution = await w.execute_plan(checked)
        [question] = execution.suspensions
        assert question.tool_call is not None and question.tool_call.arguments["details"] == 444


def test_the_demo_prints_what_the_readme_shows(tmp_path: Path) -> None:
    """ours"""
    [shown] = blocks("text")
    command = [sys.executable, "-m", "planwarden.server.main", "demo", "--yes"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert _stable(done.stdout) == _stable(shown)


def test_the_block_to_paste_starts_the_command_that_exists() -> None:
    """ours"""
    [host] = [json.loads(block) for block in blocks("json") if "mcpServers" in block]
    assert host == {"mcpServers": {"planwarden": {"command": "uvx", "args": ["planwarden"]}}}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert "planwarden" in scripts


def test_every_command_is_documented() -> None:
    """ours"""
    names = re.findall(r"^    ([a-z-]+) ", parser().format_help(), re.MULTILINE)
    assert {"serve", "approve", "doctor", "config"} <= set(names)
    assert [name for name in names if f"| `{name}" not in REFERENCE] == []
    assert [name for name in names if not re.search(rf"`(planwarden )?{name}\b", README)] == []


def test_every_client_is_in_the_guide() -> None:
    """ours"""
    guide = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
    assert [client for client in CLIENTS if f"`{client}`" not in guide] == []


@pytest.mark.anyio
async def test_every_built_in_tool_is_documented() -> None:
    """ours"""
    async with warden() as w:
        page = await w.search_tools(limit=100)
    assert [tool.name for tool in page.tools if f"| `{tool.name}` |" not in REFERENCE] == []


def test_the_tests_that_the_security_page_names_exist() -> None:
    """ours"""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 15
    assert [name for name in sorted(named) if f"def {name}(" not in written] == []


def test_links_between_documents_lead_somewhere() -> None:
    """ours"""
    broken = [
        f"{document.name}: {target}"
        for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8"))
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert broken == []


def test_the_index_for_models_names_every_document_and_nothing_else() -> None:
    """spec: https://llmstxt.org: a title, a summary, lists of links with what is behind them"""
    index = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert index.startswith("# planwarden\n\n> ")
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", index, re.MULTILINE)
    assert len(links) == index.count("](") == len(set(links))
    assert [link for link in links if not (ROOT / link).is_file()] == []
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= set(links)


def _stable(output: str) -> list[str]:
    """Lines without ids, process numbers, user names and temporary folders."""
    text = ID.sub("ID", output)
    text = re.sub(r"/\S*planwarden-demo-\S+", "FOLDER", text)
    text = re.sub(r"[Pp]rocess \d+", "process N", text)
    text = re.sub(r"approved by \S+", "approved by SOMEBODY", text)
    return [line.rstrip() for line in text.strip().splitlines()]
