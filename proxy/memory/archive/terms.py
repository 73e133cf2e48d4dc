"""From words to the terms of the index: folding, stemming, and a prefix or an HMAC for each owner."""

import hashlib
import hmac
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from proxy.memory.stores.store import Owner

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
"""English words that hardly distinguish one turn from another."""

_MAX_CACHED: Final = 20_000
_MAX_WORD: Final = 64
_DIGIT: Final = re.compile("[0-9]")
_PART: Final = re.compile("[0-9]+|[^0-9]+")
# The stemmer is part of an index: words that are put into it are read back as terms.
_TABLES: Final = """
CREATE VIRTUAL TABLE words USING fts5(word, tokenize = 'porter ascii');
CREATE VIRTUAL TABLE stems USING fts5vocab(words, 'instance');
"""

# Chinese characters, kana, Hangul, Thai to Myanmar, Khmer: words are not separated by spaces, or take many
# endings, so that each two neighbours count as a word.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
_IS_UNSPACED: Final = re.compile(f"[{_UNSPACED}]")
# Marks that words are written with, and letters between them: to Python's \w, vowels of Hindi or Tibetan
# are no part of a word.
_MARKS: Final = (
    "\u0483-\u0487\u0711-\u07f3\u0816-\u082d\u0859-\u085b\u0900-\u0963\u0981-\u09e3\u09fe-\u0a75\u0a81-\u0ae3"
    "\u0afa-\u0b63\u0b82-\u0bd7\u0c00-\u0c63\u0c81-\u0c83\u0cbc-\u0d4d\u0d57-\u0d63\u0d81-\u0df3"
    "\u0f18-\u0f19\u0f35\u0f37\u0f39\u0f3e-\u0f84\u0f86-\u0fbc\u0fc6\u135d-\u135f\u1712-\u1734\u1752-\u1773"
    "\u180b-\u180d\u180f-\u193b\u1a17-\u1a1b\u1a55-\u1a7f\u1b00-\u1b44\u1b6b-\u1b73\u1b80-\u1bf3\u1c24-\u1c37"
    "\ua802-\ua827\ua880-\ua8c5\ua8e0-\ua8f1\ua8ff-\ua92d\ua947-\ua953\ua980-\ua9c0\ua9e5-\uaa4d\uaa7b-\uaac1"
    "\uaaeb-\uaaef\uabe3-\uabea\U00011000-\U00011046\U00011100-\U00011134"
)
_LETTER: Final = f"[^\\W_{_UNSPACED}]"
_RUN: Final = re.compile(f"[{_UNSPACED}]+|{_LETTER}+(?:[{_MARKS}]+{_LETTER}*)*")
_PLAIN: Final = re.compile("[a-z0-9]+")
_APOSTROPHE: Final = re.compile("(?<=\\w)['\u2019\u02bc](?=\\w)")
# Accents, and the vowels and points that Hebrew and Arabic write or leave out; hamza and madda stay.
_ACCENTS: Final = re.compile(
    "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0610-\u061a\u0640\u064b-\u0652\u0656-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed]"
)
# Joiners shape letters of the same word.
_JOINERS: Final = re.compile("(?<=[\u0900-\u0dff])[\u200c\u200d]")


