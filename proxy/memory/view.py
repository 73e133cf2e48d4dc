"""A session aligned with the window of a request, and what the prompt takes from both."""

import asyncio
import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from filters.base import Snapshot
from filters.message import SYSTEM, Message, as_covered, epoch_seconds, newest_user, turn_id_of
from filters.tool_groups import call_id, call_ids
from proxy.memory.align.alignment import DELETED, NEW, REPEATED, Alignment
from proxy.memory.align.strategies import align
from proxy.memory.merge.continuation import NEW_LINES, continuation
from proxy.memory.merge.entries import renew_entry, retracted, with_signatures, without_ellipsis
from proxy.memory.preamble import NO_PREAMBLE, Preamble
from proxy.memory.redacted_view import UNREDACTED, RedactedView, WindowRedaction
from proxy.memory.session import (
    NO_ATTEMPT,
    START,
    Arrival,
    Attempt,
    Session,
    TurnRef,
    count_until,
    encoded_lines,
    message_of,
    request_fingerprint,
)
from proxy.memory.speech import Speech, as_function_call, speech_of
from proxy.memory.stores.session_store import NOT_STORED, SessionStore
from proxy.memory.stores.store import Key
from proxy.memory.tasks import LARGE, MANY_MESSAGES, Begun, in_thread_if_long

# A single answer that is not shown may not have been heard; this many are left out by the voice platform.
_MIN_ANSWERS_LEFT_OUT: Final = 2
_MAX_LATE_BY: Final = 6
_EPOCH_BYTES: Final = 8
_role: Final = attrgetter("role")
_user: Final = attrgetter("user")
_tool_calls: Final = attrgetter("tool_calls")
_name: Final = attrgetter("name")
_interrupted: Final = attrgetter("interrupted")


class SessionView(msgspec.Struct, frozen=True, gc=False):
    """A session as a turn read it, aligned with the client's window; the turn is recorded on top of it.

    ``version`` is the version that a write replaces, 0 where nothing is stored yet. ``window`` is the
    client's, and ``redacted`` is what memory may see of it. ``line_bytes`` are the encoded lines of its
    ``speech``. ``fingerprint`` is the request's. ``alignment`` is ``None`` where the session has no entries.
    ``at`` is when the request arrived, in seconds since 1970. It is never before the session's latest
    request, so that clocks of hosts that differ do not change the order.
    """

    session: Session
    version: int
    window: Sequence[Message]
    redacted: RedactedView
    speech: Speech
    line_bytes: bytes
    fingerprint: bytes
    alignment: Alignment | None
    at: float

    def condensed(self) -> "SessionView":
        """The view with the new lines alone; ``line_bytes`` still has all of them.

        It frees the window before the answer: afterwards, out of the processor's caches, that is slow.
        """
        alignment = self.alignment
        if alignment is None or not alignment.unchanged or self.session.user is None:
            return self
        newest, positions = self.speech.lines[alignment.unchanged :], range(NEW_LINES)
        return SessionView(
            self.session,
            self.version,
            newest,
            RedactedView(newest),
            Speech(newest, shows_answers=True, positions=positions),
            self.line_bytes,
            self.fingerprint,
            msgspec.structs.replace(alignment, lines=newest, positions=positions),
            self.at,
        )

    @property
    def is_condensed(self) -> bool:
        """Whether lines were left out by ``condensed``."""
        return self.alignment is not None and len(self.alignment.lines) < len(self.alignment.places)

    @property
    def call(self) -> int:
        """The call of the session to which the window belongs."""
        return self.session.call + (self.alignment.new_call if self.alignment else 0)

    def has_same_entries(self, session: Session) -> bool:
        """Whether the alignment holds for another session too: its entries and latest request are the same.

        Background work changes neither.
        """
        own = self.session
        return session.entries == own.entries and session.latest_request == own.latest_request


