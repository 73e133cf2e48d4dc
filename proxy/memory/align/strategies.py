"""Aligns a window with a session by strategies, which are tried in order until one applies."""

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Final

import msgspec

from filters.message import Message, newest_user, turn_id_of
from proxy.memory.align.alignment import (
    NEW,
    REPEATED,
    Alignment,
    join_pieces,
    piece_counts,
    split_answers,
    spread_places,
)
from proxy.memory.align.anchors import align_lines, mark_repeated
from proxy.memory.align.deletion import deleted_lines, without_marks
from proxy.memory.align.line import ALIKE, CUT, WORDS, Line, similarity
from proxy.memory.align.turn_ids import begins_call, contradicts, first_newer, match_turn_ids, order_by_turn
from proxy.memory.session import ARRIVES_NOW, Arrival, Entry, LatestRequest, Session, request_fingerprint
from proxy.memory.speech import Speech
from proxy.memory.wording import continues

# A client that hangs up to replace a request sends the other one within this time; a user who interrupts an
# answer has to speak first.
_REPLACED_WITHIN: Final = 0.3
# The most lines at a window's end that are taken for turns that failed, of which nothing is recorded.
_FAILED: Final = 6
_role: Final = attrgetter("role")


class WindowKind(Enum):
    """Which request a window is of, or a history that a platform reports."""

    LATEST = "latest"
    """The latest request of the session: it may begin another call."""
    OVERTAKEN = "overtaken"
    """A request that a newer one has overtaken: it may show older lines alone."""
    HISTORY = "history"
    """A voice platform's account of the current call."""


class Comparison:
    """What a strategy compares: the entries of the current call and the lines of a window."""

    def __init__(
        self,
        session: Session,
        speech: Speech,
        lines: Sequence[Message],
        arrival: Arrival,
        kind: WindowKind,
    ) -> None:
        self.session, self.speech, self.lines, self.arrival, self.kind = session, speech, lines, arrival, kind
        self.entries = entries_of_call(session)
        self.latest = session.latest_request

    @cached_property
    def recorded_lines(self) -> list[Line]:
        """The entries as lines."""
        return [Line(entry) for entry in self.entries]

    @cached_property
    def window_lines(self) -> list[Line]:
        """The window as lines."""
        return [Line(message) for message in self.lines]

    @cached_property
    def has_turn_ids(self) -> bool:
        """Whether a line of the window has a turn id."""
        return any(turn_id_of(message) is not None for message in self.lines)

    def aligned(self, places: list[int], end: int | None = None) -> Alignment:
        """Returns an alignment with these places; entries from ``end`` on are newer than the window."""
        end = len(self.entries) if end is None else end
        return Alignment(self.entries, self.lines, places, end, self.speech.shows_answers)

    def another_call(self) -> Alignment:
        """Returns the alignment of a window that begins another call: all of its lines are new."""
        places = align_lines((), self.window_lines)
        return Alignment((), self.lines, places, 0, self.speech.shows_answers, new_call=True)


