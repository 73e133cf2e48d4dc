"""Finds numbers and codes in texts, written or said digit by digit."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

_UNITS: Final = {
    "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen",
    "de": "null eins zwei drei vier funf sechs sieben acht neun zehn elf zwolf dreizehn vierzehn funfzehn"
    " sechzehn siebzehn achtzehn neunzehn",
}
_TENS: Final = {
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
    "de": "zwanzig dreissig vierzig funfzig sechzig siebzig achtzig neunzig",
}
NUMBERS: Final = {name: str(n) for names in _UNITS.values() for n, name in enumerate(names.split())}
"""Folded words for numbers below a hundred in English and German, each with its digits."""
NUMBERS.update({name: str(10 * n) for names in _TENS.values() for n, name in enumerate(names.split(), 2)})
NUMBERS.update(
    {
        f"{'ein' if unit == 'eins' else unit}und{ten}": str(10 * tens + n)
        for tens, ten in enumerate(_TENS["de"].split(), 2)
        for n, unit in enumerate(_UNITS["de"].split()[1:10], 1)
    }
)
NUMBERS.update({"zwo": "2", "fuenf": "5", "zwoelf": "12", "fuenfzehn": "15", "fuenfzig": "50"})
_TEN_WORDS: Final = frozenset(_TENS["en"].split())
# Words for zero, only beside other digits.
_ZEROS: Final = frozenset({"o", "oh"})
_DIGITS: Final = frozenset(NUMBERS) | _ZEROS
_TIMES: Final = {"double": 2, "doppel": 2, "triple": 3}
_WORDS: Final = frozenset(NUMBERS) | frozenset(_TIMES)
# The words between a letter and the word that spells it, by the first of them.
_AS_IN: Final = {"as": ("as", "in")} | {
    word: (word,) for word in ("like", "for", "wie", "comme", "como", "come", "de")
}
_NUMBER: Final = re.compile("\\d+")
_TWO_DIGITS: Final = re.compile("\\d\\D*\\d")
_WITHIN_CODE: Final = re.compile("[0-9]{3,}")
_LONG: Final = 7
_LAST: Final = 4
_LONG_CODE: Final = 4
_MOST: Final = 24


class NumberRun(NamedTuple):
    """Consecutive words that are one number or code, from index ``start`` to before ``end``.

    ``spellings`` are the forms in which it is indexed and searched for.
    """

    start: int
    end: int
    spellings: tuple[str, ...]


def number_runs(words: Sequence[str]) -> Iterator[NumberRun]:
    """Yields the numbers and codes among the folded words of a text."""
    if _DIGITS.isdisjoint(words) and "".join(words).isalpha():  # most texts have none
        return
    end, count = 0, len(words)
    for start, word in enumerate(words):
        # The fast path for nearly all words, which begin no number.
        if start < end or (len(word) > 1 and word.isalpha() and word not in _WORDS):
            continue
        end, tokens, in_words = start, list[str](), False
        while end < count:
            part = words[end]
            if part.isalpha():
                if part == "one":  # alone it is a pronoun
                    is_part = end > start or (end + 1 < count and words[end + 1] in NUMBERS)
                else:
                    is_letter = len(part) == 1 and "a" <= part <= "z"
                    is_part = is_letter or part in _WORDS or (part in _ZEROS and end > start)
                if not is_part:
                    break
                in_words = True
                tokens.append(part)
                end += 1
                if len(part) == 1 and end < count and words[end] in _AS_IN:
                    end += _clearly(words, end - 1)
            elif part.isascii():
                tokens.append(part)
                end += 1
            else:
                break
        parts = _digits(tokens) if in_words else tokens
        if any(map(_NUMBER.search, parts)):
            yield NumberRun(start, end, _spellings(parts))


def _clearly(words: Sequence[str], at: int) -> int:
    """Returns how many words spell the letter at ``at``, as in "B as in Bravo"; 0 if none do."""
    like = _AS_IN[words[at + 1]]
    word = at + 1 + len(like)
    if tuple(words[at + 1 : word]) == like and words[word : word + 1]:
        spoken = words[word]
        if spoken[0] == words[at]:
            return len(like) + 1 + (spoken == "x" and [*words[word + 1 : word + 2]] == ["ray"])
    return 0


def _digits(words: Sequence[str]) -> list[str]:
    """Returns the words with numbers in digits: "double two" as 22, "twenty one" as 21."""
    parts: list[str] = []
    times = 1
    tens = False
    for word in words:
        if word in _TIMES:
            times, tens = _TIMES[word], False
            continue
        digits = "0" if word in _ZEROS and len(words) > 1 else NUMBERS.get(word, word)
        if tens and len(digits) == 1 and digits in "123456789":
            parts[-1] = parts[-1][0] + digits
        else:
            parts.append(digits * times if len(digits) == 1 else digits)
        times, tens = 1, word in _TEN_WORDS
    return parts


def _spellings(parts: Sequence[str]) -> tuple[str, ...]:
    """Returns the spellings of a run: the whole as one number or code, and its parts."""
    whole = "".join(parts)
    if len(parts) == 1 and len(whole) < _LONG and whole.isdecimal():  # the fast path for most
        return (whole,)
    words, alone, text = list[str](), list[str](), ""
    for part in parts:
        is_number = part.isdecimal()
        # Joins consecutive numbers.
        text += part if is_number else " "
        if len(part) > 1:
            (alone if is_number else words).append(part)
    numbers = [*_WITHIN_CODE.findall(" ".join(words)), *text.split(), *alone]
    is_code = len(whole) >= _LONG_CODE and _TWO_DIGITS.search(whole)
    codes = [whole, *words] if is_code and len(parts) > 1 and not whole.isdecimal() else words
    spellings = [code[-_MOST:] for code in codes]
    for number in numbers:
        # Of a long number only its end, which is the same with and without an area code.
        spellings += (number[-_LONG:], number[-_LAST:]) if len(number) >= _LONG else (number,)
    return tuple(dict.fromkeys(spellings))
