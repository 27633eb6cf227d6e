"""What can be seen of a command line: its parts where they can be told apart, its words always."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planwarden.tools.guarded.shell import MAX_CHARS, list_words, split_parts


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("npm test", ("npm test",)),
        (" a ; b && c || d | e & f ", ("a", "b", "c", "d", "e", "f")),
        ("a\nb", ("a", "b")),
        ("echo 'a; b'", ("echo 'a; b'",)),
        ('echo "a; b"', ('echo "a; b"',)),
        ("echo a\\;b", ("echo a\\;b",)),
        ("npm test 2>&1 | tail -5", ("npm test", "tail -5")),
        ("npm test >/dev/null 2>&1", ("npm test",)),
    ],
)
def test_a_line_is_cut_where_the_shell_cuts_it(command: str, parts: tuple[str, ...]) -> None:
    """spec: POSIX shell, tokens and lists"""
    assert split_parts(command) == parts


@pytest.mark.parametrize(
    "command",
    [
        *("a $(b)", "a `b`", 'a "$(b)"', "a ${b}", "a $b", "a <(b)", "a > f", "a >> f", "a < f", "a <<E\nb\nE", "(a)"),
        *(
            "{ a; }",
            "a # b",
            "a 'b",
            'a "b',
            "a \\",
            "a\0b",
            "",
            "  ;  ",
            "x" * (MAX_CHARS + 1),
            "a >/dev/nullx",
            ";" * 80,
        ),
    ],
)
def test_a_line_that_cannot_be_seen_through_has_no_parts(command: str) -> None:
    """ours: fail towards asking"""
    assert split_parts(command) is None


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8), min_size=1, max_size=4
    )
)
def test_quoted_words_come_back_as_the_shell_reads_them(words: list[str]) -> None:
    """ours: quotes hide nothing"""
    [*before, found] = [part for part in list_words(shlex.join(words)) if part] or [[]]
    assert [*[word for part in before for word in part], *found] == words or any("\n" in word for word in words)


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    """ours: hostile input"""
    assert list(list_words(text))
    parts = split_parts(text)
    assert parts is None or all(part == part.strip() and part for part in parts)


@given(st.text(st.sampled_from("ab ;&|\n'\"\\ "), max_size=24))
def test_what_has_one_part_runs_one_command_in_a_real_shell(text: str) -> None:
    """ours: checked against sh: a line of one part never runs `b` when it begins with the program `a`"""
    parts = split_parts(f"a {text}")
    if parts is None or len(parts) != 1:
        return
    script = f"a() {{ :; }}; b() {{ echo ran; }}; ab() {{ :; }}; ba() {{ :; }}\na {text}"
    ended = subprocess.run(["sh", "-c", script], capture_output=True, timeout=60, check=False)
    assert b"ran" not in ended.stdout