class RequestView(msgspec.Struct, frozen=True, gc=False):
    """What memory needs of a request to read a session for it.

    ``window`` are the client's messages as they came; ``redaction`` marks in them what must never be stored.
    ``attempt`` is the request's name, and whether it is a retry. ``size`` is the body's in bytes, and ``at``
    is when the request arrived, in seconds since 1970.
    """

    window: Sequence[Message]
    attempt: Attempt = NO_ATTEMPT
    redaction: WindowRedaction = UNREDACTED
    size: int = 0
    at: float = math.inf

    def view_of(self, session: Session, version: int = 0, latest_line_bytes: bytes = b"") -> SessionView:
        """Aligns a session with the window; ``latest_line_bytes`` are its latest request's encoded lines."""
        at = self.at if session.latest_request is None else max(self.at, session.latest_request.at)
        if latest_line_bytes and not self.redaction.rules.enabled:
            ordinary = continuation(session, latest_line_bytes, self.window, Arrival(self.attempt, at))
            if ordinary is not None:
                return SessionView(session, version, self.window, RedactedView(self.window), *ordinary, at)
        session, redacted = self.redaction.view(session, self.window)
        speech = speech_of(redacted.window)
        alignment = align(session, speech, Arrival(self.attempt, at)) if session.entries else None
        # Behind the answer, when the window has left the processor's caches, it takes three times as long.
        encoded = encoded_lines(speech.lines)
        fingerprint = request_fingerprint(speech, self.attempt, encoded)
        return SessionView(
            session, version, self.window, redacted, speech, encoded, fingerprint, alignment, at
        )


class PromptView(NamedTuple):
    """What the prompt is made of: memory's part of it, and the client's messages.

    ``snapshot`` is what filters may know of the session. ``window`` are the client's messages; interrupted
    answers, and messages that a summary covers, are marked. While ``epoch`` is the same, so are the facts at
    the head of the prompt.
    """

    snapshot: Snapshot
    window: Sequence[Message]
    epoch: bytes


class ChainNeeds(NamedTuple):
    """What the filters of a pipeline use of a session: its summaries, and history that the window lacks."""

    summaries: bool = True
    history: bool = False


DEFAULT_NEEDS: Final = ChainNeeds()


async def read_session(
    store: SessionStore, key: Key, request: RequestView, needs: ChainNeeds = DEFAULT_NEEDS
) -> tuple[SessionView, PromptView]:
    """Reads a session for a request, and makes the prompt's part of it. Raises StoreError.

    While a remote store is asked, the window is aligned with the session as this process wrote it last, which
    is nearly always the one that the store returns.
    """
    if store.rounds is None or (cached := store.cached(key)) is None:
        session, version, latest_line_bytes = await store.load(key) or NOT_STORED
        if len(session.entries) + len(request.window) < MANY_MESSAGES and request.size < LARGE:
            view = request.view_of(session, version, latest_line_bytes)
            return view, prompt_view(view, needs)
        return await _views(request, needs, session, version, latest_line_bytes)
    load = store.load(key)
    loading = asyncio.create_task(load) if store.rounds else Begun(load)
    try:
        for _ in range(store.rounds):
            await asyncio.sleep(0)
        view, prompt = await _views(request, needs, *cached)
        stored = await loading or NOT_STORED
    finally:
        loading.cancel()
    if stored.session is cached.session:
        return msgspec.structs.replace(view, version=stored.version), prompt
    return await _views(request, needs, *stored)


async def _views(
    request: RequestView, needs: ChainNeeds, session: Session, version: int, latest_line_bytes: bytes
) -> tuple[SessionView, PromptView]:
    def work() -> tuple[SessionView, PromptView]:
        view = request.view_of(session, version, latest_line_bytes)
        return view, prompt_view(view, needs)

    return await in_thread_if_long(work, len(session.entries) + len(request.window), request.size)