def align(
    session: Session,
    speech: Speech,
    arrival: Arrival = ARRIVES_NOW,
    kind: WindowKind = WindowKind.LATEST,
) -> Alignment:
    """Aligns a window's speech with a session."""
    order = order_by_turn(speech.lines)
    lines: Sequence[Message] = [speech.lines[i] for i in order] if order else speech.lines
    positions = [speech.positions[i] for i in order] if order else speech.positions
    if session.deletion is not None and (deleted := deleted_lines(session, lines)):
        remaining = [i for i in range(len(lines)) if i not in deleted]
        rest = Speech(
            [lines[i] for i in remaining],
            speech.shows_answers,
            positions=[positions[i] for i in remaining],
            partial=True,
        )
        alignment = align(without_marks(session), rest, arrival, kind)
        return alignment.with_deleted(lines, positions, deleted)
    # An answer in pieces is several lines of the assistant in a row.
    in_a_row = ("assistant", "assistant") in pairwise(map(_role, lines))
    if not session.entries and not in_a_row:
        return Alignment((), lines, [NEW] * len(lines), 0, speech.shows_answers, positions, pause=0.0)
    counts = piece_counts(entries_of_call(session), lines) if in_a_row else []
    whole = join_pieces(lines, counts) if counts else lines
    comparison = Comparison(session, speech, whole, arrival, kind)
    alignment = (
        single_message(comparison)
        or exact_suffix(comparison)
        or revised_words(comparison)
        or suffix_and_new_words(comparison)
        or content(comparison)
        or turn_ids(comparison)
    )
    entries = comparison.entries
    pause = pause_since(entries[-1] if entries else None, comparison.latest, arrival.at)
    if not counts:
        return msgspec.structs.replace(alignment, positions=positions, pause=pause)
    return msgspec.structs.replace(
        alignment,
        lines=lines,
        positions=positions,
        pause=pause,
        places=spread_places(alignment.places, counts, REPEATED),
        split_answers=split_answers(lines, alignment.places, counts),
    )


def entries_of_call(session: Session) -> Sequence[Entry]:
    """Returns the entries of the current call."""
    entries = session.entries
    if not entries or entries[0].call == session.call:
        return entries
    return tuple(entry for entry in entries if entry.call == session.call)


def pause_since(answer: Entry | None, latest: LatestRequest | None, at: float) -> float:
    """Returns how many seconds before a window the last ``answer`` ended; 0 if it was still under way.

    If its end is not known, the time of its request counts. ``at`` is when the window came, in seconds since
    1970.
    """
    if answer is None or answer.role == "user":
        return 0.0
    ended = latest.ended if latest is not None and latest.ended else answer.recorded_at
    pause = at - ended
    return pause if pause > (_REPLACED_WITHIN if answer.broken else 0) else 0.0


# --- the strategies -----------------------------------------------------------------------------------------


def single_message(c: Comparison) -> Alignment | None:
    """A window of the user's words alone: they are the latest ones again, or new. Nothing is retracted.

    Applies to a window of one line without a turn id, unless it comes late and the request has no name. Equal
    words are the same request, unless the client's name for the request, or the time, says otherwise.
    """
    if not (c.entries and is_single(c.lines) and not c.speech.partial):
        return None
    if not (c.arrival.attempt.name_digest or c.kind is WindowKind.LATEST):
        return None
    words, entries, latest = c.lines[0], c.entries, c.latest
    key, last = Line(words).key, newest_user(entries)
    same_time = (i for i, e in enumerate(entries) if e.recorded_at == c.arrival.at and e.role == "user")
    place = next((i for i in same_time if Line(entries[i]).key == key), NEW)
    if place == NEW and last is not None and not (latest and is_other_turn(latest, c.arrival)):
        is_last = Line(entries[last]).key == key or entries[last].replaces(words.text)
        place = last if is_last else NEW
    return c.aligned([place])


def exact_suffix(c: Comparison) -> Alignment | None:
    """The fast path: a window that shows the newest entries line by line, and perhaps one line more.

    Applies to windows that end with words of the user. Answers may be spelt differently, and the last one may
    be cut. Where older entries are in the cold part, the window may begin with lines of these.
    """
    entries, lines, moved = c.entries, c.lines, c.session.has_older
    if not lines or not entries or lines[-1].role != "user":
        return None
    count, size = len(lines), len(entries)
    # Several fit if the conversation repeats itself; a window longer than the entries likely has new lines.
    once, more = size - count - 1, size - count + 1
    starts = [size - count, once, more] if count <= size else [size - count, more, once]
    for start in starts:
        first, older = max(start, 0), max(-start, 0)
        length = min(count - older, size - first)
        if (older and not moved) or length <= 0:
            continue
        fits = shows_exactly(entries[first : first + length], lines[older:] if older else lines)
        if fits and (start != once or is_latest_again(c)):
            new = count - older - length
            return c.aligned([*[NEW] * older, *range(first, first + length), *[NEW] * new])
    return None


