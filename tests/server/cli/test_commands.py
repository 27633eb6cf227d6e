"""The commands `list`, `show`, `tools`, `doctor`, `prune`, `backup` and `config print`, and wrong usage."""

import asyncio
import json
import re
import sqlite3
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.cli import hosts as clients
from planwarden.server.views.encoding import to_json
from tests.requirements import requirement
from tests.server.cli.support import ASK_FORM, ERASE, Cli, clean_environment, make_home, run_in_process, step

FIND = step("find", "find", {"topic": "x"})


def statuses_of(document: dict[str, JsonValue]) -> dict[str, str]:
    """Returns the status of each check of a health report, by name."""
    listed = document["checks"]
    assert isinstance(listed, list)
    return {str(found["name"]): str(found["status"]) for found in listed if isinstance(found, dict)}


def test_list_shows_open_questions_and_is_the_wires_page_as_json(cli: Cli) -> None:
    first, second = cli.run_to_question(ERASE), cli.run_to_question(ASK_FORM)

    async def page() -> dict[str, JsonValue]:
        async with planwarden.Warden(cli.home) as warden:
            return to_json(await warden.list_suspensions())

    result, listed = cli.main("list"), cli.main("list", "--json")
    assert (result.code, listed.code) == (0, 0)
    assert listed.json == asyncio.run(page())
    assert result.out.index(first[:8]) < result.out.index(second[:8])
    assert "2 waiting for an answer" in result.out and "approval · a person · dangerous" in result.out


def test_list_shows_the_calls_of_a_question_and_the_plan_that_makes_them(cli: Cli) -> None:
    loop = step("wipe", "erase", {"ids": [{"$from": "item"}]}, forEach=[1, 2, 3, 4, 5])
    asked = cli.run_to_question(step("find", "find", {"topic": "x"}), loop)
    thread_id = cli.main("show", "--json").json["threadId"]
    shown = cli.main("list").out
    assert 'erase(ids=[1], note="none")' in shown and "and 2 more calls" in shown
    assert f"Step 2 of 2 · thread {thread_id[:8]}" in shown
    assert asked not in shown and thread_id not in shown


def test_list_pages(cli: Cli) -> None:
    first, second = cli.run_to_question(ERASE), cli.run_to_question(ERASE)
    page = cli.main("list", "--limit", "1", "--json").json
    rest = cli.main("list", "--limit", "1", "--cursor", page["nextCursor"], "--json").json
    assert [found["suspensionId"] for found in page["suspensions"] + rest["suspensions"]] == [first, second]
    assert f"--cursor {page['nextCursor']}" in cli.main("list", "--limit", "1").out
    assert cli.main("list", "--limit", "0").code == 2
    assert cli.main("list", "--cursor", "foreign").code == 2


def test_list_shows_the_questions_of_every_principal(cli: Cli) -> None:
    async def ask() -> str:
        async with planwarden.Warden(cli.home) as warden:
            execution = await warden.execute_plan({"todoList": [ERASE]}, principal="somebody else")
            return execution.suspensions[0].suspension_id

    suspension_id = asyncio.run(ask())
    assert suspension_id[:8] in cli.main("list").out
    assert cli.main("reject", suspension_id).code == 0


def test_reading_a_home_without_a_database_creates_none(cli: Cli) -> None:
    assert "Nothing waits" in cli.main("list").out
    assert cli.main("list", "--json").json == {"suspensions": [], "total": 0, "nextCursor": None}
    assert cli.main("doctor").code == 0
    assert cli.main("prune").code == 0
    assert not (cli.home / "planwarden.db").exists()


