"""Models make the archive's answers better, and a call waits for none of them."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from proxy.errors import UpstreamBroken
from proxy.memory.archive.recall import Reranking, Retriever, VectorSearch
from proxy.memory.archive.records import Query, SearchResult, Vector
from proxy.memory.errors import StoreError
from proxy.memory.stores.store import Owner
from tests.meanings import vector

pytestmark = pytest.mark.anyio
ANN = Owner("acme", "ann")
TEXTS = ["one", "three", "seventeen", "five"]


class Archive:
    """It finds the same with a meaning, and says that there was one."""

    def __init__(self, *, wait: float = 0.0, fails: bool = False) -> None:
        self.wait, self.fails = wait, fails
        self.queries: list[Query] = []

    async def search(self, person: Owner, query: Query) -> list[SearchResult]:
        self.queries.append(query)
        await asyncio.sleep(self.wait if query.vector else 0)
        if self.fails:
            raise StoreError("away")
        texts = [*TEXTS, "meant"] if query.vector else TEXTS
        found = [SearchResult(kind="turn", score=1 - i / 10, text=text) for i, text in enumerate(texts)]
        return found[: query.limit]


class Model:
    """An embedder and a reranker: what is long answers well."""

    model = "m"

    def __init__(self, *, wait: float = 0.0, fails: bool = False) -> None:
        self.wait, self.fails, self.asked = wait, fails, 0

    async def vectors(self, texts: Sequence[str]) -> list[Vector]:
        await self._answer()
        return [vector(text) for text in texts]

    async def relevance(self, question: str, texts: Sequence[str]) -> list[float]:
        await self._answer()
        return [len(text) / 100 for text in texts]

    async def _answer(self) -> None:
        self.asked += 1
        await asyncio.sleep(self.wait)
        if self.fails:
            raise UpstreamBroken("no JSON")


def finder(
    archive: Archive, likeness: Model | None = None, order: Model | None = None, top: int = 3
) -> Retriever:
    return Retriever(
        archive,  # type: ignore[arg-type]
        vectors=VectorSearch(likeness, 0.4, 0.3) if likeness else None,
        reranking=Reranking(order, top) if order else None,
    )


async def found(finder: Retriever, limit: int = 10, within: float = 5.0, person: Owner = ANN) -> list[str]:
    query = Query(text="Which?", now=0, limit=limit)
    return [one.text for one in await finder.search(person, query, within=within)]


async def test_without_models_the_archive_answers(monkeypatch: pytest.MonkeyPatch):
    archive = Archive()
    assert await found(finder(archive)) == TEXTS
    assert len(archive.queries) == 1


async def test_a_question_is_asked_with_its_meaning():
    archive = Archive()
    assert await found(finder(archive, Model())) == [*TEXTS, "meant"]
    assert archive.queries[-1].vector is not None
    assert archive.queries[-1].vector.vector == vector("Which?")


async def test_the_best_are_put_in_order_and_no_later_score_is_higher():
    whole = await finder(Archive(), order=Model()).search(ANN, Query(text="Which?", now=0))
    assert [one.text for one in whole] == ["seventeen", "three", "one", "five"]
    assert [one.score for one in whole] == sorted((one.score for one in whole), reverse=True)


async def test_more_are_put_in_order_than_are_wanted():
    assert await found(finder(Archive(), order=Model()), limit=1) == ["seventeen"]


@pytest.mark.parametrize("models", [{"fails": True}, {"wait": 5.0}])
async def test_a_dead_or_slow_model_costs_no_answer_and_no_time(models):
    dead = Model(**models)
    began = time.monotonic()
    assert await found(finder(Archive(), dead, dead), within=1.5) == TEXTS
    assert time.monotonic() - began < 2.5, "the time is for both of them"


async def test_a_search_by_meaning_that_is_too_slow_leaves_the_words():
    assert await found(finder(Archive(wait=5), Model()), within=0.1) == TEXTS


async def test_a_model_that_fails_three_times_is_left_alone():
    dead = Model(fails=True)
    asking = finder(Archive(), order=dead)
    for _ in range(5):
        assert await found(asking) == TEXTS
    assert dead.asked == 3


async def test_nobody_is_told_nothing_and_no_model_is_asked():
    model = Model()
    await found(finder(Archive(), model, model), person=Owner("acme"))
    assert model.asked == 0


async def test_an_archive_that_fails_is_told_of():
    with pytest.raises(StoreError):
        await found(finder(Archive(fails=True), Model()))
