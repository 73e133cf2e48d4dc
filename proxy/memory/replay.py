"""What an engine replays, laid beside what is held."""

from collections.abc import Sequence
from typing import Any

import msgspec

from filters.message import Message
from proxy.memory import life, numbering
from proxy.memory.alignment import align
from proxy.memory.bygone import FORGOTTEN, bygone, rest
from proxy.memory.line import NEW, Line, kinship, number_of
from proxy.memory.newest import Newest
from proxy.memory.session import Entry, Session
from proxy.memory.speech import Speech
from proxy.memory.speech import spoken as spoken_in
from proxy.memory.wording import goes_on, same


class Replay(msgspec.Struct, frozen=True, gc=False):
    """The speech of a window, in the order in which it was said, and where each line of it is held.

    ``held`` are the entries of the life that the window belongs to: none, when the window begins a new one.
    ``places`` are positions in ``held``, ``NEW``, ``AGAIN`` or ``FORGOTTEN``. ``end`` is the position from
    which on entries are newer than the window. ``answering`` is whether it tells what the assistant said.
    """

    held: Sequence[Entry]
    spoken: Sequence[Message]
    places: Sequence[int]
    end: int
    anew: bool
    answering: bool

    @property
    def matched(self) -> list[int]:
        """The positions of the held entries that the window shows."""
        return [h for h in self.places if h >= 0]

    @property
    def asked(self) -> int | None:
        """The position in ``spoken`` of the newest words of the user."""
        users = (i for i in range(len(self.spoken) - 1, -1, -1) if self.spoken[i].role == "user")
        return next((i for i in users if self.places[i] != FORGOTTEN), None)

    @property
    def revised(self) -> int | None:
        """The position in ``held`` of the newest words of the user, where the window puts them otherwise."""
        asked = self.asked
        place = NEW if asked is None else self.places[asked]
        if asked is None or place < 0:
            return None
        entry, words = self.held[place], self.spoken[asked].text
        return None if same(entry.text, words) or entry.replaces(words) else place

    @property
    def stale(self) -> bool:
        """Whether the newest words are an early form of words that are held, over an equal history."""
        asked, last = self.asked, last_user(self.held)
        if asked is None or last is None or self.places[asked] not in {NEW, last}:
            return False
        if self.held[last].replaces(self.spoken[asked].text):
            return False
        others = [h for i, h in enumerate(self.places) if i != asked]
        if NEW in others or any(h >= last for h in others):
            return False
        later = (number_of(self.spoken[asked]) or 0) > (self.held[last].engine_turn or 0)
        return not later and goes_on(self.held[last].text, self.spoken[asked].text)

    def among(self, spoken: Sequence[Message], old: set[int]) -> "Replay":
        """The same among all that was ``spoken``, some of which, by their positions, was forgotten."""
        kept = iter(zip(self.spoken, self.places, strict=True))
        lines = [(line, FORGOTTEN) if i in old else next(kept) for i, line in enumerate(spoken)]
        return msgspec.structs.replace(self, spoken=[m for m, _ in lines], places=[h for _, h in lines])


def read(held: Session, window: Sequence[Message]) -> Replay:
    """The window, laid beside what is held of the life that it belongs to."""
    return beside(held, spoken_in(window))


def beside(held: Session, speech: Speech, *, overtaken: bool = False, known: bool = False) -> Replay:
    """A window's speech, laid beside what is held.

    One that a newer request has overtaken begins no life, and may show older lines alone; so does one that is
    ``known`` to be of the life that goes on, whatever it says.
    """
    entries, spoken = of_life(held), numbering.ordered(speech.lines)
    if old := bygone(held, spoken):
        kept = Speech([message for i, message in enumerate(spoken) if i not in old], speech.answering)
        return beside(rest(held), kept, overtaken=overtaken, known=known).among(spoken, old)
    answering, moved = speech.answering, held.older
    run = _straight(entries, spoken, moved=moved)
    if run is not None:
        end = _end(entries, run, numbered=number_of(spoken[-1]) is not None)
        return Replay(entries, spoken, run, end, anew=False, answering=answering)
    if entries and not any(number_of(message) is not None for message in spoken):
        if overtaken or known:
            return _aligned(entries, spoken, answering=answering, moved=moved)
        return _beginning(entries, spoken, held.newest, answering=answering, moved=moved)
    anew = life.never if known else life.contradicts if overtaken else life.begins_anew
    return _compared(entries, spoken, anew, answering=answering, moved=moved)


def of_life(held: Session) -> Sequence[Entry]:
    """The entries of the life that goes on."""
    entries = held.entries
    if not entries or entries[0].life == held.life:
        return entries
    return tuple(entry for entry in entries if entry.life == held.life)


def last_user(entries: Sequence[Entry], before: int | None = None) -> int | None:
    """Where the newest words of the user are held, of all or of those ``before`` a position."""
    end = len(entries) if before is None else before
    return next((i for i in range(end - 1, -1, -1) if entries[i].role == "user"), None)