@pytest.mark.parametrize(
    "words",
    [
        *(("list",), ("show",), ("tools",), ("plans",), ("schedule", "list"), ("approve", "x"), ("inbox",)),
        *(("run", "remind"), ("check", "plan.json"), ("call", "now"), ("token", "add", "ci"), ("worker",)),
    ],
)
def test_a_named_home_that_is_not_there_is_said_and_not_made(
    cli: Cli, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.capture is not None
    place = tmp_path / "typo"
    sentence = f"there is no folder {place}; `planwarden --home {place} init` makes it"
    refused = Cli(place, cli.capture).main(*words)
    assert (refused.code, refused.out) == (2, "") and sentence in refused.err
    monkeypatch.setenv("PLANWARDEN_HOME", str(place))
    assert sentence in run_in_process(cli.capture, *words).err and not place.exists()
    place.write_text("")
    assert f"{place} is not a folder" in run_in_process(cli.capture, *words).err


def test_show_is_the_wires_execution_as_json_and_the_steps_in_words(cli: Cli) -> None:
    suspension_id = cli.run_to_question(FIND, ERASE)
    thread_id = str(cli.main("list", "--json").json["suspensions"][0]["threadId"])

    async def look() -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
        async with planwarden.Warden(cli.home) as warden:
            seen = await warden.get_execution(thread_id, observations_after=2)
            return to_json(await warden.get_execution(thread_id)), to_json(seen)

    plain, observed = asyncio.run(look())
    assert cli.main("show", thread_id, "--json").json == plain
    assert cli.main("show", thread_id, "--observations", "2", "--json").json == observed
    result = cli.main("show", thread_id, "--observations", "0")
    assert result.code == 0
    for expected in (
        "✓ find",
        "? erase",
        "Tool: erase",
        "ids = [1, 2]",
        "Risk: dangerous",
        suspension_id,
        "TOOL_RETURNED",
    ):
        assert expected in result.out


@requirement("show:at")
def test_show_at_is_the_execution_as_it_was_after_that_event(cli: Cli) -> None:
    suspension_id = cli.run_to_question(FIND, ERASE)
    assert cli.main("reject", suspension_id).code == 0
    now = cli.main("show", "--json", "--observations", "0").json
    count = cli.main("show", "--at", "1", "--json").json["at"]["events"]
    numbers = range(1, count + 1)
    seen = [cli.main("show", "--at", f"{number}", "--json", "--observations", "0").json for number in numbers]
    statuses = [shown["status"] for shown in seen]
    assert (statuses[0], statuses[-1]) == ("running", "rejected") and "suspended" in statuses
    for number, shown in enumerate(seen, 1):
        assert all(entry["sequence"] <= number for entry in shown.get("observations", ()))
        assert "This is the past" in shown["nextAction"] and "approve" not in str(shown["suspensions"])
    differing = {key for key, value in seen[-1].items() if now.get(key) != value}
    assert differing == {"at", "nextAction"}
    place = statuses.index("suspended") + 1
    result = cli.main("show", "--at", f"{place}")
    assert f"as it was after event {place} of {count}" in result.out and "? erase" in result.out
    assert "Tool: erase" in result.out and "planwarden" not in result.out.split("Tool: erase")[1]


@requirement("show:at")
def test_show_draws_the_graph_of_a_plan_in_three_forms(cli: Cli) -> None:
    plan = cli.write("plan.json", {"steps": [step("a", "find", {"topic": "x"}), step("b", "erase", {"ids": [1]})]})
    assert cli.main("run", plan, "--json").code == 3
    text, svg, mermaid = (cli.main("show", "--graph", form).out for form in ("text", "svg", "mermaid"))
    assert text.splitlines()[1:] == ["✓ 1. a: done · find", "? 2. b: waits for a person · erase"]
    assert svg.startswith("<svg xmlns=") and "<style>" in svg and mermaid.startswith("flowchart TD\n  n0[")
    assert "not begun" in cli.main("show", "--graph", "--at", "3").out
    assert cli.main("show", "--graph", "svg", "--json").code == 2 and cli.main("show", "--graph", "png").code == 2


def test_show_at_refuses_a_number_that_the_log_does_not_have(cli: Cli) -> None:
    cli.main("run", cli.write("plan.json", {"todoList": [FIND]}))
    count = cli.main("show", "--at", "1", "--json").json["at"]["events"]
    for wrong in ("0", "-1", f"{count + 1}", "99999999999999999999"):
        result = cli.main("show", "--at", wrong)
        assert result.code == 2 and f"has no event {wrong}; it has events 1 to {count}" in result.err
    assert cli.main("show", "--at", "1", "--artifact", "x").code == 2


def test_show_refuses_an_unknown_thread_and_a_wrong_number(cli: Cli) -> None:
    assert (cli.main("show", "nothing").code, cli.main("show", "nothing").out) == (2, "")
    cli.main("run", cli.write("plan.json", {"todoList": [FIND]}))
    assert cli.main("show", "x", "--observations", "-1").code == 2


def test_tools_lists_the_catalogue_with_reasons_for_what_is_not_available(cli: Cli) -> None:
    async def search() -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
        async with planwarden.Warden(cli.home) as warden:
            everything = await warden.search_tools(None, limit=100)
            return to_json(everything), to_json(await warden.search_tools("delete records", limit=100))

    everything, found = asyncio.run(search())
    assert cli.main("tools", "--json").json == everything
    assert cli.main("tools", "delete", "records", "--json").json == found
    result = cli.main("tools")
    assert result.code == 0
    assert re.search(r"erase +dangerous", result.out)
    assert "not available: webSearch has no search service" in result.out


def test_the_name_of_a_tool_shows_all_that_a_call_of_it_takes(cli: Cli) -> None:
    shown = cli.main("tools", "erase").out
    assert "ids  array, needed" in shown and 'note  string, optional, default "none"' in shown
    schema = json.loads(shown.partition("schema of its arguments")[2].partition("schema of its result")[0])
    assert schema == cli.main("tools", "erase", "--json").json["definition"]["inputSchema"]
    assert "definition" not in cli.main("tools", "delete", "--json").json
    assert "No tool fits." in cli.main("tools", "zzzz").out


def test_what_a_terminal_says_names_commands_and_no_tools_of_mcp(cli: Cli) -> None:
    wrong = step("get_execution", "erase", {"ids": "all"})
    refused = cli.main("run", cli.write("plan.json", {"todoList": [wrong]}))
    assert "step 'get_execution'" in refused.err
    assert f"`planwarden --home {cli.home} tools NAME` shows what a tool takes" in refused.err
    done = step("find", "find", {"topic": "x"})
    assert cli.main("run", cli.write("plan.json", {"todoList": [done]}), "--key", "k").code == 0
    used = cli.main("run", cli.write("plan.json", {"todoList": [done, {**done, "id": "again"}]}), "--key", "k")
    assert f"`planwarden --home {cli.home} show THREAD` shows that one" in used.err


def test_doctor_finds_a_healthy_home_healthy(cli: Cli) -> None:
    cli.run_to_question(ERASE)
    result, report = cli.main("doctor"), cli.main("doctor", "--json")
    assert (result.code, report.code, report.json["healthy"]) == (0, 0, True)
    status = statuses_of(report.json)
    assert {status[name] for name in ("settings", "privacy", "store", "sqlite", "model", "tools")} == {"ok"}
    [store] = [found["facts"] for found in report.json["checks"] if found["name"] == "store"]
    assert (store["integrity"], store["executions"], store["pendingSuspensions"], store["running"]) == ("ok", 1, 1, 0)
    assert "Everything that planwarden needs is there." in result.out


def test_doctor_names_broken_settings_and_still_checks_the_rest(cli: Cli) -> None:
    cli.run_to_question(ERASE)
    (cli.home / "planwarden.toml").write_text("[tools\n")
    report = cli.main("doctor", "--json")
    status = statuses_of(report.json)
    assert (report.code, report.json["healthy"]) == (1, False)
    assert (status["settings"], status["store"]) == ("broken", "ok")
    assert "Broken: settings." in cli.main("doctor").out


def test_doctor_names_a_broken_tool_file_a_wrong_model_and_a_wrong_search_service(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cli.home / "tools.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.setenv("PLANWARDEN_SEARCH", "nowhere")
    report = cli.main("--model", "scripted:missing.json", "doctor", "--json")
    status = statuses_of(report.json)
    assert report.code == 1
    assert (status["tools"], status["model"], status["search"]) == ("broken", "broken", "broken")


def test_doctor_finds_nothing_broken_in_a_block_that_names_planwarden_itself(cli: Cli) -> None:
    cli.write("planwarden.json", {"mcpServers": {"planwarden": {"command": "uvx", "args": ["planwarden"]}}})
    report = cli.main("doctor", "--json")
    assert (report.code, statuses_of(report.json)["server planwarden"]) == (0, "off")
    assert "is planwarden itself and is left out" in cli.main("doctor").out


def test_doctor_names_a_damaged_database(cli: Cli) -> None:
    cli.run_to_question(ERASE)
    (cli.home / "planwarden.db").write_bytes(b"something else" * 100)
    report = cli.main("doctor", "--json")
    assert (report.code, statuses_of(report.json)["store"]) == (1, "broken")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no file modes")
def test_doctor_names_files_that_others_can_read(cli: Cli) -> None:
    cli.run_to_question(ERASE)
    (cli.home / "planwarden.db").chmod(0o644)
    result = cli.main("doctor")
    assert result.code == 1
    database = cli.home / "planwarden.db"
    assert f"others can read {database} (mode 0644): chmod 600 {database}" in result.out


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no file modes")
def test_doctor_warns_of_an_empty_folder_that_others_can_read(cli: Cli) -> None:
    cli.home.chmod(0o755)
    report = cli.main("doctor", "--json")
    assert (report.code, statuses_of(report.json)["privacy"]) == (0, "warning")
    assert f"chmod 700 {cli.home}" in cli.main("doctor").out


def test_settings_of_an_unknown_tool_are_refused_with_the_known_names(cli: Cli) -> None:
    path = cli.home / "planwarden.toml"
    path.write_text(path.read_text() + '\n[tools."erasse"]\nrisk = "read"\n')
    result = cli.main("tools")
    assert result.code == 2
    assert "'erasse'" in result.err and "known: " in result.err and "erase, " in result.err


def test_a_wrong_setting_is_explained_without_the_words_of_the_library(cli: Cli) -> None:
    (cli.home / "planwarden.toml").write_text('[[notify]]\nkind = "ntfy"\nurl = "http://example.com/x"\n')
    result = cli.main("list")
    assert result.code == 2
    assert "notify[0].url: plain http is allowed for this machine only; use https" in result.err


def test_prune_deletes_finished_executions_and_no_waiting_ones(cli: Cli) -> None:
    suspension_id = cli.run_to_question(ERASE)
    finished = cli.main("run", cli.write("plan.json", {"todoList": [FIND]}), "--json").json["threadId"]
    kept, refused = cli.main("prune", "--json"), cli.main("prune", "--days", "0")
    assert kept.json == {"pruned": 0, "days": 90}
    assert refused.code == 2 and "This deletes 1 finished execution that has not changed for 0 days" in refused.out
    assert "or with --yes" in refused.err and cli.main("show", finished).code == 0
    pruned = cli.main("prune", "--days", "0", "--yes", "--json")
    assert (pruned.code, pruned.json) == (0, {"pruned": 1, "days": 0}) and "the oldest is from 20" in pruned.err
    assert cli.main("show", finished).code == 2
    assert suspension_id[:8] in cli.main("list").out


def test_prune_refuses_negative_days(cli: Cli) -> None:
    assert cli.main("prune", "--days", "-1").code == 2


def test_a_backup_works_as_the_database_of_a_home(cli: Cli, tmp_path: Path) -> None:
    suspension_id = cli.run_to_question(ERASE)
    target = make_home(tmp_path / "restored") / "planwarden.db"
    result = cli.main("backup", str(target), "--json")
    assert (result.code, result.json) == (0, {"file": str(target), "sizeBytes": target.stat().st_size})
    assert stat.S_IMODE(target.stat().st_mode) == 0o600 or sys.platform == "win32"
    assert suspension_id[:8] in Cli(target.parent, cli.capture).main("list").out
    connection = sqlite3.connect(target)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.parametrize("command", [["backup"], ["run"], ["audit", "export"]], ids=" ".join)
def test_the_home_folder_of_nobody_is_a_refusal_that_names_the_path(cli: Cli, command: list[str]) -> None:
    said = cli.main(*command, "~no-such-user~/file")
    assert said.code == 2 and "'~no-such-user~/file' begins with the home folder of a user who has none" in said.err


def test_a_backup_never_overwrites_and_needs_a_database(cli: Cli, tmp_path: Path) -> None:
    assert cli.main("backup", str(tmp_path / "copy.db")).code == 1
    cli.run_to_question(ERASE)
    (tmp_path / "copy.db").write_text("precious")
    result = cli.main("backup", str(tmp_path / "copy.db"))
    assert (result.code, (tmp_path / "copy.db").read_text()) == (1, "precious")
    assert "exists already" in result.err
    assert cli.main("backup", str(tmp_path / "missing" / "copy.db")).code == 1


SERVERS = {
    "claude-desktop": "mcpServers",
    "claude-code": "mcpServers",
    "vscode": "servers",
    "cursor": "mcpServers",
    "zed": "context_servers",
    "codex": "mcp_servers",
    "gemini": "mcpServers",
    "opencode": "mcp",
    "jetbrains": "mcpServers",
}


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_every_hosts_configuration_parses_in_its_format(cli: Cli, client: str) -> None:
    result = cli.main("--model", "caller", "config", "print", client)
    assert result.code == 0 and result.err.startswith("into ")
    env = {"PLANWARDEN_HOME": str(cli.home), "PLANWARDEN_MODEL": "caller"}
    if client == "goose":
        assert result.out.startswith("extensions:\n  planwarden:\n    type: stdio\n")
        assert f'    envs: {{PLANWARDEN_HOME: "{cli.home}", PLANWARDEN_MODEL: "caller"}}\n' in result.out
        assert re.search(r'^    cmd: ".+"$', result.out, re.MULTILINE)
        return
    document = tomllib.loads(result.out) if client == "codex" else json.loads(result.out)
    server = document[SERVERS[client]]["planwarden"]
    assert server["environment" if client == "opencode" else "env"] == env
    assert server["command"]


def test_an_installation_in_an_environment_is_named_by_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert clients.find_launch_command({}) == clients.LaunchCommand("uvx", ("planwarden",), {})
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "uv" / "archive-v0" / "abc"))
    assert clients.find_launch_command({}).command == "uvx"
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    assert Path(clients.find_launch_command({}).command).is_absolute()


