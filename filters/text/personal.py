"""Finds personal data by kind in whole texts, and replaces it while text streams."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from ipaddress import AddressValueError, IPv6Address
from itertools import islice
from string import ascii_letters, digits, hexdigits
from typing import Literal

import msgspec

from filters.text.pattern import Bounded

Kind = Literal["email", "iban", "card", "ip", "phone"]
Hit = tuple[int, int, str]
"""The start, the end and the kind of a match."""
_ALONE = r"(?<![A-Za-z0-9_])"
_LATIN = "".join(map(chr, range(0xC0, 0x250)))
_LOCAL = r"A-Za-z0-9À-ɏ._%+'-"
_LABEL = r"A-Za-z0-9À-ɏ-"
_GAP = r"[ ./()-]{0,2}"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV6 = r"(?<![A-Za-z0-9_:.])[0-9A-Fa-f:][0-9A-Fa-f:.]{5,44}(?![A-Za-z0-9_:])"
_DATE = re.compile(
    r"(?<![0-9])(?:[0-3]?[0-9][ ./-]{1,2}[01]?[0-9][ ./-]{1,2}(?:19|20)[0-9]{2}"
    r"|(?:19|20)[0-9]{2}[./-][01]?[0-9][./-][0-3]?[0-9])(?![0-9])"
)
_THREE_HEX_DIGITS = re.compile(r"[0-9A-Fa-f]{3}")
_MIN_DIGITS_OF_AN_IBAN = 10
_LENGTHS_OF_IBANS = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FK FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "AO CV GW LY MZ PT ST",
        26: "DZ IR IS TR",
        27: "BI BL CF CG CM DJ FR GA GF GP GQ GR IT KM MC MF MG MQ MR NC PF PM RE SM TD TF WF YT",
        28: "AL AZ BF BJ BY CI CY DO GT HN HU LB MA ML NE NI PL SN SV TG",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}
_AS_DIGITS = {code: str(int(chr(code), 36)) for code in map(ord, ascii_letters)}
# Numbers must have a length that goes with their first digits: Luhn's check alone passes one number in ten.
_CARD_NUMBER = re.compile(
    r"[2-6][0-9]{15}|3[47][0-9]{13}|3[0689][0-9]{12}|4[0-9]{12}|(?:[46][0-9]|5[06-8]|35)[0-9]{15,17}"
)
_MIN_DIGITS_OF_A_CARD = 13
_LONGEST_IBAN = 67
_ALPHANUMERIC = frozenset(ascii_letters + digits)
_AS_VALUES = {ord(digit): int(digit) for digit in digits}
_DOUBLED = bytes.maketrans(bytes(range(10)), bytes((0, 2, 4, 6, 8, 1, 3, 5, 7, 9)))
_WITHOUT_SEPARATORS = str.maketrans("", "", " -")
_NO_SIGN = ("", 0)
_DIGIT = re.compile("[0-9]")
_DIGITS = re.compile("[0-9]+")
_MOST_BEFORE_A_DIGIT = 45
# A match may depend on the next characters, such as one more octet or digit.
_LOOKED_AHEAD = 2
_LOOKED_BACK_AT = 2
_PIECE = 32_768
_EMAIL = rf"(?<![{_LOCAL}])[{_LOCAL}]{{1,64}}@(?:[{_LABEL}]{{1,63}}\.){{1,5}}[A-Za-zÀ-ɏ][{_LABEL}]{{1,62}}"
_IBAN = rf"{_ALONE}[A-Za-z]{{2}}[0-9]{{2}}(?:[ -]?[A-Za-z0-9]){{11,30}}"
_IBAN_BEGUN = rf"{_ALONE}[A-Za-z](?:\Z|[A-Za-z](?:\Z|[0-9](?:\Z|[0-9](?:[ -]?[A-Za-z0-9])*[ -]?\Z)))"
_CARD = rf"{_ALONE}[2-6](?:[ -]?[0-9]){{12,18}}"
_IPV4 = rf"(?<![A-Za-z0-9_.])(?:{_OCTET}\.){{3}}{_OCTET}(?![A-Za-z0-9_]|\.[0-9])"
_PHONE = (
    r"(?<![A-Za-z0-9_#=/+-])(?<![0-9][.,:])(?:"
    rf"\+[1-9](?:{_GAP}[0-9]){{7,14}}"  # +49 (0) 170 1234567
    rf"|00[1-9](?:{_GAP}[0-9]){{7,14}}"  # 0049 170 1234567
    rf"|\(0[1-9][0-9]{{0,4}}\)(?:{_GAP}[0-9]){{5,9}}"  # (030) 1234567
    rf"|0[1-9](?:{_GAP}[0-9]){{7,10}}"  # 0170/1234567, 01 23 45 67 89, 090-1234-5678
    r"|(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[ .-][0-9]{4}"  # (212) 555-0123
    r"|\([1-9][0-9]{1,4}\) ?[0-9]{3,5}[ .-]?[0-9]{4}"  # (11) 91234-5678
    r"|1[3-9][0-9][ -]?[0-9]{4}[ -]?[0-9]{4}"  # 138 1234 5678
    r")(?![A-Za-z0-9_])"
)
_BEGUN_IBAN = re.compile(_IBAN_BEGUN)


class Shape(msgspec.Struct, frozen=True):
    """One form of a kind.

    ``longest`` is the largest length of a match, in characters. ``begun`` returns the start of an unfinished
    match at the end of a text. ``end`` returns the end of the match in a candidate, or 0 for no match.
    ``sign`` is a text, and how often it must occur for any match.
    """

    kind: Kind
    sign: tuple[str, int]
    candidate: re.Pattern[str]
    longest: int
    begun: Callable[[str], int]
    end: Callable[[re.Match[str]], int] = re.Match.end

    def hits(self, text: str, start: int) -> Iterator[Hit]:
        """Yields the matches from ``start`` on, in order; the patterns look back at the text before it."""
        if self.sign[1] and text.count(self.sign[0]) < self.sign[1]:
            return
        while start < len(text):
            # A search blocks other threads, so a long text is searched in pieces.
            stop = start + _PIECE
            candidate = self.candidate.search(text, start, stop + self.longest + _LOOKED_AHEAD)
            if candidate is None or candidate.start() >= stop:
                start = stop
                continue
            end = self.end(candidate)
            if end:
                yield candidate.start(), end, self.kind
            start = end or candidate.start() + 1


def _trailing(alphabet: str, never_first: str = "") -> Callable[[str], int]:
    """Returns a function for the start of the trailing characters of a text that are in ``alphabet``.

    These do not begin with a character of ``never_first``.
    """

    def begun(text: str) -> int:
        run = text[len(text.rstrip(alphabet)) :]
        return len(text) - len(run.lstrip(never_first))

    return begun


def _iban_begun(text: str) -> int:
    match = _BEGUN_IBAN.search(text, max(0, len(text) - _LONGEST_IBAN - 1))
    return match.start() if match else len(text)


def _end_of_iban(candidate: re.Match[str]) -> int:
    """Returns the end of an IBAN, or 0: words may follow it, and its length depends on the country."""
    written = candidate.group()
    length = _LENGTHS_OF_IBANS.get(written[:2].upper(), 0)
    iban = written.translate(_WITHOUT_SEPARATORS)[:length]
    if not length or len(iban) < length or int((iban[4:] + iban[:4]).translate(_AS_DIGITS)) % 97 != 1:
        return 0
    if sum(map(str.isdigit, iban)) < _MIN_DIGITS_OF_AN_IBAN:
        return 0
    places = (place for place, c in enumerate(written, candidate.start() + 1) if c in _ALPHANUMERIC)
    end = next(islice(places, length - 1, None))
    return 0 if candidate.string[end : end + 1] in _ALPHANUMERIC else end


def _end_of_card(candidate: re.Match[str]) -> int:
    """Returns the end of a card number, or 0: other numbers may follow it, and the check digit decides."""
    text, number, possible = candidate.string, "", list[tuple[str, int]]()
    for group in _DIGITS.finditer(text, candidate.start(), candidate.end()):
        number += group[0]
        end = group.end()
        if len(number) >= _MIN_DIGITS_OF_A_CARD and text[end : end + 1] not in _ALPHANUMERIC:
            possible.append((number, end))
    for number, end in reversed(possible):
        if _CARD_NUMBER.fullmatch(number):
            backwards = number.translate(_AS_VALUES).encode()[::-1]
            if (sum(backwards[::2]) + sum(backwards[1::2].translate(_DOUBLED))) % 10 == 0:
                return end
    return 0


def _end_of_phone(candidate: re.Match[str]) -> int:
    return 0 if _DATE.search(candidate.group()) else candidate.end()


def _end_of_ipv6(candidate: re.Match[str]) -> int:
    """Returns the end of an address, before a full stop; 0 for times and for ``1::2``."""
    address = candidate.group().rstrip(".")
    try:
        IPv6Address(address)
    except AddressValueError:
        return 0
    return candidate.start() + len(address) if _THREE_HEX_DIGITS.search(address) else 0


_SHAPES = (
    Shape("email", ("@", 1), re.compile(_EMAIL), 448, _trailing(ascii_letters + digits + _LATIN + "._%+'-@")),
    Shape("iban", _NO_SIGN, re.compile(_IBAN), _LONGEST_IBAN, _iban_begun, _end_of_iban),
    Shape("card", _NO_SIGN, re.compile(_CARD), 37, _trailing(digits + " -", " -"), _end_of_card),
    Shape("ip", (".", 3), re.compile(_IPV4), 15, _trailing(digits + ".", ".")),
    Shape("ip", (":", 2), re.compile(_IPV6), 45, _trailing(hexdigits + ":."), _end_of_ipv6),
    Shape("phone", _NO_SIGN, re.compile(_PHONE), 48, _trailing(digits + "+ ./()-", " ./)-"), _end_of_phone),
)
"""The forms of all kinds; of two matches with the same start and end, the first form counts."""


class Sensitive:
    """A search for built-in kinds of personal data, and for a user's own patterns by name.

    A match of an own pattern has at most ``max_length`` characters; a longer one is cut, and the search
    continues after it.
    """

    def __init__(
        self, kinds: Collection[Kind], patterns: Mapping[str, str] | None = None, max_length: int = 64
    ) -> None:
        self._shapes = [shape for shape in _SHAPES if shape.kind in kinds]
        self._own = {name: Bounded(pattern, max_length) for name, pattern in (patterns or {}).items()}
        lengths = [shape.longest for shape in self._shapes] + [own.longest for own in self._own.values()]
        self.longest = max(lengths, default=0)
        """The largest length of a match, in characters."""

    def find(self, text: str, start: int = 0) -> list[Hit]:
        """Returns the matches from ``start`` on, in order and without overlaps.

        The patterns look back at the text before ``start``. Of two that overlap, the first one is kept whole
        (the longer one, if both have the same start), and the rest of the other is a match of its own.
        """
        hits: list[Hit] = []
        done = start
        for begin, end, kind in self._hits(text, start):
            if end > done:
                hits.append((max(begin, done), end, kind))
                done = end
        return hits

    def marked(self, text: str, marks: Mapping[str, str], start: int = 0, stop: int | None = None) -> str:
        """Returns a text from ``start`` to ``stop``, with the ``marks`` of their kinds for its matches.

        It is the same object if that is the whole text and there are no matches.
        """
        pieces, done, stop = [], start, len(text) if stop is None else stop
        for begin, end, kind in self.find(text, start):
            if end > stop:
                break
            pieces += [text[done:begin], marks[kind]]
            done = end
        return "".join([*pieces, text[done:stop]]) if pieces else text[start:stop]

    def settled(self, text: str, start: int = 0) -> int:
        """Returns the position up to which the matches from ``start`` on are final, whatever text follows.

        No match spans it. A stream may send everything before it, and must keep two of these characters for
        ``find`` to look back at.
        """
        begun = [max(s.begun(text), len(text) - s.longest - _LOOKED_AHEAD) for s in self._shapes]
        begun += [len(text) - pattern.longest - _LOOKED_AHEAD for pattern in self._own.values()]
        place = max(start, min(begun, default=len(text)))
        while spanning := [begin for begin, end, _ in self._hits(text, start) if begin < place < end]:
            place = min(spanning)
        return place

    def _hits(self, text: str, start: int) -> list[Hit]:
        """Returns all matches in order, also overlapping ones; the longest first of those with one start."""
        # All kinds but e-mail addresses contain a digit, so only these are searched for far from digits.
        digit = _DIGIT.search(text, start)
        numbers = max(start, digit.start() - _MOST_BEFORE_A_DIGIT) if digit else len(text)
        hits: list[Hit] = []
        for shape in self._shapes:
            hits += shape.hits(text, start if shape.kind == "email" else numbers)
        for name, pattern in self._own.items():
            hits += [(begin, end, name) for begin, end in pattern.spans(text, start)]
        return sorted(hits, key=lambda hit: (hit[0], -hit[1]))


class StreamRedaction:
    """Replaces matches by the ``marks`` of their kinds; text that may become a match is held back."""

    def __init__(self, sensitive: Sensitive, marks: Mapping[str, str]) -> None:
        self._sensitive = sensitive
        self._marks = marks
        self._text = ""
        self._start = 0

    def feed(self, text: str) -> str:
        """Returns the text that can no longer change, with marks."""
        self._text += text
        return self._settle(self._sensitive.settled(self._text, self._start))

    def close(self) -> str:
        """Returns the text that was held back, with marks."""
        return self._settle(len(self._text))

    def _settle(self, place: int) -> str:
        """Returns the text up to a position, with marks, and keeps the two characters before it."""
        marked = self._sensitive.marked(self._text, self._marks, self._start, place)
        cut = max(0, place - _LOOKED_BACK_AT)
        self._text, self._start = self._text[cut:], place - cut
        return marked