def prompt_view(view: SessionView, needs: ChainNeeds = DEFAULT_NEEDS) -> PromptView:
    """The part of the prompt that a session adds, and the window as filters see it.

    In the window, interrupted answers and messages that a summary covers are marked. Where the window shows
    no answers at all, and the chain needs history, the recorded turns take the place of its lines. Summaries
    and turns that the client's own system messages contain are left out.
    """
    session, redacted, alignment = view.session, view.redacted, view.alignment
    preamble = Preamble.of(session, view.window)
    segments = session.summaries if needs.summaries else ()
    summaries = preamble.other_summaries(segments) if segments else ()
    if alignment is None:
        snapshot = Snapshot(state=session.state, summaries=summaries)
        epoch = prompt_epoch(session, session.call, injecting=needs.summaries)
        return PromptView(snapshot, view.window, epoch)
    originals = redacted.originals_by_place(alignment) if redacted.own else {}
    part = _WindowPart(redacted.window, range(len(redacted.window)), alignment)
    result_places: Sequence[int] = ()
    results: Sequence[Message] = ()
    one_sided: set[int] = set()
    span = range(0)
    if not alignment.unchanged:
        if "tool" in map(_role, alignment.lines):
            part, result_places, results = _without_stray_results(session, redacted, part)
        if needs.history and REPEATED in part.alignment.places:
            # Answers that are shown twice, however these are spelt, stand once.
            copies = {i for i, place in enumerate(part.alignment.places) if place == REPEATED}
            for first, split in part.alignment.split_answers.items():
                copies.difference_update(range(first, first + len(split.pieces)))
            part = part.without(copies)
        part = _with_answers_in_place(part)
        if needs.history:
            one_sided, span = _lines_without_answers(part)
        alignment = part.alignment
    behind = session.summarized_until if segments else START
    call, entries = session.call + alignment.new_call, session.entries
    # A user who calls again speaks of what was said in calls that no summary covers yet.
    former: list[Message] = []
    if needs.summaries and entries[0].call < call:
        between = entries[count_until(entries, behind) : count_until(entries, TurnRef(call, -1))]
        former = [message_of(entry) for entry in between if not preamble.includes(entry.turn_ref)]
    dropped = (
        *former,
        *missing_messages(
            alignment,
            behind=behind,
            preamble=preamble,
            also=(*result_places, *span),
            originals=originals,
        ),
        *results,
    )
    if one_sided:
        part = part.without(one_sided)
    marked = part.window
    if not alignment.unchanged or True in map(_interrupted, entries):
        marked = mark_interrupted(marked, part.alignment, respell=needs.history)
    if segments:
        marked = _mark_covered(session, part, marked)
    snapshot = Snapshot(
        dropped=dropped,
        state=session.state,
        scale=session.scale or 1.0,
        summaries=summaries,
        began=epoch_seconds(session.started),
        speakers=frozenset({*map(_user, alignment.entries), *map(_name, alignment.entries)} - {None, ""}),
    )
    window = redacted.restore(part.origins, part.window, marked) if redacted.own else marked
    if not alignment.unchanged and any(map(_tool_calls, alignment.entries)):
        window = _with_signed_calls(part.alignment, window)
    return PromptView(
        snapshot,
        window,
        prompt_epoch(session, call, injecting=needs.summaries),
    )


def prompt_epoch(session: Session, call: int, *, injecting: bool) -> bytes:
    """Bytes that change when a call begins and when its turns are compacted, not from turn to turn.

    ``injecting`` is whether the prompt has summaries; without them, turns that move to the cold part count.
    """
    if not (injecting and session.summaries):
        return b"%d.%d" % (call, session.cold_count)
    parts = [f"{each.call}.{each.turn}.{len(each.text)}.{each.text}" for each in session.summaries]
    compacted = f"{call}.{''.join(parts)}".encode("utf-8", "surrogatepass")
    return blake2b(compacted, digest_size=_EPOCH_BYTES).digest()


