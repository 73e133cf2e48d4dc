"""A session kept small: the oldest turns move out, whole."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from filters.tokens import in_message
from filters.tool_groups import Group, groups
from proxy.memory.session import (
    START,
    Entry,
    Segment,
    Session,
    TurnRef,
    entries_fingerprint,
    essence,
    message_of,
)
from proxy.memory.speakers import label, voices
from proxy.memory.summaries.digest import digest, parse_note, shorten

_STEP: Final = 8
"""Where every prompt passes a budget, so many messages at least lie between two summaries."""


def cap(held: Session, most: int, keep: int) -> tuple[Session, tuple[Entry, ...]]:
    """The session with at least ``keep`` entries left once it has more than ``most``, and what moved out.

    It is cut where a turn begins and no tool group is cut or open. Past twice ``most`` a call of a former
    turn that still has no result counts as given up, or it would keep the session growing for ever.
    """
    size = len(held.entries)
    if size <= most:
        return held, ()
    return move_out(held, cut_of(held.entries, keep, strict=size <= 2 * most))


def move_out(held: Session, count: int) -> tuple[Session, tuple[Entry, ...]]:
    """The session without its oldest entries, and these."""
    if not count:
        return held, ()
    kept = msgspec.structs.replace(held, entries=held.entries[count:], cold_count=held.cold_count + count)
    return kept, held.entries[:count]


def cut_of(entries: tuple[Entry, ...], keep: int, *, strict: bool) -> int:
    """Where to cut so that at least ``keep`` entries are left; 0 where it can be cut nowhere."""
    barred = _barred(entries, strict=strict)
    cuts = (i for i in range(len(entries) - max(keep, 1), 0, -1) if i not in barred and begins(entries, i))
    return next(cuts, 0)


def begins(entries: tuple[Entry, ...], position: int) -> bool:
    """Whether a turn begins there."""
    return entries[position - 1].turn_ref != entries[position].turn_ref


def _barred(entries: tuple[Entry, ...], *, strict: bool) -> set[int]:
    """Where a cut would part a tool group, or leave an open one behind it."""
    newest = entries[-1].turn_ref
    barred: set[int] = set()
    end = 0
    for group in groups([message_of(entry) for entry in entries]):
        call = entries[group.call]
        waiting = group.open and (strict or call.turn_ref == newest)
        start, end = max(group.call + 1, end), max(len(entries) if waiting else _end(group), end)
        barred.update(range(start, end))
    return barred


def _end(group: Group) -> int:
    return max((group.call, *group.results)) + 1


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
    behind: TurnRef
    reach: TurnRef
    merge: bool = False

    def covers(self, entry: Entry) -> bool:
        """Whether an entry is one of those that the new segment will stand for."""
        return self.behind < entry.turn_ref <= self.reach


def uncovered(session: Session) -> tuple[Entry, ...]:
    """What is held in the hot part and no summary covers."""
    return session.entries[covered(session) :]


def covered(session: Session) -> int:
    """How many entries of the hot part a summary covers; they are its oldest."""
    return bisect_right(session.entries, session.summarized_until, key=lambda entry: entry.turn_ref)


def next_plan(session: Session, window: Window, *, model: bool = True) -> Plan | None:
    """What is to be summarised now, if anything; ``model`` is whether there is one to replace digests."""
    window = _of_model(window, session)
    return (
        _again(session, lambda segment: segment.stale)
        or _further(session, window)
        or _merging(session, window)
        or (_again(session, lambda segment: segment.digest) if model else None)
    )


def forced_plan(session: Session, window: Window) -> Plan | None:
    """What can be summarised now, due or not: all but what is kept, else all but the newest turn."""
    open_ = uncovered(session)
    return _cut(session, window.keep_messages if len(open_) > window.keep_messages else 1)


def overflow_plan(session: Session, window: Window) -> Plan | None:
    """What has to be summarised at once, by whatever means: all beyond twice the maximum."""
    if not window.summaries:
        return None
    window, open_ = _of_model(window, session), uncovered(session)
    if _passes(open_, window, times=2):
        return _cut(session, _keep(open_, window), strict=False)
    return _merging(session, window) if len(session.summaries) > 2 * window.summaries else None


def _again(session: Session, wanted: Callable[[Segment], bool]) -> Plan | None:
    starts = [START, *(s.end for s in session.summaries)]
    for i, (start, one) in enumerate(zip(starts, session.summaries, strict=False)):
        if wanted(one) and start < one.end:
            return Plan(i, i + 1, start, one.end)
    return None


def _further(session: Session, window: Window) -> Plan | None:
    open_ = uncovered(session)
    former = [entry.turn_ref for entry in open_ if entry.call < session.call]
    if former:
        return _behind_all(session, former[-1])
    if session.cold_count and not session.summaries:
        return _cut(session, min(window.keep_messages, len(open_) // 2))
    if session.trimmed or (session.room and _has_grown(session, window)):
        return _cut(session, min(window.keep_messages, len(open_) // 2, _shown(session)))
    return _cut(session, _keep(open_, window)) if _passes(open_, window) else None


def _has_grown(session: Session, window: Window) -> bool:
    """Whether enough was said since the last summary to make another one, though that has not made room."""
    if not session.summaries:
        return True
    made, least = session.summaries[-1].created_at, min(_STEP, window.max_messages - window.keep_messages)
    return sum(entry.recorded_at > made for entry in uncovered(session)) >= least


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
    return _behind_all(session, open_[cut - 1].turn_ref) if cut else None


def _behind_all(session: Session, reach: TurnRef) -> Plan | None:
    """A further segment; none where it would not reach further, or planning would never end."""
    count = len(session.summaries)
    return Plan(count, count, session.summarized_until, reach) if reach > session.summarized_until else None


def _merging(session: Session, window: Window) -> Plan | None:
    count = len(session.summaries)
    if count <= max(window.summaries, 1):
        return None
    last = count - window.summaries // 2
    return Plan(0, last, START, session.summaries[last - 1].end, merge=True)


def _of_model(window: Window, session: Session) -> Window:
    """The window as estimated tokens, of which the model may count more or fewer."""
    if window.max_tokens is None or not session.scale:
        return window
    return msgspec.structs.replace(window, max_tokens=int(window.max_tokens / session.scale))


def _tokens_of(entries: Sequence[Entry]) -> int:
    return sum(in_message(message_of(entry)) for entry in entries)


def fit(before: Session, after: Session, window: Window, *, now: float) -> tuple[Session, tuple[Entry, ...]]:
    """What is to be held after a turn, and what moves to the cold part."""
    if not window.summaries:
        return cap(after, window.max_messages, window.keep_messages)
    return settle(bounded(mark_stale(before, after), window, now=now), window.keep_messages)


def bounded(session: Session, window: Window, *, now: float) -> Session:
    """The session with a digest in place of what is uncovered beyond twice the maximum.

    So a prompt stays bounded where nobody makes summaries.
    """
    while (plan := overflow_plan(session, window)) is not None:
        told = [entry for entry in session.entries if plan.covers(entry)]
        session = insert_segment(session, plan, digest_segment(session, plan, told, now=now))
    return session


def digest_segment(session: Session, plan: Plan, told: Sequence[Entry], *, now: float) -> Segment:
    """The segment of a plan, made of the sentences of what it stands for.

    A former one says it where the turns have no words, unless it is stale, and may tell what was taken back.
    """
    pairs = zip(told, voices(session, told), strict=True)
    said = [(_by(entry, name), entry.text) for entry, name in pairs if entry.role != "tool"]
    former = session.summaries[plan.first : plan.last]
    if plan.merge or not any([*(text.strip() for _, text in said), *(s.stale for s in former)]):
        said = [parse_note(line, naming=_is_our_own(s)) for s in former for line in s.text.split("\n")]
    return make_segment(session, plan, told, digest(said) or "(nothing was said)", now=now, is_digest=True)


def _by(entry: Entry, name: str | None) -> str:
    return "notes" if entry.is_injected else label(entry.role, name)


def _is_our_own(former: Segment) -> bool:
    """Whether no model has written any of it."""
    return former.digest and former.model is None


def make_segment(  # noqa: PLR0913 - all that is known of it
    session: Session,
    plan: Plan,
    told: Sequence[Entry],
    text: str,
    *,
    now: float,
    model: str | None = None,
    is_digest: bool = False,
) -> Segment:
    """What is to be put in the place that a plan names; a merge of digests remains one.

    What several have added is kept in short: the next correction puts it in front of what is made anew.
    """
    former = session.summaries[plan.first : plan.last]
    added = shorten("\n".join(s.added for s in former if s.added))
    return Segment(
        text=f"{added}\n{text}" if added and not plan.merge else text,
        call=plan.reach.call,
        turn=plan.reach.turn,
        messages=sum(s.messages for s in former) if plan.merge else len(told),
        fingerprint="" if plan.merge else entries_fingerprint(told),
        created_at=now,
        model=model,
        digest=is_digest or (plan.merge and any(s.digest for s in former)),
        added=added,
    )


def insert_segment(session: Session, plan: Plan, made: Segment) -> Session:
    """The session with a segment in the place that a plan names.

    A merge of what became stale meanwhile is stale.
    """
    former = session.summaries[plan.first : plan.last]
    if plan.merge and any(s.stale for s in former):
        made = msgspec.structs.replace(made, stale=True)
    summaries = (*session.summaries[: plan.first], made, *session.summaries[plan.last :])
    trimmed = session.trimmed and plan.reach <= session.summarized_until
    return msgspec.structs.replace(session, summaries=summaries, trimmed=trimmed)


def settle(session: Session, keep: int) -> tuple[Session, tuple[Entry, ...]]:
    """The session without all but the newest ``keep`` covered entries, and those that move to the cold part.

    What is kept of them is what windows that are replayed are laid beside.
    """
    cut = covered(session) - keep
    while cut > 0 and not begins(session.entries, cut):
        cut -= 1
    return move_out(session, max(cut, 0))


def mark_stale(before: Session, after: Session) -> Session:
    """``after``, with segments marked as stale whose turns are held otherwise than in ``before``."""
    if not after.summaries or before.entries is after.entries:
        return after
    held, shown = (_told(session, after.summarized_until) for session in (before, after))
    changed = {place for place in held.keys() | shown.keys() if held.get(place) != shown.get(place)}
    if not changed:
        return after
    starts = [START, *(s.end for s in after.summaries)]
    marked = [
        msgspec.structs.replace(s, stale=True) if any(start < turn <= s.end for turn in changed) else s
        for start, s in zip(starts, after.summaries, strict=False)
    ]
    return msgspec.structs.replace(after, summaries=tuple(marked))


def _told(session: Session, reach: TurnRef) -> dict[TurnRef, list[object]]:
    """What is held of each turn behind a reach."""
    told: dict[TurnRef, list[object]] = {}
    for entry in session.entries:
        if entry.turn_ref <= reach:
            told.setdefault(entry.turn_ref, []).append(essence(entry))
    return told
