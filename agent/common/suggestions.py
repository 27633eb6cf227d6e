"""What somebody may have meant by a word that is not known: a command, an option, a tool, a key of the settings.

Pure, and imports the standard library only when there is something to compare.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

MAX_CHARS = 100
"""A longer word is not a typing error."""
MAX_KNOWN = 5_000
MIN_PART_CHARS = 4
"""Fewer letters that words have in common at their ends say nothing."""
CUTOFF = 0.7
"""How much alike two words are, from 0 to 1."""


def closest_word(word: str, words: Iterable[str]) -> str | None:
    """Return the known word that was probably meant; None when none is like it.

    It is written otherwise, has a prefix too many or too few, as hosts put before names of tools, or is mistyped.
    """
    plain = _plain(word[:MAX_CHARS])
    if not plain or len(word) > MAX_CHARS:
        return None
    by_plain = {_plain(name): name for name in islice(words, MAX_KNOWN)}
    if plain in by_plain:
        return by_plain[plain]
    long = (name for name in by_plain if min(len(name), len(plain)) >= MIN_PART_CHARS)
    parts = [name for name in long if name.endswith(plain) or plain.endswith(name)]
    if parts:
        return by_plain[max(parts, key=len)]
    [match] = get_close_matches(plain, by_plain, n=1, cutoff=CUTOFF) or [None]
    return None if match is None else by_plain[match]


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return ` (did you mean 'NAME'?)` for a message, or nothing."""
    closest = closest_word(word, words)
    return "" if closest is None else f" (did you mean {closest!r}?)"


def _plain(word: str) -> str:
    """People write `max_iterations` for `maxIterations`, and `Fs-list` for `fs_list`."""
    return "".join(filter(str.isalnum, word.casefold()))