def mark_interrupted(
    window: Sequence[Message], alignment: Alignment, *, respell: bool = False
) -> Sequence[Message]:
    """The window with answers marked as interrupted where it shows less than was generated.

    Answers whose client hung up are marked too; what the platform marks itself stays. With ``respell``,
    answers are spelt as they were recorded: once the window has slid past them, ``restore_history`` brings
    them back in that spelling, and the prompt still begins with the same bytes.
    """
    entries, lines = alignment.entries, alignment.lines
    changed: dict[int, Message] = {}
    for index, place in enumerate(alignment.places):
        if place < 0 or lines[index].role != "assistant":
            continue
        line, entry = alignment.whole_line(index), entries[place]
        # Most answers stand as they were generated, and some voice platforms mark those that do not.
        if line.interrupted or (not entry.interrupted and entry.content == line.content):
            continue
        split = alignment.split_answers.get(index)
        last = index + split.last if split else index  # the last words are marked
        position = alignment.positions[last]
        message = window[position]
        if message is not lines[last]:
            continue
        renewed = renew_entry(entry, line) if entry.content != line.content else entry
        if renewed.interrupted:
            marks, original = {**(message.metadata or {}), "interrupted": True}, renewed.original
            if original:
                marks["original"] = split.last_of(original) if split else original
                message = without_ellipsis(message, marks["original"])
            message = msgspec.structs.replace(message, metadata=marks)
        if respell and not split and isinstance(entry.content, str) and renewed.content == entry.content:
            message = msgspec.structs.replace(message, content=entry.content)
        if message is not lines[last]:
            changed[position] = message
    if not changed:
        return window
    return [changed.get(position, message) for position, message in enumerate(window)]


def missing_messages(
    alignment: Alignment,
    *,
    behind: TurnRef = START,
    preamble: Preamble = NO_PREAMBLE,
    also: Collection[int] = (),
    originals: Mapping[int, Message] = MappingProxyType({}),
) -> tuple[Message, ...]:
    """The recorded messages of this call that the window does not show, in order.

    They are those of turns after ``behind`` and before the window's first line, and those at the places in
    ``also``. Turns that the window supersedes, or that its ``preamble`` contains, are left out. ``originals``
    are the client's own messages, by place, where redaction changed them.
    """
    entries = alignment.entries
    places: Sequence[int] = range(alignment.places[0] if alignment.unchanged else alignment.start)
    if not places and not also:
        return ()
    if not alignment.unchanged:
        if alignment.is_stale:
            places = places[: newest_user(entries) or 0]
        retracted_places = retracted(alignment)
        places = [place for place in sorted({*places, *also}) if place not in retracted_places]
    if behind > START:
        places = places[bisect_left(places, count_until(entries, behind)) :]
    if preamble.last_turns:
        places = [place for place in places if not preamble.includes(entries[place].turn_ref)]
    missing = []
    for place in places:
        message = message_of(entries[place])
        if place in originals:
            message = msgspec.structs.replace(message, content=originals[place].content)
        missing.append(message)
    return tuple(missing)


class RetractedTexts:
    """Texts of one session that the archive still has, and that the window shows were cut or retracted.

    The archive stores a turn when the conversation pauses. Only the next window shows that the turn was cut
    short or retracted, and the archive learns it after that turn.
    """

    def __init__(
        self, name: str | None = None, session: Session | None = None, alignment: Alignment | None = None
    ) -> None:
        self._name = name
        self._session = session or Session()
        self._alignment = alignment

    def includes(self, session: str | None, text: str) -> bool:
        """Whether a text that was found in a session was cut or retracted."""
        return session == self._name and text in self._texts

    @cached_property
    def _texts(self) -> frozenset[str]:
        """The texts, computed at the first use."""
        entries, alignment = self._session.entries, self._alignment
        lost: set[int] = set()
        if alignment is not None:
            places = retracted(alignment)
            for index, place in enumerate(alignment.places):
                entry = alignment.entries[place] if place >= 0 else None
                if entry and entry.role == "assistant" and entry.text != alignment.whole_line(index).text:
                    places.add(place)
            before = len(entries) - len(alignment.entries)
            lost = {before + place for place in places}
        stands = {entry.text for i, entry in enumerate(entries) if i not in lost}
        generated = {entry.generated for entry in entries}
        return frozenset(({entries[i].text for i in lost} | generated) - stands)


