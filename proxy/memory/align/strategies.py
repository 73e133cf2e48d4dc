"""A window is laid beside what is held: the quickest way that will do comes first."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec

from filters.message import Message, newest_user
from proxy.memory.align import turn_ids
from proxy.memory.align.alignment import Alignment, last_user
from proxy.memory.align.anchors import align_lines, mark_repeated
from proxy.memory.align.forgotten import forgotten_lines, without_marks
from proxy.memory.align.line import ALIKE, CUT, NEW, WORDS, Line, similarity, turn_id_of
from proxy.memory.align.pieces import in_pieces, joined, spread, wholes
from proxy.memory.session import ARRIVES_NOW, Arrival, Entry, LatestRequest, Session, request_fingerprints
from proxy.memory.speech import Speech
from proxy.memory.wording import continues, same_words

# Whoever takes a request back for another sends that within less than this; a caller who interrupts an
# answer has to speak first.
_AT_ONCE = 0.3
# So many lines may be of turns that failed: of them nothing is held.
_FAILED: Final = 6


def align(
    held: Session,
    speech: Speech,
    asking: Arrival = ARRIVES_NOW,
    *,
    overtaken: bool = False,
    known: bool = False,
) -> Alignment:
    """A window's speech, laid beside what is held.

    One that a newer request has overtaken begins no life, and may show older lines alone; so does one that is
    ``known`` to be of the life that goes on, whatever it says.
    """
    entries, spoken = entries_of_call(held), turn_ids.ordered(speech.lines)
    if old := forgotten_lines(held, spoken):
        lines = [message for i, message in enumerate(spoken) if i not in old]
        kept = Speech(lines, speech.shows_answers, partial=True)
        return align(without_marks(held), kept, asking, overtaken=overtaken, known=known).among(spoken, old)
    anew = turn_ids.never if known else turn_ids.contradicts if overtaken else turn_ids.begins_anew
    counts = in_pieces(entries, spoken)
    if not counts:
        return _laid(held, spoken, speech, asking, anew)
    lines = joined(spoken, counts)
    replay = _laid(held, lines, speech, asking, anew)
    found, places = wholes(spoken, replay.places, counts), spread(replay.places, counts)
    return msgspec.structs.replace(replay, lines=spoken, places=places, wholes=found)


def _laid(
    held: Session, spoken: Sequence[Message], speech: Speech, asking: Arrival, anew: turn_ids.Judge
) -> Alignment:
    entries, newest = entries_of_call(held), anew is turn_ids.begins_anew
    answering, moved = speech.shows_answers, held.has_older
    alone = is_lone(spoken) and not speech.partial
    if entries and alone and (asking.attempt.name_digest or newest):
        replay = Alignment(entries, spoken, [NEW], len(entries), new_call=False, shows_answers=answering)
        return _alone(replay, held.latest_request, asking)
    again = partial(is_latest_again, held.latest_request, speech, asking)
    run = straight(entries, spoken, moved=moved, again=again)
    if run is not None:
        end = _end(entries, run, numbered=turn_id_of(spoken[-1]) is not None)
        return Alignment(entries, spoken, run, end, new_call=False, shows_answers=answering)
    if entries and not any(turn_id_of(message) is not None for message in spoken):
        if not newest:
            return _aligned(entries, spoken, answering=answering, moved=moved)
        return _slid(entries, spoken, held.latest_request, answering=answering, again=again) or _beginning(
            held, spoken, answering=answering, moved=moved
        )
    return _compared(entries, spoken, anew, answering=answering, moved=moved)


def entries_of_call(held: Session) -> Sequence[Entry]:
    """The entries of the life that goes on."""
    entries = held.entries
    if not entries or entries[0].call == held.call:
        return entries
    return tuple(entry for entry in entries if entry.call == held.call)


def _end(entries: Sequence[Entry], places: Sequence[int], *, numbered: bool) -> int:
    """Nothing that is held is newer than what an engine without numbers shows."""
    return max(places) + 1 if numbered and places[-1] >= 0 else len(entries)


def _compared(
    entries: Sequence[Entry], spoken: Sequence[Message], anew: turn_ids.Judge, *, answering: bool, moved: bool
) -> Alignment:
    held, window = [Line(entry) for entry in entries], [Line(message) for message in spoken]
    if not any(line.turn_id is not None for line in held):
        places = align_lines(held, window, moved=moved)
        return Alignment(entries, spoken, places, len(held), new_call=False, shows_answers=answering)
    if anew(held, window):
        return Alignment((), spoken, align_lines((), window), 0, new_call=True, shows_answers=answering)
    places = turn_ids.match_turn_ids(held, window)
    return Alignment(entries, spoken, places, _newer(held, window), new_call=False, shows_answers=answering)


def _beginning(session: Session, spoken: Sequence[Message], *, answering: bool, moved: bool) -> Alignment:
    """An unnumbered window that perhaps has no history, or begins another talk."""
    entries, newest = entries_of_call(session), session.latest_request
    replay = _aligned(entries, spoken, answering=answering, moved=moved)
    if _former_calls(replay):
        places = [NEW] * len(spoken)
        return msgspec.structs.replace(replay, places=places)
    if newest:
        since = newest.start - session.cold_count - len(session.entries) + len(entries)
        places = likelier([*map(Line, entries)], [*map(Line, spoken)], [*replay.places], since=since)
        replay = msgspec.structs.replace(replay, places=places)
    if not turn_ids.starts_over(entries, spoken, replay.places, newest):
        return replay
    return Alignment(
        (), spoken, align_lines((), [*map(Line, spoken)]), 0, new_call=True, shows_answers=answering
    )


def _slid(
    entries: Sequence[Entry],
    spoken: Sequence[Message],
    newest: LatestRequest | None,
    *,
    answering: bool,
    again: Callable[[], bool],
) -> Alignment | None:
    """A window that shows the end of what is held and new words, unless it may be the newest one ``again``.

    It tells what the assistant said where the one before did, in words, and was no longer: answers without
    words are no lines.
    """
    places = slid([*map(Line, entries)], [*map(Line, spoken)])
    if places is None or (shows_again(entries, spoken) and again()):
        return None
    told = newest is not None and newest.shows_answers and not newest.wordless
    whole = newest is not None and not newest.shows_call_start and newest.line_count <= len(spoken)
    answering = answering or (told and whole)
    return Alignment(entries, spoken, places, len(entries), new_call=False, shows_answers=answering)


def _former_calls(replay: Alignment) -> bool:
    """Whether a window of calls alone seems to show those of a former turn: the last words made the same."""
    calls = all(message.tool_calls or message.role == "tool" for message in replay.lines)
    last = last_user(replay.entries)
    return calls and last is not None and max(replay.places, default=NEW) < last


def _aligned(
    entries: Sequence[Entry], spoken: Sequence[Message], *, answering: bool, moved: bool
) -> Alignment:
    held, window = [Line(entry) for entry in entries], [Line(message) for message in spoken]
    places = align_lines(held, window, moved=moved)
    return Alignment(entries, spoken, places, len(held), new_call=False, shows_answers=answering)


def _alone(replay: Alignment, newest: LatestRequest | None, asking: Arrival) -> Alignment:
    """Words without any history are the newest that are held, once more, or new: they take nothing back."""
    place = single_position(replay.entries, replay.lines[0], asking, newest)
    return msgspec.structs.replace(replay, places=[place], follows=follows_answer(newest, asking.at))


def _newer(held: Sequence[Line], window: Sequence[Line]) -> int:
    """Where in ``held`` begins what is newer than the window's newest turn."""
    newest = max(turn_ids.numbers(window), default=0)
    numbers: Any = enumerate(turn_ids.numbers(held))
    return next((i for i, number in numbers if number > newest), len(held))


