"""From words to the terms of the index: folding, stemming, and a prefix or an HMAC for each owner."""

import hashlib
import hmac
import re
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, pairwise, starmap
from typing import Final

import Stemmer

from proxy.memory.archive.languages import (
    COMPOUNDING,
    ENGLISH,
    FUNCTION_CHARACTERS,
    FUNCTION_WORDS,
    LEMMAS,
    STEMMED,
    STOP_WORDS,
    language,
    script,
    synonyms,
    without_courtesies,
)
from proxy.memory.archive.numbers import number_runs
from proxy.memory.stores.store import Owner

GUESS: Final = 0.5
"""Terms of less weight are looked for where no other term of their word is found."""

_MAX_CACHED: Final = 20_000
_MAX_OWNERS: Final = 100
_MAX_GROUPS: Final = 4000
_MAX_WORD: Final = 64
_DIGIT: Final = re.compile("[0-9]")
# How much a term is worth that the question does not have: in another language's endings, a synonym, the end
# of a compound, and what a word may have in common with one that is mistyped.
_OTHER_STEM: Final = 0.95
_SYNONYM: Final = 0.7
_COMPOUND: Final = 0.6
_MISTYPED: Final = 0.4
_LONG_WORD: Final = 8
_SHORTEST_SLIP: Final = 5
_LONG_COMPOUND: Final = 9
_SHORTEST_PART: Final = 4
_MOST_PARTS: Final = 8
# What may stand before the end of a compound, and how that may begin.
_PART: Final = re.compile(
    "(?=(?:sch[lmnrw]?|str?|sp[lr]?|[bfgkp][lr]|kn|pf[lr]?|[dt]r|zw|qu|(?<!s)ch|(?<!c)h|[bdfgjklmnprstvwz])[aeiouy]"
    "|(?<=[^aeiou])(?:abend|abteil|adress|amt|anfrag|angebot|antrag|anzug|apfel|arbeit|arzt|art|aufgab|auftrag"
    "|ausweis|auto|ecke|ei|eis|ende|essen|insel|insul|ofen|onkel|ordn|ort|uhr|unfall|unterricht|urlaub|urteil))"
)
_ENDINGS: Final = frozenset(
    """
    ation barkeit bung chen dung erung gung heit ierung igkeit igung ikeit isch ische keit lein lich lung nung
    rung schaft sung tion tung ung zung
    """.split()  # noqa: SIM905 - a table reads best as text
)

# Chinese characters, kana, Hangul, Thai to Myanmar, Khmer: words are not separated by spaces, or take many
# endings, so that each two neighbours count as a word.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
_IS_UNSPACED: Final = re.compile(f"[{_UNSPACED}]")
# What is a word by itself though it stands between others: a Chinese character, and the first syllable of
# Korean words, which particles follow.
_SINGLE: Final = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]|(?<![\uac00-\ud7af])[\uac00-\ud7af](?=[\uac00-\ud7af])"
)
_HIRAGANA: Final = re.compile("[\u3040-\u309f]+")
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
# Latin-1 with ASCII in lower case, and with a space for all that is no part of a word.
_PLAIN: Final = "".join(
    one.lower() if one.isascii() and one.isalnum() else one if one.isalnum() else " "
    for one in map(chr, range(256))
).encode("latin-1")
# Words of Latin letters, whose code points come before those of the marks.
_LATIN: Final = re.compile("[^\\W_]+")
_BEYOND_LATIN: Final = re.compile("[\u0300-\U0010ffff]")
_APOSTROPHE: Final = re.compile("['\u2019\u02bc](?<=\\w.)(?=\\w)")
# An apostrophe after an article or a pronoun that is joined with its word.
_ELISION: Final = re.compile(
    "['\u2019\u02bc](?:(?<=\\b[cdjlmnst].)|(?<=\\b(?:qu|un).)|(?<=\\ball.)|(?<=\\b(?:dell|nell|sull|dall).)"
    "|(?<=\\b(?:jusqu|quest).)|(?<=\\b(?:lorsqu|puisqu).))(?=[aeiouyhàâäéèêëîïôöûü])",
    re.IGNORECASE,
)
# Accents, and the vowels and points that Hebrew and Arabic write or leave out; hamza and madda stay.
_ACCENTS: Final = re.compile(
    "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0610-\u061a\u0640\u064b-\u0652\u0656-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed]"
)
# Joiners only shape letters within a word.
_JOINERS: Final = re.compile("(?<=[\u0900-\u0dff])[\u200c\u200d]")
# An umlaut that is written as a letter and an e.
_DIGRAPH: Final = re.compile("(?<![aeiouq])([aou])e(?=[^aeiou])")
_OTHER_DIGITS: Final = {
    zero + digit: str(digit) for zero in (0x660, 0x6F0, 0x966, 0x9E6, 0xE50) for digit in range(10)
}


