"""A session woven anew from what is held and what a window shows."""

from collections.abc import Mapping, Sequence
from itertools import islice, pairwise

import msgspec

from filters.message import Message
from filters.tool_groups import call_id
from proxy.memory.align.alignment import Alignment
from proxy.memory.align.line import CUT, NEW, Line, similarity
from proxy.memory.merge.entries import new_entry, renew_entry
from proxy.memory.session import Entry, LatestRequest, QuestionRef, Session, with_unheard
from proxy.memory.wording import continues_by_words


def woven(held: Session, replay: Alignment, gone: set[int], *, now: float, seal: bytes) -> Session:
    """The session with the window's lines in their places, and without those that are ``gone``."""
    life = held.call + replay.new_call
    loom = _Loom(held, replay, gone, life=life, now=now)
    loom.take_run()
    for position in loom.order:
        loom.take(position)
    loom.pass_to(len(replay.entries))
    before = len(held.entries) - len(replay.entries)
    entries = (*held.entries[:before], *_unglued(loom))
    session = msgspec.structs.replace(
        held,
        entries=entries,
        call=life,
        next_turn=loom.turns,
        latest_request=_newest(loom, entries, seal),
        unheard=() if replay.new_call else tuple(e for e in held.unheard if e not in loom.found),
    )
    return with_unheard(session, [replay.entries[h] for h in sorted(gone)])


def _newest(loom: "_Loom", entries: Sequence[Entry], seal: bytes) -> LatestRequest:
    replay = loom.replay
    places = {id(entry): i for i, entry in enumerate(entries)}
    found = [place for entry in loom.shown.values() if (place := places.get(id(entry))) is not None]
    first = found[0] if found else len(entries)
    return LatestRequest(
        at=loom.now,
        fingerprint=seal,
        line_count=len(replay.lines),
        start=loom.held.cold_count + first,
        shows_answers=replay.shows_answers,
        shows_call_start=first <= len(loom.held.entries) - len(replay.entries),
        question=_asked(loom, entries, places, max(found, default=-1)),
    )


def _asked(
    loom: "_Loom", entries: Sequence[Entry], places: Mapping[int, int], last: int
) -> QuestionRef | None:
    replay = loom.replay
    if replay.question is not None:
        place = places.get(id(loom.shown.get(replay.question)))
        return None if place is None else turn_of(entries, place)
    place = question_before(entries, last)
    return unasked(entries, loom.life, loom.turns) if place is None else turn_of(entries, place)


class _Loom:
    """Entries as they are laid down, in order, and the number of the next turn."""

    def __init__(self, held: Session, replay: Alignment, gone: set[int], *, life: int, now: float) -> None:
        self.entries: list[Entry] = []
        self.shown: dict[int, Entry] = {}
        self.found: list[Entry] = []
        self._aside = () if replay.new_call else held.unheard
        self.turns = 0 if replay.new_call else held.next_turn
        self.held, self.replay, self.now = held, replay, now
        self._gone, self.life = gone, life
        self._moved = held.has_older and not replay.new_call
        self._done = 0
        self._revised = replay.revised
        self._run = _run(replay)
        self.order = _order(replay, self._run)
        self._following = _following(replay, self.order)
        self._callers: dict[str | None, int] = {}
        self._known = 0

    def take_run(self) -> None:
        """Lays down the window's first lines, as far as they are held in one row."""
        if not self._run:
            return
        first, end = self.replay.places[0], self.replay.places[0] + self._run
        self.pass_to(first)
        row = zip(self.replay.entries[first:end], map(self.replay.whole_line, range(self._run)), strict=True)
        shown = [renew_entry(entry, message) for entry, message in row]
        self.shown |= enumerate(shown)
        self.entries += shown
        self._done = end

    def take(self, position: int) -> None:
        """Lays down a line of the window, and before it what is held before it."""
        place = self.replay.places[position]
        message = self.replay.whole_line(position)
        if place >= 0:
            self.pass_to(place)
            self._renew(place, message)
            self.shown[position] = self.entries[-1]
            return
        following = self._following[position]
        self.pass_to(following)
        last = following == len(self.replay.entries)
        # What stands before the oldest entry of a session that was cut is in its cold part.
        if following or last or not self._moved:
            self._add(message, last=last)
            self.shown[position] = self.entries[-1]

    def says(self, position: int | None) -> bool:
        """Whether a line of the window says what is not held yet."""
        return position is not None and self.replay.places[position] in {NEW, self._revised}

    def pass_to(self, end: int) -> None:
        """Lays down what is held before ``end``."""
        kept = range(self._done, end)
        self.entries += [self.replay.entries[h] for h in kept if h not in self._gone]
        self._done = max(self._done, end)

    def _renew(self, place: int, message: Message) -> None:
        entry = renew_entry(self.replay.entries[place], message)
        if place == self._revised and self._gone >= set(range(place + 1, len(self.replay.entries))):
            entry = msgspec.structs.replace(entry, turn=self.turns)
            self.turns += 1
        self.entries.append(entry)
        self._done = place + 1

    def _add(self, message: Message, *, last: bool) -> None:
        entry = self._unheard(message) or new_entry(message, life=self.life, turn=0, now=self.now)
        if entry.tool_call_id is not None:
            self._confirm(entry.tool_call_id)
        turn = self._turn(entry, last=last)
        self.turns = max(self.turns, turn + 1)
        self.entries.append(msgspec.structs.replace(entry, turn=turn))

    def _confirm(self, answered: str) -> None:
        """A call that a result came back for was carried out, though no window may show it."""
        for i in range(self._known, len(self.entries)):
            self._callers |= dict.fromkeys(map(call_id, self.entries[i].tool_calls or ()), i)
        self._known = len(self.entries)
        place = self._callers.get(answered)
        if place is not None and self.entries[place].pending:
            self.entries[place] = msgspec.structs.replace(self.entries[place], pending=False, broken=False)

    def _unheard(self, message: Message) -> Entry | None:
        """An answer that no window showed before, as this one does."""
        if message.role != "assistant" or not self._aside:
            return None
        line = Line(message)
        entry = next((entry for entry in self._aside if similarity(line, Line(entry)) >= CUT), None)
        if entry is None or entry in self.found:
            return None
        self.found.append(entry)
        return renew_entry(entry, message)

    def _turn(self, entry: Entry, *, last: bool) -> int:
        before = self.entries[-1] if self.entries else None
        if before is None:
            return self.turns if last else self.replay.entries[0].turn
        numbered = entry.engine_turn is not None and entry.engine_turn == before.engine_turn
        return self.turns if last and entry.role == "user" and not numbered else before.turn


