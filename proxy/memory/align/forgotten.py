"""Lines that were forgotten and that an engine still replays: known again, and never held.

An engine goes on sending what it has, whatever was deleted here. So the first window after a deletion is
taken for what it is, history: all of it but the words that are new. Of these lines only digests are kept,
which the session carries as long as it lives, beyond the time for which its deletion is remembered.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from filters.message import Message
from proxy.memory.align.line import Line, similarity
from proxy.memory.session import Entry, Forgotten, Mark, Session

FORGOTTEN: Final = -3
"""The place of a line that was forgotten."""
_BYTES: Final = 8
# As much of an answer as is heard of most that are cut off.
_BEGINNING: Final = 16
_MOST: Final = 1000


def deleted_session(at: float) -> Session:
    """What is held of a session that was deleted, before anything is said again."""
    return Session(forgotten=Forgotten(at=at, whole=True, open=True))


def forget_entries(held: Session, entries: Iterable[Entry], *, now: float) -> Session:
    """The session, for which some entries that it held are forgotten from now on."""
    known = held.forgotten or Forgotten(at=now)
    marks = (*known.marks, *(_mark(Line(entry), known.at) for entry in entries))[-_MOST:]
    return msgspec.structs.replace(held, forgotten=msgspec.structs.replace(known, marks=marks))


def with_marks(held: Session, spoken: Sequence[Message]) -> Session:
    """The session once it knows what is forgotten, from the first window since it was deleted."""
    known = held.forgotten
    if known is None or not known.open or not spoken:
        return held
    own = [Line(entry) for entry in held.entries]
    lines = [line for line in map(Line, spoken[: _newest(spoken)]) if not _is_held(line, own)]
    marks = (*known.marks, *(_mark(line, known.at) for line in lines))[-_MOST:]
    return msgspec.structs.replace(held, forgotten=msgspec.structs.replace(known, marks=marks, open=False))


def without_marks(held: Session) -> Session:
    """The session beside a window of which nothing is forgotten any more."""
    known = held.forgotten
    return msgspec.structs.replace(
        held, forgotten=known and msgspec.structs.replace(known, marks=(), open=False)
    )


def forgotten_lines(held: Session, spoken: Sequence[Message]) -> set[int]:
    """Which lines of a window were forgotten; the newest words of the user never are."""
    known = with_marks(held, spoken).forgotten
    if known is None or not known.marks:
        return set()
    lines = [*map(Line, spoken)]
    marks = [_mark(line, known.at) for line in lines]
    if {*marks, *((mark.words, b"") for mark in marks)}.isdisjoint(known.marks) and not known.whole:
        return set()
    own = [Line(entry) for entry in held.entries if entry.call == held.call]
    found = _found(marks[: _newest(spoken)], known.marks, [_mark(line, known.at) for line in own])
    return set(range(_end(max(found), lines, own))) if found and known.whole else found


def _newest(spoken: Sequence[Message]) -> int:
    """Where the words stand that are new; at the end, where there are none."""
    return len(spoken) - (bool(spoken) and spoken[-1].role == "user")


def _found(shown: Sequence[Mark], forgotten: Sequence[Mark], own: Sequence[Mark]) -> set[int]:
    """The lines that bear a mark; of words that were said again since, those that were said first."""
    stamps = {mark.stamp for mark in forgotten} - {mark.stamp for mark in own} - {b""}
    left = Counter(mark.words for mark in forgotten)
    spare = Counter(mark.words for mark in shown)
    spare.subtract(mark.words for mark in own)
    found = set()
    for i, mark in enumerate(shown):
        if mark.stamp in stamps or (left[mark.words] > 0 and spare[mark.words] > 0):
            found.add(i)
            left[mark.words] -= 1
            spare[mark.words] -= 1
    return found


def _end(last: int, lines: Sequence[Line], own: Sequence[Line]) -> int:
    """Where the talk begins that is held: behind the ``last`` line that was found, and its answers."""
    behind = range(last + 1, len(lines))
    return next((i for i in behind if lines[i].role == "user" or _is_held(lines[i], own)), len(lines))


def _is_held(line: Line, own: Sequence[Line]) -> bool:
    return any(similarity(line, other) for other in own)


def _mark(line: Line, at: float) -> Mark:
    """How a line is known again; digests of one deletion tell nothing of those of another."""
    salt = repr(at)
    words = line.ids if line.role in {"call", "tool"} else _words(line)
    stamp = None not in {line.turn_id, line.time}
    return Mark(
        _digest(salt, line.role, words),
        _digest(salt, line.role, (line.turn_id, line.time)) if stamp else b"",
    )


def _words(line: Line) -> tuple[str, ...]:
    words = line.letters(line.text) or line.text
    return (words[:_BEGINNING] if line.role == "assistant" else words,)


def _digest(salt: str, lane: str, what: tuple[object, ...]) -> bytes:
    return blake2b(repr((salt, lane, what)).encode("utf-8", "replace"), digest_size=_BYTES).digest()