class Lexicon:
    """Makes the terms of the index: stems with a prefix for their owner, so that owners share no terms.

    With ``keys``, the newest first, a term is an HMAC, and the index reveals only which texts of an owner
    share a word.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self.key: bytes = keys[0] if keys else b""
        """The newest key; empty without keys."""
        self._keys = keys
        self._stems = Stems()
        self._synonyms = synonyms(partial(self._stems.stem, ENGLISH))
        self._question_word = lru_cache(_MAX_GROUPS)(self._question_word_of)

    def stems(self, text: str) -> list[str]:
        """Returns the stems of a text in order, without stop words, and further forms for its search."""
        spelt = _spelt(text)
        folded = spelt if text.isascii() else [one if one.isascii() else fold(one) for one in spelt]
        tongue = language(folded, text)
        result: list[str] = []
        place = 0
        for run in number_runs(folded):
            result += self._stems.forms(tongue, spelt[place : run.start])
            result += run.spellings
            place = run.end
        result += self._stems.forms(tongue, spelt[place:] if place else spelt)
        if not text.isascii() and _BEYOND_LATIN.search(text):
            single = _SINGLE.findall(unicodedata.normalize("NFKC", text))
            result += [one for one in single if one not in FUNCTION_CHARACTERS]
        return result

    def terms(self, owner: Owner, text: str) -> str:
        """Returns the terms of a text, separated by spaces; of function words alone, one that never matches.

        This term indexes an answer such as "No." as a neighbour of the question before it.
        """
        stems = self.stems(text) or ([""] if _RUN.search(text) else [])
        if self.key:
            return " ".join(map(_term_maker(owner, self.key), stems))
        prefix = _prefix(owner)
        return prefix + f" {prefix}".join(stems) if stems else ""

    def question(self, text: str) -> list[dict[str, float]]:
        """Returns for each word of a question the stems to search for, with a worth of at most 1 each.

        Speech recognition writes compounds as one word or several, and people use other words. Stems with a
        worth below ``GUESS`` are searched for only if the others do not match.
        """
        spelt = _spelt(without_courtesies(text))
        folded = [*map(fold, spelt)]
        tongue = language(folded, text)
        plain = [not (_is_stop(word, tongue) or _IS_UNSPACED.search(word)) for word in folded]
        # Each word with the next; the last has none, and is also at index -1.
        pairs: list[list[str]] = []
        for at, after in pairwise(range(len(spelt))):
            pair = (spelt[at] + spelt[after])[:_MAX_WORD] if plain[at] and plain[after] else ""
            pairs.append([self._stems.stem(name, pair) for name in (tongue, *COMPOUNDING) if pair])
        pairs.append([])
        groups: dict[str, dict[str, float]] = {}
        for at, spellings in _in_order(folded):
            if spellings:
                groups.setdefault(spellings[0], dict.fromkeys(spellings, 1.0))
            elif not _is_stop(folded[at], tongue):
                group = dict(self._question_word(tongue, spelt[at]))
                first = next(iter(group))
                for pair in (*pairs[at - 1], *pairs[at]):
                    group.setdefault(pair, 1.0)
                groups[first] = group | groups.get(first, {})
        # Drops Japanese endings and particles, unless there is nothing else.
        words = [group for first, group in groups.items() if not _HIRAGANA.fullmatch(first)]
        return words or list(groups.values())

    def asks(self, text: str) -> bool:
        """Whether a question with this text has any word to search for."""
        folded = [*map(fold, _spelt(without_courtesies(text)))]
        tongue = language(folded, text)
        return any(spellings or not _is_stop(folded[at], tongue) for at, spellings in _in_order(folded))

    def _question_word_of(self, tongue: str, word: str) -> dict[str, float]:
        """Returns the stems of one word with their worth."""
        stems = self._stems
        first = stems.stem(tongue, word)
        group = {first: 1.0}
        for name in (ENGLISH, *FUNCTION_WORDS):
            group.setdefault(stems.stem(name, word), _OTHER_STEM)
        if tongue == ENGLISH:
            for synonym in self._synonyms.get(first, ()):
                group.setdefault(synonym, _SYNONYM)
        folded = fold(word)
        if tongue in COMPOUNDING:
            # "Wo wohne ich?", and a fact says of the user: "Wohnt in Bonn."
            other = first.removesuffix("t") if first.endswith("t") else f"{first}t"
            group.setdefault(other, _OTHER_STEM)
            for part in _compound_ends(first, len(folded)):
                group.setdefault(part, _COMPOUND)
        # The halves without a typing error, where there is one: a letter less or more, or two letters, one in
        # each half, that changed places.
        length, middle = len(folded), len(folded) // 2
        swapped = f"{folded[: middle - 1]}{folded[middle - 1 : middle + 1][::-1]}{folded[middle + 1 :]}"
        spellings = ((folded, length - 1), (folded, length), (folded, length + 1), (swapped, length))
        for part in chain.from_iterable(starmap(_halves, spellings)):
            group.setdefault(part, _MISTYPED)
        # Of two characters one of which is a particle, the other, which is a word by itself.
        telling = [one for one in word if one not in FUNCTION_CHARACTERS and not _HIRAGANA.match(one)]
        if len(telling) == 1 < len(word) and _SINGLE.fullmatch(telling[0]):
            group.setdefault(telling[0], _MISTYPED)
        for slip in _slips(folded):
            group.setdefault(stems.stem(tongue, slip), _MISTYPED)
        return group

    def query_terms(self, owner: Owner, groups: Iterable[Mapping[str, float]]) -> list[dict[str, float]]:
        """Returns for each group of stems the terms for all keys, with the stem's worth."""
        makers = [_term_maker(owner, key) for key in self._keys or (None,)]
        return [{make(stem): worth for stem, worth in stems.items() for make in makers} for stems in groups]


