"""What memory sees of a request, and a session that it is laid beside."""

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from filters.base import Snapshot
from filters.message import SYSTEM, Message, as_covered, epoch_seconds
from filters.tool_groups import call_id, call_ids
from proxy.memory.align.alignment import Alignment, last_user
from proxy.memory.align.anchors import AGAIN
from proxy.memory.align.forgotten import FORGOTTEN
from proxy.memory.align.line import NEW, turn_id_of
from proxy.memory.align.strategies import align
from proxy.memory.facts.prompt import prompt_epoch
from proxy.memory.merge.entries import renew_entry, without_ellipsis
from proxy.memory.merge.retraction import retracted
from proxy.memory.redaction.view import UNREDACTED, RedactedView, WindowRedaction
from proxy.memory.session import NO_ATTEMPT, START, Arrival, Attempt, Entry, Session, TurnRef, message_of
from proxy.memory.speech import Speech, as_function_call, is_speech, speech_of
from proxy.memory.stores.session_store import NOT_STORED, SessionStore
from proxy.memory.stores.store import Key
from proxy.memory.tasks import in_thread_if_long

_TELLING = 2
_NEAR: Final = 6


class SessionView(NamedTuple):
    """A session as a turn read it, and the client's window beside it: what is recorded goes on from there.

    ``version`` is the one that a write replaces, 0 where nothing is held yet. ``window`` is the client's own,
    and ``veiled`` what was laid there of it. ``replay`` is ``None`` where nothing was said yet.
    """

    session: Session
    version: int
    window: Sequence[Message]
    veiled: RedactedView
    speech: Speech
    alignment: Alignment | None

    def alignment_with(self, session: Session) -> Alignment | None:
        """The window beside a session, where that holds the same talk."""
        own = self.session
        return (
            self.alignment
            if session.entries is own.entries and session.latest_request is own.latest_request
            else None
        )


class RequestView(NamedTuple):
    """What memory sees of a request: its window, less what a ``veil`` hides, and what it says of itself."""

    window: Sequence[Message]
    attempt: Attempt = NO_ATTEMPT
    veil: WindowRedaction = UNREDACTED

    def view_of(self, session: Session, version: int = 0) -> SessionView:
        """A session with the window laid beside it."""
        session, veiled = self.veil.view(session, self.window)
        said = speech_of(veiled.window)
        replay = align(session, said, Arrival(self.attempt)) if session.entries else None
        return SessionView(session, version, self.window, veiled, said, replay)


class Parted(msgspec.Struct, frozen=True, gc=False):
    """The results that a window shows without their held call, and where they are held, ``NEW`` included."""

    lines: Sequence[Message] = ()
    places: Sequence[int] = ()

    @property
    def held(self) -> list[int]:
        """Where those are held that are."""
        return [place for place in self.places if place != NEW]

    @property
    def new(self) -> list[Message]:
        """Those that are not held yet: what a client sends that sends the newest alone."""
        pairs = zip(self.lines, self.places, strict=True)
        return [as_function_call(line) for line, place in pairs if place == NEW]


def parted(replay: Alignment) -> Parted:
    """The results that a window shows without their held call."""
    if not any(message.role == "tool" for message in replay.lines):
        return Parted()
    shown = {i for message in replay.lines for i in call_ids(message)}
    called: set[str] = set()
    held = _callers(replay.entries)
    found: list[tuple[Message, int]] = []
    for message, place in zip(replay.lines, replay.places, strict=True):
        called.update(call_ids(message))
        if message.role == "tool" and _is_parted(message, place, held, shown if place == NEW else called):
            found.append((message, place))
    return Parted([line for line, _ in found], [place for _, place in found])


def _callers(held: Sequence[Entry]) -> dict[object, int]:
    """Where each call is held first, by its id."""
    found: dict[object, int] = {}
    for place, entry in enumerate(held):
        for call in entry.tool_calls or ():
            found.setdefault(call_id(call), place)
    return found


def _is_parted(result: Message, place: int, held: Mapping[object, int], called: Collection[str]) -> bool:
    """Whether the call is held before the result, and is none of those that the window shows."""
    if place < NEW or result.tool_call_id in called:
        return False
    caller = held.get(result.tool_call_id)
    return caller is not None and (place == NEW or caller < place)


def without(window: Sequence[Message], lines: Sequence[Message]) -> list[Message]:
    """The window less some lines of its speech."""
    lost = {id(line.others) for line in lines}  # what is held in another form has the very same others
    return [message for message in window if id(message.others) not in lost]


