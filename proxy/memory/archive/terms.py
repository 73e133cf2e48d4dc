"""Words without their endings, as SQLite's own Porter stemmer cuts them."""

import hashlib
import hmac
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from proxy.memory.stores.store import Owner

_MOST_KNOWN: Final = 20_000
_DIGIT: Final = re.compile("[0-9]")
# The stemmer is part of an index: what is put into it can be read back as terms.
_TABLES: Final = """
CREATE VIRTUAL TABLE words USING fts5(word, tokenize = 'porter ascii');
CREATE VIRTUAL TABLE stems USING fts5vocab(words, 'instance');
"""
_STEM: Final = "SELECT doc, term FROM stems"
# Chinese characters, kana, Hangul, Thai to Myanmar, Khmer: words are not told apart by spaces, or take many
# endings, so that each two neighbours count as a word.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
# The marks that a word is spelt with, and letters between them: to Python, vowels of Hindi or Tibetan are
# no part of a word.
_MARKS: Final = (
    "\u0483-\u0487\u0711-\u07f3\u0816-\u082d\u0859-\u085b\u0900-\u0963\u0981-\u09e3\u09fe-\u0a75\u0a81-\u0ae3"
    "\u0afa-\u0b63\u0b82-\u0bd7\u0c00-\u0c63\u0c81-\u0c83\u0cbc-\u0d4d\u0d57-\u0d63\u0d81-\u0df3"
    "\u0f18-\u0f19\u0f35\u0f37\u0f39\u0f3e-\u0f84\u0f86-\u0fbc\u0fc6\u135d-\u135f\u1712-\u1734\u1752-\u1773"
    "\u180b-\u180d\u180f-\u193b\u1a17-\u1a1b\u1a55-\u1a7f\u1b00-\u1b44\u1b6b-\u1b73\u1b80-\u1bf3\u1c24-\u1c37"
    "\ua802-\ua827\ua880-\ua8c5\ua8e0-\ua8f1\ua8ff-\ua92d\ua947-\ua953\ua980-\ua9c0\ua9e5-\uaa4d\uaa7b-\uaac1"
    "\uaaeb-\uaaef\uabe3-\uabea\U00011000-\U00011046\U00011100-\U00011134"
)
_PLAIN: Final = re.compile("[a-z0-9]+")
_APOSTROPHE: Final = re.compile("(?<=\\w)['\u2019\u02bc](?=\\w)")
# Accents, and the vowels and points that Hebrew and Arabic write or leave out; hamza and madda stay.
_ACCENTS: Final = re.compile(
    "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0610-\u061a\u0640\u064b-\u0652\u0656-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed]"
)
# They shape letters of the same word.
_JOINERS: Final = re.compile("(?<=[\u0900-\u0dff])[\u200c\u200d]")
_PART: Final = re.compile("[0-9]+|[^0-9]+")
_LONGEST: Final = 64
STOP_WORDS: Final = frozenset(
    """
    a about after again ah all also am an and any are arent as at be because been before being but
    by can cant could couldnt did didnt do does doesnt doing done dont down er ever for from get
    gets getting go going gone gonna got had has hasnt have havent having he hed hello her here hers
    hey hi him his hmm how hows i id if ill im in into is isnt it its itself ive just know let lets
    like made make me mine mm more most much my myself no nor not now of off oh ok okay on once one
    only or other our ours out over own please really remember said say says shall she should so
    some something such sure tell tells than thank thanks that thats the their them then there
    theres these they theyre thing things think this those to told too uh uhm um up us very want was
    wasnt we well were weve what whats when where which while who whom whos why will with wont would
    yeah yes you youd youll your youre yours youve
    """.split()  # noqa: SIM905 - a table reads best as text
)
"""Words of English that tell one turn from another in hardly any talk."""


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


_IS_UNSPACED: Final = re.compile(f"[{_UNSPACED}]")


_LETTER: Final = f"[^\\W_{_UNSPACED}]"


