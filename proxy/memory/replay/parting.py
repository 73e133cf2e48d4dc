"""Results whose call has slid out of a window: a model takes them with their call alone."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from filters.group import call_id, call_ids
from filters.message import Message
from proxy.memory.replay.line import NEW
from proxy.memory.replay.replay import Replay
from proxy.memory.session.entry import Entry
from proxy.memory.speech.functions import former


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
        return [former(line) for line, place in pairs if place == NEW]


def parted(replay: Replay) -> Parted:
    """The results that a window shows without their held call."""
    if not any(message.role == "tool" for message in replay.spoken):
        return Parted()
    shown = {i for message in replay.spoken for i in call_ids(message)}
    called: set[str] = set()
    held = _callers(replay.held)
    found: list[tuple[Message, int]] = []
    for message, place in zip(replay.spoken, replay.places, strict=True):
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
