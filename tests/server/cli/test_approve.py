"""`approve` and `reject`: what is refused, what is recorded and as whose word, with a code and at real terminals."""

import asyncio
import getpass
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any, cast

import planwarden
from planwarden.server.inbox.sessions import InboxAccess
from tests.kit import requirement
from tests.server.cli.support import ASK_FORM, ERASE, Cli, CommandResult, Open, at_terminal, clean_environment, step
from tests.support.forking import forked_command_line


def test_what_cannot_be_decided_without_a_terminal_is_refused_with_the_reason(cli: Cli) -> None:
    async def ask() -> tuple[str, str]:
        async with planwarden.Warden(cli.home) as warden:
            thinking = await warden.execute_plan({"todoList": [{"id": "think", "description": "think"}]})
            waiting = await warden.execute_plan({"todoList": [step("w", "wait", {"seconds": 3600})]})
            state = await warden.service.find(waiting.execution_id)
            return thinking.suspensions[0].suspension_id, next(iter(state.suspensions))

    suspension_id, (of_model, of_clock) = cli.run_to_question(ERASE), asyncio.run(ask())
    for words, said in (
        (("approve", suspension_id), "needs a terminal"),
        (("approve", suspension_id, "--json"), "--code and --digest"),
        (("approve", of_model), "it waits for the calling model"),
        (("approve", of_clock), "waits for the clock"),
        (("approve", "nothing"), "there is no question 'nothing'"),
        (("reject", "nothing"), "there is no question 'nothing'"),
    ):
        refused = cli.main(*words)
        assert refused.code == 2 and said in refused.err, words
    listed = cli.main("list").out
    assert suspension_id[:8] in listed and cli.ledger == []
    assert "A model must answer  its prompt: " in listed and "planwarden --home" in listed and "QUESTION" in listed


@requirement("yes:worth")
def test_a_rejection_needs_no_terminal_is_not_recorded_as_a_persons_and_can_be_repeated(cli: Cli) -> None:
    ask = step("ask", "displayConfirmation", {"action": "Erase?"}, confirms=["erase"])
    suspension_id = cli.run_to_question(ask, ERASE)
    thread_id = cli.main("list", "--json").json["suspensions"][0]["threadId"]
    first = cli.main("reject", suspension_id, "--reason", "not today", "--json")
    assert (first.code, first.json["status"]) == (0, "rejected") and '"not today"' in first.err
    assert [found["status"] for found in first.json["steps"]] == ["rejected", "skipped"]
    shown = cli.main("show", thread_id, "--observations", "0", "--json").json
    [decided] = [seen["data"] for seen in shown["observations"] if seen["type"] == "AGENT_RESUMED"]
    assert (decided["assurance"], decided["channel"]) == ("client", "terminal")
    again = cli.main("reject", suspension_id, "--reason", "not today", "--json")
    assert (again.code, again.json) == (0, first.json)
    other = cli.main("approve", suspension_id, "--json")
    assert (other.code, other.json["error"]["code"]) == (1, "already_decided")
    assert cli.ledger == []


