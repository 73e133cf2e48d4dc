"""Which facts are the same, and what happens to a fact that is found again."""

import math
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.records import Query
from proxy.memory.facts.user_facts import DAY, FactDraft, UserFacts
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.store import Owner

pytestmark = pytest.mark.anyio
ANN = Owner("acme", "ann")


@pytest.fixture
async def archive(tmp_path: Path) -> Any:
    archive = open_archive(f"sqlite:{tmp_path / 'a.db'}", codec=Plain())
    yield archive
    await archive.aclose()


@pytest.fixture
def user_facts(archive: Archive) -> UserFacts:
    return UserFacts(archive)


async def texts(user_facts: UserFacts) -> list[str]:
    return [one.text for one in await user_facts.current(ANN)]


@pytest.mark.parametrize(
    "facts",
    [
        ["Takes 1.5 mg of warfarin", "Takes 15 mg of warfarin"],
        ["Likes C", "Likes C++", "Likes C#"],
        ["Balance is -5", "Balance is 5"],
        ["Works 9-12", "Works 91-2"],
        ["Door code 1 12", "Door code 11 2"],
        ["Il pêche souvent", "Il péché souvent"],
        ["父はパリにいる", "父はバリにいる"],
        ["उसका बेटा है", "उसकी बेटी है"],
        ["เขาชอบเสือ", "เขาชอบเสื้อ"],
        ["\N{THUMBS UP SIGN}", "\N{HEAVY BLACK HEART}"],
    ],
)
@pytest.mark.parametrize("key", [None, "s1/0/1"])
async def test_facts_that_differ_are_all_known(user_facts: UserFacts, facts: list[str], key: Any) -> None:
    for text in facts:
        await user_facts.add(ANN, FactDraft(text=text), key=key)
    assert await texts(user_facts) == facts


async def test_a_correction_by_a_mark_replaces_what_it_corrects(user_facts: UserFacts) -> None:
    wrong = await user_facts.add(ANN, FactDraft(text="Takes 1.5 mg of warfarin"))
    await user_facts.add(ANN, FactDraft(text="Takes 15 mg of warfarin", replaces=wrong.id))
    assert await texts(user_facts) == ["Takes 15 mg of warfarin"]


async def test_beyond_the_most_the_least_important_go_and_of_those_the_oldest(archive: Archive) -> None:
    user_facts = UserFacts(archive, most=3)
    for text, importance in [("Has a dog", 0.9), ("Likes tea", 0.1), ("Likes snow", 0.1), ("Is tall", 0.5)]:
        await user_facts.add(ANN, FactDraft(text=text, importance=importance))
    assert await texts(user_facts) == ["Has a dog", "Likes snow", "Is tall"]
    snow = (await user_facts.current(ANN))[1]
    await user_facts.add(ANN, FactDraft(text="Likes rain", importance=0.0, replaces=snow.id))
    assert await texts(user_facts) == ["Has a dog", "Is tall", "Likes rain"]


async def test_case_and_white_space_make_no_other_fact(user_facts: UserFacts) -> None:
    first = await user_facts.add(
        ANN, FactDraft(text="Wohnt in M\N{LATIN SMALL LETTER U WITH DIAERESIS}nchen")
    )
    again = await user_facts.add(ANN, FactDraft(text=" wohnt  in\nMu\N{COMBINING DIAERESIS}nchen "))
    assert again == first
    assert await user_facts.current(ANN) == [first]


async def test_a_full_stop_makes_no_other_fact(user_facts: UserFacts) -> None:
    ended = ["Lives in Bonn.", "住在波恩。", "住在科隆．", "उसका नाम अन्ना है।", "اس کا نام آنا ہے۔"]  # noqa: RUF001
    for text in [*ended, *(text[:-1] for text in ended)]:
        await user_facts.add(ANN, FactDraft(text=text))
    assert await texts(user_facts) == ended