class Lexicon:
    """Terms of the index: stems behind a prefix of their owner, so that owners share no terms.

    With ``keys``, newest first, a term is an HMAC, and the index reveals nothing but which texts of one owner
    share a word.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self.key: bytes = keys[0] if keys else b""
        """The newest key; empty where there is none."""
        self._keys = keys
        self._stemmer = Stemmer()

    def stems(self, text: str) -> list[str]:
        """The stems of a text in order, without stop words."""
        return self._stemmer.stems([word for word in words(text) if word not in STOP_WORDS])

    def terms(self, owner: Owner, text: str) -> str:
        """The terms of a text, separated by spaces."""
        return " ".join(map(_term_maker(owner, self.key or None), self.stems(text)))

    def spellings(self, question: str) -> dict[str, list[str]]:
        """The stems of a question in order, each with the stems of other spellings.

        Speech recognition writes compounds and numbers as one word or as several.
        """
        sequence = list(words(question))
        spellings: dict[str, list[str]] = {}
        for word in sequence:
            if word not in STOP_WORDS:
                parts = _PART.findall(word) if _DIGIT.search(word) else []
                spellings[word] = [part for part in parts if 1 < len(part) < len(word)]
        for pair in pairwise(sequence):
            compound = "".join(pair)
            content = [word for word in pair if word in spellings]
            if len(content) < len(pair) and not any(map(_DIGIT.search, content)):
                continue
            if not _IS_UNSPACED.search(compound):
                for word in content:
                    spellings[word].append(compound[:_MAX_WORD])
        stems: dict[str, list[str]] = {}
        for word, others in spellings.items():
            stem, *more = self._stemmer.stems([word, *others])
            stems[stem] = list(dict.fromkeys([*stems.get(stem, ()), *more]))
        return stems

    def query_terms(self, owner: Owner, groups: Iterable[Iterable[str]]) -> list[tuple[str, ...]]:
        """For each group of stems its terms: one for each stem and key."""
        makers = [_term_maker(owner, key) for key in self._keys or (None,)]
        return [tuple(make(stem) for stem in stems for make in makers) for stems in groups]


class Stemmer:
    """SQLite's Porter stemmer, for words of lower-case letters and digits, with a cache. Thread-safe.

    Words with a digit are not cached: they hardly come again, and may be numbers of cards and telephones.
    """

    def __init__(self) -> None:
        self._cache: dict[str, str] = {}
        self._lock = threading.Lock()
        self._index = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._index.executescript(_TABLES)

    def stems(self, words: Sequence[str]) -> list[str]:
        """The stem of each word, in order; a word of a script without cases is its own."""
        cache = self._cache
        stems: dict[str, str] = {}
        missing: dict[str, int] = {}
        for word in words:
            stem = cache.get(word)
            if stem is not None:
                stems[word] = stem
            elif word.isascii() and word.isdecimal():
                stems[word] = word
            elif word not in missing:
                missing[word] = len(missing) + 1
        if missing:
            with self._lock:
                rows = [(number, word) for word, number in missing.items()]
                self._index.executemany("INSERT INTO words (rowid, word) VALUES (?, ?)", rows)
                terms = dict(self._index.execute("SELECT doc, term FROM stems").fetchall())
                self._index.execute("DELETE FROM words")
            if len(cache) > _MAX_CACHED:
                self._cache = cache = {}
            for word, number in missing.items():
                stems[word] = terms.get(number, word)
                if not _DIGIT.search(word):
                    cache[word] = stems[word]
        return [stems[word] for word in words]


def words(text: str) -> Iterator[str]:
    """The words of a text, case-folded, without accents; in scripts without spaces, each two neighbours."""
    folded = _APOSTROPHE.sub("", text)
    if text.isascii():
        yield from (run[:_MAX_WORD] for run in _PLAIN.findall(folded.lower()))
        return
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", _JOINERS.sub("", folded)))
    folded = unicodedata.normalize("NFKC", plain).casefold()
    for run in (_PLAIN if folded.isascii() else _RUN).findall(folded):
        if not _IS_UNSPACED.match(run):
            yield run[:_MAX_WORD]
        elif len(run) == 1:
            yield run
        else:
            yield from (one + other for one, other in pairwise(run))


def _term_maker(owner: Owner, key: bytes | None) -> Callable[[str], str]:
    """From an owner's stem to its term."""
    tenant = owner.tenant.encode("utf-8", "surrogatepass")
    name = len(tenant).to_bytes(8, "big") + tenant + owner.user.encode("utf-8", "surrogatepass")
    if key is None:
        prefix = hashlib.blake2b(name, digest_size=5).hexdigest()
        return lambda stem: prefix + stem
    own_key = hmac.digest(key, b"owner\0" + name, "sha256")
    return lambda stem: hmac.digest(own_key, stem.encode("utf-8", "surrogatepass"), "sha256")[:10].hex()
