"""A window that an engine replays, laid beside what is held: which line is which. Nothing is changed here.

``line`` first: what is compared; then ``replay``: what comes of it, and ``beside``: the steps in their
order. Of these, ``life`` tells whether turns are counted anew, ``numbering`` goes by turn numbers,
``glance`` by the newest lines; ``alignment`` with ``fixed``, ``gap``, ``kin`` and ``sliding`` finds the
likeliest pairs where neither will do. ``pieces``, ``results``, ``lone`` and ``bygone`` are windows of odd
kinds. ``belated``, ``coverage``, ``onesided`` and ``parting`` say what a prompt needs to know of the result.
"""

from collections.abc import Mapping, Sequence

import msgspec

from filters.message import Message
from proxy.memory.align.forgotten import FORGOTTEN
from proxy.memory.align.line import NEW, turn_id_of
from proxy.memory.align.pieces import Whole
from proxy.memory.session import Entry
from proxy.memory.wording import continues, same_words


class Alignment(msgspec.Struct, frozen=True, gc=False):
    """The speech of a window, in the order in which it was said, and where each line of it is held.

    ``held`` are the entries of the life that the window belongs to: none, when the window begins a new one.
    ``places`` are positions in ``held``, ``NEW``, ``AGAIN`` or ``FORGOTTEN``. ``end`` is the position from
    which on entries are newer than the window. ``answering`` is whether it tells what the assistant said.
    ``follows`` is whether it is words alone that came once the newest held words had been answered.
    ``wholes`` are answers that the window shows in pieces, by the position of the first, which alone has
    their place.
    """

    entries: Sequence[Entry]
    lines: Sequence[Message]
    places: Sequence[int]
    end: int
    new_call: bool
    shows_answers: bool
    follows: bool = False
    wholes: Mapping[int, Whole] = {}

    def whole_line(self, position: int) -> Message:
        """A line, or all of the answer that it is the first piece of."""
        whole = self.wholes.get(position)
        return self.lines[position] if whole is None else whole.said

    @property
    def matched(self) -> list[int]:
        """The positions of the held entries that the window shows."""
        return [h for h in self.places if h >= 0]

    @property
    def question(self) -> int | None:
        """The position in ``spoken`` of the newest words of the user."""
        users = (i for i in range(len(self.lines) - 1, -1, -1) if self.lines[i].role == "user")
        return next((i for i in users if self.places[i] != FORGOTTEN), None)

    @property
    def revised(self) -> int | None:
        """The position in ``held`` of the newest words of the user, where the window puts them otherwise."""
        asked = self.question
        place = NEW if asked is None else self.places[asked]
        if asked is None or place < 0:
            return None
        entry, words = self.entries[place], self.lines[asked].text
        return None if same_words(entry.text, words) or entry.replaces(words) else place

    @property
    def stale(self) -> bool:
        """Whether the newest words are an early form of words that are held, over an equal history."""
        asked, last = self.question, last_user(self.entries)
        if self.follows or asked is None or last is None or self.places[asked] not in {NEW, last}:
            return False
        if self.entries[last].replaces(self.lines[asked].text):
            return False
        others = [h for i, h in enumerate(self.places) if i != asked]
        if NEW in others or any(h >= last for h in others):
            return False
        later = (turn_id_of(self.lines[asked]) or 0) > (self.entries[last].engine_turn or 0)
        return not later and continues(self.entries[last].text, self.lines[asked].text)

    def among(self, spoken: Sequence[Message], old: set[int]) -> "Alignment":
        """The same among all that was ``spoken``, some of which, by their positions, was forgotten."""
        kept = iter(zip(self.lines, self.places, strict=True))
        lines = [(line, FORGOTTEN) if i in old else next(kept) for i, line in enumerate(spoken)]
        at = [i for i in range(len(spoken)) if i not in old]
        return msgspec.structs.replace(
            self,
            lines=[m for m, _ in lines],
            places=[h for _, h in lines],
            wholes={at[i]: whole for i, whole in self.wholes.items()},
        )


def last_user(entries: Sequence[Entry], before: int | None = None) -> int | None:
    """Where the newest words of the user are held, of all or of those ``before`` a position."""
    end = len(entries) if before is None else before
    return next((i for i in range(end - 1, -1, -1) if entries[i].role == "user"), None)
