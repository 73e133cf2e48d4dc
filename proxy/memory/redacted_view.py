"""Redacted views: a window with marks in place of what must not be stored, and the way back from them.

A number may be cut in the middle: a user interrupts an answer that contains one, or pauses while saying one,
so that the platform sends its first half. Half a number matches no pattern, and would not align with the mark
that replaced the whole. So a view cuts lines where such a match begins.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from filters.letters import bare, offset_of_letters
from filters.message import Covered, Message, as_covered
from filters.text.personal import Sensitive
from proxy.memory.align.alignment import Alignment
from proxy.memory.redaction import NO_REDACTION, Redaction
from proxy.memory.session import Session
from proxy.memory.wording import ELLIPSES, ELLIPSIS_CHARACTERS, continues, same_words

_INTERRUPTED: Final = ""
"""The kind of a possible match at the end of an answer whose stream broke off."""
# Fewer than four digits are a time or a table number rather than half of a sensitive number.
_TELLING: Final = re.compile("[0-9].*[0-9].*[0-9].*[0-9]|@", re.DOTALL)
_NUMBERS: Final = frozenset({"card", "iban", "ip", "phone"})
_BEFORE: Final = re.compile(r"^\W+")
_WORD: Final = re.compile(r"\S+")
_MOST_SPLITS: Final = 40
_NEWEST: Final = 4


class RedactedView(NamedTuple):
    """A window with marks; ``own`` has the client's messages that differ, by position."""

    window: Sequence[Message]
    own: Mapping[int, Message] = {}

    def originals_by_place(self, alignment: Alignment) -> dict[int, Message]:
        """Returns the client's messages by place, for entries with the same text as the redacted window."""
        return {
            place: self.own[position]
            for position, line, place in zip(
                alignment.positions, alignment.lines, alignment.places, strict=True
            )
            if place >= 0 and position in self.own and alignment.entries[place].content == line.content
        }

    def restore(
        self, positions: Sequence[int], lines: Sequence[Message], marked: Sequence[Message]
    ) -> Sequence[Message]:
        """Returns ``marked``, the changed ``lines``, with the client's words in place of the marks."""
        restored = []
        for position, line, message in zip(positions, lines, marked, strict=True):
            own = self.own.get(position)
            if own is None:
                restored.append(message)
                continue
            if message.interrupted and not line.interrupted:
                own = _interrupted(own, message)
            restored.append(as_covered(own) if isinstance(message, Covered) else own)
        return restored


def _interrupted(own: Message, marked: Message) -> Message:
    """Returns the client's answer, interrupted like ``marked``."""
    text, marked_text, original = own.content, marked.content, marked.original
    if isinstance(text, str) and isinstance(marked_text, str):
        text = text if marked_text.endswith(ELLIPSES) else text.rstrip(ELLIPSIS_CHARACTERS)
        if original is not None and original.startswith(marked_text):
            original = text + original[len(marked_text) :]
    marks = {**(own.metadata or {}), "interrupted": True, "original": original}
    return msgspec.structs.replace(own, content=text, metadata=marks)


# --- cut matches


class _Split(NamedTuple):
    """A text with marks, its letters, and how many of these further text cannot change."""

    text: str
    letters: str
    settled: int


class _Prefix(NamedTuple):
    """The text before a match, its letters, and the kind of the match."""

    role: str
    text: str
    letters: str
    kind: str

    def of(self, text: str) -> str:
        """Returns the beginning of a text that equals this prefix."""
        if text.startswith(self.text):
            return self.text
        return text[: offset_of_letters(text, len(self.letters))].rstrip()

    def is_cut(self, split: _Split, shaped: Sensitive) -> bool:
        """Whether a text is this prefix and then half a match."""
        count = len(self.letters)
        if not (split.settled <= count < len(split.letters) and split.letters.startswith(self.letters)):
            return False
        rest = _BEFORE.sub("", split.text[offset_of_letters(split.text, count) :])
        if self.kind == _INTERRUPTED:
            return bool(_TELLING.search(rest))
        if self.kind not in _NUMBERS:
            return len(rest.split()) == 1
        return shaped.settled(rest) == 0


