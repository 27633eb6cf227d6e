"""What proves a promise, and what does not."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.server.guard.calls import Verdict
from planwarden.server.guard.done import DoneKeeper, StopDecision, build_failure
from planwarden.server.guard.hook_files import build_done_entry
from planwarden.server.guard.receipts import build_receipt
from planwarden.server.main import main
from planwarden.server.settings.promises import read_promises
from planwarden.storage.hosts import TrustedFolder
from planwarden.storage.sql.records import RecordStore
from planwarden.tools.guarded.promises import CallPattern, Promise, RecordedCall, judge_promises
from planwarden.tools.guarded.shell import MAX_CHARS
from tests.kit import Settings, SqliteStore, load_settings, requirement
from tests.server.guard.test_guard import Guarded, guarded
from tests.server.guard.test_hook import answering, has_sockets  # pyright: ignore[reportUnusedImport]  # fixture
from tests.server.inbox.support import visit
from tests.storage.suite import BackEnd

PROMISE = Promise(
    name="tests",
    when=CallPattern(("Edit",)),
    requires=CallPattern(("Bash",), {"command": {"prefix": ["make test", "pytest", "cargo test"]}}),
)
EDIT = RecordedCall(tool="claude-code/Edit", at=1.0, succeeded=True, folder="/r", paths=("/r/src/app.py",), line=None)


def run(line: str, *, succeeded: bool | None = True, folder: str = "/r") -> RecordedCall:
    arguments: dict[str, JsonValue] = {"command": line}
    return RecordedCall(
        tool="claude-code/Bash", at=2.0, succeeded=succeeded, folder=folder, paths=(), line=line, arguments=arguments
    )


@pytest.mark.parametrize(
    "line",
    [
        *("make test", "cd /r && make test", "make test > log 2>&1", "CI=1 make test -j4", "timeout 600 make test"),
        *(
            "uv run -q pytest",
            "uv run --extra dev --with=x pytest",
            "pytest -o log_cli=true",
            "make test PYTHON=python3",
        ),
        *("make test RUNNER=ubuntu", "make test PYTHON=3.12", "make test DOCKER_CMD=podman", "make test CARGO=cross"),
        *("make test TEST_CMD='npm run test'", "make test PYTEST='coverage run -m pytest'", "pytest -k 'a=b'"),
        *("make test RUNNER='uv run --frozen'", "make test PY='uv run python'"),
        *("make test ARGS='-k foo'", "make test PYTEST='uv run pytest' TEST=tests/test_a.py"),
        *("uv run --env-file .env pytest", "MIX_ENV=test make test", "cargo +nightly test"),
        "CI=1 RUSTFLAGS=-Dwarnings cargo test",
        *("uv run pytest -q", "bash -lc 'make test'", "set -o pipefail; make test | tail", "make test || exit 1"),
        *(
            "set -eu -o pipefail; make test | tail",
            "bash -eo pipefail -c 'make test | tail'",
            "/usr/bin/env make test -j4",
        ),
        *(
            "set -e; make test; echo ok",
            "bash -c 'make test &> log'",
            "NODE_ENV=test make test",
            "git add . && make test && git commit -m x",
            "! grep x y; make test",
        ),
    ],
)
def test_a_line_that_ends_with_0_only_if_the_command_succeeded_proves_it(line: str) -> None:
    assert not judge_promises([PROMISE], [EDIT, run(line)], "/r", {}).owed


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("make test || true", "swallowed by `||`"),
        ("make test; true", "comes after it"),
        ("make test | tail", "a pipe swallows"),
        ("make test &", "in the background"),
        ("cd ../elsewhere && make test", "in another folder"),
        ("true || make test", "only if what comes before"),
        ("exit 0; make test", "keep it from running"),
        ("! exit 0; make test", "keep it from running"),
        ("! cd /tmp; make test", "in another folder"),
        ("command cd /tmp && make test", "in another folder"),
        ("chdir /tmp && make test", "in another folder"),
        ("set -e; command set +e; make test; echo x", "keep it from running"),
        ("command -p cd /tmp; make test", "keep it from running"),
        ("printf -vPATH /tmp; make test", "keep it from running"),
        ("set -e pipefail; make test | tail", "keep it from running"),
        ("set pipefail; make test | tail", "keep it from running"),
        ("set '-o pipefail'; make test | tail", "keep it from running"),
        ("set errexit; make test; echo ok", "keep it from running"),
        ("bash pipefail -c 'make test'", "has succeeded since. Run it."),
        ("sh -c 'make test &> log'", "in the background"),
        ("sh -c 'make test &>/dev/null'", "in the background"),
        ("MAKE_ARGS=-n make test", "cannot read"),
        ("RUSTFLAGS=-V cargo test", "cannot read"),
        ("bash -c 'true; RUSTFLAGS='-D warnings' cargo test'", "has succeeded since. Run it."),
        ("npm_config_script_shell=/bin/true make test", "cannot read"),
        ("make test -n", "its options"),
        ("bash -c 'make test || true'", "swallowed by `||`"),
        ("make test || exit 0", "swallowed by `||`"),
        ("if true; then make test; fi", "cannot read"),
        ('echo "make test"', "has succeeded since. Run it."),
        ("make test-nothing", "has succeeded since. Run it."),
        ("pytest -hv", "its options"),
        ("pytest -VV", "its options"),
        ("make test PYTEST=ls", "its options"),
        ("make test PYTEST=nproc", "its options"),
        ("make test PYTEST='coverage report'", "its options"),
        ("make test TEST_CMD='git status'", "its options"),
        ("make test RUNNER='cp -r a b'", "its options"),
        ("make test PYTEST='sh -c true'", "its options"),
        ("make test PYTHON='python -c x'", "its options"),
        ("make test ARGS='-qo addopts=--co'", "its options"),
        ("make test ARGS=-oaddopts=--co", "its options"),
        ("make test PYTEST='uv run -q true'", "its options"),
        ("make test PYTEST='uv run --unknown true'", "its options"),
        ("make test PYTHON='python -m this'", "its options"),
        ("make test RUNNER='poetry run echo'", "its options"),
        ("make test NPM='npm -v'", "its options"),
        ("make test ARGS=-qh", "its options"),
        ("make test ARGS='-k x -VV'", "its options"),
        ("make test PATH=/tmp", "its options"),
        ("/tmp/env make test", "has succeeded since. Run it."),
        ("/tmp/bash -c 'make test'", "has succeeded since. Run it."),
        ("uv run --project sub pytest ../../other", "in another folder"),
        ("env -C src make test -C ../..", "in another folder"),
        ("make test PYTHON='coverage report'", "its options"),
        ("make test PYTHON=coverage", "its options"),
        ("uv run --python /tmp/python pytest", "has succeeded since. Run it."),
        ("uv run --env-file /tmp/x.env pytest", "has succeeded since. Run it."),
        ("uv run --env-file ../.env pytest", "has succeeded since. Run it."),
        ("uv run --with ./pytest pytest", "has succeeded since. Run it."),
        ("make test PYTHON='python -O'", "its options"),
        ("uv run --with echo -- echo pytest", "has succeeded since. Run it."),
        ("npm exec --with echo pytest", "has succeeded since. Run it."),
    ],
)
def test_a_line_that_may_end_with_0_without_it_proves_nothing_and_says_why(line: str, why: str) -> None:
    [owed] = judge_promises([PROMISE], [EDIT, run(line)], "/r", {}).owed
    assert why in owed.reason


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("python -m pytest", ("-V", "-hv", "-o addopts=--co", "-qo addopts=--co", "-xqoaddopts=--co", "@args")),
        (".venv/bin/pytest", ("-V", "-o addopts=--co")),
        ("npm test", ("--script-shell=/bin/true", "--script-shell true", "--script-shel=x", "-v", "-sv", "'-?'")),
        ("npm test", ("--versions", "--usage", "--if-pres", "-- -v")),
        ("ruff check", ("-e", "-qe", "--show-files", "--show-settings", "--watch")),
        ("go test", ("-exec true", "-list . ./...", "-exec=true")),
        ("ctest", ("-N",)),
        ("gradle test", ("-m", "-x test")),
        ("mvn test", ("-v", "-DskipTests", "-D skipTests")),
        ("tox", ("-l", "list", "config", "exec -- true")),
        ("just test", ("-n",)),
        (
            "pytest",
            (
                "--collect-o",
                "--setup-o",
                "-p no:python",
                "--pyargs os",
                "--ignore=tests",
                "--no-cov",
                "-W ignore",
                "-k x --co",
                "-k @a",
                "--color @a",
                "-- @a",
            ),
        ),
        ("npm test", ("--if", "--no-workspaces", "-- --passWithNoT", "-- --watch=true list", "-- list")),
        ("ruff check", ("--exit-z", "--select X", "--config 'lint.select=[]'")),
        ("go test", ("-run X ./...", "-c ./...", "-vet=off -n", "-count=0", "-short")),
        ("cargo test", ("--no-r", "--doc", "-- --list", "--config x")),
        ("gradle test", ("--dry", "-PskipTests", "-x :app:test", "--exclude-task=test")),
        ("jest", ("--showC", "--listT", "--onlyChanged")),
        (
            "nox",
            ("-l", "--list", "-s tests --no-install", "-s tests -- --co", "-k x", "--force-color --non-interactive"),
        ),
        ("bundle exec rspec", ("--dry-run", "-e x")),
        ("mix test", ("--only x", "--stale")),
        ("tox", ("--notes", "-e py -- --co", "c", "-av")),
        ("mypy", ("--versio", "-c x=1", "--help")),
        ("./check.sh", ("--fast", "-n")),
        ("python manage.py test", ("--list", "-k x")),
        ("pnpm test", ("--filter nothing", "--filter=nothing", "-r")),
        ("uv run pytest", ("--co", "-V")),
        ("timeout 9 make test", ("-n", "PYTEST=true")),
    ],
)
def test_options_by_which_a_program_runs_nothing_are_known_for_the_common_programs(
    command: str, options: tuple[str, ...]
) -> None:
    promise = Promise(
        name="tests",
        when=CallPattern(("Edit",)),
        requires=CallPattern(("Bash",), {"command": {"prefix": [command]}}),
    )
    assert not judge_promises([promise], [EDIT, run(command)], "/r", {}).owed
    for option in options:
        [owed] = judge_promises([promise], [EDIT, run(f"{command} {option}")], "/r", {}).owed
        assert "its options" in owed.reason, option


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("pytest", ("-o cache_dir=x", "-n 4", "-xvs --tb=short", "--cov=src --cov-report xml", "-p no:cacheprovider")),
        (
            "pytest",
            (
                "-ra --durations=5",
                "--junitxml /tmp/x.xml",
                "--maxfail 1",
                "--asyncio-mode=auto tests/test_a.py::test_b",
            ),
        ),
        ("gradle build", ("-x lint", "-x :app:spotlessCheck", "--info --no-daemon", "--exclude-task=checkstyleMain")),
        ("tox", ("-e py -- -n 4", "run -e py", "-p 4", "-p auto", "-qq -e py312 -- tests/test_a.py")),
        ("pytest", ("-W error", "-W error::UserWarning --reruns 2")),
        ("uv run --env-file .env pytest", ("", "-q")),
        ("pnpm test", ("-q", "--loglevel=warn", "-- --no-cache")),
        ("nox", ("-s tests", "-rs tests -- -x", "--session=tests", "-R")),
        ("nox -s", ("tests", "tests -v")),
        ("cargo +nightly test", ("", "--all")),
        ("bundle exec rspec", ("--format documentation", "-fd spec/a_spec.rb")),
        ("bun test", ("--coverage", "--timeout 5000")),
        ("mix test", ("--trace", "--seed 0")),
        ("just test", ("", "-q")),
        ("npm test", ("-w web", "-- --ci --coverage", "--silent", "-- src/a.test.ts", "-- --watch=false")),
        ("cargo test", ("--workspace --all-features", "-p web", "-- --nocapture --test-threads=1", "-j 4")),
        ("go test", ("./...", "-race -v ./...", "-count=1 -timeout 5m ./...", "--cover ./...")),
        ("mvn test", ("-B -q", "-pl web -am", "-T 1C", "-ntp")),
        ("make test", ("-j", "-j 4", "-C src", "--output-sync V=1")),
        ("uv run pytest", ("-q", "tests")),
        ("poetry run pytest", ("", "-q")),
        ("make -C src -j4 test", ("", "V=1")),
        ("./check.sh --fast", ("", "src", "--verbose")),
        ("pytest --strict-cov", ("", "-q")),
        ("npx jest", ("", "src", "--ci -i", "--coverage")),
        ("vitest run", ("", "--reporter=verbose")),
        ("tsc", ("--noEmit", "-p tsconfig.json")),
        ("mypy", ("--strict src",)),
        ("ruff check", ("--fix",)),
        ("eslint", ("--ext .ts --max-warnings 0 src",)),
        ("cargo clippy", ("-- -D warnings",)),
        ("ctest", ("--output-on-failure -j 4",)),
        ("deno test", ("-A", "--allow-read=src")),
        ("dotnet test", ("", "src/App.csproj", "-c Release", "--logger trx")),
    ],
)
def test_options_that_keep_nothing_from_running_and_what_the_promise_itself_names_prove_it(
    command: str, options: tuple[str, ...]
) -> None:
    requires = CallPattern(("Bash",), {"command": {"prefix": [command]}})
    promise = Promise(name="tests", when=CallPattern(("Edit",)), requires=requires)
    for option in options:
        assert not judge_promises([promise], [EDIT, run(f"{command} {option}")], "/r", {}).owed, option


@pytest.mark.parametrize("line", ["pnpm -w lint test", "yarn -w lint test", "yarn --reporter lint test"])
def test_a_script_behind_an_option_without_a_value_is_the_one_that_runs(line: str) -> None:
    requires = CallPattern(("Bash",), {"command": {"prefix": ["pnpm test", "yarn test"]}})
    assert judge_promises([msgspec.structs.replace(PROMISE, requires=requires)], [EDIT, run(line)], "/r", {}).owed


def test_many_long_lines_of_what_only_looks_like_a_comment_do_not_keep_a_host_from_stopping() -> None:
    calls = [run("true '" + " #" * 16_000 + "'") for _ in range(40)]
    [owed] = judge_promises([PROMISE], [EDIT, *calls, run("make test #" + "x" * MAX_CHARS)], "/r", {}).owed
    assert "cannot read" in owed.reason
    assert not judge_promises([PROMISE], [EDIT, *calls, run("# and\nmake test # so")], "/r", {}).owed


@pytest.mark.parametrize(
    "calls",
    [
        [run("make test"), EDIT],
        [EDIT, run("make test", succeeded=False)],
        [EDIT, run("make test", succeeded=None)],
        [EDIT, run("make test", folder="/other")],
    ],
)
def test_a_call_before_the_change_failed_unreported_or_elsewhere_proves_nothing(calls: list[RecordedCall]) -> None:
    assert judge_promises([PROMISE], calls, "/r", {}).owed


TOML = """[[promises]]
name = "tests"
when = { tool = "Edit" }
requires = { tool = "Bash", matches = { command = { prefix = "make test" } } }
"""
ADVISORY = TOML + 'mode = "advisory"\n'


@asynccontextmanager
async def holding(
    home: Path, toml: str = TOML, back_end: BackEnd | None = None
) -> AsyncGenerator[tuple[DoneKeeper, Guarded]]:
    async with guarded(home, toml=toml, store=back_end.connect() if back_end else None) as host:
        settings = load_settings(home=home, environment={})
        yield DoneKeeper(host.service.store, settings, host.decide), host


def event(name: str, tool: str = "", session: str = "s", **fields: JsonValue) -> dict[str, JsonValue]:
    arguments: JsonValue = fields.pop("arguments", {})
    return {
        "hook_event_name": name,
        "tool_name": tool,
        "tool_input": arguments,
        "tool_response": {},
        "cwd": "/r",
        "session_id": session,
        **fields,
    }


async def edit(keeper: DoneKeeper, session: str = "s") -> None:
    await keeper.answer("claude-code", json.dumps(event("PostToolUse", "Edit", session)).encode())


async def stop(keeper: DoneKeeper, session: str = "s") -> StopDecision:
    return await keeper.decide("claude-code", event("Stop", session=session))


async def stop_until_asked(keeper: DoneKeeper, host: Guarded) -> Verdict:
    await edit(keeper)
    while (await stop(keeper)).refusal:
        pass
    [question] = await host.questions()
    return Verdict(then="deny", suspension_id=question.suspension_id)


@requirement("done:ends")
async def test_of_ten_stops_no_three_are_refused_and_a_person_is_asked_once(tmp_path: Path, back_end: BackEnd) -> None:
    async with holding(tmp_path / "home", back_end=back_end) as (keeper, host):
        await edit(keeper)
        refused = [bool((await stop(keeper)).refusal) for _ in range(10)]
        assert refused == [True, True, False] * 3 + [True]
        [question] = await host.questions()
        assert question.card.words == "It says it is done without: tests."
        assert not (await stop(keeper, "another session in the same folder")).refusal


async def test_stops_at_once_are_refused_as_often_as_one_after_the_other(tmp_path: Path, back_end: BackEnd) -> None:
    async with holding(tmp_path / "home", back_end=back_end) as (keeper, _):
        await edit(keeper)
        refused: list[bool] = []

        async def note() -> None:
            refused.append(bool((await stop(keeper)).refusal))

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(note)
        assert sorted(refused) == [False] * 2 + [True] * 4


async def test_a_receipt_is_found_by_the_beginning_of_the_id_that_the_host_gave_its_session(tmp_path: Path) -> None:
    async with holding(tmp_path / "home") as (keeper, host):
        settings = load_settings(home=tmp_path / "home", environment={})
        for name in ("0f8b6c1e-5b1a-4b7e", "\ud800", "newest"):
            await edit(keeper, name)
            await stop(keeper, name)
        for beginning in ("0f8b6c1e-5b1a-4b7e", "0f8b"):
            receipt = await build_receipt(host.service.store, settings, beginning)
            assert receipt.session.name == "0f8b6c1e-5b1a-4b7e"
        with pytest.raises(InvalidArguments, match="no id begins like that"):
            await build_receipt(host.service.store, settings, "0f8c-")


DEEP = json.loads('{"x": ' * 200 + "1" + "}" * 200)


@pytest.mark.parametrize(
    "fields",
    [
        *({"tool_input": {"file_path": "/r/a", "content": each}} for each in ("x" * 300_000, "\ud83d", 10**400)),
        *({"tool_input": {"file_path": "/r/a", key: value}} for key, value in (("$from", "y"), ("edits", DEEP))),
        *({"tool_input": {"file_path": "/r/a"}, "tool_response": each} for each in (DEEP, {"t": float("nan")})),
        {"tool_input": json.dumps({"file_path": "/r/a", "content": "\ud83d"})},
    ],
    ids=["large", "half a pair", "long number", "binding", "deep", "deep result", "NaN", "text"],
)
async def test_a_change_that_nobody_could_judge_is_still_owed_for(tmp_path: Path, fields: dict[str, JsonValue]) -> None:
    toml = TOML.replace('"Edit" }', '"Edit", matches = { file_path = { under = "/r" } } }')
    async with holding(tmp_path / "home", toml) as (keeper, _):
        await keeper.answer("claude-code", json.dumps(event("PostToolUse", "Edit") | fields).encode())
        assert "a was changed" in (await stop(keeper)).refusal


@requirement("done:waiver")
async def test_a_person_waives_once_for_this_session_with_a_reason_that_receipt_and_audit_say(tmp_path: Path) -> None:
    async with holding(tmp_path / "home") as (keeper, host):
        await host.answer(await stop_until_asked(keeper, host), reason="<b>legacy</b>")
        assert [await stop(keeper) for _ in range(2)] == [
            StopDecision(message="A person waived for this session: tests."),
            StopDecision(),
        ]
        receipt = await build_receipt(host.service.store, load_settings(home=tmp_path / "home", environment={}))
        assert "waived by a person (<b>legacy</b>): tests" in receipt.lines[1]
        rows = await host.service.store.audit_rows(limit=100)
        assert any(row.entry.facts.get("answer") == "waived: <b>legacy</b>" for row in rows)
        await edit(keeper, "t")
        assert (await stop(keeper, "t")).refusal


async def test_a_waiver_of_one_promise_is_none_of_another_folder_with_the_same_name(tmp_path: Path) -> None:
    async with holding(tmp_path / "home", TOML + "retries = 0\n") as (keeper, host):
        folder = TrustedFolder(folder="/r", text=TOML.replace("make test", "make lint"), trusted_at=0.0)
        trusted = RecordStore(host.service.store, TrustedFolder)
        await host.answer(await stop_until_asked(keeper, host))
        assert (await stop(keeper)).message == "A person waived for this session: tests."
        await trusted.write(lambda transaction: transaction.put(folder))
        assert "no `make lint` has succeeded" in (await stop(keeper)).refusal
    with pytest.raises(InvalidArguments, match="two promises have the name 'tests'"):
        read_promises(TOML * 2, "/r")


async def test_a_subagent_owes_nothing_itself_and_a_host_that_waits_for_one_is_not_done(tmp_path: Path) -> None:
    async with holding(tmp_path / "home") as (keeper, _):
        await edit(keeper)
        cases: list[dict[str, JsonValue]] = [
            {"agent_id": "a"},
            {"background_tasks": [{"type": "subagent", "status": "running", "id": "a"}]},
            {"background_tasks": []},
        ]
        refused = [(await keeper.decide("claude-code", event("Stop") | fields)).refusal for fields in cases]
        assert list(map(bool, refused)) == [False, False, True]


async def test_the_inbox_shows_the_receipt_of_a_session_with_what_it_says_escaped(tmp_path: Path) -> None:
    async with visit(settings=Settings(home=tmp_path)) as (found, browser):
        assert "no session of a host was recorded" in (await browser.open("/inbox/receipts")).said
        keeper = DoneKeeper(
            found.warden.service.store, Settings(home=tmp_path), lambda _: pytest.fail("nobody is asked")
        )
        await keeper.answer("claude-code", json.dumps(event("PostToolUse", "Edit", cwd="/r/<b>")).encode())
        await keeper.decide("claude-code", event("Stop", cwd="/r/<b>/src"))
        page = await browser.open("/inbox/receipts")
        assert "1 call, 0 failed" in page.said and "/r/&lt;b&gt;" in page.text and "<b>," not in page.text


async def test_a_receipt_in_markdown_shows_names_of_files_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SqliteStore.open(tmp_path / "planwarden.db")
    keeper = DoneKeeper(store, Settings(home=tmp_path), lambda _: pytest.fail("nobody is asked"))
    await keeper.answer("claude-code", json.dumps(event("PostToolUse", "Edit", cwd="/r/_a_ <b> [c](d)")).encode())
    await keeper.decide("claude-code", event("Stop", cwd="/r/_a_ <b> [c](d)"))
    await store.close()
    words = ("--home", str(tmp_path), "receipt", "--markdown")
    assert await anyio.to_thread.run_sync(main, words) == 0
    assert r"/r/\_a\_ \<b\> \[c\](d)," in capsys.readouterr().out


async def test_a_rejection_sends_the_agent_back_at_its_next_stop_with_what_the_person_said(tmp_path: Path) -> None:
    async with holding(tmp_path / "home", TOML + "retries = 0\n") as (keeper, host):
        await host.answer(await stop_until_asked(keeper, host), approved=False, reason="run them")
        assert (await stop(keeper)).refusal.startswith("Not done: A person said no: run them.")
        assert not (await stop(keeper)).refusal


async def test_an_advisory_promise_lets_the_host_stop_and_asks_a_person_who_is_notified(tmp_path: Path) -> None:
    async with holding(tmp_path / "home", ADVISORY) as (keeper, host):
        await edit(keeper)
        for _ in range(2):
            decision = await stop(keeper)
            assert not decision.refusal and "done without: tests" in decision.message
        assert len(await host.questions()) == 1


async def test_a_promise_may_name_planwardens_tools_which_its_log_must_say_are_completed(tmp_path: Path) -> None:
    toml = TOML.replace('"Bash", matches = { command = { prefix = "make test" } }', '"mcp__planwarden__run_plan"')
    async with holding(tmp_path / "home", toml) as (keeper, host):
        await edit(keeper)
        finished = await host.answer(await host.decide(host.call()))
        waiting = await host.decide(host.call("another"))
        row = await host.service.store.find_suspension(waiting.suspension_id or "")
        assert row is not None
        for ids, is_proof in (
            ([row.execution_id], False),
            ([finished.execution_id, row.execution_id], False),
            ([finished.execution_id], True),
        ):
            response: JsonValue = [{"type": "text", "text": "".join(f"executionId {name}\n" for name in ids)}]
            ran = event("PostToolUse", "mcp__planwarden__run_plan", tool_response=response)
            await keeper.answer("claude-code", json.dumps(ran).encode())
            assert bool((await stop(keeper)).message or (await stop(keeper)).refusal) is not is_proof, ids


@has_sockets
def test_garbage_lets_a_session_go_on_and_closed_refuses_also_where_it_breaks_off_or_is_killed() -> None:
    with TemporaryDirectory(prefix="pw") as folder:
        _try_installed_hook(Path(folder))


def _try_installed_hook(home: Path) -> None:
    (home / "planwarden.toml").write_text("[guard]\nstop = 'closed'\n")
    planwarden = (sys.executable, "-m", "planwarden.server.main")

    def run_hook(text: bytes, program: tuple[str, ...] = planwarden) -> tuple[int, bytes]:
        entry: Any = build_done_entry("codex", "Stop", (*program, "--home", str(home)))
        command = ["sh", "-c", entry["hooks"][0]["command"]]
        ended = subprocess.run(command, input=text, capture_output=True, check=False)
        return ended.returncode, ended.stdout

    assert run_hook(b"\xff{") == (0, b"")
    stopping = {"hook_event_name": "Stop", "cwd": "/r"}
    with answering(home, b'{"out":'):
        code, out = run_hook(json.dumps(stopping).encode())
    assert code == 0 and json.loads(out)["decision"] == "block"
    for is_active, code in ((False, 2), (True, 0)):
        event = json.dumps({**stopping, "stop_hook_active": is_active}).encode()
        assert run_hook(event, ("sh", "-c", "kill -KILL $$")) == (code, b"")
    assert build_failure("codex", json.dumps({**stopping, "stop_hook_active": True}).encode(), True, "x").out == "{}"