def revised_words(c: Comparison) -> Alignment | None:
    """A window whose newest words are an earlier or later transcript of the newest recorded words.

    The lines before these words are recorded line by line, however often the conversation repeats itself.
    """
    entries, lines, last = c.entries, c.lines, newest_user(c.entries)
    if not lines or not last or lines[-1].role != "user" or turn_id_of(lines[-1]) is not None:
        return None
    words, recorded = lines[-1].text, entries[last].text
    if not (continues(recorded, words) or continues(words, recorded)):
        return None
    first, older = max(last - len(lines) + 1, 0), max(len(lines) - 1 - last, 0)
    pairs = zip(lines[older:], entries[first:last], strict=False)
    if (older and not c.session.has_older) or any(similarity(Line(m), Line(e)) < CUT for m, e in pairs):
        return None
    return c.aligned([*[NEW] * older, *range(first, last), NEW])


def suffix_and_new_words(c: Comparison) -> Alignment | None:
    """A window without turn ids that shows the last entries and then new words of the user.

    Applies to latest requests. Platforms show what was said last, so lines that equal the last entries are
    these entries, even if others are equal too. Pending answers may be missing: they were not heard. Words
    before the newest that are not recorded belong to turns that failed.
    """
    if c.kind is not WindowKind.LATEST or not c.entries or c.has_turn_ids:
        return None
    lines = c.window_lines
    if not lines or lines[-1].role != "user":
        return None
    least = 1 if lines[0].role == "assistant" else 2
    places = _places_before(c, 1) or _places_before_failures(c, least=least)
    if places is None:
        return None
    # The newest recorded words, and what stands before them, may be the latest request again. It may leave
    # answers out that are yet to be confirmed.
    last, count = newest_user(c.entries), len(lines)
    before = c.entries[: 0 if last is None else last + 1]
    confirmed = [entry for entry in before if not entry.pending]
    ends = (before[-count:], confirmed[-count:])
    if any(len(end) == count and shows_exactly(end, c.lines) for end in ends) and is_latest_again(c):
        return None
    # It counts as showing answers if the latest window, which had slid and was no longer, did so in words:
    # answers without words are no lines.
    latest = c.latest
    replays = latest is not None and latest.shows_answers and not latest.wordless
    slid = latest is not None and not latest.shows_call_start and latest.line_count <= len(c.lines)
    alignment = c.aligned(places)
    return msgspec.structs.replace(alignment, shows_answers=alignment.shows_answers or (replays and slid))


def content(c: Comparison) -> Alignment | None:
    """Any window without turn ids: by anchors, and by similarity in the gaps between them.

    Applies if the window or the entries have no turn ids. The latest request may begin another call. An
    alignment that retracts several turns because of a few equal lines is taken for a mistake: then these
    lines are new.
    """
    if c.has_turn_ids and any(entry.turn_id is not None for entry in c.entries):
        return None
    places = align_lines(c.recorded_lines, c.window_lines, moved=c.session.has_older)
    if c.kind is not WindowKind.LATEST or not c.entries or c.has_turn_ids:
        return c.aligned(places)
    # Tool calls alone are rather new than those of an earlier turn: the last words led to the same ones.
    last = newest_user(c.entries)
    only_calls = all(message.tool_calls or message.role == "tool" for message in c.lines)
    if only_calls and last is not None and max(places, default=NEW) < last:
        return c.aligned([NEW] * len(c.lines))
    if c.latest and c.lines and c.lines[-1].role == "user":
        start = c.latest.start - c.session.cold_count - len(c.session.entries) + len(c.entries)
        if _takes_back_too_much(c, places, start):
            places = _places_before_failures(c, least=1) or [NEW] * len(c.lines)
    return c.another_call() if _starts_over(c, places) else c.aligned(places)


