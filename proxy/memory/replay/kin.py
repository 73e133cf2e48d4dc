"""Which held lines a replayed one may be, found by its words instead of by comparing it with each."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from proxy.memory.replay.line import Key, Line, kinship
from proxy.memory.speech.wording import imprint

_WORD: Final = re.compile(r"\w+")
_START: Final = 4
# So few pairs are compared in less time than it takes to sort the lines by their words.
_FEW: Final = 64

Kin = dict[int, int]
"""By the place of a held line, how sure it is; those that it cannot be are left out."""


def kin_of(window: Sequence[Line], held: Sequence[Line]) -> list[Kin]:
    """For each line of a window its kin."""
    if len(window) * len(held) <= _FEW:
        return [
            {place: sure for place, other in enumerate(held) if (sure := kinship(line, other))}
            for line in window
        ]
    found = _Kinship(held)
    return [found.of(line) for line in window]


class _Kinship:
    """The kin of replayed lines among some that are held; ``kinship`` has the last word on each."""

    def __init__(self, held: Sequence[Line]) -> None:
        self._held = held
        self._known: dict[Key, Kin] = {}
        self._calls: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
        self._any: dict[str, list[int]] = defaultdict(list)
        self._said: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._replaced: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._words: dict[tuple[str, ...], list[int]] = defaultdict(list)
        self._generated: list[tuple[str, int]] = []
        self._lengths: dict[str, set[int]] = defaultdict(set)
        for place, line in enumerate(held):
            self._learn(place, line)
        self._generated.sort()

    def of(self, line: Line) -> Kin:
        """Its kin; of lines that are equal to the letter, worked out once."""
        key = line.key
        found = self._known.get(key)
        if found is None:
            near = {place: kinship(line, self._held[place]) for place in sorted(set(self._near(line)))}
            found = self._known[key] = {place: sure for place, sure in near.items() if sure}
        return found

    def _learn(self, place: int, line: Line) -> None:
        if line.lane == "call":
            self._calls[line.ids].append(place)
            return
        if line.lane not in {"user", "assistant"}:
            self._any[line.lane].append(place)
            return
        if line.replaced is not None:
            self._replaced[line.lane, line.replaced].append(place)
        for text in {line.text, line.generated, line.letters(line.text)}:
            self._said[line.lane, text].append(place)
        if line.lane == "assistant":
            self._learn_answer(place, line)

    def _learn_answer(self, place: int, line: Line) -> None:
        if line.pending:
            self._any[line.lane].append(place)
        self._words[_words(line)].append(place)
        letters = line.letters(line.generated)
        self._generated.append((letters, place))
        self._lengths[letters[:_START]].add(len(letters))

    def _near(self, line: Line) -> Iterator[int]:
        if line.lane == "call":
            yield from self._calls.get(line.ids, ())
            return
        yield from self._any.get(line.lane, ())
        letters = line.letters(line.text)
        if self._replaced:
            yield from self._replaced.get((line.lane, imprint(line.text)), ())
        for text in {line.text, letters}:
            yield from self._said.get((line.lane, text), ())
        if line.lane == "assistant":
            yield from self._words.get(_words(line), ())
            yield from self._beginning(letters)
            for start in range(1, _START + 1):
                for length in self._lengths.get(letters[:start], ()) if start <= len(letters) else ():
                    yield from self._equal(letters[:length])

    def _beginning(self, letters: str) -> Iterator[int]:
        """Answers that begin with these letters."""
        for found, place in self._from(letters):
            if not letters or not found.startswith(letters):
                return
            yield place

    def _equal(self, letters: str) -> Iterator[int]:
        for found, place in self._from(letters):
            if found != letters:
                return
            yield place

    def _from(self, letters: str) -> Iterator[tuple[str, int]]:
        for index in range(bisect_left(self._generated, (letters, -1)), len(self._generated)):
            yield self._generated[index]


def _words(line: Line) -> tuple[str, ...]:
    return tuple(sorted(_WORD.findall(line.text.casefold())))
