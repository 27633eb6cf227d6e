"""What somebody probably meant by a word that is not known."""

import pytest

from planwarden.agent.common.suggestions import closest_word, did_you_mean

KNOWN = ("list", "show", "approve", "max_steps", "fs_read_file", "fs_write_file")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lsit", "list"),
        ("aprove", "approve"),
        ("maxSteps", "max_steps"),
        ("max-step", "max_steps"),
        ("FS_READ_FILES", "fs_read_file"),
        ("mcp__planwarden__show", "show"),
        ("read_file", "fs_read_file"),
        ("zzz", None),
        ("", None),
        ("list" * 100, None),
    ],
)
def test_the_word_that_is_most_alike_is_what_was_meant(word: str, meant: str | None) -> None:
    assert closest_word(word, KNOWN) == meant


def test_a_message_asks_only_where_something_is_alike() -> None:
    assert did_you_mean("shwo", KNOWN) == " (did you mean 'show'?)"
    assert did_you_mean("zzz", KNOWN) == did_you_mean("list", ()) == ""