class Onesided(msgspec.Struct, frozen=True, gc=False):
    """The lines of a window that come back along with their answers, and where all of that is held."""

    lines: Sequence[Message] = ()
    places: Sequence[int] = ()


_NOTHING = Onesided()


def onesided(replay: Alignment, window: Sequence[Message]) -> Onesided:
    """What a window shows without any answer to it; what it asks stays where it is.

    One answer that is not shown may be one that was not heard. Two, of an engine that has never shown any,
    are an engine that leaves them out. Where a line is shown otherwise than it is spoken, with a picture in
    it, the window stays as it is: what comes back would not be what the client shows.
    """
    if replay.shows_answers or len(replay.lines) <= _TELLING:
        return _NOTHING
    pairs = list(enumerate(zip(replay.lines, replay.places, strict=True)))
    shown = [(line, place) for i, (line, place) in pairs if place >= 0 and i != replay.question]
    own = {id(message) for message in window}
    if not shown or not all(id(line) in own for line, _ in shown):
        return _NOTHING
    asked = NEW if replay.question is None else replay.places[replay.question]
    span = range(min(place for _, place in shown), asked if asked >= 0 else replay.end)
    answers = [replay.entries[h] for h in span if replay.entries[h].role == "assistant"]
    if len(answers) < _TELLING or not all(entry.pending for entry in answers):
        return _NOTHING
    return Onesided([line for line, _ in shown], span)


def rest(replay: Alignment, lines: Sequence[Message]) -> Alignment:
    """The same window without some of its lines."""
    lost = {id(line) for line in lines}
    left = [pair for pair in zip(replay.lines, replay.places, strict=True) if id(pair[0]) not in lost]
    spoken, places = [line for line, _ in left], [place for _, place in left]
    return msgspec.structs.replace(replay, lines=spoken, places=places)


class PromptView(NamedTuple):
    """What filters may know of a session, the client's window, and when this is between two compactions."""

    snapshot: Snapshot
    window: Sequence[Message]
    epoch: bytes


class ChainNeeds(NamedTuple):
    """What a chain does with what is known.

    It is ``injecting`` summaries in the place of turns, and ``restoring`` what a window does not show.
    """

    summaries: bool = True
    history: bool = False


DEFAULT_NEEDS: Final = ChainNeeds()


def prompt_view(read: SessionView, wanted: ChainNeeds = DEFAULT_NEEDS) -> PromptView:
    """What filters may know of a session while the client replays a window, and that window.

    In the window, answers are marked that the caller did not hear to the end, and what summaries cover. A
    window that leaves out all answers gives way to what is brought back.
    """
    session, veiled, replay = read.session, read.veiled, read.alignment
    summaries = tuple(segment.text for segment in session.summaries) if wanted.summaries else ()
    if replay is None:
        carried = () if session.cold_count else summaries  # of what was said elsewhere
        snapshot = Snapshot(state=session.state, summaries=carried)
        return PromptView(
            snapshot, read.window, prompt_epoch(session, session.call, injecting=wanted.summaries)
        )
    given, results = veiled.originals_by_place(replay), parted(replay)
    window, replay, results = _without(veiled.window, replay, results, session)
    window, replay = reorder_belated(window, replay)
    silent = onesided(replay, window) if wanted.history else Onesided()
    also, behind = (*results.held, *silent.places), session.summarized_until if summaries else START
    former = _former(session, replay, behind) if wanted.summaries else ()
    lost = missing_messages(replay, behind=behind, also=also, given=given)
    dropped = (*former, *lost, *map(veiled.original, results.new))
    snapshot = _snapshot(session, replay, dropped, summaries)
    if silent.lines:
        window, replay = without(window, silent.lines), rest(replay, silent.lines)
    heard = mark_interrupted(window, replay)
    if wanted.history:
        heard = with_recorded_spelling(window, heard, replay)
    seen = mark_covered(session, replay, window, heard) if summaries else heard
    return PromptView(
        snapshot,
        veiled.restore(window, seen),
        prompt_epoch(session, session.call + replay.new_call, injecting=wanted.summaries),
    )


def _without(
    window: Sequence[Message], replay: Alignment, results: Parted, session: Session
) -> tuple[Sequence[Message], Alignment, Parted]:
    """The window less its parted results; all of it, where what is left would be of another life."""
    if not results.lines:
        return window, replay, results
    left = without(window, results.lines)
    laid_again = align(session, speech_of(left))
    return (
        (window, replay, Parted()) if laid_again.new_call != replay.new_call else (left, laid_again, results)
    )


