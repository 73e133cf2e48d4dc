"""A window is laid beside what is held: the quickest way that will do comes first."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from filters.message import Message
from proxy.memory.replay import life, lone, numbering
from proxy.memory.replay.alignment import align
from proxy.memory.replay.bygone import bygone, rest
from proxy.memory.replay.glance import shows_again, straight
from proxy.memory.replay.line import NEW, Line, number_of
from proxy.memory.replay.pieces import in_pieces, joined, spread, wholes
from proxy.memory.replay.replay import Replay, last_user
from proxy.memory.replay.sliding import likelier, slid
from proxy.memory.session.entry import Entry
from proxy.memory.session.newest import Newest
from proxy.memory.session.retry import NOW, Asking
from proxy.memory.session.session import Session
from proxy.memory.speech.speech import Speech


def beside(
    held: Session, speech: Speech, asking: Asking = NOW, *, overtaken: bool = False, known: bool = False
) -> Replay:
    """A window's speech, laid beside what is held.

    One that a newer request has overtaken begins no life, and may show older lines alone; so does one that is
    ``known`` to be of the life that goes on, whatever it says.
    """
    entries, spoken = of_life(held), numbering.ordered(speech.lines)
    if old := bygone(held, spoken):
        lines = [message for i, message in enumerate(spoken) if i not in old]
        kept = Speech(lines, speech.answering, left=True)
        return beside(rest(held), kept, asking, overtaken=overtaken, known=known).among(spoken, old)
    anew = life.never if known else life.contradicts if overtaken else life.begins_anew
    counts = in_pieces(entries, spoken)
    if not counts:
        return _laid(held, spoken, speech, asking, anew)
    lines = joined(spoken, counts)
    replay = _laid(held, lines, speech, asking, anew)
    found, places = wholes(spoken, replay.places, counts), spread(replay.places, counts)
    return msgspec.structs.replace(replay, spoken=spoken, places=places, wholes=found)


def _laid(
    held: Session, spoken: Sequence[Message], speech: Speech, asking: Asking, anew: life.Judge
) -> Replay:
    entries, newest = of_life(held), anew is life.begins_anew
    answering, moved = speech.answering, held.older
    alone = lone.is_lone(spoken) and not speech.left
    if entries and alone and (asking.attempt.request or newest):
        replay = Replay(entries, spoken, [NEW], len(entries), anew=False, answering=answering)
        return _alone(replay, held.newest, asking)
    again = partial(lone.again, held.newest, speech, asking)
    run = straight(entries, spoken, moved=moved, again=again)
    if run is not None:
        end = _end(entries, run, numbered=number_of(spoken[-1]) is not None)
        return Replay(entries, spoken, run, end, anew=False, answering=answering)
    if entries and not any(number_of(message) is not None for message in spoken):
        if not newest:
            return _aligned(entries, spoken, answering=answering, moved=moved)
        return _slid(entries, spoken, held.newest, answering=answering, again=again) or _beginning(
            held, spoken, answering=answering, moved=moved
        )
    return _compared(entries, spoken, anew, answering=answering, moved=moved)


def of_life(held: Session) -> Sequence[Entry]:
    """The entries of the life that goes on."""
    entries = held.entries
    if not entries or entries[0].life == held.life:
        return entries
    return tuple(entry for entry in entries if entry.life == held.life)


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


def _beginning(session: Session, spoken: Sequence[Message], *, answering: bool, moved: bool) -> Replay:
    """An unnumbered window that perhaps has no history, or begins another talk."""
    entries, newest = of_life(session), session.newest
    replay = _aligned(entries, spoken, answering=answering, moved=moved)
    if _former_calls(replay):
        places = [NEW] * len(spoken)
        return msgspec.structs.replace(replay, places=places)
    if newest:
        since = newest.since - session.moved - len(session.entries) + len(entries)
        places = likelier([*map(Line, entries)], [*map(Line, spoken)], [*replay.places], since=since)
        replay = msgspec.structs.replace(replay, places=places)
    if not life.starts_over(entries, spoken, replay.places, newest):
        return replay
    return Replay((), spoken, align((), [*map(Line, spoken)]), 0, anew=True, answering=answering)


def _slid(
    entries: Sequence[Entry],
    spoken: Sequence[Message],
    newest: Newest | None,
    *,
    answering: bool,
    again: Callable[[], bool],
) -> Replay | None:
    """A window that shows the end of what is held and new words, unless it may be the newest one ``again``.

    It tells what the assistant said where the one before did, in words, and was no longer: answers without
    words are no lines.
    """
    places = slid([*map(Line, entries)], [*map(Line, spoken)])
    if places is None or (shows_again(entries, spoken) and again()):
        return None
    told = newest is not None and newest.answering and not newest.wordless
    whole = newest is not None and not newest.whole and newest.lines <= len(spoken)
    answering = answering or (told and whole)
    return Replay(entries, spoken, places, len(entries), anew=False, answering=answering)


def _former_calls(replay: Replay) -> bool:
    """Whether a window of calls alone seems to show those of a former turn: the last words made the same."""
    calls = all(message.tool_calls or message.role == "tool" for message in replay.spoken)
    last = last_user(replay.held)
    return calls and last is not None and max(replay.places, default=NEW) < last


def _aligned(entries: Sequence[Entry], spoken: Sequence[Message], *, answering: bool, moved: bool) -> Replay:
    held, window = [Line(entry) for entry in entries], [Line(message) for message in spoken]
    places = align(held, window, moved=moved)
    return Replay(entries, spoken, places, len(held), anew=False, answering=answering)


def _alone(replay: Replay, newest: Newest | None, asking: Asking) -> Replay:
    """Words without any history are the newest that are held, once more, or new: they take nothing back."""
    place = lone.place(replay.held, replay.spoken[0], asking, newest)
    return msgspec.structs.replace(replay, places=[place], follows=lone.follows(newest, asking.at))


def _newer(held: Sequence[Line], window: Sequence[Line]) -> int:
    """Where in ``held`` begins what is newer than the window's newest turn."""
    newest = max(numbering.numbers(window), default=0)
    numbers: Any = enumerate(numbering.numbers(held))
    return next((i for i, number in numbers if number > newest), len(held))