class _WindowPart(NamedTuple):
    """Part of a window with its alignment, and the positions of its messages in the whole window."""

    window: Sequence[Message]
    origins: Sequence[int]
    alignment: Alignment

    def without(self, indices: set[int]) -> "_WindowPart":
        """The part without the lines at these indices."""
        removed = {self.alignment.positions[i] for i in indices}
        remaining = [i for i in range(len(self.window)) if i not in removed]
        return _WindowPart(
            [self.window[i] for i in remaining],
            [self.origins[i] for i in remaining],
            self.alignment.without(indices),
        )


# --- results without their call -----------------------------------------------------------------------------
def _without_stray_results(
    session: Session, redacted: RedactedView, part: _WindowPart
) -> tuple[_WindowPart, list[int], list[Message]]:
    """The window without tool results whose call it does not show: models refuse such results.

    Returns as well the places of those results that are recorded, and the others as messages. The window
    stays as it is where the rest would belong to another call.
    """
    alignment = part.alignment
    lines, places = alignment.lines, alignment.places
    calls = {call for message in lines for call in call_ids(message)}
    callers: dict[object, int] = {}
    for place, entry in enumerate(alignment.entries):
        for call in entry.tool_calls or ():
            callers.setdefault(call_id(call), place)
    stray, before = set[int](), set[str]()
    for index, (message, place) in enumerate(zip(lines, places, strict=True)):
        before.update(call_ids(message))
        if message.role != "tool" or place < NEW:
            continue
        caller = callers.get(message.tool_call_id)
        is_shown = message.tool_call_id in (calls if place == NEW else before)
        if caller is not None and not is_shown and (place == NEW or caller < place):
            stray.add(index)
    if not stray:
        return part, [], []
    rest = part.without(stray)
    realigned = msgspec.structs.replace(align(session, speech_of(rest.window)), pause=alignment.pause)
    if realigned.new_call != alignment.new_call:
        return part, [], []
    results = [
        redacted.own.get(alignment.positions[i]) or as_function_call(lines[i])
        for i in sorted(stray)
        if places[i] == NEW
    ]
    recorded = [places[i] for i in sorted(stray) if places[i] != NEW]
    return rest._replace(alignment=realigned), recorded, results


# --- late answers -------------------------------------------------------------------------------------------
def _with_answers_in_place(part: _WindowPart) -> _WindowPart:
    """The window with each answer before the words that came after it.

    Windows with turn ids, or with answers in pieces, stay as they are.
    """
    window, origins, alignment = part
    lines, places = alignment.lines, alignment.places
    for place, following in pairwise(places):
        if following >= 0 and (place == NEW or place > following):
            break
    else:
        return part  # no line stands behind what was said after it, as nearly always
    if alignment.split_answers or any(turn_id_of(message) is not None for message in lines):
        return part
    # Where the window shows the words that each entry belongs to; behind all where it does not.
    indices = {place: i for i, place in enumerate(places) if place >= 0}
    questions, last = [], len(lines)
    for place, entry in enumerate(alignment.entries):
        last = indices.get(place, len(lines)) if entry.role == "user" else last
        questions.append(last)
    # The indices of the lines as they were said.
    order, place = list(range(len(lines))), NEW
    for i, message in enumerate(lines):
        if message.role != "assistant" or message.tool_calls:
            place = NEW
        elif places[i] != REPEATED:
            place = places[i]
        at, first = i, max(0, i - _MAX_LATE_BY)
        while at > first and place >= 0 and lines[order[at - 1]].role == "user":
            words = places[order[at - 1]]
            if words != NEW and words <= place:
                break
            at -= 1  # these words were said after the answer
        if at < i and questions[place] < order[at]:
            order.insert(at, order.pop(i))
    positions, arranged, moved = alignment.positions, list(window), list(origins)
    for position, index in zip(positions, order, strict=True):
        arranged[position], moved[position] = window[positions[index]], origins[positions[index]]
    reordered = msgspec.structs.replace(
        alignment, lines=[lines[i] for i in order], places=[places[i] for i in order]
    )
    return _WindowPart(arranged, moved, reordered)