@requirement("approval:code")
def test_a_code_approves_once_and_only_the_question_that_was_read(cli: Cli) -> None:
    suspension_id = cli.run_to_question(ERASE)
    [asked] = cli.main("list", "--json").json["suspensions"]
    digest = asked["digest"]
    # The list cuts what is asked, so it holds nothing that an approval could name.
    assert digest[:12] in cli.main("show", asked["threadId"]).out and digest[:12] not in cli.main("list").out
    code = cli.with_store(lambda store: InboxAccess(store).make_codes("ann", "terminal")).typed
    approve = ("approve", suspension_id[:8], "--code")
    for words, message in (
        ((*approve, code), "go together"),
        (("approve", "--code", code, "--digest", digest), "go together"),
        ((*approve, code, "--digest", "0" * 64), "not what that digest names"),
        ((*approve, code, "--digest", digest[:8]), "at least 12"),
        ((*approve, "AAAA-AAAA-AAAA", "--digest", digest), "not valid"),
    ):
        result = cli.main(*words)
        assert result.code in (1, 2) and message in result.err, result
    assert cli.ledger == []
    done = cli.main(*approve, code, "--digest", digest[:12], "--json")
    assert done.code == 0 and done.json["status"] == "completed" and "1 of 1 step completed" in done.err
    again = cli.main(*approve, code, "--digest", digest, "--json")
    assert (again.code, again.json) == (0, done.json) and "approved before" in again.err
    assert cli.main(*approve, code, "--digest", "0" * 64).code == 1
    rows = cli.main("audit", "show", "--json").json["rows"]
    [decided] = [row["facts"] for row in rows if row["kind"] == "decided"]
    assert (decided["channel"], decided["principal"], decided["assurance"]) == ("code", "ann", "human")
    assert cli.ledger == ["erase [1, 2] none"]
    form = cli.run_to_question(ASK_FORM)
    [asked] = cli.main("list", "--json").json["suspensions"]
    by_code = ("approve", form, "--code", code, "--digest", asked["digest"])
    refused = cli.main(*by_code)
    assert refused.code == 2 and "this question asks for more than yes" in refused.err
    cli.add_settings('[inbox]\npassphrase_file = "passphrase"')
    (cli.home / "passphrase").write_text("x")
    refused = cli.main(*by_code)
    assert refused.code == 2 and "passphrase" in refused.err


CHOICE = "Enter leaves it open]"


@at_terminal
def test_alone_it_goes_through_the_open_ones_and_those_that_come_up(cli: Cli, terminal: Open) -> None:
    cli.run_to_question(ERASE, step("again", "erase", {"ids": [7]}))
    cli.run_to_question(step("third", "erase", {"ids": [3]}))
    person = terminal("approve")
    answers = (("[1, 2]", "y"), ("[3]", ""), ("[7]", "y"))
    script = [line for ids, typed in answers for line in (f"ids = {ids}", CHOICE, f"> {typed}")]
    assert person.play("2 waiting, oldest first", *script) == 3
    assert "2 decided, 1 left open." in person.text
    assert cli.ledger == ["erase [1, 2] none", "erase [7] none"]
    last = terminal("approve")
    assert last.play("1 waiting", CHOICE, "> no", "Why not?", "> ") == 0 and "1 decided, 0 left open." in last.text


@at_terminal
def test_alone_it_needs_a_terminal_unless_nothing_waits(cli: Cli) -> None:
    nothing = cli.main("approve")
    assert nothing.code == 0 and "Nothing waits for a person." in nothing.out
    assert cli.main("approve", "--json").json == {"decided": [], "open": 0}
    cli.run_to_question(ERASE)
    assert cli.main("approve").code == 2 and cli.ledger == []


FIND = step("find", "find", {"topic": "old"})


@at_terminal
@requirement("yes:worth")
def test_yes_at_a_terminal_is_the_persons_who_typed_the_command(cli: Cli, terminal: Open) -> None:
    person = terminal("call", "erase", "--arg", "ids=[1]", "--yes")
    assert person.finish() == 0 and cli.ledger == ["erase [1] none"]
    assert "(human, terminal --yes)" in person.text


@at_terminal
def test_the_question_about_a_call_from_the_command_line_holds_no_words_of_a_plan(cli: Cli, terminal: Open) -> None:
    person = terminal("call", "erase", "--arg", "ids=[1]")
    assert person.play("Run this call?", "Risk: dangerous", "Approve?", "> y") == 0 and cli.ledger == ["erase [1] none"]
    assert "The plan says" not in person.text, person.text


@at_terminal
def test_keys_typed_before_a_question_are_dropped_and_said_to_be(cli: Cli, terminal: Open) -> None:
    slow = step("a", "wait", {"seconds": 1})
    person = terminal("run", cli.write("plan.json", {"todoList": [slow, ERASE]}))
    person.expect("waits for a time")
    os.write(person.descriptor, b"y\ny")
    person.expect("Whatever was typed before this question could be read was dropped.")
    assert person.play(CHOICE, "> n", "Why not?", "> ") == 1
    assert person.text.count("was dropped") == 1 and cli.ledger == []


