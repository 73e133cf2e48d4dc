"""The facts of a prompt: a head that stays as it is, and what was learnt since."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from filters.remembered import Remembered
from proxy.memory.archive.records import Fact
from proxy.memory.session import WITH_NEWEST, Session, ShownFacts


class PromptFacts(NamedTuple):
    """Facts for the head of a prompt, newer facts for its tail, and the record of both for the session."""

    shown_facts: ShownFacts
    head: tuple[Fact, ...]
    tail: tuple[Fact, ...]

    @property
    def facts(self) -> tuple[Remembered, ...]:
        """The head, for filters."""
        return tuple(_remembered(fact, None) for fact in self.head)

    @property
    def news(self) -> tuple[Remembered, ...]:
        """The newer facts, for filters, each with its place in the prompt, unless that is the end."""
        places = dict(self.shown_facts.news)
        found = ((fact, places.get(fact.id, WITH_NEWEST)) for fact in self.tail)
        return tuple(_remembered(fact, None if place == WITH_NEWEST else place) for fact, place in found)


def _remembered(fact: Fact, place: int | None) -> Remembered:
    return Remembered(kind="fact", text=fact.text, source=fact.id, at=fact.created, place=place)


def prompt_facts(  # noqa: PLR0913 - whose facts, when, and how many
    session: Session, epoch: bytes, user: str, facts: Sequence[Fact], *, limit: int, now: float
) -> PromptFacts:
    """The facts to show at an epoch, given what the session has shown.

    The head stays as it was while all of its facts are current, and newer facts go to the tail. Once a fact
    of the head was removed, superseded or has expired, or the epoch changes, the head is put together anew.
    """
    by_id, before = {fact.id: fact for fact in facts}, session.shown_facts
    if (
        before is None
        or (before.user, before.epoch) != (user, epoch)
        or not by_id.keys() >= set(before.facts)
    ):
        # The most important facts, in the order in which they were created.
        chosen = {one.id for one in sorted(facts, key=lambda one: (-one.importance, -one.created))[:limit]}
        head = tuple(fact for fact in facts if fact.id in chosen)
        shown = ShownFacts(
            user=user,
            epoch=epoch,
            at=now,
            facts=tuple(fact.id for fact in head),
            others=tuple(fact.id for fact in facts if fact.id not in chosen),
        )
        return PromptFacts(shown, head, ())
    head = tuple(map(by_id.__getitem__, before.facts))
    settled = {*before.facts, *before.others}
    newer = tuple(fact for fact in facts if fact.id not in settled)[-limit:]
    # Where a prompt has no room for everything, messages that places are counted from may be left out.
    places = {} if session.room else dict(before.news)
    news = tuple([(fact.id, places.get(fact.id, WITH_NEWEST)) for fact in newer])
    shown = before if news == before.news else msgspec.structs.replace(before, news=news, at=now)
    return PromptFacts(shown, head, newer)
