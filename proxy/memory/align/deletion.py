"""Recognises deleted lines that a platform still replays, by digests, so that they stay deleted.

A platform continues to send lines that were deleted here. So all lines of the first window after a deletion
are taken for deleted ones, except the newest words. The digests of these lines stay in the session.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from filters.message import Message
from proxy.memory.align.line import Line, similarity
from proxy.memory.session import Deletion, Entry, LineDigests, Session

_DIGEST_BYTES: Final = 8
# The part of an answer that is heard even of most interrupted ones.
_PREFIX_LETTERS: Final = 16
_MAX_MARKS: Final = 1000


def deleted_session(at: float) -> Session:
    """Returns the session that replaces one that was deleted ``at`` a time, in seconds since 1970."""
    return Session(deletion=Deletion(at=at, whole=True, open=True))


def forget_entries(session: Session, entries: Iterable[Entry], *, now: float) -> Session:
    """Returns the session with the digests of entries that are being deleted from it."""
    deletion = session.deletion or Deletion(at=now)
    return _with_marks(session, deletion, map(Line, entries))


def close_deletion(session: Session, lines: Sequence[Message]) -> Session:
    """Returns the session with the digests of the lines in the first window since the deletion."""
    deletion = session.deletion
    if deletion is None or not deletion.open or not lines:
        return session
    recorded = [Line(entry) for entry in session.entries]
    new_lines = (
        line for line in map(Line, lines[: _end_of_history(lines)]) if not _is_recorded(line, recorded)
    )
    return _with_marks(session, msgspec.structs.replace(deletion, open=False), new_lines)


def without_marks(session: Session) -> Session:
    """Returns the session without digests of deleted lines, for a window without these lines."""
    deletion = session.deletion
    return msgspec.structs.replace(
        session, deletion=deletion and msgspec.structs.replace(deletion, marks=(), open=False)
    )


def deleted_lines(session: Session, messages: Sequence[Message]) -> set[int]:
    """Returns the indices of a window's deleted lines; the user's newest words are never among them."""
    if session.deletion is None:
        return set()
    deletion = close_deletion(session, messages).deletion
    if deletion is None or not deletion.marks:
        return set()
    lines = [Line(message) for message in messages]
    marks = [_mark(line, deletion.at) for line in lines]
    if {*marks, *((mark.words, b"") for mark in marks)}.isdisjoint(deletion.marks) and not deletion.whole:
        return set()
    recorded = [Line(entry) for entry in session.entries if entry.call == session.call]
    entry_marks = [_mark(line, deletion.at) for line in recorded]
    # If deleted words were said again since, the first ones are the deleted ones.
    history = marks[: _end_of_history(messages)]
    stamps = {mark.stamp for mark in deletion.marks} - {mark.stamp for mark in entry_marks} - {b""}
    to_match = Counter(mark.words for mark in deletion.marks)
    spare = Counter(mark.words for mark in history)
    spare.subtract(mark.words for mark in entry_marks)
    matching = set()
    for i, mark in enumerate(history):
        if mark.stamp in stamps or (to_match[mark.words] > 0 and spare[mark.words] > 0):
            matching.add(i)
            to_match[mark.words] -= 1
            spare[mark.words] -= 1
    if not matching or not deletion.whole:
        return matching
    # The answers after the last of these lines are deleted as well.
    behind = range(max(matching) + 1, len(lines))
    ends = (i for i in behind if lines[i].role == "user" or _is_recorded(lines[i], recorded))
    return set(range(next(ends, len(lines))))


def _end_of_history(lines: Sequence[Message]) -> int:
    """Returns the index of the new words; the number of lines if there are none."""
    return len(lines) - (bool(lines) and lines[-1].role == "user")


def _is_recorded(line: Line, recorded: Sequence[Line]) -> bool:
    return any(similarity(line, other) for other in recorded)


def _with_marks(session: Session, deletion: Deletion, lines: Iterable[Line]) -> Session:
    marks = (*deletion.marks, *(_mark(line, deletion.at) for line in lines))[-_MAX_MARKS:]
    return msgspec.structs.replace(session, deletion=msgspec.structs.replace(deletion, marks=marks))


def _mark(line: Line, at: float) -> LineDigests:
    """Returns the digests of a line, salted so that those of two deletions never match."""
    salt = repr(at)
    if line.role in {"call", "tool"}:
        words: tuple[object, ...] = line.ids
    else:
        letters = line.letters(line.text) or line.text
        words = (letters[:_PREFIX_LETTERS] if line.role == "assistant" else letters,)
    has_stamp = None not in {line.turn_id, line.time}
    return LineDigests(
        _digest(salt, line.role, words),
        _digest(salt, line.role, (line.turn_id, line.time)) if has_stamp else b"",
    )


def _digest(salt: str, role: str, values: tuple[object, ...]) -> bytes:
    encoded = repr((salt, role, values)).encode("utf-8", "replace")
    return blake2b(encoded, digest_size=_DIGEST_BYTES).digest()