def _run(replay: Alignment) -> int:
    """How many of the window's first lines are held in one row, and unrevised, before all its others."""
    places, revised = replay.places, replay.revised
    first = places[0] if places else NEW
    if first < 0:
        return 0
    count = next((i for i, place in enumerate(places) if place != first + i or place == revised), len(places))
    return 0 if any(0 <= place < first + count for place in places[count:]) else count


def _following(replay: Alignment, order: Sequence[int]) -> dict[int, int]:
    """For each line of the window, where in ``held`` the next line stands that the window shows."""
    following, found = replay.end, {}
    for position in reversed(order):
        found[position] = following
        following = replay.places[position] if replay.places[position] >= 0 else following
    return found


def _order(replay: Alignment, start: int) -> list[int]:
    """The window's lines from ``start`` on, in the order in which they were said, as what is held tells it.

    Words of the user that stand between a question and its answer were said when the answer was.
    """
    keys: dict[int, tuple[int, bool]] = {}
    ends = {replay.entries[h].turn: h for h in sorted(replay.matched)}
    before = replay.places[start - 1] if start else -1
    for position in range(start, len(replay.places)):
        place = replay.places[position]
        if place >= 0:
            before = max(before, place)
        elif replay.lines[position].role == "user":
            before = _turn_end(replay, before, ends)
        keys[position] = (before, True) if place < 0 else (place, False)
    return sorted((i for i in keys if replay.places[i] >= NEW), key=keys.__getitem__)


def _turn_end(replay: Alignment, place: int, ends: Mapping[int, int]) -> int:
    """The last line that the window shows of a held turn that a user began, of all turns' last lines."""
    if place < 0 or replay.entries[place].role != "user":
        return place
    return ends[replay.entries[place].turn]


def _unglued(loom: _Loom) -> list[Entry]:
    """Unanswered words that new words repeat and go on from count once, under the newer turn.

    What the window shows as a line of its own was said by itself.
    """
    entries, shown = loom.entries, {id(entry): position for position, entry in loom.shown.items()}
    glued = {
        id(entry)
        for entry, after in pairwise(entries)
        if id(entry) not in shown and loom.says(shown.get(id(after))) and _takes_up(after, entry)
    }
    return [entry for entry in entries if id(entry) not in glued] if glued else entries


def _takes_up(later: Entry, earlier: Entry) -> bool:
    if earlier.role != "user" or later.role != "user" or (earlier.user and later.user != earlier.user):
        return False
    return continues_by_words(later.text, earlier.text)


def position_of(entries: Sequence[Entry], turn: QuestionRef) -> int | None:
    """Where these words stand; ``None`` where they are no longer held, or nobody said any."""
    if turn.unasked:
        return None
    places = range(len(entries) - 1, -1, -1)
    users = (i for i in places if _asks(entries[i], turn.call, turn.turn))
    return next(islice(users, -turn.question - 1, None), None)


def turn_of(entries: Sequence[Entry], position: int) -> QuestionRef:
    """How the words at a position are called."""
    life, turn = entries[position].call, entries[position].turn
    return QuestionRef(life, turn, -sum(_asks(entry, life, turn) for entry in entries[position:]))


def unasked(entries: Sequence[Entry], life: int, turns: int) -> QuestionRef:
    """How the words are called that nobody said: behind all of a life, whose next turn is ``turns``."""
    last = entries[-1] if entries else None
    return QuestionRef(life, last.turn if last is not None and last.call == life else turns, 0)


def question_before(entries: Sequence[Entry], position: int) -> int | None:
    """Where the words stand that what is held at a position belongs to; of another life they are not."""
    words = (i for i in range(position, -1, -1) if entries[i].role == "user")
    found = next(words, None)
    return found if found is not None and entries[found].call == entries[position].call else None


def _asks(entry: Entry, life: int, turn: int) -> bool:
    return entry.turn == turn and entry.call == life and entry.role == "user"
