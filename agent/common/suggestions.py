"""What somebody may have meant by a word that is not known: a command, an option, a tool, a key of the settings.

Pure, and imports the standard library only when there is something to compare.
"""

from collections.abc import Iterable

MAX_CHARS = 100
"""A longer word is no slip of the hand."""
MAX_KNOWN = 5_000
CUTOFF = 0.6
"""How much alike two words are, from 0 to 1."""


def closest_word(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word that is most like this one; None when none is like it."""
    if not word or len(word) > MAX_CHARS:
        return None
    # Imported here, because correct commands do not need it.
    from difflib import get_close_matches

    by_plain = {_plain(name): name for name in list(known)[:MAX_KNOWN]}
    [found] = get_close_matches(_plain(word), by_plain, n=1, cutoff=CUTOFF) or [None]
    return None if found is None else by_plain[found]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean 'NAME'?)` for a message, or nothing."""
    found = closest_word(word, known)
    return "" if found is None else f" (did you mean {found!r}?)"


def _plain(word: str) -> str:
    """People write `max_iterations` for `maxIterations` and `Fs-list` for `fs_list`."""
    return word.casefold().replace("_", "").replace("-", "")