class Stems:
    """Snowball's stemmers with a cache. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Without their own cache, which would also have words with digits.
        self._stemmers = {name: Stemmer.Stemmer(name, 0) for name in STEMMED}
        self._stem = lru_cache(_MAX_CACHED)(self._stem_of)
        # A dictionary for speed: ``lru_cache`` takes three times as long per archived word.
        self._forms: dict[str, dict[str, tuple[str, ...]]] = {}

    def stem(self, tongue: str, word: str) -> str:
        """Returns the folded stem of a word; ``tongue`` is the language of words in Latin letters."""
        return fold(word) if _DIGIT.search(word) else self._stem(tongue, word)

    def _stem_of(self, tongue: str, word: str) -> str:
        name = script(word)
        if name is None:
            return fold(word)
        if name == "":
            name = tongue if tongue in FUNCTION_WORDS else ENGLISH
            # English, as others write it, has no accents; Turkish capitals do not tell its two letters I.
            word = fold(word) if name == ENGLISH else word.replace("\u0131", "i")
            if name == ENGLISH:
                word = LEMMAS.get(word, word)
        with self._lock:
            stem = self._stemmers[name].stemWord(word)
        if name == ENGLISH:
            stem = LEMMAS.get(stem, stem)
        return _DIGRAPH.sub(r"\1", fold(stem)) or fold(word)

    def forms(self, tongue: str, words: Iterable[str]) -> list[str]:
        """Returns the stems, ends of compounds, and halves of words, without stop words."""
        cache = self._forms.setdefault(tongue, {})
        all_forms: list[str] = []
        for word in words:
            forms = cache.get(word)
            if forms is None:
                forms, folded = (), fold(word)
                if not _is_stop(folded, tongue):
                    stem = self.stem(tongue, word)
                    ends = _compound_ends(stem, len(folded)) if tongue in COMPOUNDING else ()
                    forms = (stem, *ends, *_halves(folded, len(folded)))
                if len(cache) > _MAX_CACHED:
                    cache.clear()
                cache[word] = forms
            all_forms += forms
        return all_forms


def _in_order(folded: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields each word's place, with the spellings of a number that begins there; skips its other words."""
    place = 0
    for run in number_runs(folded):
        yield from ((at, ()) for at in range(place, run.start))
        yield run.start, run.spellings
        place = run.end
    yield from ((at, ()) for at in range(place, len(folded)))


