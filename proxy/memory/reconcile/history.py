"""What an engine tells of a whole talk, brought together with the life that it is of."""

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from filters.message import Message
from proxy.memory.reconcile.reconcile import taken
from proxy.memory.replay.beside import beside
from proxy.memory.replay.line import CUT, Line, kinship, number_of
from proxy.memory.replay.replay import Replay
from proxy.memory.session.entry import Entry
from proxy.memory.session.session import Session
from proxy.memory.speech.speech import Speech, spoken


def retold(held: Session, history: Sequence[Message], *, now: float) -> Session:
    """The session once the talk of its life that goes on was told; never does that begin another one.

    A history that surely shows nothing of what is held is of some other talk, and changes nothing.
    """
    said = spoken(history)
    by_words = _renumbered(said, None)
    replay = beside(held, by_words, known=True)
    same = _same(said, replay)
    if replay.held and not same:
        return held
    ahead = _ahead(same)
    if ahead is None:
        replay = msgspec.structs.replace(replay, end=_end(replay))
        return taken(held, by_words, now=now, replay=replay)[0]
    numbered = _renumbered(said, ahead)
    return taken(held, numbered, now=now, replay=beside(held, numbered, known=True))[0]


def _end(replay: Replay) -> int:
    """Where in ``held`` begins what the history does not reach to: it may be told late, or not to the end.

    Words of the user that it shows last, and that are not held, stand for as many that are.
    """
    if not replay.matched:
        return replay.end
    last = max(i for i, place in enumerate(replay.places) if place >= 0)
    more = sum(message.role == "user" for message in replay.spoken[last + 1 :])
    rest = range(max(replay.matched) + 1, len(replay.held))
    behind = [h for h in rest if replay.held[h].role == "user"]
    return behind[more] if more < len(behind) else replay.end


def _same(said: Speech, replay: Replay) -> list[tuple[Message, Entry]]:
    """The lines that are surely held, and what they are held as."""
    pairs = zip(said.lines, replay.places, strict=True)
    found = [(line, replay.held[place]) for line, place in pairs if place >= 0]
    return [(line, entry) for line, entry in found if kinship(Line(line), Line(entry)) >= CUT]


def _ahead(same: Sequence[tuple[Message, Entry]]) -> int | None:
    """How far the life's own numbers are ahead of the history's: engines count one from 0, the other from 1.

    ``None`` where most of the lines that say the same do not agree on it.
    """
    pairs = ((number_of(line), entry.engine_turn) for line, entry in same)
    found = Counter(own - told for told, own in pairs if told is not None and own is not None)
    ((ahead, count),) = found.most_common(1) or [(0, not same)]
    return ahead if 2 * count > found.total() else None


def _renumbered(said: Speech, ahead: int | None) -> Speech:
    """The speech with its numbers so much further on, or without any."""
    return Speech([_counted(line, ahead) for line in said.lines], said.answering)


def _counted(line: Message, ahead: int | None) -> Message:
    number = number_of(line)
    turn = UNSET if number is None or ahead is None else number + ahead
    return msgspec.structs.replace(line, turn_id=turn)