def _straight(entries: Sequence[Entry], spoken: Sequence[Message], *, moved: bool) -> list[int] | None:
    """The places of a window that shows, line by line, the newest that is held, and perhaps one line more.

    It may show whole turns more, where turns are numbered: those of calls that are yet to be recorded.
    Answers may be spelt otherwise, and the last that is held may be one of which less was heard. What the
    window shows before all of it is older, where the oldest has ``moved`` to the cold part.
    """
    count, size = len(spoken), len(entries)
    if not spoken or not entries or spoken[-1].role != "user":
        return None
    # Where the talk repeats itself, either may fit: a window that is longer than what is held says more.
    again, more = size - count - 1, size - count + 1
    starts = (size - count, more, again) if count > size else (size - count, again, more)
    for start in (*starts, size - count + _ahead(entries, spoken)):
        first, older = max(start, 0), max(-start, 0)
        shown = min(count - older, size - first)
        if (older and not moved) or shown <= 0:
            continue
        if _runs(entries[first : first + shown], spoken[older:] if older else spoken):
            return [*[NEW] * older, *range(first, first + shown), *[NEW] * (count - older - shown)]
    return None


def _ahead(entries: Sequence[Entry], spoken: Sequence[Message]) -> int:
    """How many of the window's last lines are of turns behind all that is held."""
    newest = entries[-1].engine_turn
    if newest is None:
        return 0
    known = (i for i, message in enumerate(reversed(spoken)) if (number_of(message) or 0) <= newest)
    return next(known, 0)


def _runs(entries: Sequence[Entry], spoken: Sequence[Message]) -> bool:
    last = len(entries) - 1
    for i, entry in enumerate(entries):
        message = spoken[i]
        if entry.role != message.role:
            return False
        if entry.engine_turn != message.turn_id and entry.engine_turn != number_of(message):
            return False
        if entry.content != message.content or entry.tool_calls or message.tool_calls or entry.tool_call_id:
            if i == last:
                return last > 0 and _answers_as(message, entry)
            if not _respelt(message, entry):
                return False
    return True


def _respelt(message: Message, entry: Entry) -> bool:
    """Whether the replayed line is the held answer to the letter, where turns are not numbered."""
    if entry.role != "assistant" or entry.engine_turn is not None or entry.tool_calls or message.tool_calls:
        return False
    return same(message.text, entry.text)


def _answers_as(message: Message, entry: Entry) -> bool:
    """Whether the replayed line is the held answer; where turns are numbered, in whatever words."""
    spoken = not (entry.tool_calls or message.tool_calls)
    if entry.role == "assistant" and entry.engine_turn is not None and spoken:
        return message.source in {entry.source, None}
    return kinship(Line(message), Line(entry)) > 0


def _end(entries: Sequence[Entry], places: Sequence[int], *, numbered: bool) -> int:
    """Nothing that is held is newer than what an engine without numbers shows."""
    return max(places) + 1 if numbered and places[-1] >= 0 else len(entries)


def _compared(
    entries: Sequence[Entry], spoken: Sequence[Message], anew: life.Judge, *, answering: bool, moved: bool
) -> Replay:
    held, window = [Line(entry) for entry in entries], [Line(message) for message in spoken]
    if not any(line.number is not None for line in held):
        places = align(held, window, moved=moved)
        return Replay(entries, spoken, places, len(held), anew=False, answering=answering)
    if anew(held, window):
        return Replay((), spoken, align((), window), 0, anew=True, answering=answering)
    places = numbering.match(held, window)
    return Replay(entries, spoken, places, _newer(held, window), anew=False, answering=answering)


def _beginning(
    entries: Sequence[Entry],
    spoken: Sequence[Message],
    newest: Newest | None,
    *,
    answering: bool,
    moved: bool,
) -> Replay:
    """An unnumbered window that perhaps has no history, or begins another talk."""
    if len(spoken) == 1 and spoken[0].role == "user":
        return Replay(
            entries, spoken, _alone(entries, spoken[0]), len(entries), anew=False, answering=answering
        )
    replay = _aligned(entries, spoken, answering=answering, moved=moved)
    if _former_calls(replay):
        places = [NEW] * len(spoken)
        return msgspec.structs.replace(replay, places=places)
    if not life.starts_over(entries, spoken, replay.places, newest):
        return replay
    return Replay((), spoken, align((), [*map(Line, spoken)]), 0, anew=True, answering=answering)


def _former_calls(replay: Replay) -> bool:
    """Whether a window of calls alone seems to show those of a former turn: the last words made the same."""
    calls = all(message.tool_calls or message.role == "tool" for message in replay.spoken)
    last = last_user(replay.held)
    return calls and last is not None and max(replay.places, default=NEW) < last


def _aligned(entries: Sequence[Entry], spoken: Sequence[Message], *, answering: bool, moved: bool) -> Replay:
    held, window = [Line(entry) for entry in entries], [Line(message) for message in spoken]
    places = align(held, window, moved=moved)
    return Replay(entries, spoken, places, len(held), anew=False, answering=answering)


def _alone(entries: Sequence[Entry], words: Message) -> list[int]:
    """Words without any history are the newest that are held, once more, or new: they take nothing back."""
    last = last_user(entries)
    if last is None:
        return [NEW]
    known = Line(entries[last]).key == Line(words).key or entries[last].replaces(words.text)
    return [last if known else NEW]


def _newer(held: Sequence[Line], window: Sequence[Line]) -> int:
    """Where in ``held`` begins what is newer than the window's newest turn."""
    newest = max(numbering.numbers(window), default=0)
    numbers: Any = enumerate(numbering.numbers(held))
    return next((i for i, number in numbers if number > newest), len(held))