def _former(session: Session, replay: Alignment, behind: TurnRef) -> tuple[Message, ...]:
    """What was said in lives that are over and no summary tells yet: who calls again at once speaks of it."""
    life = session.call + replay.new_call
    if not session.entries or session.entries[0].call == life:
        return ()
    return tuple(message_of(e) for e in session.entries if e.call < life and e.turn_ref > behind)


def _snapshot(
    session: Session, replay: Alignment, dropped: tuple[Message, ...], summaries: tuple[str, ...]
) -> Snapshot:
    return Snapshot(
        dropped=dropped,
        state=session.state,
        scale=session.scale or 1.0,
        summaries=summaries,
        began=epoch_seconds(session.started),
        speakers=frozenset(name for entry in replay.entries for name in (entry.user, entry.name) if name),
    )


async def read_session(
    store: SessionStore, key: Key, sight: RequestView, wanted: ChainNeeds = DEFAULT_NEEDS
) -> tuple[SessionView, PromptView]:
    """What is held of a session beside a window, and what filters may know of it. Raises StoreError.

    While a store is asked that has to be waited for, the window is laid beside what was written last: nearly
    always that is what comes.
    """
    cached = store.cached(key) if store.rounds else None
    if cached is None:
        return await _told(sight, wanted, *(await store.load(key) or NOT_STORED))
    loading = asyncio.create_task(store.load(key))
    try:
        for _ in range(store.rounds):
            await asyncio.sleep(0)
        guess, likely = await _told(sight, wanted, cached)
        stored = await loading or NOT_STORED
    finally:
        loading.cancel()
    if stored.session is cached:
        return guess._replace(version=stored.version), likely
    return await _told(sight, wanted, *stored)


async def _told(
    sight: RequestView, wanted: ChainNeeds, session: Session, version: int = 0
) -> tuple[SessionView, PromptView]:
    def work() -> tuple[SessionView, PromptView]:
        read = sight.view_of(session, version)
        return read, prompt_view(read, wanted)

    return await in_thread_if_long(work, len(session.entries) + len(sight.window))


def mark_interrupted(window: Sequence[Message], replay: Alignment) -> Sequence[Message]:
    """The window with answers marked as interrupted where the engine replays less than was generated.

    An answer that the engine marks itself is left as it is, and so is everything else. ``replay`` is the
    window beside what is held.
    """
    entries, cut = replay.entries, {}
    for position, place in enumerate(replay.places):
        if place >= 0 and replay.lines[position].role == "assistant":
            message, entry = replay.whole_line(position), entries[place]
            # An answer that stands as it was given, most of them, is told at a glance.
            if (entry.interrupted or entry.content != message.content) and (of := _unmarked(entry, message)):
                whole = replay.wholes.get(position)
                message, of = whole.last(of) if whole else (message, of)
                cut[id(message)] = of
    return [_marked(m, cut[id(m)]) if id(m) in cut else m for m in window] if cut else window


def missing_messages(
    replay: Alignment,
    *,
    behind: TurnRef = START,
    also: Collection[int] = (),
    given: Mapping[int, Message] = MappingProxyType({}),
) -> tuple[Message, ...]:
    """What the engine no longer replays and memory still has of this life, in order, of turns ``behind`` one.

    It is what stands before the window's first line, and ``also`` what stands at these positions; a turn
    that the window supersedes is not missing. What the client has ``given`` at a position is told so.
    """
    first = _first(replay)
    if not first and not also:
        return ()
    lost = retracted(replay)
    places = sorted({*range(first), *also} - lost)
    if behind > START:
        places = [h for h in places if replay.entries[h].turn_ref > behind]
    left = tuple(message_of(replay.entries[h]) for h in places)
    return _as_given(left, [given.get(h) for h in places]) if given else left


def _as_given(left: Sequence[Message], given: Sequence[Message | None]) -> tuple[Message, ...]:
    pairs = zip(left, given, strict=True)
    return tuple(m if own is None else msgspec.structs.replace(m, content=own.content) for m, own in pairs)


def _first(replay: Alignment) -> int:
    """Where in ``held`` the window begins."""
    start = min(replay.matched, default=len(replay.entries))
    return start and min(start, last_user(replay.entries) or 0) if replay.stale else start


def _unmarked(entry: Entry, message: Message) -> str | None:
    """All that was generated, where an answer is a part of it and does not say so."""
    if message.interrupted:
        return None
    if entry.content != message.content:
        entry = renew_entry(entry, message)
    return entry.original if entry.interrupted else None


