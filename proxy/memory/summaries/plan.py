"""Which turns a summary is to stand for next."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from filters.tokens import in_message
from proxy.memory.session.entry import Entry, message_of
from proxy.memory.session.segment import START, Reach, Segment
from proxy.memory.session.session import Session
from proxy.memory.summaries.cap import cut_of

_STEP: Final = 8
"""Where every prompt passes a budget, so many messages at least lie between two summaries."""


class Window(msgspec.Struct, frozen=True):
    """When a session is compacted, to what, and when it expires. ``ttl`` is in seconds.

    With ``summaries`` above 0 nothing leaves the hot part that no summary covers, and there are at most so
    many of them. ``max_tokens`` counts what no summary covers.
    """

    max_messages: int = 60
    keep_messages: int = 20
    ttl: float = 1800.0
    max_tokens: int | None = None
    summaries: int = 0


class Plan(msgspec.Struct, frozen=True):
    """What is to be summarised: the segments from ``first`` on and before ``last`` give way to one.

    It will stand for the turns behind ``behind``, up to and with ``reach``; a ``merge`` is made of the texts
    of those that give way.
    """

    first: int
    last: int
    behind: Reach
    reach: Reach
    merge: bool = False

    def covers(self, entry: Entry) -> bool:
        """Whether an entry is one of those that the new segment will stand for."""
        return self.behind < entry.place <= self.reach


def uncovered(session: Session) -> tuple[Entry, ...]:
    """What is held in the hot part and no summary covers."""
    return session.entries[covered(session) :]


def covered(session: Session) -> int:
    """How many entries of the hot part a summary covers; they are its oldest."""
    return bisect_right(session.entries, session.reach, key=lambda entry: entry.place)


def due(session: Session, window: Window, *, model: bool = True) -> Plan | None:
    """What is to be summarised now, if anything; ``model`` is whether there is one to replace digests."""
    window = _of_model(window, session)
    return (
        _again(session, lambda segment: segment.stale)
        or _further(session, window)
        or _merging(session, window)
        or (_again(session, lambda segment: segment.digest) if model else None)
    )


def forced(session: Session, window: Window) -> Plan | None:
    """What can be summarised now, due or not: all but what is kept, else all but the newest turn."""
    open_ = uncovered(session)
    return _cut(session, window.keep_messages if len(open_) > window.keep_messages else 1)


def beyond(session: Session, window: Window) -> Plan | None:
    """What has to be summarised at once, by whatever means: all beyond twice the maximum."""
    if not window.summaries:
        return None
    window, open_ = _of_model(window, session), uncovered(session)
    if _passes(open_, window, times=2):
        return _cut(session, _keep(open_, window), strict=False)
    return _merging(session, window) if len(session.summaries) > 2 * window.summaries else None


def _again(session: Session, wanted: Callable[[Segment], bool]) -> Plan | None:
    starts = [START, *(s.reach for s in session.summaries)]
    for i, (start, one) in enumerate(zip(starts, session.summaries, strict=False)):
        if wanted(one) and start < one.reach:
            return Plan(i, i + 1, start, one.reach)
    return None


def _further(session: Session, window: Window) -> Plan | None:
    open_ = uncovered(session)
    former = [entry.place for entry in open_ if entry.life < session.life]
    if former:
        return _behind_all(session, former[-1])
    if session.moved and not session.summaries:
        return _cut(session, min(window.keep_messages, len(open_) // 2))
    if session.trimmed or (session.room and _has_grown(session, window)):
        return _cut(session, min(window.keep_messages, len(open_) // 2, _shown(session)))
    return _cut(session, _keep(open_, window)) if _passes(open_, window) else None


def _has_grown(session: Session, window: Window) -> bool:
    """Whether enough was said since the last summary to make another one, though that has not made room."""
    if not session.summaries:
        return True
    made, least = session.summaries[-1].made, min(_STEP, window.max_messages - window.keep_messages)
    return sum(entry.recorded > made for entry in uncovered(session)) >= least


def _shown(session: Session) -> int:
    """How many entries had room when turns had to be left out."""
    asked = [i for i, entry in enumerate(session.entries) if entry.role == "user"]
    return len(session.entries) - (asked[-session.room] if 0 < session.room <= len(asked) else 0)


def _passes(open_: Sequence[Entry], window: Window, *, times: int = 1) -> bool:
    if len(open_) > times * window.max_messages:
        return True
    return window.max_tokens is not None and _tokens_of(open_) > times * window.max_tokens


def _keep(open_: Sequence[Entry], window: Window) -> int:
    """How many entries are kept: so many that they have their share of the tokens as well."""
    if window.max_tokens is None:
        return window.keep_messages
    left = window.max_tokens * window.keep_messages / window.max_messages
    sizes = accumulate(_tokens_of([entry]) for entry in reversed(open_))
    return max(1, min(window.keep_messages, sum(size <= left for size in sizes)))


def _cut(session: Session, keep: int, *, strict: bool = True) -> Plan | None:
    open_ = uncovered(session)
    cut = cut_of(open_, keep, strict=strict) if open_ else 0
    return _behind_all(session, open_[cut - 1].place) if cut else None


def _behind_all(session: Session, reach: Reach) -> Plan | None:
    """A further segment; none where it would not reach further, or planning would never end."""
    count = len(session.summaries)
    return Plan(count, count, session.reach, reach) if reach > session.reach else None


def _merging(session: Session, window: Window) -> Plan | None:
    count = len(session.summaries)
    if count <= max(window.summaries, 1):
        return None
    last = count - window.summaries // 2
    return Plan(0, last, START, session.summaries[last - 1].reach, merge=True)


def _of_model(window: Window, session: Session) -> Window:
    """The window as estimated tokens, of which the model may count more or fewer."""
    if window.max_tokens is None or not session.scale:
        return window
    return msgspec.structs.replace(window, max_tokens=int(window.max_tokens / session.scale))


def _tokens_of(entries: Sequence[Entry]) -> int:
    return sum(in_message(message_of(entry)) for entry in entries)
