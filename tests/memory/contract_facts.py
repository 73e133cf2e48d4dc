"""What every place for facts does: the archive, a session store, and Mem0, whose library is stood in for."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from proxy.memory.archive.archive import ArchiveHolder, open_archive
from proxy.memory.archive.records import Fact, Query
from proxy.memory.facts.fact_values import FactValues
from proxy.memory.facts.mem0 import Mem0
from proxy.memory.facts.user_facts import FactDraft, FactSearch, FactStore, UserFacts
from proxy.memory.privacy import DataHolder
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_driver
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import Key, Owner
from tests.memory.conftest import memory, postgresql, redis, redis_cluster, sqlite
from tests.memory.mem0_library import Library

pytestmark = pytest.mark.anyio
ANN = Owner("acme", "ann")
ARCHIVES = {"archive sqlite": sqlite, "archive postgresql": postgresql}
SESSIONS: dict[str, Callable[[pytest.FixtureRequest], Awaitable[str]]] = {
    "sessions sqlite": sqlite,
    "sessions redis": redis,
    "sessions redis+cluster": redis_cluster,
    "sessions memory": memory,
    "sealed sessions": redis,
}


class Place:
    """A place for facts, and the same as a holder of data."""

    def __init__(self, facts: FactStore, holder: DataHolder) -> None:
        self.facts, self.holder = facts, holder

    async def texts(self, user: Owner = ANN, now: float = 20.0, **more: Any) -> list[str]:
        return [one.text for one in await self.facts.facts(user, now=now, **more)]


@pytest.fixture(params=[*ARCHIVES, *SESSIONS, "mem0"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    kind = request.param
    if kind == "mem0":
        mem0 = Mem0(Library())
        yield Place(mem0, mem0)
    elif kind in ARCHIVES:
        archive = open_archive(await ARCHIVES[kind](request), codec=Plain())
        yield Place(archive, ArchiveHolder(archive))
        await archive.aclose()
    else:
        codec = Encryption([bytes(32)]) if kind.startswith("sealed") else Plain()
        driver = open_driver(await SESSIONS[kind](request), deadline=2.0)
        store = SessionStore(driver, codec, deadline=math.inf)
        stored = FactValues(store)
        yield Place(stored, stored)
        await store.aclose()


def fact(name: str, text: str, **more: Any) -> Fact:
    return Fact(**{"id": name, "text": text, "created": 10.0, **more})


async def test_a_fact_is_corrected_replaced_and_removed(place: Place) -> None:
    await place.facts.add_fact(ANN, fact("a", "Lives in Paris."))
    await place.facts.add_fact(ANN, fact("a", "Lives in Rome."))
    await place.facts.add_fact(ANN, fact("b", "Lives in Berlin.", replaces="a", created=12.0))
    assert await place.texts() == ["Lives in Berlin."]
    both = await place.facts.facts(ANN, now=0.0, superseded=True)
    assert [(one.text, one.superseded) for one in both] == [
        ("Lives in Rome.", 12.0),
        ("Lives in Berlin.", None),
    ]
    assert await place.facts.remove_fact(ANN, "b") is True
    assert await place.facts.remove_fact(ANN, "b") is False
    assert await place.texts() == []


async def test_all_of_a_fact_comes_back(place: Place) -> None:
    whole = fact("a", "Is at the zoo.", category="daily", expires=15.0, evidence=("s/0/1",), importance=0.9)
    await place.facts.add_fact(ANN, whole)
    assert await place.facts.facts(ANN, now=14.0) == [whole]
    assert await place.texts(now=15.0) == []


async def test_facts_are_listed_from_the_oldest(place: Place) -> None:
    for name, created in (("b", 12.0), ("c", 13.0), ("a", 11.0)):
        await place.facts.add_fact(ANN, fact(name, name, created=created))
    assert await place.texts() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "other", [Owner("acme", "bob"), Owner("other", "ann"), Owner("acme"), Owner("ac", "me/ann")]
)
async def test_no_user_has_the_facts_of_another(place: Place, other: Owner) -> None:
    await place.facts.add_fact(ANN, fact("a", "Lives in Paris."))
    assert await place.texts(other) == []
    if other.user:
        assert await place.facts.remove_fact(other, "a") is False
        assert (await place.holder.forget(other, at=99.0)).get("facts", 0) == 0
    assert await place.texts() == ["Lives in Paris."]


async def test_a_user_is_exported_and_forgotten(place: Place) -> None:
    await place.facts.add_fact(ANN, fact("a", "Lives in Paris."))
    await place.facts.add_fact(ANN, fact("b", "Lives in Rome.", replaces="a", created=12.0))
    exported = (await place.holder.export(ANN))["facts"]
    assert [(one["text"], one["superseded"]) for one in exported] == [
        ("Lives in Paris.", 12.0),
        ("Lives in Rome.", None),
    ]
    assert (await place.holder.forget(ANN, at=50.0))["facts"] == 2
    assert await place.texts() == []
    # What was found before, and is written late, is refused.
    await place.facts.add_fact(ANN, fact("c", "Lives in Oslo.", created=49.0))
    assert await place.texts() == []


async def test_forgetting_a_session_leaves_facts(place: Place) -> None:
    await place.facts.add_fact(ANN, fact("a", "Lives in Paris."))
    await place.holder.forget_session(Key("acme", "s1"), at=50.0)
    assert await place.texts() == ["Lives in Paris."]


async def test_what_a_tool_stores_is_found_by_its_words(place: Place) -> None:
    users = UserFacts(place.facts)
    for text in ("Has a dog called Rex.", "Prefers window seats.", "Lives in Berlin."):
        await users.add(ANN, FactDraft(text=text))
    search = FactSearch(users)
    query = Query(text="Which seat at the window does she like?", now=20.0, limit=5)
    assert [one.text for one in await search.search(ANN, query)] == ["Prefers window seats."]
    assert await search.search(Owner("acme", "bob"), query) == []
    assert await search.search(ANN, Query(text="Good morning!", now=20.0)) == []