def _marked(message: Message, original: str) -> Message:
    marks = {**(message.metadata or {}), "interrupted": True, "original": original}
    return msgspec.structs.replace(without_ellipsis(message, original), metadata=marks)


def with_recorded_spelling(
    window: Sequence[Message], heard: Sequence[Message], replay: Alignment
) -> Sequence[Message]:
    """The messages ``heard`` of a window, its answers spelt as they come back once it has slid past them.

    So a prompt begins as the one before did, wherever the window begins.
    """
    spelt = dict(_respelt(replay))
    if not spelt:
        return heard
    pairs = zip(window, heard, strict=True)
    return [
        msgspec.structs.replace(shown, content=spelt[id(line)]) if id(line) in spelt else shown
        for line, shown in pairs
    ]


def _respelt(replay: Alignment) -> Iterator[tuple[int, str]]:
    """The held words of each answer that memory goes on holding so, by the window's line that has others."""
    for position, (line, place) in enumerate(zip(replay.lines, replay.places, strict=True)):
        if place >= 0 and line.role == "assistant" and position not in replay.wholes:
            entry = replay.entries[place]
            words = entry.content
            if words != line.content and isinstance(words, str) and renew_entry(entry, line).content == words:
                yield id(line), words


def reorder_belated(window: Sequence[Message], replay: Alignment) -> tuple[Sequence[Message], Alignment]:
    """The window with belated answers before the words that came after them, and its replay."""
    if _is_in_order(replay.places):
        return window, replay
    order, slots = _order(replay), [i for i, message in enumerate(window) if is_speech(message)]
    if len(order) != len(slots):  # nothing is belated, or not all of it lies beside what is held
        return window, replay
    shown = list(window)
    for slot, position in zip(slots, order, strict=True):
        shown[slot] = window[slots[position]]
    spoken, places = ([of[i] for i in order] for of in (replay.lines, replay.places))
    return shown, msgspec.structs.replace(replay, lines=spoken, places=places)


def _is_in_order(places: Sequence[int]) -> bool:
    """Whether nothing stands behind what was said after it; nearly always so, and asked in every turn."""
    for one, next_ in pairwise(places):  # noqa: SIM110 - a generator costs ten times as much
        if next_ >= 0 and (one == NEW or one > next_):
            return False
    return True


def _is_later(place: int, *, than: int) -> bool:
    """Whether what is held at a place, or is new, was said after what is held at another."""
    return than >= 0 and (place == NEW or place > than)


def _order(replay: Alignment) -> list[int]:
    """The positions of a window's lines as they were said; none where they have numbers or are pieces."""
    spoken, places = replay.lines, replay.places
    if replay.wholes or any(turn_id_of(message) is not None for message in spoken):
        return []
    order, questions, place = list(range(len(spoken))), _questions(replay), NEW
    for i, message in enumerate(spoken):
        answers = message.role == "assistant" and not message.tool_calls
        place = NEW if not answers else place if places[i] == AGAIN else places[i]
        at, first = i, max(0, i - _NEAR)
        while at > first and _is_passed(replay, order[at - 1], place):
            at -= 1
        if at < i and questions[place] < order[at]:
            order.insert(at, order.pop(i))
    return order


def _is_passed(replay: Alignment, position: int, place: int) -> bool:
    """Whether a line is the user's, and came after the answer that is held at a place."""
    return replay.lines[position].role == "user" and _is_later(replay.places[position], than=place)


def _questions(replay: Alignment) -> list[int]:
    """Where the window shows the words that each held line belongs to; behind all where it does not."""
    shown = {place: i for i, place in enumerate(replay.places) if place >= 0}
    found, last = [], len(replay.lines)
    for place, entry in enumerate(replay.entries):
        last = shown.get(place, len(replay.lines)) if entry.role == "user" else last
        found.append(last)
    return found


def mark_covered(
    session: Session, replay: Alignment, window: Sequence[Message], heard: Sequence[Message]
) -> Sequence[Message]:
    """The messages ``heard`` of a window, with those marked that a summary stands for.

    ``replay`` is the window beside what is held. What is no speech goes with the speech behind it, and
    instructions are never covered.
    """
    verdicts = _of_window(window, replay, _of_spoken(session, replay))
    if True not in verdicts:
        return heard
    return [as_covered(m) if verdict else m for m, verdict in zip(heard, verdicts, strict=True)]