def turn_ids(c: Comparison) -> Alignment:
    """Windows with turn ids: by turn id and role, and within these by time and words.

    A window whose turn ids contradict the recorded ones begins another call.
    """
    judge = begins_call if c.kind is WindowKind.LATEST else contradicts
    if c.kind is not WindowKind.HISTORY and judge(c.recorded_lines, c.window_lines):
        return c.another_call()
    places = match_turn_ids(c.recorded_lines, c.window_lines)
    return c.aligned(places, first_newer(c.recorded_lines, c.window_lines))


# --- the same request again ---------------------------------------------------------------------------------


def is_single(lines: Sequence[Message]) -> bool:
    """Whether a window is nothing but words of the user, without a turn id."""
    return len(lines) == 1 and lines[0].role == "user" and turn_id_of(lines[0]) is None


def is_other_turn(latest: LatestRequest, arrival: Arrival) -> bool:
    """Whether a request with the single words of the latest one is another turn.

    The requests' names decide if both have one. Otherwise it is another turn if OpenAI's client says that
    this is no retry, and the answer to the latest one had ended.
    """
    attempt, at = arrival
    if attempt.is_retry:
        return False
    if attempt.name_digest and latest.name_digest:
        return attempt.name_digest != latest.name_digest
    single = latest.line_count == 1 and not latest.shows_call_start
    return attempt.is_retry is False and single and latest.finished and latest.ended < at


def has_slid(latest: LatestRequest, arrival: Arrival) -> bool:
    """Whether a request with the same window as the latest one is another turn, as the window has slid.

    In a window of few lines, a user may hear and say the same again.
    """
    attempt = arrival.attempt
    is_another = attempt.name_digest and latest.name_digest and attempt.name_digest != latest.name_digest
    if not is_another or attempt.is_retry or latest.shows_call_start:
        return False
    return latest.line_count > 1 and latest.finished and latest.ended < arrival.at


def is_latest_again(c: Comparison) -> bool:
    """Whether a window is, as far as can be known, the latest request's again.

    An answer that was not heard at all may be shown without words, or left out.
    """
    latest, speech = c.latest, c.speech
    if latest is None:
        return True
    if latest.line_count != len(speech.lines) or has_slid(latest, c.arrival):
        return False
    attempt = c.arrival.attempt
    return latest.fingerprint in [
        request_fingerprint(speech, attempt, shows_answers=shows_answers) for shows_answers in (True, False)
    ]


# --- the exact suffix ---------------------------------------------------------------------------------------


def shows_exactly(entries: Sequence[Entry], lines: Sequence[Message]) -> bool:
    """Whether a window begins with exactly these entries; the last one may be cut."""
    last = len(entries) - 1
    for i, entry in enumerate(entries):
        message = lines[i]
        if entry.role != message.role:
            return False
        if entry.turn_id != message.turn_id and entry.turn_id != turn_id_of(message):
            return False
        if entry.content == message.content and not (
            entry.tool_calls or message.tool_calls or entry.tool_call_id
        ):
            continue
        if i == last:
            if not last:
                return False
            has_calls = entry.tool_calls or message.tool_calls
            if entry.role == "assistant" and entry.turn_id is not None and not has_calls:
                return message.source in {entry.source, None}  # in whatever words
            return similarity(Line(message), Line(entry)) > 0
        # A call or a result may be encoded anew, and an answer spelt otherwise.
        if entry.role == "user" or similarity(Line(message), Line(entry)) < WORDS:
            return False
    return True


# --- the suffix of a window without turn ids ----------------------------------------------------------------


