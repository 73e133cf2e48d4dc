"""Which messages of a window belong to turns that a summary stands for."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from filters.covered import covered
from filters.message import Message
from filters.role import SYSTEM
from proxy.memory.replay.alignment import AGAIN
from proxy.memory.replay.bygone import FORGOTTEN
from proxy.memory.replay.line import number_of
from proxy.memory.replay.replay import Replay
from proxy.memory.session.entry import Entry
from proxy.memory.session.session import Session
from proxy.memory.speech.speech import is_speech


def shown(
    session: Session, replay: Replay, window: Sequence[Message], heard: Sequence[Message]
) -> Sequence[Message]:
    """The messages ``heard`` of a window, with those marked that a summary stands for.

    ``replay`` is the window beside what is held. What is no speech goes with the speech behind it, and
    instructions are never covered.
    """
    verdicts = _of_window(window, replay, _of_spoken(session, replay))
    if True not in verdicts:
        return heard
    return [covered(m) if verdict else m for m, verdict in zip(heard, verdicts, strict=True)]


def _of_spoken(session: Session, replay: Replay) -> list[bool]:
    """For each line of the speech whether it is covered: by where it is held, else by where it would be."""
    behind = [entry.place <= session.reach for entry in replay.held]
    verdicts = [False] * len(replay.spoken)
    following: int | None = None
    last = _last_number(replay.held, behind)
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
            verdicts[i] = _is_before(behind, following) or _is_numbered(replay.spoken[i], last)
    return verdicts


def _is_before(behind: Sequence[bool], following: int | None) -> bool:
    """Whether a line is covered that is not held and stands before the held one at ``following``.

    What is older than all that is held in the hot part is, since that begins with covered turns.
    """
    return following is not None and behind[max(following - 1, 0)]


def _is_numbered(message: Message, last: int | None) -> bool:
    number = number_of(message)
    return number is not None and last is not None and number <= last


def _last_number(held: Sequence[Entry], behind: Sequence[bool]) -> int | None:
    numbers = (e.engine_turn for e, is_behind in zip(held, behind, strict=True) if is_behind)
    return max((number for number in numbers if number is not None), default=None)


class _Answers:
    """Where the answers of a window are held."""

    def __init__(self, replay: Replay) -> None:
        pairs = enumerate(zip(replay.spoken, replay.places, strict=True))
        self._held = {i: place for i, (m, place) in pairs if m.role == "assistant" and place >= 0}
        self._positions = [*self._held]

    def are_behind(self, position: int, behind: Sequence[bool]) -> bool:
        """Whether the one nearest to a line of the window, which says it again, is covered."""
        at = bisect_left(self._positions, position)
        near = self._positions[max(at - 1, 0) : at + 1]
        nearest = min(near, key=lambda i: abs(i - position), default=None)
        return nearest is not None and behind[self._held[nearest]]


def _of_window(window: Sequence[Message], replay: Replay, spoken: Sequence[bool]) -> list[bool]:
    known = {id(message): verdict for message, verdict in zip(replay.spoken, spoken, strict=True)}
    # Words whose tail was taken off are other objects; among themselves they are in the window's order.
    own = {id(message) for message in window}
    others = iter([v for m, v in zip(replay.spoken, spoken, strict=True) if id(m) not in own])
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