def straight(
    entries: Sequence[Entry], spoken: Sequence[Message], *, moved: bool, again: Callable[[], bool]
) -> list[int] | None:
    """The places of a window that shows, line by line, the newest that is held, and perhaps one line more.

    It may show whole turns more, where turns are numbered: those of calls that are yet to be recorded.
    Answers may be spelt otherwise, and the last that is held may be one of which less was heard. What the
    window shows before all of it is older, where the oldest has ``moved`` to the cold part. ``again`` tells
    whether it is the newest window once more, which is dear to tell.
    """
    count, size = len(spoken), len(entries)
    if not spoken or not entries or spoken[-1].role != "user":
        return None
    # Where the talk repeats itself, either may fit: a window that is longer than what is held says more.
    once, more = size - count - 1, size - count + 1
    starts = [size - count, once, more] if count <= size else [size - count, more, once]
    for start in (*starts, size - count + _ahead(entries, spoken)):
        first, older = max(start, 0), max(-start, 0)
        shown = min(count - older, size - first)
        if (older and not moved) or shown <= 0:
            continue
        fits = runs(entries[first : first + shown], spoken[older:] if older else spoken)
        if fits and (start != once or again()):
            return [*[NEW] * older, *range(first, first + shown), *[NEW] * (count - older - shown)]
    return _revising(entries, spoken, moved=moved)


