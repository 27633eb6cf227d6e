"""What can be seen of a command line: its commands where the grammar reads all of it, its words always."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planwarden.tools.guarded.shell import MAX_CHARS, ShellCommand, list_words, read_commands


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("npm test", ("npm test",)),
        (" a ; b && c || d | e & f ", ("a", "b", "c", "d", "e", "f")),
        ("\na\n\nb;\n", ("a", "b")),
        ("a &&\nb |\n c", ("a", "b", "c")),
        ("a 'b; c' \"d | e\" f\\;g", ("a 'b; c' \"d | e\" f\\;g",)),
        ("npm test 2>&1 | tail -5", ("npm test", "tail -5")),
        ("npm test >/dev/null 2>&1", ("npm test",)),
    ],
)
def test_a_line_is_cut_where_the_shell_cuts_it(line: str, texts: tuple[str, ...]) -> None:
    assert tuple(command.text for command in read_commands(line) or ()) == texts


@pytest.mark.parametrize(
    "line",
    [
        *("a $(b)", "a `b`", 'a "$(b)"', "a ${b}", "a $b", "a <(b)", "a > f", "a >> f", "a < f", "a <<E\nb\nE", "(a)"),
        *(
            "{ a; }",
            "a # b",
            "a 'b",
            'a "b',
            "a \\",
            "a\0b",
            "a 'b\0c'",
            'a "b\x1bc"',
            "",
            "  ;  ",
            "x" * (MAX_CHARS + 1),
            "a >/dev/nullx",
        ),
        *(
            ";" * 80,
            "a;" * 80,
            "a &&",
            "a |",
            "; a",
            "a ;; b",
            "a & & b",
            "a\n&& b",
            "a\\\nb",
            "a \\ \\\nb",
            "X=1 a",
            "if a",
            "! a",
        ),
    ],
)
def test_a_line_that_the_grammar_does_not_read_has_no_commands(line: str) -> None:
    assert read_commands(line) is None


# zsh expands a word that begins with an equals sign, which `shlex` does not quote.
WORD = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=8).filter(lambda w: w[:1] != "=")
WORDS = st.lists(WORD, min_size=1, max_size=4)


@given(WORDS)
def test_quoted_words_come_back_as_the_shell_hands_them_on(words: list[str]) -> None:
    line = shlex.join(["a", *words])
    assert read_commands(line) == (ShellCommand(line, ("a", *words)),)
    assert list(list_words(line)) == [["a", *words]]


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    assert list(list_words(text))
    for command in read_commands(text) or ():
        assert command.words and command.text == command.text.strip()


@pytest.mark.parametrize("piece", ["a", "a ", "'a' ", "a \\\n", "2>", "\\a", '"a\\"', "a;", ">", '"', '"a', " 2>&1"])
def test_no_line_makes_the_reader_try_without_end(piece: str) -> None:
    line = "a " + piece * ((MAX_CHARS - 2) // len(piece))
    read_commands(line)
    assert list(list_words(line))
