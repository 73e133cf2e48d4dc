"""A client's window as memory may see it, and the way back to the client's own words."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from filters.letters import bare
from filters.message import Covered, Message, as_covered
from filters.text.personal import Sensitive
from proxy.memory.align.alignment import Alignment
from proxy.memory.redaction.redaction import NO_REDACTION, Redaction
from proxy.memory.session import Session
from proxy.memory.wording import continues, offset_of_letters, same_words

BROKEN: Final = ""
"""The kind of what a stream that broke off may have begun."""
TELLING: Final = re.compile("[0-9].*[0-9].*[0-9].*[0-9]|@", re.DOTALL)
"""What fewer than four digits are not: half a number. They are a table's, or a time."""
_NUMBERS: Final = frozenset({"card", "iban", "ip", "phone"})
_NUMBER: Final = re.compile("[0-9]")
_BEFORE: Final = re.compile(r"^\W+")
_COUNTRY: Final = 2
_DOTTED: Final = ".… "
_WORD: Final = re.compile(r"\S+")
_MOST_SPLITS: Final = 40
_NEWEST: Final = 4
_DOTS: Final = ("...", "…")


class Split(NamedTuple):
    """A text with marks, its letters, and how many of these no more text can change."""

    text: str
    letters: str
    settled: int


def split(settled: str, half: str) -> Split:
    """A text whose end is not settled."""
    return Split(settled + half, bare(settled + half), len(bare(settled)))


class Prefix(NamedTuple):
    """What somebody said up to a find, its letters, and of which kind the find is."""

    role: str
    text: str
    letters: str
    kind: str

    def of(self, text: str) -> str:
        """As much of a text as says this."""
        return (
            self.text
            if text.startswith(self.text)
            else text[: offset_of_letters(text, len(self.letters))].rstrip()
        )

    def is_cut(self, said: Split, begun: Sensitive) -> bool:
        """Whether a text says just this, and then half of what is ``begun`` so."""
        count = len(self.letters)
        if not (said.settled <= count < len(said.letters) and said.letters.startswith(self.letters)):
            return False
        rest = _BEFORE.sub("", said.text[offset_of_letters(said.text, count) :])
        if self.kind == BROKEN:
            return bool(TELLING.search(rest))
        if self.kind not in _NUMBERS:
            return len(rest.split()) == 1
        is_half = bool(_NUMBER.search(rest)) or (self.kind == "iban" and len(rest) <= _COUNTRY)
        return is_half and begun.settled(rest) == 0


def prefix(role: str, text: str, kind: str) -> Prefix:
    """What somebody said up to a find."""
    return Prefix(role, text.rstrip(), bare(text), kind)


class PartialMatches:
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

    def _shown(self, session: Session, openings: Sequence[Prefix], own: Message, line: Message) -> Message:
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

    def _cuts(self, possible: Sequence[Prefix], own: str, marked: str) -> Iterator[tuple[Prefix, Split]]:
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

    def _openings(self, session: Session, lines: Sequence[Message]) -> Iterator[Prefix]:
        """Where the window may have cut what is held, which it does not show as a whole."""
        told = [e for e in (*session.entries, *session.unheard) if e.broken or self._mark.search(e.generated)]
        shown = {(line.role, bare(line.text)) for line in lines} if told else set()
        for entry in told:
            if (entry.role, bare(entry.generated)) in shown and not entry.broken:
                continue
            if entry.broken:
                yield prefix(entry.role, entry.text, BROKEN)
            for one in self._before_marks(entry.role, entry.generated):
                if entry.original is None or one.letters == bare(entry.text):
                    yield one

    def _before_marks(self, role: str, text: str) -> Iterator[Prefix]:
        for mark in self._mark.finditer(text):
            yield prefix(role, text[: mark.start()], self._kinds[mark[0]])


def _is_held(line: Message, held: Collection[str]) -> bool:
    return isinstance(line.content, str) and line.content in held


