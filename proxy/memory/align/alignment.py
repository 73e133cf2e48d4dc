"""The alignment of a window with a session: which entry each line is, and answers in several pieces.

Three numbers say where something is: its *position* among the messages of a window, its *index* among the
lines of speech in that window, and its *place* among the entries of the session.

Some voice platforms show one answer as several messages in a row; a session has it once.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from filters.letters import bare, offset_of_letters
from filters.message import Message, newest_user, turn_id_of
from filters.tool_groups import call_id
from proxy.memory.session import Entry
from proxy.memory.wording import continues, continues_by_words, same_words

# The approximate speed of speech.
_CHARACTERS_A_SECOND: Final = 15
_BETWEEN: Final = " \n\t.,;:!?"
_role: Final = attrgetter("role")

NEW: Final = -1
"""The place of a line that is not recorded."""
REPEATED: Final = -2
"""The place of an answer that the window shows a second time."""
DELETED: Final = -3
"""The place of a line that was deleted and that the voice platform still shows."""


class SplitAnswer(NamedTuple):
    """One answer that a window shows as several messages."""

    whole: Message
    pieces: Sequence[Message]

    @property
    def last(self) -> int:
        """The number of the piece with the last words; a piece with tool calls alone may follow."""
        return len(self.pieces) - 1 - bool(self.pieces[-1].tool_calls)

    def last_of(self, original: str) -> str:
        """Returns the part of ``original`` from the beginning of the last piece on."""
        before = sum(len(bare(piece.text)) for piece in self.pieces[: self.last])
        return original[offset_of_letters(original, before) :].lstrip(_BETWEEN)


class Alignment(msgspec.Struct, frozen=True, gc=False):
    """Where each line of a window's speech is recorded.

    ``entries`` are those of the window's call, none if the window begins a new one. ``lines`` are in the
    order of their turns. For each of them, ``places`` has its place in ``entries``, or ``NEW``, ``REPEATED``
    or ``DELETED``, and ``positions`` its position in the window. Entries from the place ``end`` on are newer
    than the window. ``shows_answers`` is whether the window shows what the assistant said. ``pause`` is how
    many seconds before the window the last answer ended, 0 while it was under way. ``split_answers`` are
    answers in several pieces, by the index of their first piece, which alone has a place.
    Nearly every window shows the newest entries unchanged, without tools, and then new words of the user. For
    these, ``unchanged`` is how many of the first lines equal their entries; for others it is 0.
    """

    entries: Sequence[Entry]
    lines: Sequence[Message]
    places: Sequence[int]
    end: int
    shows_answers: bool
    positions: Sequence[int] = ()
    new_call: bool = False
    pause: float = math.inf
    split_answers: Mapping[int, SplitAnswer] = {}
    unchanged: int = 0

    def whole_line(self, index: int) -> Message:
        """Returns the line at an index; for the first piece of an answer in pieces, the whole answer."""
        split = self.split_answers.get(index)
        return self.lines[index] if split is None else split.whole

    @property
    def matched(self) -> list[int]:
        """The places of the entries that the window shows."""
        return [place for place in self.places if place >= 0]

    @property
    def start(self) -> int:
        """The place of the first entry that the window shows; the number of entries if it shows none."""
        return min(self.matched, default=len(self.entries))

    @property
    def question(self) -> int | None:
        """The index of the newest words of the user."""
        newest = newest_user(self.lines)
        while newest is not None and self.places[newest] == DELETED:
            newest = newest_user(self.lines[:newest])
        return newest

    @property
    def revised(self) -> int | None:
        """The place of the user's newest words, if the window shows other words for them; else ``None``."""
        question = self.question
        place = NEW if question is None else self.places[question]
        if question is None or place < 0:
            return None
        entry, words = self.entries[place], self.lines[question].text
        return None if same_words(entry.text, words) or entry.replaces(words) else place

    @property
    def superseded(self) -> int | None:
        """The place of the user's last recorded words, if the newest words revise them.

        No user replies to an answer that was not spoken yet. The newest words revise the last ones if they
        begin with these, if the window shows neither these nor their answer, and if they came before that
        answer can have been spoken, at about 15 characters a second. Later they are a turn of their own
        ("Yes." and "Yes, please."). Once the answer has ended, they must continue at the end of a word: a
        word is transcribed in part only while it is spoken.
        """
        question, last = self.question, newest_user(self.entries)
        if question is None or last is None or self.matched:
            return None
        answers = self.entries[last + 1 :]
        if not all(entry.pending for entry in answers):
            return None
        goes_on = continues_by_words if self.pause else continues
        speaking = sum(len(entry.text) for entry in answers) / _CHARACTERS_A_SECOND
        revises = self.pause <= speaking and goes_on(self.lines[question].text, self.entries[last].text)
        return last if revises else None

    @property
    def is_stale(self) -> bool:
        """Whether the newest words are an early transcript of the last recorded ones, after an equal history.

        That is so only while the recorded words are being answered; later, the words were said again.
        """
        if self.pause:
            return False
        question, last = self.question, newest_user(self.entries)
        if question is None or last is None:
            return False
        words, entry = self.lines[question], self.entries[last]
        if self.places[question] not in {NEW, last} or entry.replaces(words.text):
            return False
        others = [place for i, place in enumerate(self.places) if i != question]
        if NEW in others or any(place >= last for place in others):
            return False
        is_later_turn = (turn_id_of(words) or 0) > (entry.turn_id or 0)
        return not is_later_turn and continues(entry.text, words.text)

    def without(self, removed: set[int]) -> "Alignment":
        """Returns the alignment without the lines at these indices."""
        remaining = [i for i in range(len(self.lines)) if i not in removed]
        removed_positions = sorted(self.positions[i] for i in removed)
        splits = self.split_answers
        return msgspec.structs.replace(
            self,
            lines=[self.lines[i] for i in remaining],
            places=[self.places[i] for i in remaining],
            positions=[p - bisect_left(removed_positions, p) for p in (self.positions[i] for i in remaining)],
            unchanged=0,
            split_answers={new: splits[old] for new, old in enumerate(remaining) if old in splits}
            if splits
            else {},
        )

    def with_deleted(
        self, lines: Sequence[Message], positions: Sequence[int], deleted: set[int]
    ) -> "Alignment":
        """Returns the alignment of all ``lines``; this one is without the ``deleted`` ones."""
        rest = iter(zip(self.lines, self.places, self.positions, strict=True))
        merged = [
            (line, DELETED, position) if i in deleted else next(rest)
            for i, (line, position) in enumerate(zip(lines, positions, strict=True))
        ]
        remaining = [i for i in range(len(lines)) if i not in deleted]
        return msgspec.structs.replace(
            self,
            lines=[line for line, _, _ in merged],
            places=[place for _, place, _ in merged],
            positions=[position for _, _, position in merged],
            split_answers={remaining[i]: split for i, split in self.split_answers.items()},
        )


