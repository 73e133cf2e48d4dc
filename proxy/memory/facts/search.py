"""Search of facts that no archive indexes: those beside the sessions, and those in Mem0."""

from collections.abc import Sequence

from proxy.memory.archive.recall import MODEL_TIMEOUT, Searcher
from proxy.memory.archive.records import Fact, Query, SearchResult
from proxy.memory.archive.terms import Lexicon
from proxy.memory.facts.user_facts import UserFacts
from proxy.memory.stores.store import Owner


class FactSearch:
    """Finds facts by their words; with ``others``, what these find stands among them by its score."""

    def __init__(self, facts: UserFacts, others: Searcher | None = None) -> None:
        self._facts = facts
        self._others = others
        self._lexicon = Lexicon()

    async def search(self, user: Owner, query: Query, *, within: float = MODEL_TIMEOUT) -> list[SearchResult]:
        """What answers a query, best first; models that help have ``within`` seconds. Raises StoreError."""
        results = self._matching(await self._facts.current(user), query.text) if user.user else []
        if self._others:
            results += await self._others.search(user, query, within=within)
        return sorted(results, key=lambda one: -one.score)[: query.limit]

    def _matching(self, facts: Sequence[Fact], text: str) -> list[SearchResult]:
        """The facts that share a word with a text; their score is the share of its words that they have."""
        wanted = self._lexicon.question(text)
        results = []
        for fact in facts:
            stems = set(self._lexicon.stems(fact.text))
            hits = sum(max((group[stem] for stem in stems & group.keys()), default=0.0) for group in wanted)
            if hits:
                score = round(hits / len(wanted), 4)
                results.append(
                    SearchResult(
                        kind="fact", score=score, text=fact.text, timestamp=fact.created, source=fact.id
                    )
                )
        return results