def _is_whole(session: Session, line: Message) -> bool:
    """Whether a line is known as what it says."""
    said = [entry for entry in (*session.entries, *session.unheard) if entry.role == line.role]
    return any(same_words(entry.text, line.text) or continues(entry.generated, line.text) for entry in said)


class RedactedView(NamedTuple):
    """A window with marks; ``own`` are the client's messages that it has otherwise.

    They are found by the ``others`` of a message, which what memory makes of it shares with it.
    """

    window: Sequence[Message]
    own: Mapping[int, Message] = {}

    def original(self, line: Message) -> Message:
        """A line of the window, be it in the form in which it is held, as the client gave it."""
        own = self.own.get(id(line.others))
        return line if own is None else own

    def originals_by_place(self, replay: Alignment) -> dict[int, Message]:
        """What the client gave, by where it is held, of what memory holds as the window has it."""
        if not self.own:
            return {}
        lines = ((line, place) for line, place in zip(replay.lines, replay.places, strict=True) if place >= 0)
        alike = ((line, place) for line, place in lines if replay.entries[place].content == line.content)
        return {place: own for line, place in alike if (own := self.own.get(id(line.others))) is not None}

    def restore(self, kept: Sequence[Message], shown: Sequence[Message]) -> Sequence[Message]:
        """What memory ``shown`` makes of the lines that were ``kept``, in the client's words."""
        if not self.own:
            return shown
        return [self._unveiled(*pair) for pair in zip(kept, shown, strict=True)]

    def _unveiled(self, line: Message, shown: Message) -> Message:
        own = self.own.get(id(line.others))
        if own is None:
            return shown
        if shown.interrupted and not line.interrupted:
            own = _cut(own, shown)
        return as_covered(own) if isinstance(shown, Covered) else own


class WindowRedaction:
    """Lays marks over what a client shows."""

    def __init__(self, redaction: Redaction = NO_REDACTION) -> None:
        self.redaction = redaction

    @cached_property
    def _halves(self) -> PartialMatches:
        return PartialMatches(self.redaction)

    def window(self, window: Sequence[Message]) -> Sequence[Message]:
        """A window as memory may see it, whatever is held; the very same where nothing is found."""
        lines = [self.redaction.message(message) for message in window] if self.redaction else window
        return window if all(new is old for new, old in zip(lines, window, strict=True)) else lines

    def view(self, session: Session, window: Sequence[Message]) -> tuple[Session, RedactedView]:
        """What is held and a window, so that one can be laid beside the other."""
        if not self.redaction:
            return session, RedactedView(window)
        session, lines = self.redaction.session(session), self.window(window)
        held = self._halves.held(session, window, lines) if lines is not window else session
        shown = self._halves.shown(held, window, lines)
        if shown is window:
            return held, RedactedView(window)
        changed = {i for i, line in enumerate(shown) if line is not window[i]}
        # Its own others each: what memory makes of it is known again by them.
        veiled = [_alone(line) if i in changed else line for i, line in enumerate(shown)]
        return held, RedactedView(veiled, {id(veiled[i].others): window[i] for i in changed})

    def without_partial_match(self, text: str) -> str:
        """An answer whose stream broke off, less half of what must not be stored."""
        return self._halves.broken(text) if self.redaction else text


UNREDACTED: Final = WindowRedaction()
"""What hides nothing."""


def _alone(line: Message) -> Message:
    return msgspec.structs.replace(line, others={**line.others})


def _cut(own: Message, shown: Message) -> Message:
    """The client's message, marked as memory marks it: an answer that was not heard to its end."""
    words, heard, original = own.content, shown.content, shown.original
    if isinstance(words, str) and isinstance(heard, str):
        words = words if heard.endswith(_DOTS) else words.rstrip(_DOTTED)
        if original is not None and original.startswith(heard):
            original = words + original[len(heard) :]
    told = own.metadata if isinstance(own.metadata, dict) else {}
    marks = {**told, "interrupted": True, "original": original}
    return msgspec.structs.replace(own, content=words, metadata=marks)