def test_config_without_flags_names_no_environment(capsys: pytest.CaptureFixture[str]) -> None:
    from planwarden.server.main import main

    assert main(["config", "print", "cursor"]) == 0
    assert "env" not in json.loads(capsys.readouterr().out)["mcpServers"]["planwarden"]


def test_config_writes_the_environment_that_the_host_would_not_have(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.capture is not None
    monkeypatch.chdir(tmp_path)
    given = {
        "PLANWARDEN_HOME": "elsewhere",
        "PLANWARDEN_MODEL": "openai:small",
        "PLANWARDEN_MODEL_URL": "http://localhost:1/v1",
        "PLANWARDEN_SEARCH": "brave",
        "PLANWARDEN_SEARCH_KEY": "secret one",
        "OPENAI_API_KEY": "secret two",
        "PLANWARDEN_MODEL_MODE": "",
    }
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    result = run_in_process(cli.capture, "config", "print", "cursor")
    env = json.loads(result.out)["mcpServers"]["planwarden"]["env"]
    assert env == {
        "PLANWARDEN_HOME": str(tmp_path / "elsewhere"),
        "PLANWARDEN_MODEL": "openai:small",
        "PLANWARDEN_MODEL_URL": "http://localhost:1/v1",
        "PLANWARDEN_SEARCH": "brave",
    }
    assert "secrets: PLANWARDEN_SEARCH_KEY, OPENAI_API_KEY" in result.err and "secret one" not in result.err
    # An argument wins over the environment, as everywhere.
    named = cli.main("--model", "caller", "config", "print", "cursor")
    env = json.loads(named.out)["mcpServers"]["planwarden"]["env"]
    assert (env["PLANWARDEN_HOME"], env["PLANWARDEN_MODEL"]) == (str(cli.home), "caller")


@pytest.mark.parametrize(
    "words",
    [
        ("frobnicate",),
        ("list", "--frobnicate"),
        ("list", "extra"),
        ("show",),
        ("reject",),
        ("reject", "--reason"),
        ("run",),
        ("demo", "extra"),
        ("prune", "--days", "many"),
        ("backup",),
        ("config",),
        ("config", "print"),
        ("config", "print", "notepad"),
        ("serve", "--port", "99999"),
        ("serve", "--port", "x"),
        ("doctor", "extra"),
        ("--lis",),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli.main(*words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("planwarden: ") and result.err.count("\n") == 1


def test_settings_with_an_unknown_key_stop_every_command_with_a_sentence(cli: Cli) -> None:
    (cli.home / "planwarden.toml").write_text("[approvals]\nalways = true\n")
    result = cli.main("list")
    assert (result.code, result.out) == (2, "")
    assert "always" in result.err and result.err.count("\n") == 1


def test_help_documents_the_exit_codes_and_every_command(cli: Cli) -> None:
    result = cli.main("--help")
    assert result.code == 0
    assert "exit codes:" in result.out
    for name in (
        "serve",
        "demo",
        "run",
        "list",
        "show",
        "approve",
        "reject",
        "tools",
        "doctor",
        "prune",
        "backup",
        "config",
    ):
        assert re.search(rf"^    {name} ", result.out, re.MULTILINE)


def test_version_prints_the_version_of_the_package(cli: Cli) -> None:
    assert re.fullmatch(r"planwarden \d+\.\d+\.\d+\S*\n", cli.main("--version").out)


def test_a_decision_in_the_terminal_imports_neither_mcp_nor_the_web_nor_a_drawing_library(cli: Cli) -> None:
    suspension_id = cli.run_to_question(ERASE)
    code = (
        "import sys; from planwarden.server.main import main; "
        f"code = main(['--home', {str(cli.home)!r}, 'reject', {suspension_id!r}]); "
        "print(code, sorted({name.partition('.')[0] for name in sys.modules} & "
        "{'mcp', 'mcp_types', 'httpx2', 'rich', 'trafilatura', 'uvicorn', 'starlette'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean_environment(), timeout=120, check=False
    )
    assert done.stdout.splitlines()[-1] == "0 []", done


@requirement("display:invisible")
def test_an_error_and_a_json_document_show_what_is_hidden_in_what_they_quote(cli: Cli) -> None:
    hidden = "\x1b[2J\u202e\u200b"
    call: JsonValue = {"toolName": "calculator", "arguments": {f"expression{hidden}": "1"}}
    wrong = cli.write("wrong.json", {"todoList": [{"id": "a", "description": "d", "toolCalls": [call]}]})
    (cli.home / "plans").mkdir(exist_ok=True)
    needs: JsonValue = {"type": "object", "required": [hidden], "properties": {hidden: {"type": "integer"}}}
    cli.write("plans/weekly.json", {"title": f"a{hidden}", "inputs": needs, "todoList": [FIND]})
    started = cli.main("run", "weekly", "--input", f"{hidden}=1", "--json")
    results = [
        cli.main("run", wrong),
        cli.main("check", wrong, "--json"),
        cli.main("schedule", "add", "weekly", "--cron", "0 9 * * 1", "--input", f"z{hidden}=1"),
        cli.main("show", str(started.json["threadId"]), "--json"),
    ]
    assert [result.code for result in results] == [2, 2, 2, 0]
    for result in (started, *results):
        assert not {*hidden} - {*"[2J"} & {*result.out, *result.err}
    assert started.json["goal"] == results[-1].json["goal"] == f"a{hidden}"
