"""The alignment of a window with a session: which entry each line of speech is."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from filters.message import Message, turn_id_of
from proxy.memory.align.pieces import SplitAnswer
from proxy.memory.session import Entry
from proxy.memory.wording import continues, continues_by_words, same_words

# About as fast as a voice speaks.
_CHARACTERS_A_SECOND: Final = 15

NEW: Final = -1
"""The place of a line that is not recorded."""
REPEATED: Final = -2
"""The place of an answer that the window shows a second time."""
FORGOTTEN: Final = -3
"""The place of a line that was deleted and that the engine still shows."""


class Alignment(msgspec.Struct, frozen=True, gc=False):
    """Where each line of a window's speech is recorded.

    ``entries`` are those of the window's call: none where it begins a new one. ``lines`` are in the order of
    their turns, ``places`` their positions in ``entries``, or ``NEW``, ``REPEATED``, ``FORGOTTEN``, and
    ``positions`` their positions in the window. ``end`` is the place from which on entries are newer than the
    window. ``shows_answers`` is whether the window tells what the assistant said. ``pause`` is for how many
    seconds the last answer had ended when the window came, 0 while it was under way. ``split_answers`` are
    answers that the window shows in pieces, by the index of the first, which alone has their place.
    ``is_continuation`` is whether the window is the newest entries, to the letter, and new words of the user
    behind them, as nearly always.
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
    is_continuation: bool = False

    def whole_line(self, index: int) -> Message:
        """A line, or all of the answer that it is the first piece of."""
        split = self.split_answers.get(index)
        return self.lines[index] if split is None else split.whole

    @property
    def matched(self) -> list[int]:
        """The places of the entries that the window shows."""
        return [place for place in self.places if place >= 0]

    @property
    def question(self) -> int | None:
        """The index of the newest words of the user."""
        for i in range(len(self.lines) - 1, -1, -1):
            if self.lines[i].role == "user" and self.places[i] != FORGOTTEN:
                return i
        return None

    @property
    def revised(self) -> int | None:
        """The place of the newest words of the user, where the window shows them in other words."""
        question = self.question
        place = NEW if question is None else self.places[question]
        if question is None or place < 0:
            return None
        entry, words = self.entries[place], self.lines[question].text
        return None if same_words(entry.text, words) or entry.replaces(words) else place

    @property
    def superseded(self) -> int | None:
        """The place of the last recorded words, where the newest words revise them.

        Nobody replies to what was not spoken yet. So words that go on from the last ones, in a window that
        shows neither these nor their answer, are one question with them if they come before that answer can
        have been spoken, at about 15 characters a second: the recorded form and its answer are superseded.
        Later they are a turn of their own ("Yes." and "Yes, please."). Once the answer is whole they go on by
        words: within a word only what is being said is guessed at.
        """
        question, last = self.question, last_user(self.entries)
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
        """Whether the newest words are an early form of the last recorded ones, over an equal history.

        They come while these are being answered: what comes later is said anew.
        """
        question, last = self.question, last_user(self.entries)
        if self.pause or question is None or last is None:
            return False
        words, entry = self.lines[question], self.entries[last]
        if self.places[question] not in {NEW, last} or entry.replaces(words.text):
            return False
        others = [place for i, place in enumerate(self.places) if i != question]
        if NEW in others or any(place >= last for place in others):
            return False
        is_later_turn = (turn_id_of(words) or 0) > (entry.engine_turn or 0)
        return not is_later_turn and continues(entry.text, words.text)

    def without(self, removed: set[int]) -> "Alignment":
        """The alignment of the window without some of its lines, by their indices."""
        kept = [i for i in range(len(self.lines)) if i not in removed]
        gone = sorted(self.positions[i] for i in removed)
        splits = self.split_answers
        return msgspec.structs.replace(
            self,
            lines=[self.lines[i] for i in kept],
            places=[self.places[i] for i in kept],
            positions=[p - bisect_left(gone, p) for p in (self.positions[i] for i in kept)],
            is_continuation=False,
            split_answers={new: splits[old] for new, old in enumerate(kept) if old in splits}
            if splits
            else {},
        )

    def with_forgotten(
        self, lines: Sequence[Message], positions: Sequence[int], forgotten: set[int]
    ) -> "Alignment":
        """The alignment of all ``lines`` of a window of which the ``forgotten`` ones were left out."""
        rest = iter(zip(self.lines, self.places, self.positions, strict=True))
        merged = [
            (line, FORGOTTEN, position) if i in forgotten else next(rest)
            for i, (line, position) in enumerate(zip(lines, positions, strict=True))
        ]
        kept = [i for i in range(len(lines)) if i not in forgotten]
        return msgspec.structs.replace(
            self,
            lines=[line for line, _, _ in merged],
            places=[place for _, place, _ in merged],
            positions=[position for _, _, position in merged],
            split_answers={kept[i]: split for i, split in self.split_answers.items()},
            is_continuation=False,
        )


def last_user(entries: Sequence[Entry], before: int | None = None) -> int | None:
    """The place of the newest words of the user, of all or of those ``before`` a place."""
    for i in range((len(entries) if before is None else before) - 1, -1, -1):
        if entries[i].role == "user":
            return i
    return None