_RUN: Final = re.compile(f"[{_UNSPACED}]+|{_LETTER}+(?:[{_MARKS}]+{_LETTER}*)*")


class Lexicon:
    """Terms of the index: stems under a prefix that is their owner's alone.

    So nobody's words are ever looked up among another's. With ``keys``, newest first, a term is an HMAC, and
    the index tells nothing but which turns of one owner share a word.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = keys
        self._stemmer = Stemmer()

    @property
    def key(self) -> bytes:
        """The newest key; empty where there is none."""
        return self._keys[0] if self._keys else b""

    def stems(self, text: str) -> list[str]:
        """The stems of a text in order, without stop words."""
        return self._stemmer.stems(word for word in words(text) if word not in STOP_WORDS)

    def spellings(self, question: str) -> dict[str, list[str]]:
        """The stems of a question in order, each with those of other ways to spell it.

        Speech recognition writes compounds and numbers as one word or as several.
        """
        ways: dict[str, list[str]] = {}
        for word, others in _spelt(list(words(question))).items():
            stem, *more = self._stemmer.stems([word, *others])
            ways[stem] = list(dict.fromkeys([*ways.get(stem, ()), *more]))
        return ways

    def terms(self, whose: Owner, text: str) -> str:
        """What stands in the index for a text, by spaces."""
        sealed = _sealer(whose, self._keys[0] if self._keys else None)
        return " ".join(map(sealed, self.stems(text)))

    def query_terms(self, whose: Owner, ways: Iterable[Iterable[str]]) -> list[tuple[str, ...]]:
        """For the stems of each word the terms that may stand for it: one for each stem and key."""
        sealers = [_sealer(whose, key) for key in self._keys or (None,)]
        return [tuple(sealed(stem) for stem in stems for sealed in sealers) for stems in ways]


class _sealer:  # noqa: N801 - a function with what it needs drawn once
    def __init__(self, whose: Owner, key: bytes | None) -> None:
        tenant = whose.tenant.encode("utf-8", "surrogatepass")
        owner = len(tenant).to_bytes(8, "big") + tenant + whose.user.encode("utf-8", "surrogatepass")
        self._prefix = hashlib.blake2b(owner, digest_size=5).hexdigest()
        self._key = key and hmac.digest(key, b"owner\0" + owner, "sha256")

    def __call__(self, stem: str) -> str:
        if self._key is None:
            return f"{self._prefix}{stem}"
        return hmac.digest(self._key, stem.encode("utf-8", "surrogatepass"), "sha256")[:10].hex()


def _spelt(asked: Sequence[str]) -> dict[str, list[str]]:
    """The telling words of a question, each with what else may be written for it."""
    ways: dict[str, list[str]] = {word: _parts(word) for word in asked if word not in STOP_WORDS}
    for pair in pairwise(asked):
        whole, telling = "".join(pair), [word for word in pair if word in ways]
        if (len(telling) == len(pair) or any(map(_DIGIT.search, telling))) and not _IS_UNSPACED.search(whole):
            for word in telling:
                ways[word].append(whole[:_LONGEST])
    return ways


def _parts(word: str) -> list[str]:
    """Letters and digits of a word that has both, as far as they tell anything."""
    parts = _PART.findall(word) if _DIGIT.search(word) else []
    return [part for part in parts if 1 < len(part) < len(word)]


def words(text: str) -> Iterator[str]:
    """The words of a text: folded, without accents; of scripts without spaces, each two neighbours."""
    folded = _folded(text)
    for run in (_PLAIN if folded.isascii() else _RUN).findall(folded):
        if not _IS_UNSPACED.match(run):
            yield run[:_LONGEST]
        elif len(run) == 1:
            yield run
        else:
            yield from (one + other for one, other in pairwise(run))


def _folded(text: str) -> str:
    if text.isascii():
        return _APOSTROPHE.sub("", text).lower()
    whole = _JOINERS.sub("", _APOSTROPHE.sub("", text))
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", whole))
    return unicodedata.normalize("NFKC", plain).casefold()