def _places_before_failures(c: Comparison, *, least: int) -> list[int] | None:
    """The places, if the last 2 to 6 lines are new: words of turns that failed, which are not recorded.

    At least ``least`` lines stand before these, and no answer among these is recorded.
    """
    recorded, lines = c.recorded_lines, c.window_lines
    for new in range(2, min(_FAILED, len(lines) - least) + 1):
        line = lines[-new]
        if line.role != "user" and any(similarity(line, other) for other in recorded):
            return None
        if places := _places_before(c, new):
            mark_repeated(places, recorded, lines)
            return places
    return None


def _places_before(c: Comparison, new: int) -> list[int] | None:
    """The places, if the lines before the last ``new`` ones are the last entries, whole or cut."""
    recorded, lines = c.recorded_lines, c.window_lines
    before, least = lines[: len(lines) - new], ALIKE if new == 1 else CUT
    for heard in _possibly_heard(recorded, confirmed=new == 1) if before else ():
        end = heard[-len(before) :]
        pairs = zip(before, end, strict=False)
        if len(end) == len(before) and all(similarity(line, recorded[i]) >= least for line, i in pairs):
            return [*end, *[NEW] * new]
    return None


def _possibly_heard(recorded: Sequence[Line], *, confirmed: bool) -> Iterator[Sequence[int]]:
    """Which entries may have been heard: all, those before the last answers, or confirmed ones only."""
    end = len(recorded)
    yield range(end)
    while end and recorded[end - 1].pending:
        end -= 1
    if end < len(recorded):
        yield range(end)
    if confirmed and any(line.pending for line in recorded[:end]):
        before = [i for i, line in enumerate(recorded[:end]) if not line.pending]
        yield from ([*before, *range(end, len(recorded))], before)


def _takes_back_too_much(c: Comparison, places: Sequence[int], start: int) -> bool:
    """Whether an alignment retracts more turns than it matches lines.

    As many turns as lines are too much if several lines are new and the window does not begin at ``start``,
    where the latest one does. So is any alignment with a new line, whose newest words are matched before the
    last recorded words of the user.
    """
    matched = {place for place in places if place >= 0}
    if not matched:
        return False
    recorded, lines = c.recorded_lines, c.window_lines
    users = [i for i, line in enumerate(recorded) if line.role == "user"]
    first = min(matched.intersection(users), default=max(matched))
    accounted = set(matched)
    # Words are not retracted if the window shows them in the same place, with more words.
    for (_, before), (line, place) in pairwise(zip(lines, places, strict=True)):
        if before >= 0 and place == NEW and line.role == "user":
            after = next((i for i in range(before + 1, len(recorded)) if recorded[i].role == "user"), None)
            if after is not None and continues(line.text, recorded[after].text):
                accounted.add(after)
    taken_back = sum(i > first and i not in accounted for i in users)
    new = places.count(NEW)
    return (
        taken_back > len(matched)
        or (taken_back == len(matched) and new > 1 and places[0] != start)
        or (new > 0 and 0 <= places[-1] < users[-1])
    )


def _starts_over(c: Comparison, places: Sequence[int]) -> bool:
    """Whether a window without turn ids is the beginning of another call.

    Such a window has only a greeting and the first words. It shows the recorded greeting, but not the heard
    answers after it. Or it shows nothing that is recorded, although the latest window still reached back to
    the start of its call and was no shorter.
    """
    entries, lines, latest = c.entries, c.lines, c.latest
    if len(lines) < 2 or lines[-1].role != "user":  # noqa: PLR2004 - a greeting and words
        return False
    if not all(m.role == "assistant" and not m.tool_calls for m in lines[:-1]):
        return False
    matched = {place for place in places if place >= 0}
    first = next((i for i, entry in enumerate(entries) if entry.role == "user"), len(entries))
    if not matched:
        if latest is None or not latest.shows_call_start:
            return False
        return len(lines) <= latest.line_count and first < len(entries)
    aloud = {i for i, e in enumerate(entries) if i > first and e.role == "assistant" and not e.pending}
    return any(0 <= place < first for place in places[:-1]) and not aloud <= matched
