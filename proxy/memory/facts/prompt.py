"""The facts of a prompt: a stable head, and facts learned since."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Final, NamedTuple

import msgspec

from filters.injection import Remembered
from filters.tokens import in_text
from proxy.memory.archive.languages import STOP_WORDS
from proxy.memory.archive.records import Fact
from proxy.memory.archive.terms import words as words_of
from proxy.memory.session import WITH_NEWEST, Session, ShownFacts

_RELEVANCE: Final = 0.5
"""The worth of a fact with all of the newest words, compared with an importance of 1."""


class PromptFacts(NamedTuple):
    """Facts for the head of a prompt, newer facts for its tail, and the record of both for the session."""

    shown_facts: ShownFacts
    head: tuple[Fact, ...]
    tail: tuple[Fact, ...]
    zone: tzinfo = UTC

    @property
    def facts(self) -> tuple[Remembered, ...]:
        """The head, for filters."""
        return tuple(_remembered(fact, None, self.zone) for fact in self.head)

    @property
    def news(self) -> tuple[Remembered, ...]:
        """The newer facts, for filters, each with its place in the prompt, or ``None`` for the end."""
        places = dict(self.shown_facts.news)
        placed = ((fact, places.get(fact.id, WITH_NEWEST)) for fact in self.tail)
        return tuple(
            _remembered(fact, None if place == WITH_NEWEST else place, self.zone) for fact, place in placed
        )


def _remembered(fact: Fact, place: int | None, zone: tzinfo) -> Remembered:
    text = fact.text
    if fact.since is not None or fact.until is not None:
        since = "" if fact.since is None else f"from {datetime.fromtimestamp(fact.since, zone):%Y-%m-%d}"
        until = "" if fact.until is None else f"until {datetime.fromtimestamp(fact.until - 1, zone):%Y-%m-%d}"
        text = f"{text} ({' '.join(filter(None, (since, until)))})"
    return Remembered(kind="fact", text=text, source=fact.id, at=fact.created, place=place)


def _chosen(facts: Sequence[Fact], limit: int, max_tokens: int, words: str) -> set[str]:
    """Returns the ids of the facts for the head of a prompt, by importance and relevance."""
    wanted = {word for word in words_of(words) if word not in STOP_WORDS}

    def worth(fact: Fact) -> tuple[float, float]:
        relevance = len(wanted.intersection(words_of(fact.text))) / len(wanted) if wanted else 0.0
        return fact.importance + _RELEVANCE * relevance, fact.created

    total = sum(in_text(fact.text) + 1 for fact in facts)
    if len(facts) <= limit and total <= max_tokens:
        return {fact.id for fact in facts}
    chosen: set[str] = set()
    for fact in sorted(facts, key=worth, reverse=True)[:limit]:
        max_tokens -= in_text(fact.text) + 1
        if max_tokens >= 0:
            chosen.add(fact.id)
        else:
            max_tokens += in_text(fact.text) + 1  # a shorter one may fit
    return chosen


def prompt_facts(  # noqa: PLR0913 - whose facts, when, and how many
    session: Session,
    epoch: bytes,
    user: str,
    facts: Sequence[Fact],
    *,
    limit: int,
    now: float,
    max_tokens: int = sys.maxsize,
    words: str = "",
    zone: tzinfo = UTC,
) -> PromptFacts:
    """Returns the facts to show at an epoch, given those shown before and the user's newest ``words``.

    The head does not change while all of its facts are current; newer facts go to the tail. Once a fact of
    the head is removed, superseded or expired, or the epoch changes, the head is chosen anew.
    """
    before = session.shown_facts
    if (
        not facts
        and before
        and (before.user, before.epoch, before.facts, before.news) == (user, epoch, (), ())
    ):
        return PromptFacts(before, (), (), zone)  # the fast path for users without facts
    by_id = {fact.id: fact for fact in facts}
    if (
        before is None
        or (before.user, before.epoch) != (user, epoch)
        or not by_id.keys() >= set(before.facts)
    ):
        # In the order of creation.
        chosen = _chosen(facts, limit, max_tokens, words)
        head = tuple(fact for fact in facts if fact.id in chosen)
        shown = ShownFacts(
            user=user,
            epoch=epoch,
            at=now,
            facts=tuple(fact.id for fact in head),
            others=tuple(fact.id for fact in facts if fact.id not in chosen),
        )
        return PromptFacts(shown, head, (), zone)
    head = tuple(map(by_id.__getitem__, before.facts))
    settled = {*before.facts, *before.others}
    newer = tuple(fact for fact in facts if fact.id not in settled)[-limit:]
    # Places count messages, of which a prompt without room for all may leave some out.
    places = {} if session.room else dict(before.news)
    news = tuple([(fact.id, places.get(fact.id, WITH_NEWEST)) for fact in newer])
    shown = before if news == before.news else msgspec.structs.replace(before, news=news, at=now)
    return PromptFacts(shown, head, newer, zone)
