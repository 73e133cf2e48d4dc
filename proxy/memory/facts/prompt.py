"""What a turn tells of a person's facts: a head that stands still, and what came to be known since."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from filters.remembered import Remembered
from proxy.memory.archive.records import Fact
from proxy.memory.session import WITH_NEWEST, Session, ShownFacts

_BYTES = 8


class PromptFacts(NamedTuple):
    """Facts for the head of a prompt, and what came to be known since: each behind the place in ``told``.

    ``told`` is what the session is to keep of it.
    """

    shown: ShownFacts
    head: tuple[Fact, ...]
    tail: tuple[Fact, ...]

    @property
    def facts(self) -> tuple[Remembered, ...]:
        """The head, as filters tell it."""
        return tuple(map(_shown, self.head))

    @property
    def news(self) -> tuple[Remembered, ...]:
        """The rest, each with where it was told first, unless that is now."""
        places = dict(self.shown.news)
        return tuple(_shown(fact, places.get(fact.id, WITH_NEWEST)) for fact in self.tail)


def _shown(fact: Fact, place: int = WITH_NEWEST) -> Remembered:
    where = None if place == WITH_NEWEST else place
    return Remembered(kind="fact", text=fact.text, source=fact.id, at=fact.created, place=where)


def prompt_epoch(session: Session, life: int, *, injecting: bool) -> bytes:
    """Bytes that change when a life begins and when its turns are compacted, and not from turn to turn.

    ``injecting`` is whether summaries are shown; else a compaction is turns that move out.
    """
    if not (injecting and session.summaries):
        return b"%d.%d" % (life, session.cold_count)
    told = repr((life, [(segment.end, segment.text) for segment in session.summaries]))
    return blake2b(told.encode("utf-8", "surrogatepass"), digest_size=_BYTES).digest()


def prompt_facts(  # noqa: PLR0913 - who is told of, when, and how much
    session: Session, at: bytes, person: str, known: Sequence[Fact], *, limit: int, now: float
) -> PromptFacts:
    """What to tell at an epoch, beside what the session was told last.

    As long as all of that is known it stands still, and what else is known now goes to the tail. Once some of
    the head was removed, replaced or has expired, all is put together anew; a correction stands in its place.
    """
    by_id, before = {fact.id: fact for fact in known}, session.shown_facts
    if before is None or (before.user, before.epoch) != (person, at):
        return _anew(at, person, known, limit=limit, now=now)
    head = tuple(by_id[name] for name in before.facts if name in by_id)
    if len(head) < len(before.facts):
        return _anew(at, person, known, limit=limit, now=now)
    settled = {*before.facts, *before.others}
    later = tuple(fact for fact in known if fact.id not in settled)[-limit:]
    # Where a prompt has no room for all, what a place is counted from may be left out, and what stands there.
    places = {} if session.room else dict(before.news)
    news = tuple((fact.id, places.get(fact.id, WITH_NEWEST)) for fact in later)
    told = before if news == before.news else msgspec.structs.replace(before, news=news, at=now)
    return PromptFacts(told, head, later)


def _anew(at: bytes, person: str, known: Sequence[Fact], *, limit: int, now: float) -> PromptFacts:
    """The most important facts, in the order in which they came to be known."""
    chosen = {one.id for one in sorted(known, key=lambda one: (-one.importance, -one.created))[:limit]}
    head = tuple(fact for fact in known if fact.id in chosen)
    told = ShownFacts(
        user=person,
        epoch=at,
        at=now,
        facts=tuple(fact.id for fact in head),
        others=tuple(fact.id for fact in known if fact.id not in chosen),
    )
    return PromptFacts(told, head, ())
