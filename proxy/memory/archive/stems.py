"""Words without their endings, as SQLite's own Porter stemmer cuts them."""

import re
import sqlite3
import threading
from collections.abc import Collection, Iterable
from typing import Final

_MOST_KNOWN: Final = 20_000
_DIGIT: Final = re.compile("[0-9]")
# The stemmer is part of an index: what is put into it can be read back as terms.
_TABLES: Final = """
CREATE VIRTUAL TABLE words USING fts5(word, tokenize = 'porter ascii');
CREATE VIRTUAL TABLE stems USING fts5vocab(words, 'instance');
"""
_STEM: Final = "SELECT doc, term FROM stems"


class Stemmer:
    """Stems of words in lower case, letters and digits alone; those that it has seen, it remembers.

    Words with a digit it does not: hardly one comes again, and cards and telephones have such names. Any
    thread may ask.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()
        self._index = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._index.executescript(_TABLES)

    def stems(self, words: Iterable[str]) -> list[str]:
        """The stem of each word, in order; a word of a script without cases is its own."""
        given = list(words)
        found = {word: stem for word in given if (stem := self._at_once(word)) is not None}
        if new := set(given) - found.keys():
            found |= self._learned(new)
        return [found[word] for word in given]

    def _at_once(self, word: str) -> str | None:
        return word if word.isascii() and word.isdecimal() else self._known.get(word)

    def _learned(self, new: Collection[str]) -> dict[str, str]:
        with self._lock:
            numbered = list(enumerate(new, 1))
            self._index.executemany("INSERT INTO words (rowid, word) VALUES (?, ?)", numbered)
            terms = dict(self._index.execute(_STEM).fetchall())
            self._index.execute("DELETE FROM words")
        found = {word: terms.get(number, word) for number, word in numbered}
        if len(self._known) > _MOST_KNOWN:
            self._known = {}
        self._known.update((word, stem) for word, stem in found.items() if not _DIGIT.search(word))
        return found