def _revising(entries: Sequence[Entry], spoken: Sequence[Message], *, moved: bool) -> list[int] | None:
    """The same where the newest words are an early or a later form of the newest that are held.

    What stands before both is held line by line, be it as often as a talk repeats itself.
    """
    last, words = newest_user(entries), spoken[-1]
    if not last or turn_id_of(words) is not None or not _forms(entries[last].text, words.text):
        return None
    first, older = max(last - len(spoken) + 1, 0), max(len(spoken) - 1 - last, 0)
    shown = zip(spoken[older:], entries[first:last], strict=False)
    if (older and not moved) or any(similarity(Line(m), Line(e)) < CUT for m, e in shown):
        return None
    return [*[NEW] * older, *range(first, last), NEW]


def _forms(one: str, other: str) -> bool:
    return continues(one, other) or continues(other, one)


def _ahead(entries: Sequence[Entry], spoken: Sequence[Message]) -> int:
    """How many of the window's last lines are of turns behind all that is held."""
    newest = entries[-1].engine_turn
    if newest is None:
        return 0
    known = (i for i, message in enumerate(reversed(spoken)) if (turn_id_of(message) or 0) <= newest)
    return next(known, 0)


def runs(entries: Sequence[Entry], spoken: Sequence[Message]) -> bool:
    """Whether a window shows just these entries; of the last, less may have been heard."""
    last = len(entries) - 1
    for i, entry in enumerate(entries):
        message = spoken[i]
        if entry.role != message.role:
            return False
        if entry.engine_turn != message.turn_id and entry.engine_turn != turn_id_of(message):
            return False
        if entry.content != message.content or entry.tool_calls or message.tool_calls or entry.tool_call_id:
            if i == last:
                return last > 0 and _answers_as(message, entry)
            if not (_respelt(message, entry) or _calls_again(message, entry)):
                return False
    return True


def _respelt(message: Message, entry: Entry) -> bool:
    """Whether the replayed line is the held answer to the letter, where turns are not numbered."""
    if entry.role != "assistant" or entry.engine_turn is not None or entry.tool_calls or message.tool_calls:
        return False
    return same_words(message.text, entry.text)


def _calls_again(message: Message, entry: Entry) -> bool:
    """Whether the replayed line is the held call, or the held result of one."""
    called = entry.tool_calls or entry.tool_call_id
    return bool(called) and similarity(Line(message), Line(entry)) >= WORDS


def _answers_as(message: Message, entry: Entry) -> bool:
    """Whether the replayed line is the held answer; where turns are numbered, in whatever words."""
    spoken = not (entry.tool_calls or message.tool_calls)
    if entry.role == "assistant" and entry.engine_turn is not None and spoken:
        return message.source in {entry.source, None}
    return similarity(Line(message), Line(entry)) > 0


def shows_again(entries: Sequence[Entry], spoken: Sequence[Message]) -> bool:
    """Whether a window ends with the newest words that are held, and what stands before them.

    Answers that are yet to be confirmed it may leave out.
    """
    last = newest_user(entries)
    before = entries[: 0 if last is None else last + 1]
    confirmed = [entry for entry in before if not entry.pending]
    return any(
        len(shown) == len(spoken) and runs(shown, spoken)
        for shown in (before[-len(spoken) :], confirmed[-len(spoken) :])
    )


def is_lone(spoken: Sequence[Message]) -> bool:
    """Whether a window without turn numbers is nothing but words of the user."""
    return len(spoken) == 1 and spoken[0].role == "user" and turn_id_of(spoken[0]) is None


def single_position(
    entries: Sequence[Entry], words: Message, asking: Arrival, newest: LatestRequest | None
) -> int:
    """Where lone words are held."""
    if asking.attempt.name_digest:
        own = (i for i, e in enumerate(entries) if e.recorded_at == asking.at and _equal(e, words))
        if (found := next(own, None)) is not None:
            return found
    last = newest_user(entries)
    if last is None or not (_equal(entries[last], words) or entries[last].replaces(words.text)):
        return NEW
    return NEW if newest and is_other_turn(newest, asking) else last


def is_other_turn(newest: LatestRequest, asking: Arrival) -> bool:
    """Whether a request with the newest one's lone words is another turn.

    Its name tells, where both bear one. OpenAI's clients tell that they send something for the first time:
    where the engine keeps no history, nobody says again what was answered to the end.
    """
    attempt, at = asking
    if attempt.is_retry:
        return False
    if attempt.name_digest and newest.name_digest:
        return attempt.name_digest != newest.name_digest
    lone = newest.line_count == 1 and not newest.shows_call_start
    return attempt.is_retry is False and lone and newest.finished and newest.ended < at


def has_slid(newest: LatestRequest, asking: Arrival) -> bool:
    """Whether a request with the newest one's window is another turn, since that had slid to where it stood.

    A caller may be told the same, and say the same again, in a window of few lines.
    """
    named = (
        asking.attempt.name_digest and newest.name_digest and asking.attempt.name_digest != newest.name_digest
    )
    if not named or asking.attempt.is_retry or newest.shows_call_start:
        return False
    return newest.line_count > 1 and newest.finished and newest.ended < asking.at