async def test_what_is_soon_out_of_date_gives_way_before_what_lasts(archive: Archive) -> None:
    user_facts = UserFacts(archive, most=2)
    await user_facts.add(ANN, FactDraft(text="Is called Ann", importance=0.4))
    await user_facts.add(ANN, FactDraft(text="Wants a window seat", importance=0.9, category="conversation"))
    await user_facts.add(ANN, FactDraft(text="Is in a hurry", importance=0.9, category="daily"))
    assert await texts(user_facts) == ["Is called Ann", "Is in a hurry"]


async def test_what_is_learnt_again_is_worth_what_the_better_source_says(user_facts: UserFacts) -> None:
    first = await user_facts.add(
        ANN, FactDraft(text="Is vegetarian", category="conversation", importance=0.2)
    )
    again = await user_facts.add(ANN, FactDraft(text="is vegetarian", category="core", importance=1.0))
    assert (again.id, again.category, again.importance, again.expires) == (first.id, "core", 1.0, None)
    assert await user_facts.current(ANN) == [again]


async def test_what_is_learnt_again_in_passing_loses_nothing(user_facts: UserFacts) -> None:
    first = await user_facts.add(ANN, FactDraft(text="Is vegetarian", importance=0.9))
    again = await user_facts.add(ANN, FactDraft(text="Is vegetarian", category="daily", importance=0.1))
    assert again == first
    assert await user_facts.current(ANN) == [first]


async def test_what_is_learnt_again_lasts_from_then_on(user_facts: UserFacts) -> None:
    now = time.time()
    await user_facts.add(ANN, FactDraft(text="Is at the zoo", category="daily"), at=now - DAY / 2)
    again = await user_facts.add(ANN, FactDraft(text="Is at the zoo", category="conversation"), at=now)
    assert (again.category, again.expires) == ("daily", now + DAY)
    late = await user_facts.add(ANN, FactDraft(text="Is at the zoo", category="daily"), at=now - 10)
    assert late.expires == now + DAY
    assert await user_facts.current(ANN) == [late]


async def test_what_is_learnt_again_replaces_what_it_is_said_to(
    user_facts: UserFacts, archive: Archive
) -> None:
    berlin = await user_facts.add(ANN, FactDraft(text="Lives in Berlin"))
    paris = await user_facts.add(ANN, FactDraft(text="Lives in Paris"))
    again = await user_facts.add(ANN, FactDraft(text="lives in berlin", replaces=paris.id))
    assert (again.id, again.created, again.replaces) == (berlin.id, berlin.created, paris.id)
    assert await user_facts.current(ANN) == [again]
    kept = {one.id: one for one in await archive.facts(ANN, now=0.0, superseded=True)}
    assert paris.created <= (kept[paris.id].superseded or math.inf) <= time.time()
    assert await archive.search(ANN, Query(text="Paris", now=time.time())) == []
    assert [f.text for f in await archive.search(ANN, Query(text="Berlin", now=time.time()))] == [berlin.text]


async def test_a_fact_that_replaces_itself_takes_the_new_spelling(user_facts: UserFacts) -> None:
    first = await user_facts.add(ANN, FactDraft(text="Is called ann"))
    again = await user_facts.add(ANN, FactDraft(text="Is called Ann", replaces=first.id))
    assert (again.id, again.text, again.replaces) == (first.id, "Is called Ann", None)
    assert await user_facts.current(ANN) == [again]


async def test_the_same_again_from_nowhere_replaces_nothing(user_facts: UserFacts) -> None:
    first = await user_facts.add(ANN, FactDraft(text="Is called Ann"))
    assert await user_facts.add(ANN, FactDraft(text="Is called Ann", replaces="fact_unknown")) == first


