"""Finds that were cut in the middle: half of one looks like none.

A caller who talks over an answer hears half a number of it, and where one pauses within a number an engine
asks before its end. Laid beside a mark, half a number would be other words than those that were said.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from filters.letters import bare
from filters.message import Message
from filters.text.sensitive import Sensitive
from proxy.memory.redaction.redaction import Redaction
from proxy.memory.session.session import Session
from proxy.memory.speech.wording import cut, goes_on, same

_DOTTED: Final = ".… "
_NUMBERS: Final = frozenset({"card", "iban", "ip", "phone"})
_BEFORE: Final = re.compile(r"^\W+")
_NUMBER: Final = re.compile("[0-9]")
_TELLING: Final = re.compile("[0-9].*[0-9].*[0-9].*[0-9]|@", re.DOTALL)
"""What is no half of a find for certain: fewer than four digits are a table's number, or a time."""
_NEWEST: Final = 4
_COUNTRY: Final = 2
_BROKEN: Final = ""
"""The kind of what a stream that broke off may have begun."""


class Opening(NamedTuple):
    """What is held up to a find, its letters, and of which kind the find is."""

    role: str
    text: str
    letters: str
    kind: str

    def end(self, text: str) -> str:
        """As much of a text as says this."""
        return self.text if text.startswith(self.text) else text[: cut(text, len(self.letters))].rstrip()

    def is_cut(self, settled: str, half: str, begun: Sensitive) -> bool:
        """Whether a text, whose end is not ``settled``, says just this and half of what is ``begun`` so."""
        text = settled + half
        letters = bare(text)
        if not (len(bare(settled)) <= len(self.letters) < len(letters) and letters.startswith(self.letters)):
            return False
        rest = _BEFORE.sub("", text[cut(text, len(self.letters)) :])
        if self.kind == _BROKEN:
            return bool(_TELLING.search(rest))
        if self.kind not in _NUMBERS:
            return len(rest.split()) == 1
        is_half = bool(_NUMBER.search(rest)) or (self.kind == "iban" and len(rest) <= _COUNTRY)
        return is_half and begun.settled(rest) == 0


class Halves:
    """What a redaction makes of halves."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._mark = re.compile("|".join(map(re.escape, redaction.marks.values())) or "(?!)")
        self._kinds = {mark: kind for kind, mark in redaction.marks.items()}
        self._begun = redaction.shaped

    def broken(self, text: str) -> str:
        """An answer whose stream broke off, less half a find at its end."""
        place = self._begun.settled(text)
        return text[:place].rstrip() if _TELLING.search(self._redaction.text(text[place:])) else text

    def shown(self, session: Session, own: Sequence[Message], lines: Sequence[Message]) -> Sequence[Message]:
        """A window whose lines end where a find begins that was cut there, as what is held tells.

        ``own`` are the client's, ``lines`` the same with marks.
        """
        openings = [*self._openings(session, lines)]
        if not openings and not any(line.original and self._mark.search(line.original) for line in lines):
            return lines
        return [self._shown(session, openings, *pair) for pair in zip(own, lines, strict=True)]

    def _shown(self, session: Session, openings: Sequence[Opening], own: Message, line: Message) -> Message:
        if not isinstance(own.content, str):
            return line
        possible = [one for one in openings if one.role == line.role]
        if line.role == "assistant" and line.original:
            possible += self._before_marks("assistant", line.original)
        if not possible or not isinstance(line.content, str):
            return line
        text = own.content.rstrip(_DOTTED)
        place = self._begun.settled(text)
        # Half a find may look like another, and what stands before it like the beginning of a longer one.
        ways = (self._redaction.text(text[:place]), text[place:]), ("", line.content.rstrip(_DOTTED))
        cuts = [(one, a + b) for one in possible for a, b in ways if one.is_cut(a, b, self._begun)]
        if not cuts or _is_whole(session, line):
            return line
        opening, whole = max(cuts, key=lambda pair: len(pair[0].letters))
        return msgspec.structs.replace(line, content=opening.end(whole))

    def held(self, session: Session, own: Sequence[Message], window: Sequence[Message]) -> Session:
        """A session whose newest words of a user that a window goes on from end where half a find does."""
        entries = list(session.entries)
        newest = [i for i, entry in enumerate(entries) if entry.role == "user"][-_NEWEST:]
        shown = {bare(line.text) for line in window if line.role == "user"}
        changed = False
        for place in newest:
            words = bare(entries[place].text)
            if words and words not in shown and (text := self._gone_on(words, own, window)):
                entries[place] = msgspec.structs.replace(entries[place], content=text)
                changed = True
        return msgspec.structs.replace(session, entries=tuple(entries)) if changed else session

    def _gone_on(self, words: str, own: Sequence[Message], window: Sequence[Message]) -> str | None:
        """What stands for words that end in a find that a line of the window has to its end."""
        for given, line in zip(own, window, strict=True):
            if given is line or given.role != "user" or not isinstance(given.content, str):
                continue
            for begin, end, _ in self._redaction.sensitive.find(given.content):
                before = self._redaction.text(given.content[:begin])
                opening, whole = bare(before), bare(before + given.content[begin:end])
                if len(opening) < len(words) and words.startswith(opening) and whole.startswith(words):
                    return before.rstrip() or line.text
        return None

    def _openings(self, session: Session, lines: Sequence[Message]) -> Iterator[Opening]:
        """Where the window may have cut what is held, which it does not show as a whole."""
        told = [e for e in (*session.entries, *session.unheard) if e.broken or self._mark.search(e.generated)]
        shown = {(line.role, bare(line.text)) for line in lines} if told else set()
        for entry in told:
            if (entry.role, bare(entry.generated)) in shown and not entry.broken:
                continue
            if entry.broken:
                yield _opening(entry.role, entry.text, _BROKEN)
            for opening in self._before_marks(entry.role, entry.generated):
                if entry.original is None or opening.letters == bare(entry.text):
                    yield opening

    def _before_marks(self, role: str, text: str) -> Iterator[Opening]:
        for mark in self._mark.finditer(text):
            yield _opening(role, text[: mark.start()], self._kinds[mark[0]])


def _opening(role: str, text: str, kind: str) -> Opening:
    return Opening(role, text.rstrip(), bare(text), kind)


def _is_whole(session: Session, line: Message) -> bool:
    """Whether a line is known as what it says."""
    said = [entry for entry in (*session.entries, *session.unheard) if entry.role == line.role]
    return any(same(entry.text, line.text) or goes_on(entry.generated, line.text) for entry in said)