def _is_stop(word: str, tongue: str) -> bool:
    return word in STOP_WORDS or word in FUNCTION_WORDS.get(tongue, ()) or word in FUNCTION_CHARACTERS


def _compound_ends(stem: str, length: int) -> tuple[str, ...]:
    """Returns the ends of a word of ``length`` letters that may be words, the longest first."""
    if length < _LONG_COMPOUND or not stem.isascii():
        return ()
    ends = (stem[match.start() :] for match in _PART.finditer(stem, 3))
    return tuple(end for end in ends if len(end) >= _SHORTEST_PART and end not in _ENDINGS)[:_MOST_PARTS]


def _halves(word: str, length: int) -> tuple[str, ...]:
    """Returns the halves of a long word, or those of a misspelling of a word of another ``length``.

    One typing error changes only one half of a word.
    """
    if length < _LONG_WORD or _IS_UNSPACED.match(word):
        return ()
    half = length // 2
    return (f"zx{length}{word[:half]}", f"zy{length}{word[half - length :]}")


def _slips(word: str) -> Iterator[str]:
    """Yields corrections of a word too short for halves: swapped letters, and doubled or single ones.

    Other corrections of short words are too often other words.
    """
    if not (_SHORTEST_SLIP <= len(word) < _LONG_WORD) or _IS_UNSPACED.match(word):
        return
    for at, (one, other) in enumerate(pairwise(word)):
        yield word[:at] + (other + one if other != one else one) + word[at + 2 :]
    yield from (word[:at] + word[at - 1 :] for at in range(1, len(word) + 1))


def words(text: str) -> Iterator[str]:
    """Yields the words of a text, case-folded, without accents; in scripts without spaces, letter pairs."""
    return map(fold, _spelt(text))


def fold(word: str) -> str:
    """Returns a word without accents."""
    return word if word.isascii() else _without_accents(word)


@lru_cache(_MAX_CACHED)
def _without_accents(word: str) -> str:
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", word)).replace("\u0131", "i")
    return unicodedata.normalize("NFKC", plain).casefold()


def _spelt(text: str) -> list[str]:
    """Returns the words of a text, case-folded, with accents of Latin, Greek and Cyrillic letters."""
    if "'" in text or "\u2019" in text or "\u02bc" in text:
        text = _APOSTROPHE.sub("", _ELISION.sub(" ", text))
    if "\u200c" in text or "\u200d" in text:
        text = _JOINERS.sub("", text)
    folded = text
    if not text.isascii():
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", text).casefold())
    try:
        words = folded.encode("latin-1").translate(_PLAIN).decode("latin-1").split()
    except UnicodeEncodeError:
        words = _spelt_beyond(folded)
    return [word[:_MAX_WORD] for word in words] if max(map(len, words), default=0) > _MAX_WORD else words


def _spelt_beyond(folded: str) -> list[str]:
    """Returns the words of a text with letters beyond Latin-1."""
    if not _BEYOND_LATIN.search(folded):
        return _LATIN.findall(folded)
    words: list[str] = []
    for run in _RUN.findall(_ACCENTS.sub("", folded.translate(_OTHER_DIGITS))):
        if len(run) == 1 or not _IS_UNSPACED.match(run):
            words.append(run)
        else:
            words += [one + other for one, other in pairwise(run)]
    return words


def _term_maker(owner: Owner, key: bytes | None) -> Callable[[str], str]:
    """Returns a function from an owner's stem to its term."""
    if key is None:
        return _prefix(owner).__add__
    own_key = hmac.digest(key, b"owner\0" + _owner_name(owner), "sha256")
    return lambda stem: hmac.digest(own_key, stem.encode("utf-8", "surrogatepass"), "sha256")[:10].hex()


@lru_cache(_MAX_OWNERS)
def _prefix(owner: Owner) -> str:
    """Returns the prefix of an owner's terms without keys."""
    return hashlib.blake2b(_owner_name(owner), digest_size=5).hexdigest()


def _owner_name(owner: Owner) -> bytes:
    tenant = owner.tenant.encode("utf-8", "surrogatepass")
    return len(tenant).to_bytes(8, "big") + tenant + owner.user.encode("utf-8", "surrogatepass")