# --- one-sided windows --------------------------------------------------------------------------------------
def _lines_without_answers(part: _WindowPart) -> tuple[set[int], range]:
    """Of a window that shows no answers: the lines to replace, and the places of the turns that replace them.

    The newest words stay. Nothing is replaced where a line differs from its entry, for example by a picture:
    the recorded turn would lack it.
    """
    window, alignment = part.window, part.alignment
    if alignment.shows_answers or len(alignment.lines) <= _MIN_ANSWERS_LEFT_OUT:
        return set(), range(0)
    places, question = alignment.places, alignment.question
    matched = {i for i, place in enumerate(places) if place >= 0 and i != question}
    if not matched or any(window[alignment.positions[i]] is not alignment.lines[i] for i in matched):
        return set(), range(0)
    newest = NEW if question is None else places[question]
    span = range(min(places[i] for i in matched), newest if newest >= 0 else alignment.end)
    answers = [entry for place in span if (entry := alignment.entries[place]).role == "assistant"]
    if len(answers) < _MIN_ANSWERS_LEFT_OUT or not all(entry.pending for entry in answers):
        return set(), range(0)
    return matched, span


# --- signatures ---------------------------------------------------------------------------------------------
def _with_signed_calls(alignment: Alignment, window: Sequence[Message]) -> Sequence[Message]:
    """The window with the recorded signatures on its tool calls: some models refuse calls without them."""
    signed = {}
    for index, place in enumerate(alignment.places):
        if place >= 0 and alignment.entries[place].tool_calls:
            message = window[alignment.positions[index]]
            if message.tool_calls:
                calls = with_signatures(message.tool_calls, alignment.entries[place])
                if calls is not message.tool_calls:
                    signed[alignment.positions[index]] = msgspec.structs.replace(message, tool_calls=calls)
    if not signed:
        return window
    return [signed.get(position, message) for position, message in enumerate(window)]


# --- what summaries cover -----------------------------------------------------------------------------------
def _mark_covered(session: Session, part: _WindowPart, marked: Sequence[Message]) -> Sequence[Message]:
    """The messages of a window, those marked that a summary covers.

    The place of a line decides, or the place that it would have. A message that is no speech goes with the
    speech that follows it. Instructions are never covered.
    """
    alignment = part.alignment
    entries, places, lines = alignment.entries, alignment.places, alignment.lines
    covered = count_until(entries, session.summarized_until)
    turn_ids = [entry.turn_id for entry in entries[:covered] if entry.turn_id is not None]
    last_turn_id = max(turn_ids, default=None)
    answers = [i for i, m in enumerate(lines) if m.role == "assistant" and places[i] >= 0]
    verdicts: dict[int, bool] = {}
    following: int | None = None
    for i in range(len(lines) - 1, -1, -1):
        place = places[i]
        if place >= 0:
            verdict, following = place < covered, place
        elif place == DELETED:
            verdict = False  # what memory knows nothing of goes on as the client sends it
        elif place == REPEATED:
            at = bisect_left(answers, i)
            near = ((abs(answer - i), answer) for answer in answers[max(at - 1, 0) : at + 1])
            _, nearest = min(near, default=(0, None))
            verdict = nearest is not None and places[nearest] < covered
        else:
            # What is older than all entries of the hot part is covered, since that begins with covered turns.
            turn_id = turn_id_of(lines[i])
            verdict = (following is not None and max(following - 1, 0) < covered) or (
                turn_id is not None and last_turn_id is not None and turn_id <= last_turn_id
            )
        verdicts[alignment.positions[i]] = verdict
    if True not in verdicts.values():
        return marked
    messages, is_covered = list(marked), False
    for i in range(len(marked) - 1, -1, -1):
        is_covered = verdicts.get(i, is_covered)
        if is_covered and part.window[i].role not in SYSTEM:
            messages[i] = as_covered(marked[i])
    return messages
