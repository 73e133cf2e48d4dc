"""The words that are to be answered, among all that is held."""

from collections.abc import Sequence
from itertools import islice

from proxy.memory.session.entry import Entry
from proxy.memory.session.newest import AskedTurn


def position_of(entries: Sequence[Entry], turn: AskedTurn) -> int | None:
    """Where these words stand; ``None`` where they are no longer held, or nobody said any."""
    if turn.unasked:
        return None
    places = range(len(entries) - 1, -1, -1)
    users = (i for i in places if _asks(entries[i], turn.life, turn.turn))
    return next(islice(users, -turn.question - 1, None), None)


def turn_of(entries: Sequence[Entry], position: int) -> AskedTurn:
    """How the words at a position are called."""
    life, turn = entries[position].life, entries[position].turn
    return AskedTurn(life, turn, -sum(_asks(entry, life, turn) for entry in entries[position:]))


def unasked(entries: Sequence[Entry], life: int, turns: int) -> AskedTurn:
    """How the words are called that nobody said: behind all of a life, whose next turn is ``turns``."""
    last = entries[-1] if entries else None
    return AskedTurn(life, last.turn if last is not None and last.life == life else turns, 0)


def question_before(entries: Sequence[Entry], position: int) -> int | None:
    """Where the words stand that what is held at a position belongs to; of another life they are not."""
    words = (i for i in range(position, -1, -1) if entries[i].role == "user")
    found = next(words, None)
    return found if found is not None and entries[found].life == entries[position].life else None


def _asks(entry: Entry, life: int, turn: int) -> bool:
    return entry.turn == turn and entry.life == life and entry.role == "user"