async def test_a_correction_to_the_words_of_another_fact_leaves_one(
    archive: Archive, user_facts: UserFacts
) -> None:
    coffee = await user_facts.add(
        ANN, FactDraft(text="Likes coffee", importance=0.9, evidence=("s1/0/1",)), key="s1/0/1"
    )
    tea = await user_facts.add(ANN, FactDraft(text="Likes tea", category="daily", evidence=("s2/0/1",)))
    other = await user_facts.add(ANN, FactDraft(text="Likes cake"))
    corrected = await user_facts.correct(ANN, tea, msgspec.structs.replace(tea, text="likes  COFFEE"))
    assert (corrected.id, corrected.text, corrected.replaces) == (tea.id, "likes  COFFEE", coffee.id)
    assert (corrected.category, corrected.expires, corrected.importance) == ("core", None, 0.9)
    assert corrected.evidence == ("s2/0/1", "s1/0/1")
    assert await user_facts.current(ANN) == [corrected, other]
    kept = await archive.facts(ANN, now=time.time(), superseded=True)
    assert {one.id: one.superseded is None for one in kept} == {
        coffee.id: False,
        tea.id: True,
        other.id: True,
    }
    assert await user_facts.correct(ANN, corrected, corrected) == corrected


async def test_of_two_that_last_a_while_the_one_that_is_left_lasts_longest(user_facts: UserFacts) -> None:
    daily = await user_facts.add(ANN, FactDraft(text="Has a cold", category="daily"))
    brief = await user_facts.add(ANN, FactDraft(text="Is in a hurry", category="conversation"))
    corrected = await user_facts.correct(ANN, brief, msgspec.structs.replace(brief, text="Has a cold"))
    assert (corrected.id, corrected.category, corrected.expires) == (brief.id, "daily", daily.expires)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Has a dog called Rex.", "The user has a dog named Rex."),
        ("Lives at 12 Elm Street.", "She lives at 12 Elm Street"),
        ("Is allergic to nuts.", "The caller is allergic to nuts!"),
    ],
)
async def test_facts_that_differ_in_empty_words_are_one(
    user_facts: UserFacts, first: str, second: str
) -> None:
    one = await user_facts.add(ANN, FactDraft(text=first))
    again = await user_facts.add(ANN, FactDraft(text=second, importance=0.9))
    assert (again.id, again.text, again.importance) == (one.id, first, 0.9)
    assert await user_facts.current(ANN) == [again]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Lives in Berlin.", "Lives in Bern."),
        ("Lives at 12 Elm Street.", "Lives at 21 Elm Street."),
        ("Eats meat.", "Never eats meat."),
        ("Likes jazz.", "Does not like jazz."),
        ("Ann's mother is Eva.", "Eva's mother is Ann."),
        ("Is called Ann.", "Is called Anna."),
        ("Ann.", "Is Ann."),
    ],
)
async def test_facts_that_differ_in_a_word_are_two(user_facts: UserFacts, first: str, second: str) -> None:
    for text in (first, second):
        await user_facts.add(ANN, FactDraft(text=text))
    assert len(await user_facts.current(ANN)) == len({first.strip("."), second.strip(".")})


async def test_a_field_has_one_fact(user_facts: UserFacts) -> None:
    old = await user_facts.add(ANN, FactDraft(text="Has the plan Basic.", field="plan"))
    other = await user_facts.add(ANN, FactDraft(text="Is called Ann.", field="name"))
    new = await user_facts.add(ANN, FactDraft(text="Has the plan Premium.", field="plan"))
    assert new.replaces == old.id
    assert {one.id for one in await user_facts.current(ANN)} == {other.id, new.id}


async def test_a_fact_that_holds_until_a_day_expires_then(user_facts: UserFacts) -> None:
    now = time.time()
    one = await user_facts.add(ANN, FactDraft(text="Is in Rome.", since=now - 9, until=now + 60))
    assert (one.expires, one.since, one.until) == (now + 60, now - 9, now + 60)
    await user_facts.add(ANN, FactDraft(text="Was in Oslo.", until=now - 60))
    assert [fact.text for fact in await user_facts.current(ANN)] == ["Is in Rome."]