def piece_counts(entries: Sequence[Entry], lines: Sequence[Message]) -> list[int]:
    """Returns in how many lines each message is shown; an empty list if no message is in pieces.

    Lines are pieces of one answer if their letters together begin a recorded one. So are the words and
    the tool calls of a recorded answer that has both.
    """
    if not any(
        _is_answer(one) and (_is_answer(other) or _is_wordless(other)) for one, other in pairwise(lines)
    ):
        return []
    calling = (entry for entry in entries if entry.tool_calls)
    words = {tuple(map(call_id, entry.tool_calls or ())): bare(entry.generated) for entry in calling}
    answers = (entry for entry in entries if entry.role == "assistant" and not entry.tool_calls)
    generated = sorted(bare(entry.generated) for entry in answers)
    counts, first = [], 0
    while first < len(lines):
        letters, count = bare(lines[first].text) if _is_answer(lines[first]) else "", 1
        while letters and first + count < len(lines):
            line = lines[first + count]
            more = bare(line.text) if _is_answer(line) else ""
            at = bisect_left(generated, letters + more)
            if not more or at == len(generated) or not generated[at].startswith(letters + more):
                break
            letters, count = letters + more, count + 1
        if letters and first + count < len(lines) and _is_wordless(line := lines[first + count]):
            calls = tuple(map(call_id, line.tool_calls or ()))
            count += words.get(calls, "").startswith(letters)
        counts.append(count)
        first += count
    return counts if max(counts) > 1 else []


def join_pieces(lines: Sequence[Message], counts: Sequence[int]) -> list[Message]:
    """Returns the lines, with the pieces of each answer joined."""
    return [_joined(lines[start : start + count]) for start, count in _spans(counts)]


def spread_places(places: Sequence[int], counts: Sequence[int], other: int) -> list[int]:
    """Returns the places of pieces: that of the joined line for the first, ``other`` for each further one."""
    spans = zip(places, counts, strict=True)
    return [place if not i or place < 0 else other for place, count in spans for i in range(count)]


def split_answers(
    lines: Sequence[Message], places: Sequence[int], counts: Sequence[int]
) -> dict[int, SplitAnswer]:
    """Returns the recorded answers that the window shows in pieces, by the index of the first piece."""
    return {
        start: SplitAnswer(_joined(lines[start : start + count]), lines[start : start + count])
        for place, (start, count) in zip(places, _spans(counts), strict=True)
        if count > 1 and place >= 0
    }


def _spans(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(accumulate(counts, initial=0), counts)  # noqa: B905 - the total is no start


def _is_answer(message: Message) -> bool:
    spoken = message.role == "assistant" and not message.tool_calls
    return spoken and turn_id_of(message) is None and not message.interrupted


def _is_wordless(message: Message) -> bool:
    """Whether a message calls tools and says nothing."""
    return message.role == "assistant" and bool(message.tool_calls) and not message.text.strip()


def _joined(pieces: Sequence[Message]) -> Message:
    if len(pieces) == 1:
        return pieces[0]
    whole: Any = " ".join(piece.text.strip() for piece in pieces if not piece.tool_calls)
    return msgspec.structs.replace(pieces[0], content=whole, tool_calls=pieces[-1].tool_calls)