class WindowRedaction:
    """Redacts windows, and sessions for them, by the ``rules`` for stored text."""

    def __init__(self, redaction: Redaction = NO_REDACTION) -> None:
        self.rules = redaction
        self._marks = re.compile("|".join(map(re.escape, redaction.marks.values())) or "(?!)")
        self._kinds = {mark: kind for kind, mark in redaction.marks.items()}

    def window(self, window: Sequence[Message]) -> Sequence[Message]:
        """Returns a window with marks; the same object if nothing matches."""
        if not self.rules.enabled:
            return window
        lines = [self.rules.message(message) for message in window]
        return window if all(new is old for new, old in zip(lines, window, strict=True)) else lines

    def view(self, session: Session, window: Sequence[Message]) -> tuple[Session, RedactedView]:
        """Redacts a session and a window, so that they can be aligned."""
        if not self.rules.enabled:
            return session, RedactedView(window)
        session, lines = self.rules.session(session), self.window(window)
        if lines is not window:
            session = self._cut_session(session, window, lines)
        prefixes = [*self._prefixes(session, lines)]
        if prefixes or any(line.original and self._marks.search(line.original) for line in lines):
            # Lines that are equal to an entry need no search.
            texts = {entry.content for entry in session.entries if isinstance(entry.content, str)}
            lines = [
                line
                if isinstance(line.content, str) and line.content in texts
                else self._cut_line(session, prefixes, message, line)
                for message, line in zip(window, lines, strict=True)
            ]
        own = {i: window[i] for i, line in enumerate(lines) if line is not window[i]}
        return session, RedactedView(lines, own)

    def without_partial_match(self, text: str) -> str:
        """Returns an answer whose stream broke off without half a match at its end."""
        if not self.rules.enabled:
            return text
        place = self.rules.shaped.settled(text)
        return text[:place].rstrip() if _TELLING.search(self.rules.text(text[place:])) else text

    # --- cut matches

    def _prefixes(self, session: Session, lines: Sequence[Message]) -> Iterator[_Prefix]:
        """Yields the prefixes of matches in entries that the window does not show whole."""
        entries = [
            entry
            for entry in (*session.entries, *session.unheard)
            if entry.broken or self._marks.search(entry.generated)
        ]
        shown = {(line.role, bare(line.text)) for line in lines} if entries else set()
        for entry in entries:
            if (entry.role, bare(entry.generated)) in shown and not entry.broken:
                continue
            if entry.broken:
                yield _Prefix(entry.role, entry.text.rstrip(), bare(entry.text), _INTERRUPTED)
            for prefix in self._before_marks(entry.role, entry.generated):
                if entry.original is None or prefix.letters == bare(entry.text):
                    yield prefix

    def _before_marks(self, role: str, text: str) -> Iterator[_Prefix]:
        for mark in self._marks.finditer(text):
            before = text[: mark.start()]
            yield _Prefix(role, before.rstrip(), bare(before), self._kinds[mark[0]])

    def _cut_line(
        self, session: Session, prefixes: Sequence[_Prefix], own: Message, line: Message
    ) -> Message:
        """Returns ``line`` up to a match that was cut, else unchanged; ``own`` is the client's message."""
        possible = [prefix for prefix in prefixes if prefix.role == line.role]
        if line.original:
            possible += self._before_marks(line.role, line.original)
        if not (possible and isinstance(own.content, str) and isinstance(line.content, str)):
            return line
        text, marked = own.content.rstrip(ELLIPSIS_CHARACTERS), line.content.rstrip(ELLIPSIS_CHARACTERS)
        place = self.rules.shaped.settled(text)
        first, whole = bare(self.rules.text(text[:place])), _Split(marked, bare(marked), 0)
        likely = [
            prefix
            for prefix in possible
            if prefix.letters.startswith(first) or whole.letters.startswith(prefix.letters)
        ]
        if not likely:
            return line
        # Half a match may look like another match, and the text before it like the start of a longer one.
        splits = [whole]
        for at in [place, *(word.start() for word in _WORD.finditer(text, place))][-_MOST_SPLITS:]:
            settled = self.rules.text(text[:at])
            splits.append(_Split(settled + text[at:], bare(settled + text[at:]), len(bare(settled))))
        cuts = [
            (prefix, split)
            for prefix in likely
            for split in splits
            if prefix.is_cut(split, self.rules.shaped)
        ]
        if not cuts:
            return line
        for entry in (*session.entries, *session.unheard):
            if entry.role == line.role and (
                same_words(entry.text, line.text) or continues(entry.generated, line.text)
            ):
                return line  # the session has it as a whole
        longest, split = max(cuts, key=lambda pair: len(pair[0].letters))
        return msgspec.structs.replace(line, content=longest.of(split.text))

    def _cut_session(self, session: Session, own: Sequence[Message], window: Sequence[Message]) -> Session:
        """Cuts the user's newest entries where a match begins that only the window completes."""
        entries = list(session.entries)
        newest = [i for i, entry in enumerate(entries) if entry.role == "user"][-_NEWEST:]
        shown = {bare(line.text) for line in window if line.role == "user"}
        changed = False
        for place in newest:
            letters = bare(entries[place].text)
            if letters and letters not in shown and (text := self._completed(letters, own, window)):
                entries[place] = msgspec.structs.replace(entries[place], content=text)
                changed = True
        return msgspec.structs.replace(session, entries=tuple(entries)) if changed else session

    def _completed(self, letters: str, own: Sequence[Message], window: Sequence[Message]) -> str | None:
        """Returns the text before the match in which ``letters`` end, if the window completes it."""
        for message, line in zip(own, window, strict=True):
            if message is line or message.role != "user" or not isinstance(message.content, str):
                continue
            for begin, end, _ in self.rules.sensitive.find(message.content):
                before = self.rules.text(message.content[:begin])
                prefix, whole = bare(before), bare(before + message.content[begin:end])
                if len(prefix) < len(letters) and letters.startswith(prefix) and whole.startswith(letters):
                    return before.rstrip() or line.text
        return None


UNREDACTED: Final = WindowRedaction()
