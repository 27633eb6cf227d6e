"""Commands take the beginning of an id, and `show` the newest thread without one."""

import pytest

from tests.server.cli.support import ERASE, Cli, step

CONFIRM = step("confirm", "displayConfirmation", {"action": "Erase them?"})
WAY_OUT = " run PLAN.json`"


def newest_thread(cli: Cli) -> str:
    return str(cli.main("show", "--json").json["threadId"])


def test_show_without_a_word_shows_the_newest_thread(cli: Cli) -> None:
    assert WAY_OUT in cli.main("show").err
    cli.run_to_question(CONFIRM, ERASE)
    older = newest_thread(cli)
    cli.run_to_question(CONFIRM, ERASE)
    assert newest_thread(cli) != older


def test_a_unique_beginning_stands_for_its_id(cli: Cli) -> None:
    suspension_id = cli.run_to_question(CONFIRM, ERASE)
    thread_id = newest_thread(cli)
    assert cli.main("show", thread_id[:8], "--json").json["threadId"] == thread_id
    rejected = cli.main("reject", suspension_id[:8], "--json")
    assert rejected.code == 0 and rejected.json["status"] == "rejected"


def test_an_ambiguous_beginning_lists_its_candidates(cli: Cli) -> None:
    asked: set[str] = set()
    # There are sixteen first digits.
    while len(asked) == len({name[0] for name in asked}):
        asked.add(cli.run_to_question(CONFIRM, ERASE))
    [digit] = [name[0] for name in asked if sum(other[0] == name[0] for other in asked) == 2][:1]
    result = cli.main("reject", digit)
    assert result.code == 2 and "several ids begin" in result.err
    assert all(name in result.err for name in asked if name[0] == digit)


@pytest.mark.parametrize("word", ["show", "reject"])
def test_an_id_of_another_kind_is_told_which_kind_it_is(cli: Cli, word: str) -> None:
    suspension_id = cli.run_to_question(CONFIRM, ERASE)
    thread_id = newest_thread(cli)
    given, kind = (suspension_id, "a question") if word == "show" else (thread_id, "a thread")
    result = cli.main(word, given)
    assert result.code == 2 and f"is the id of {kind}" in result.err
    # The command works as it stands there: the home of the test is not the default one.
    assert f"`planwarden --home {cli.home} show {thread_id[:8]}`" in result.err