def is_latest_again(newest: LatestRequest | None, said: Speech, asking: Arrival) -> bool:
    """Whether a window is the newest one once more, as far as anybody can tell.

    An answer without words is no line: engines may show it, as unheard, or leave it out.
    """
    if newest is None:
        return True
    if newest.line_count != len(said.lines) or has_slid(newest, asking):
        return False
    return newest.fingerprint in request_fingerprints(said, asking.attempt)


def follows_answer(newest: LatestRequest | None, at: float) -> bool:
    """Whether what arrived ``at`` a time came once the newest request had been answered, or given up."""
    if newest is None or not newest.ended:
        return False
    return at > newest.ended + (0 if newest.finished else _AT_ONCE)


def _equal(entry: Entry, words: Message) -> bool:
    return entry.role == "user" and Line(entry).key == Line(words).key


def slid(held: Sequence[Line], window: Sequence[Line]) -> list[int] | None:
    """The places of a window that ends with new words of the user behind the end of all that is held.

    It may not show answers that are yet to be confirmed: those were not heard. Words before the newest that
    are not held are of turns that failed.
    """
    if not window or window[-1].role != "user":
        return None
    least = 1 if window[0].role == "assistant" else 2
    return _behind(held, window, 1) or _after_failures(held, window, least=least)


def likelier(held: Sequence[Line], window: Sequence[Line], places: list[int], *, since: int) -> list[int]:
    """The places; where too little speaks for what they take back, the last lines count as new, or all.

    ``since`` is where in ``held`` the newest window begins.
    """
    if not window or window[-1].role != "user" or not _doubtful(held, window, places, since):
        return places
    return _after_failures(held, window, least=1) or [NEW] * len(window)


def _after_failures(held: Sequence[Line], window: Sequence[Line], *, least: int) -> list[int] | None:
    """As ``_behind``, where the last 2 to 6 lines are new: of turns that failed nothing is held.

    At least ``least`` lines stand before them, and what was answered among them is not held.
    """
    for new in range(2, min(_FAILED, len(window) - least) + 1):
        line = window[-new]
        if line.role != "user" and any(similarity(line, other) for other in held):
            return None
        if places := _behind(held, window, new):
            mark_repeated(places, held, window)
            return places
    return None


def _behind(held: Sequence[Line], window: Sequence[Line], new: int) -> list[int] | None:
    """The places, where all but the last lines are the end of what is held, or of what was heard of it."""
    shown, least = window[: len(window) - new], ALIKE if new == 1 else CUT
    for heard in _heard(held, confirmed=new == 1) if shown else ():
        end = heard[-len(shown) :]
        pairs = zip(shown, end, strict=False)
        if len(end) == len(shown) and all(similarity(line, held[h]) >= least for line, h in pairs):
            return [*end, *[NEW] * new]
    return None


def _heard(held: Sequence[Line], *, confirmed: bool) -> Iterator[Sequence[int]]:
    """Which lines may have been heard: all or the ``confirmed`` ones, with the last answers or without."""
    end = len(held)
    yield range(end)
    while end and held[end - 1].pending:
        end -= 1
    if end < len(held):
        yield range(end)
    if confirmed and any(line.pending for line in held[:end]):
        before = [h for h, line in enumerate(held[:end]) if not line.pending]
        yield from ([*before, *range(end, len(held))], before)


def _doubtful(held: Sequence[Line], window: Sequence[Line], places: Sequence[int], since: int) -> bool:
    """Whether places take back more turns than they find lines, or as many in a window that begins elsewhere.

    So do those by which the newest words are older than others, though something before them is new.
    """
    matched = {place for place in places if place >= 0}
    if not matched:
        return False
    users = [h for h, line in enumerate(held) if line.role == "user"]
    first = min(matched.intersection(users), default=max(matched))
    known = matched.union(_grown(held, window, places))
    taken = sum(h > first and h not in known for h in users)
    new = places.count(NEW)
    return (
        taken > len(matched)
        or (taken == len(matched) and new > 1 and places[0] != since)
        or (new > 0 and 0 <= places[-1] < users[-1])
    )


def _grown(held: Sequence[Line], window: Sequence[Line], places: Sequence[int]) -> Iterator[int]:
    """Where words are held that the window shows in the same place, and more: those are not taken back."""
    for (_, before), (line, place) in pairwise(zip(window, places, strict=True)):
        if before >= 0 and place == NEW and line.role == "user":
            after = next((h for h in range(before + 1, len(held)) if held[h].role == "user"), None)
            if after is not None and continues(line.text, held[after].text):
                yield after
