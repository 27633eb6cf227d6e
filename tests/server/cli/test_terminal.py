"""Decisions at a real terminal, in processes that are killed, interrupted and started again."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import JsonValue

import planwarden
from planwarden.agent.core.state import FINISHED
from tests.kit import Cli, requirement
from tests.server.cli.support import ERASE, PtyTerminal, clean_environment, command_line, start_on_terminal, step

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals in the standard library"),
]

CHOICE = "Enter leaves it open]"
CONFIRM = step("ask", "displayConfirmation", {"action": "Erase them?"}, confirms=["erase"])
FIND = step("find", "find", {"topic": "old"})

Open = Callable[..., PtyTerminal]


@pytest.fixture
def terminal(cli: Cli) -> Generator[Open]:
    opened: list[PtyTerminal] = []

    def start(*words: str, env: dict[str, str] | None = None, columns: int = 110) -> PtyTerminal:
        opened.append(start_on_terminal(cli, *words, env=env, columns=columns))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def decisions(cli: Cli, thread_id: str) -> list[JsonValue]:
    """Returns what the log records about each decision."""
    shown = cli.main("show", thread_id, "--observations", "0", "--json").json
    return [seen["data"] for seen in shown["observations"] if seen["type"] == "AGENT_RESUMED"]


def thread_of(cli: Cli) -> str:
    return str(cli.main("list", "--json").json["suspensions"][0]["threadId"])


def test_approving_shows_the_facts_first_and_runs_to_the_end(cli: Cli, terminal: Open) -> None:
    suspension_id = cli.run_to_question(FIND, CONFIRM, ERASE)
    thread_id = thread_of(cli)
    person = terminal("approve", suspension_id)
    for expected in (
        "Tool: displayConfirmation",
        "The same decision also covers 1 call(s):",
        "ids = [1, 2]",
        "Risk: dangerous",
        "Needs: a person",
        "The plan says:",
        "Erase them?",
        CHOICE,
    ):
        person.expect(expected)
    person.type("y")
    assert person.finish() == 0
    assert "approved by" in person.text and "3 of 3 steps completed" in person.text
    assert cli.ledger == ["find old", "erase [1, 2] none"]
    [decided] = decisions(cli, thread_id)
    assert isinstance(decided, dict)
    assert (decided["assurance"], decided["channel"]) == ("human", "terminal")


@requirement("yes:worth")
def test_yes_at_a_terminal_is_the_persons_who_typed_the_command(cli: Cli, terminal: Open) -> None:
    person = terminal("call", "erase", "--arg", "ids=[1]", "--yes")
    assert person.finish() == 0 and cli.ledger == ["erase [1] none"]
    assert "(human, terminal --yes)" in person.text


def test_keys_typed_before_a_question_are_dropped_and_said_to_be(cli: Cli, terminal: Open) -> None:
    slow = step("a", "wait", {"seconds": 1})
    person = terminal("run", cli.write("plan.json", {"todoList": [slow, ERASE]}))
    person.expect("waits for a time")
    os.write(person.descriptor, b"y\ny")
    person.expect("What was typed before this question could be read was dropped.")
    person.expect(CHOICE)
    person.type("n")
    person.expect("Why not?")
    assert person.text.count("was dropped") == 1
    person.type("")
    assert person.finish() == 1 and cli.ledger == []


def test_json_goes_to_standard_output_and_the_question_to_standard_error(cli: Cli) -> None:
    suspension_id = cli.run_to_question(ERASE)
    path = cli.home / "out.json"
    words = " ".join(command_line("--home", str(cli.home), "approve", suspension_id, "--json"))
    person = start_in_shell(cli, f"{words} > {path}")
    person.expect("Tool: erase")
    person.expect(CHOICE)
    person.type("y")
    assert person.finish() == 0
    person.close()
    assert json.loads(path.read_text())["status"] == "completed"


def test_no_color_turns_colours_off_and_a_dumb_terminal_gets_plain_lines(cli: Cli, terminal: Open) -> None:
    suspension_id = cli.run_to_question(ERASE)
    coloured, plain, dumb = (
        terminal("approve", suspension_id),
        terminal("approve", suspension_id, env={"NO_COLOR": "1"}),
        terminal("approve", suspension_id, env={"TERM": "dumb"}),
    )
    for person in (coloured, plain, dumb):
        person.expect(CHOICE)
        person.type("")
        assert person.finish() == 3
    assert "\x1b[31m" in coloured.seen
    assert "\x1b[31m" not in plain.seen
    assert "\x1b" not in dumb.seen


def test_a_process_killed_while_its_question_waits_loses_nothing(cli: Cli, terminal: Open) -> None:
    path = cli.write("plan.json", {"todoList": [FIND, CONFIRM, ERASE]})
    first = terminal("run", path)
    first.expect(CHOICE)
    first.process.send_signal(signal.SIGKILL)
    assert first.finish() == -signal.SIGKILL
    [question] = cli.main("list", "--json").json["suspensions"]
    second = terminal("approve", str(question["suspensionId"]))
    second.expect(CHOICE)
    second.type("y")
    assert second.finish() == 0
    assert cli.ledger == ["find old", "erase [1, 2] none"]


def test_an_interrupt_at_the_question_leaves_it_open(cli: Cli, terminal: Open) -> None:
    suspension_id = cli.run_to_question(ERASE)
    person = terminal("approve", suspension_id)
    person.expect(CHOICE)
    person.process.send_signal(signal.SIGINT)
    assert person.finish() == 130
    assert "Traceback" not in person.text
    assert cli.ledger == [] and cli.main("list", "--json").json["total"] == 1


def test_an_interrupted_run_exits_quietly_and_another_process_continues_it(cli: Cli) -> None:
    os.mkfifo(cli.home / "started")
    path = cli.write("plan.json", {"todoList": [step("hang", "hang"), FIND]})
    with subprocess.Popen(
        command_line("--home", str(cli.home), "run", path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    ) as process:
        assert (cli.home / "started").read_text() == "running"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")

    async def take_over() -> str:
        async with planwarden.Warden(cli.home) as warden:
            [header] = await warden.service.engine.store.executions(None, 1)
            execution = await warden.service.engine.find(header.execution_id)
            with anyio.fail_after(60):
                while execution.status not in FINISHED:
                    execution = await warden.service.engine.wait_for_change(execution)
            return execution.status

    assert asyncio.run(take_over()) == "completed"
    assert cli.ledger == ["find old"]


def test_a_person_can_answer_a_question_of_an_execution_that_another_process_runs(cli: Cli) -> None:
    plan: JsonValue = {
        "todoList": [
            step("hold", "hold", dependencies=[]),
            {**ERASE, "dependencies": []},
            {**FIND, "dependencies": ["hold"]},
        ]
    }
    tools = cli.home / "tools.py"
    tools.write_text(
        tools.read_text()
        + "\nfree = anyio.Event()\n"
        + "\n@planwarden.tool(risk='read')\nasync def hold() -> str:\n    await free.wait()\n    return 'held'\n"
    )

    async def own() -> tuple[int, str]:
        async with planwarden.Warden(cli.home) as warden:
            view = await warden.execute_plan(plan, wait_seconds=0)
            execution = await warden.service.engine.find(view.execution_id)
            store = warden.service.engine.store
            with anyio.fail_after(60):
                while not (page := await store.suspensions()).rows:
                    execution = await warden.service.engine.wait_for_change(execution)
                [row] = page.rows
                words = command_line("--home", str(cli.home), "reject", row.suspension_id)
                async with await anyio.open_process(
                    words, stdin=subprocess.DEVNULL, stderr=None, env=clean_environment()
                ) as process:
                    assert process.stdout is not None
                    result = BufferedByteReceiveStream(process.stdout)
                    first = await result.receive_until(b"\n", 1_000)
                    sys.modules["planwarden_tools_tools"].free.set()
                    rest = b"".join([part async for part in result])
                    return await process.wait(), (first + b"\n" + rest).decode()

    code, out = asyncio.run(own())
    assert code == 0
    assert out.startswith("Another planwarden process runs this execution; watching it.")
    assert 'hold() → "held"' in out and "⊘ erase" in out
    assert cli.ledger == ["find old"]


def test_an_execution_with_unknown_tools_is_not_continued_here(cli: Cli, terminal: Open) -> None:
    @planwarden.tool(name="elsewhere")
    async def elsewhere() -> str:
        """Exists only in a program."""
        return "there"

    async def ask() -> str:
        async with planwarden.Warden(cli.home, tools=[elsewhere]) as warden:
            execution = await warden.execute_plan({"todoList": [step("a", "elsewhere")]})
            return execution.suspensions[0].suspension_id

    person = terminal("approve", asyncio.run(ask()))
    assert person.finish() == 2
    assert "'elsewhere'" in person.text and CHOICE not in person.text


def start_in_shell(cli: Cli, line: str) -> PtyTerminal:
    """Starts a shell command on a new terminal."""
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["/bin/sh", "-c", line],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=clean_environment({"TERM": "xterm-256color"}),
        start_new_session=True,
    )
    os.close(theirs)
    return PtyTerminal(process, ours)