@at_terminal
def test_no_color_turns_colours_off_and_a_dumb_terminal_gets_plain_lines(cli: Cli, terminal: Open) -> None:
    suspension_id = cli.run_to_question(ERASE)
    coloured, plain, dumb = (
        terminal("approve", suspension_id),
        terminal("approve", suspension_id, env={"NO_COLOR": "1"}),
        terminal("approve", suspension_id, env={"TERM": "dumb"}),
    )
    assert [person.play(CHOICE, "> ") for person in (coloured, plain, dumb)] == [3] * 3
    assert "\x1b[31m" in coloured.seen and "\x1b[31m" not in plain.seen and "\x1b" not in dumb.seen


@at_terminal
def test_an_interrupt_at_the_question_leaves_it_open(cli: Cli, terminal: Open) -> None:
    suspension_id = cli.run_to_question(ERASE)
    person = terminal("approve", suspension_id)
    person.expect(CHOICE)
    assert person.interrupt() == 130
    assert "Traceback" not in person.text
    assert "Nothing was decided; the question stays open." in person.text
    assert f"approve {suspension_id[:8]}" in " ".join(person.text.split())
    assert cli.ledger == [] and cli.main("list", "--json").json["total"] == 1


def begin_run(cli: Cli, path: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        forked_command_line("--home", str(cli.home), "run", path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )


@at_terminal
def test_an_interrupted_run_exits_quietly_and_is_not_finished(cli: Cli) -> None:
    os.mkfifo(cli.home / "started")
    path = cli.write("plan.json", {"todoList": [step("hang", "hang"), FIND]})
    with begin_run(cli, path) as process:
        assert (cli.home / "started").read_text() == "running"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
    assert cli.main("show", "--json").json["status"] == "running"


def test_a_run_whose_output_nobody_reads_any_more_goes_on_to_its_end(cli: Cli) -> None:
    path = cli.write(
        "plan.json", {"todoList": [FIND, step("wait", "wait", {"seconds": 1}), step("again", "find", {"topic": "y"})]}
    )
    with begin_run(cli, path) as process:
        assert process.stdout is not None and process.stderr is not None
        assert "find" in process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(timeout=60)) == ("", 0)
    assert cli.main("show", "--json").json["status"] == "completed" and cli.ledger == ["find old", "find y"]


@requirement("approval:quorum")
def test_a_vote_for_other_rows_replaces_the_first_and_is_said_to_be_recorded(
    cli: Cli, typing: Callable[..., CommandResult]
) -> None:
    with (cli.home / "planwarden.toml").open("a") as file:
        file.write('\n[approvals]\ncritical = "second"\nquorum = 2\n\n[tools.erase]\nrisk = "critical"\n')
    erase = step("erase", "erase", {"ids": [{"$from": "item"}]}, forEach=[7, 8, 9])
    asked = cli.ask(lambda warden: warden.execute_plan({"todoList": [erase]}, principal="bob"))
    thread_id, [question] = str(asked["threadId"]), cast("list[dict[str, Any]]", asked["suspensions"])
    suspension_id = question["suspensionId"]
    for rows in ("1-2", "2-3", "2-3"):
        said = typing("approve", suspension_id, typed=f"s\n{rows}\ny\n")
        assert said.code == 0, said
    assert typing("approve", suspension_id, typed="\n").code == 3
    shown = cli.main("show", thread_id, "--json").json
    assert len(shown["suspensions"][0]["endorsements"]) == 1 and cli.ledger == []
    again = typing("approve", typed="s\n1,3\ny\n")
    assert again.code == 3 and "1 decided, 1 left open" in again.out


@requirement("approval:code")
def test_a_code_that_is_not_enough_for_a_question_records_nothing_and_says_so(cli: Cli) -> None:
    suspension_id = cli.run_to_question(step("wipe", "wipe"))
    [asked] = cli.main("list", "--json").json["suspensions"]
    code = cli.with_store(lambda store: InboxAccess(store).make_codes(getpass.getuser(), "terminal")).typed
    refused = cli.main("approve", suspension_id, "--code", code, "--digest", asked["digest"])
    assert (refused.code, cli.ledger) == (3, []) and "is not enough for this; the question stays open" in refused.out
