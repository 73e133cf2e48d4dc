"""A window that tells the user's side alone: the answers between what it shows are held, and come back."""

from collections.abc import Sequence

import msgspec

from filters.message import Message
from proxy.memory.replay.line import NEW
from proxy.memory.replay.replay import Replay

_TELLING = 2


class Onesided(msgspec.Struct, frozen=True, gc=False):
    """The lines of a window that come back along with their answers, and where all of that is held."""

    lines: Sequence[Message] = ()
    places: Sequence[int] = ()


_NOTHING = Onesided()


def onesided(replay: Replay, window: Sequence[Message]) -> Onesided:
    """What a window shows without any answer to it; what it asks stays where it is.

    One answer that is not shown may be one that was not heard. Two, of an engine that has never shown any,
    are an engine that leaves them out. Where a line is shown otherwise than it is spoken, with a picture in
    it, the window stays as it is: what comes back would not be what the client shows.
    """
    if replay.answering or len(replay.spoken) <= _TELLING:
        return _NOTHING
    pairs = list(enumerate(zip(replay.spoken, replay.places, strict=True)))
    shown = [(line, place) for i, (line, place) in pairs if place >= 0 and i != replay.asked]
    own = {id(message) for message in window}
    if not shown or not all(id(line) in own for line, _ in shown):
        return _NOTHING
    asked = NEW if replay.asked is None else replay.places[replay.asked]
    span = range(min(place for _, place in shown), asked if asked >= 0 else replay.end)
    answers = [replay.held[h] for h in span if replay.held[h].role == "assistant"]
    if len(answers) < _TELLING or not all(entry.pending for entry in answers):
        return _NOTHING
    return Onesided([line for line, _ in shown], span)


def rest(replay: Replay, lines: Sequence[Message]) -> Replay:
    """The same window without some of its lines."""
    lost = {id(line) for line in lines}
    left = [pair for pair in zip(replay.spoken, replay.places, strict=True) if id(pair[0]) not in lost]
    spoken, places = [line for line, _ in left], [place for _, place in left]
    return msgspec.structs.replace(replay, spoken=spoken, places=places)
