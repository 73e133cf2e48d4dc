"""A session whose oldest turns give way to summaries."""

from collections.abc import Sequence

import msgspec

from proxy.memory.session.entry import Entry
from proxy.memory.session.fingerprint import essence, fingerprint
from proxy.memory.session.segment import START, Reach, Segment
from proxy.memory.session.session import Session
from proxy.memory.session.speaker import by, voices
from proxy.memory.summaries.cap import begins, cap, moved_out
from proxy.memory.summaries.digest import digest, noted, shortened
from proxy.memory.summaries.plan import Plan, Window, beyond, covered


def fitted(
    before: Session, after: Session, window: Window, *, now: float
) -> tuple[Session, tuple[Entry, ...]]:
    """What is to be held after a turn, and what moves to the cold part."""
    if not window.summaries:
        return cap(after, window.max_messages, window.keep_messages)
    return settled(bounded(corrected(before, after), window, now=now), window.keep_messages)


def bounded(session: Session, window: Window, *, now: float) -> Session:
    """The session with a digest in place of what is uncovered beyond twice the maximum.

    So a prompt stays bounded where nobody makes summaries.
    """
    while (plan := beyond(session, window)) is not None:
        told = [entry for entry in session.entries if plan.covers(entry)]
        session = put(session, plan, digested(session, plan, told, now=now))
    return session


def digested(session: Session, plan: Plan, told: Sequence[Entry], *, now: float) -> Segment:
    """The segment of a plan, made of the sentences of what it stands for.

    A former one says it where the turns have no words, unless it is stale, and may tell what was taken back.
    """
    pairs = zip(told, voices(session, told), strict=True)
    said = [(_by(entry, name), entry.text) for entry, name in pairs if entry.role != "tool"]
    former = session.summaries[plan.first : plan.last]
    if plan.merge or not any([*(text.strip() for _, text in said), *(s.stale for s in former)]):
        said = [noted(line, naming=_is_our_own(s)) for s in former for line in s.text.split("\n")]
    return segment(session, plan, told, digest(said) or "(nothing was said)", now=now, is_digest=True)


def _by(entry: Entry, name: str | None) -> str:
    return "notes" if entry.put_in else by(entry.role, name)


def _is_our_own(former: Segment) -> bool:
    """Whether no model has written any of it."""
    return former.digest and former.model is None


def segment(  # noqa: PLR0913 - all that is known of it
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
    added = shortened("\n".join(s.added for s in former if s.added))
    return Segment(
        text=f"{added}\n{text}" if added and not plan.merge else text,
        life=plan.reach.life,
        turn=plan.reach.turn,
        messages=sum(s.messages for s in former) if plan.merge else len(told),
        fingerprint="" if plan.merge else fingerprint(told),
        made=now,
        model=model,
        digest=is_digest or (plan.merge and any(s.digest for s in former)),
        added=added,
    )


def put(session: Session, plan: Plan, made: Segment) -> Session:
    """The session with a segment in the place that a plan names.

    A merge of what became stale meanwhile is stale.
    """
    former = session.summaries[plan.first : plan.last]
    if plan.merge and any(s.stale for s in former):
        made = msgspec.structs.replace(made, stale=True)
    summaries = (*session.summaries[: plan.first], made, *session.summaries[plan.last :])
    trimmed = session.trimmed and plan.reach <= session.reach
    return msgspec.structs.replace(session, summaries=summaries, trimmed=trimmed)


def settled(session: Session, keep: int) -> tuple[Session, tuple[Entry, ...]]:
    """The session without all but the newest ``keep`` covered entries, and those that move to the cold part.

    What is kept of them is what windows that are replayed are laid beside.
    """
    cut = covered(session) - keep
    while cut > 0 and not begins(session.entries, cut):
        cut -= 1
    return moved_out(session, max(cut, 0))


def corrected(before: Session, after: Session) -> Session:
    """``after``, with segments marked as stale whose turns are held otherwise than in ``before``."""
    if not after.summaries or before.entries is after.entries:
        return after
    held, shown = (_told(session, after.reach) for session in (before, after))
    changed = {place for place in held.keys() | shown.keys() if held.get(place) != shown.get(place)}
    if not changed:
        return after
    starts = [START, *(s.reach for s in after.summaries)]
    marked = [
        msgspec.structs.replace(s, stale=True) if any(start < turn <= s.reach for turn in changed) else s
        for start, s in zip(starts, after.summaries, strict=False)
    ]
    return msgspec.structs.replace(after, summaries=tuple(marked))


def _told(session: Session, reach: Reach) -> dict[Reach, list[object]]:
    """What is held of each turn behind a reach."""
    told: dict[Reach, list[object]] = {}
    for entry in session.entries:
        if entry.place <= reach:
            told.setdefault(entry.place, []).append(essence(entry))
    return told
