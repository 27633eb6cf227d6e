"""Ranked search over names, descriptions, capabilities and parameters of tools: BM25 of SQLite's full-text index.

Names are split into words, so "delete contact" finds `crm_deleteContact`. Words are stemmed, the beginning of a word is
enough, and each field has its own weight (https://sqlite.org/fts5.html#the_bm25_function). The index is in memory. The
registry builds a new one after tools have changed.
"""

import re
import sqlite3
import weakref
from collections.abc import Sequence

from planwarden.agent.common.schema_defaults import read_properties
from planwarden.agent.core.tool import ToolDefinition

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WEIGHTS = "0.0, 8.0, 4.0, 2.0, 1.0"
_MAX_WORDS = 40
# Words in queries that say nothing about the wanted tool.
_COMMON = frozenset(
    [
        *("a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "for", "from", "has", "have", "i", "in"),
        *("into", "is", "it", "its", "me", "my", "of", "on", "or", "our", "please", "so", "than", "that", "the"),
        *("their", "then", "there", "they", "this", "to", "up", "us", "was", "we", "what", "when", "where", "which"),
        *("who", "will", "with", "you", "your", "all", "any", "every", "each", "some"),
    ]
)


class ToolIndex:
    """Finds definitions by relevance."""

    def __init__(self, definitions: Sequence[ToolDefinition]) -> None:
        self._definitions = {definition.name: definition for definition in definitions}
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._connection.close)
        self._connection.execute(
            "CREATE VIRTUAL TABLE tools USING fts5(name UNINDEXED, words, description, capabilities, parameters, "
            "tokenize = 'porter unicode61 remove_diacritics 2')"
        )
        self._connection.executemany(
            "INSERT INTO tools VALUES (?, ?, ?, ?, ?)",
            [
                (
                    d.name,
                    _split_words(d.name),
                    d.description,
                    _split_words(" ".join(d.capabilities)),
                    _split_words(" ".join(read_properties(d.input_schema))),
                )
                for d in definitions
            ],
        )

    def search(self, query: str, limit: int) -> list[ToolDefinition]:
        """Return at most `limit` tools that share a word with the query, best first."""
        words = [word for word in _WORD.findall(_split_words(query).lower()) if word not in _COMMON][:_MAX_WORDS]
        if not words:
            return []
        expression = " OR ".join(f'"{word}"*' if len(word) > 2 else f'"{word}"' for word in dict.fromkeys(words))
        rows = self._connection.execute(
            f"SELECT name FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, {_WEIGHTS}), name LIMIT ?",
            (expression, limit),
        )
        return [self._definitions[row[0]] for row in rows]


def _split_words(text: str) -> str:
    return _HUMP.sub(" ", text).replace("_", " ").replace("-", " ").replace(".", " ")