def _of_spoken(session: Session, replay: Alignment) -> list[bool]:
    """For each line of the speech whether it is covered: by where it is held, else by where it would be."""
    behind = [entry.turn_ref <= session.summarized_until for entry in replay.entries]
    verdicts = [False] * len(replay.lines)
    following: int | None = None
    last = _last_number(replay.entries, behind)
    answers = _Answers(replay) if AGAIN in replay.places else None
    for i in range(len(verdicts) - 1, -1, -1):
        place = replay.places[i]
        if place >= 0:
            verdicts[i], following = behind[place], place
        elif place == FORGOTTEN:
            verdicts[i] = False  # what memory knows nothing of goes on as the client sends it
        elif place == AGAIN and answers:
            verdicts[i] = answers.are_behind(i, behind)
        else:
            verdicts[i] = _is_before(behind, following) or _is_numbered(replay.lines[i], last)
    return verdicts


def _is_before(behind: Sequence[bool], following: int | None) -> bool:
    """Whether a line is covered that is not held and stands before the held one at ``following``.

    What is older than all that is held in the hot part is, since that begins with covered turns.
    """
    return following is not None and behind[max(following - 1, 0)]


def _is_numbered(message: Message, last: int | None) -> bool:
    number = turn_id_of(message)
    return number is not None and last is not None and number <= last


def _last_number(held: Sequence[Entry], behind: Sequence[bool]) -> int | None:
    numbers = (e.engine_turn for e, is_behind in zip(held, behind, strict=True) if is_behind)
    return max((number for number in numbers if number is not None), default=None)


class _Answers:
    """Where the answers of a window are held."""

    def __init__(self, replay: Alignment) -> None:
        pairs = enumerate(zip(replay.lines, replay.places, strict=True))
        self._held = {i: place for i, (m, place) in pairs if m.role == "assistant" and place >= 0}
        self._positions = [*self._held]

    def are_behind(self, position: int, behind: Sequence[bool]) -> bool:
        """Whether the one nearest to a line of the window, which says it again, is covered."""
        at = bisect_left(self._positions, position)
        near = self._positions[max(at - 1, 0) : at + 1]
        nearest = min(near, key=lambda i: abs(i - position), default=None)
        return nearest is not None and behind[self._held[nearest]]


def _of_window(window: Sequence[Message], replay: Alignment, spoken: Sequence[bool]) -> list[bool]:
    known = {id(message): verdict for message, verdict in zip(replay.lines, spoken, strict=True)}
    # Words whose tail was taken off are other objects; among themselves they are in the window's order.
    own = {id(message) for message in window}
    others = iter([v for m, v in zip(replay.lines, spoken, strict=True) if id(m) not in own])
    verdicts = [_verdict(message, known, others) for message in window]
    behind = False
    for i in range(len(verdicts) - 1, -1, -1):
        behind = verdicts[i] = behind if (verdict := verdicts[i]) is None else verdict
    return [bool(v) and m.role not in SYSTEM for m, v in zip(window, verdicts, strict=True)]


def _verdict(message: Message, known: dict[int, bool], others: Iterator[bool]) -> bool | None:
    """Whether a message is covered; ``None`` for one that is no speech."""
    if id(message) in known:
        return known[id(message)]
    return next(others, None) if is_speech(message) else None


class RetractedTexts:
    """What was generated, or understood, in one session, and turned out not to be what was said.

    The archive has a turn as it was when the talk fell silent. That it was cut short, or taken back, is told
    by the window of the next one, and the archive learns it only after that.
    """

    def __init__(
        self, name: str | None = None, session: Session | None = None, replay: Alignment | None = None
    ) -> None:
        self._name = name
        self._session = session or Session()
        self._replay = replay

    def includes(self, session: str | None, text: str) -> bool:
        """Whether a text that is found in a session is such a one."""
        return session is not None and session == self._name and text in self._texts

    @cached_property
    def _texts(self) -> frozenset[str]:
        """Prepared when it is asked for."""
        lost = _lost(self._replay) if self._replay else []
        left_out = {id(entry) for entry in lost}
        stands = {entry.text for entry in self._session.entries if id(entry) not in left_out}
        cut = {entry.generated for entry in self._session.entries}
        return frozenset(({entry.text for entry in lost} | cut) - stands)


def _lost(replay: Alignment) -> list[Entry]:
    """Held entries that do not stand as they are, as the window shows."""
    return [*(replay.entries[h] for h in retracted(replay)), *_cut(replay)]


def _cut(replay: Alignment) -> Iterator[Entry]:
    for position, place in enumerate(replay.places):
        entry = replay.entries[place] if place >= 0 else None
        if entry and entry.role == "assistant" and entry.text != replay.whole_line(position).text:
            yield entry
