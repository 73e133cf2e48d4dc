"""Finds that were cut in the middle: half of one looks like none.

A caller who talks over an answer hears half a number of it, and where one pauses within a number an engine
asks before its end. Laid beside a mark, half a number would be other words than those that were said.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import msgspec

from filters.letters import bare
from filters.message import Message
from proxy.memory.redaction.opening import BROKEN, TELLING, Opening, Split, opening, split
from proxy.memory.redaction.redaction import Redaction
from proxy.memory.session.session import Session
from proxy.memory.speech.wording import goes_on, same

_DOTTED: Final = ".… "
_WORD: Final = re.compile(r"\S+")
_MOST_SPLITS: Final = 40
_NEWEST: Final = 4


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
        return text[:place].rstrip() if TELLING.search(self._redaction.text(text[place:])) else text

    def shown(self, session: Session, own: Sequence[Message], lines: Sequence[Message]) -> Sequence[Message]:
        """A window whose lines end where a find begins that was cut there, as what is held tells.

        ``own`` are the client's, ``lines`` the same with marks.
        """
        openings = [*self._openings(session, lines)]
        if not openings and not any(line.original and self._mark.search(line.original) for line in lines):
            return lines
        # Most lines are just what is held, and nobody looks for more in them.
        held = {e.content for e in session.entries if isinstance(e.content, str)}
        pairs = zip(own, lines, strict=True)
        return [
            line if _is_held(line, held) else self._shown(session, openings, given, line)
            for given, line in pairs
        ]

    def _shown(self, session: Session, openings: Sequence[Opening], own: Message, line: Message) -> Message:
        possible = [one for one in openings if one.role == line.role]
        if line.role == "assistant" and line.original:
            possible += self._before_marks("assistant", line.original)
        if not (possible and isinstance(own.content, str) and isinstance(line.content, str)):
            return line
        cuts = [*self._cuts(possible, own.content.rstrip(_DOTTED), line.content.rstrip(_DOTTED))]
        if not cuts or _is_whole(session, line):
            return line
        longest, said = max(cuts, key=lambda pair: len(pair[0].letters))
        return msgspec.structs.replace(line, content=longest.of(said.text))

    def _cuts(self, possible: Sequence[Opening], own: str, marked: str) -> Iterator[tuple[Opening, Split]]:
        place = self._begun.settled(own)
        first, whole = bare(self._redaction.text(own[:place])), split("", marked)
        likely = [
            one for one in possible if one.letters.startswith(first) or whole.letters.startswith(one.letters)
        ]
        if not likely:
            return
        # Half a find may look like another, and what stands before it like the beginning of a longer one.
        places = [place, *(word.start() for word in _WORD.finditer(own, place))][-_MOST_SPLITS:]
        ways = [whole, *(split(self._redaction.text(own[:at]), own[at:]) for at in places)]
        for one in likely:
            yield from ((one, said) for said in ways if one.is_cut(said, self._begun))

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
                yield opening(entry.role, entry.text, BROKEN)
            for one in self._before_marks(entry.role, entry.generated):
                if entry.original is None or one.letters == bare(entry.text):
                    yield one

    def _before_marks(self, role: str, text: str) -> Iterator[Opening]:
        for mark in self._mark.finditer(text):
            yield opening(role, text[: mark.start()], self._kinds[mark[0]])


def _is_held(line: Message, held: Collection[str]) -> bool:
    return isinstance(line.content, str) and line.content in held


def _is_whole(session: Session, line: Message) -> bool:
    """Whether a line is known as what it says."""
    said = [entry for entry in (*session.entries, *session.unheard) if entry.role == line.role]
    return any(same(entry.text, line.text) or goes_on(entry.generated, line.text) for entry in said)
