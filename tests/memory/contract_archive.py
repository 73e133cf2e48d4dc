"""What every archive does, on each database, plain and encrypted."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any, TypeVar

import msgspec
import pytest

from proxy.memory.archive import names as archive_names
from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.names import NamedDatabase
from proxy.memory.archive.records import DocumentChunk, ErasureCount, Fact, Query, QueryVector
from proxy.memory.archive.sql import Database, Each, Steps, Transaction, fetch_value
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Codec, Plain
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.sql import Statement
from proxy.memory.stores.store import Key, Owner
from tests.meanings import vector
from tests.memory.conftest import postgresql, sqlite

pytestmark = pytest.mark.anyio

NOW = time.time()
KEY = Key("acme", "call")
ANN, BOB = Owner("acme", "ann"), Owner("acme", "bob")
T = TypeVar("T")
DRIVERS: dict[str, Callable[[pytest.FixtureRequest], Awaitable[str]]] = {
    "sqlite": sqlite,
    "postgresql": postgresql,
    "sealed-sqlite": sqlite,
    "sealed-postgresql": postgresql,
}


@pytest.fixture(params=DRIVERS)
async def archive(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Archive]:
    url = await DRIVERS[request.param](request)
    sealed = request.param.startswith("sealed")
    encrypted, given, sent = archive_names._encrypted, set[bytes](), set[bytes]()

    def watched(names: Any, step: Any) -> Any:
        changed = encrypted(names, step)
        for before, after in zip(rows_of(step), rows_of(changed), strict=True):
            given.update(values(before) - values(after))
            # What a former version has left of erasures is looked for by its plain name: nothing is stored.
            stored = {name: value for name, value in after.items() if name != "graves"}
            looks = step.statement.named.startswith(("SELECT", "DELETE"))
            sent.update(() if looks else values(stored))
        return changed

    monkeypatch.setattr(archive_names, "_encrypted", watched)
    opened = open_archive(url, codec=Encryption([bytes(32)]) if sealed else Plain())
    yield opened
    await opened.aclose()
    # What one statement gets encrypted is a name: none that stores gets it as it is, whatever it calls it.
    assert not given & sent
    assert bool(given) <= sealed


def rows_of(step: Any) -> Sequence[Mapping[str, Any]]:
    """The rows of arguments of a statement."""
    return step.rows if isinstance(step, Each) else [step.arguments]


def values(arguments: Mapping[str, Any]) -> set[bytes]:
    """All that may be a name, those in sequences, too."""
    lists = (each if isinstance(each, list | tuple) else [each] for each in arguments.values())
    return {value for each in lists for value in each if isinstance(value, bytes)}


def entries(*texts: str, at: float = NOW - 100, life: int = 0, first: int = 0) -> tuple[Entry, ...]:
    roles = ("user", "assistant")
    return tuple(
        Entry(role=roles[i % 2], turn=first + i // 2, call=life, content=text, recorded_at=at + i)
        for i, text in enumerate(texts)
    )


def session(*texts: str, user: str | None = "ann", created: float = NOW - 100, **more) -> Session:
    held = more.pop("entries", None) or entries(*texts, at=created)
    return Session(entries=held, user=user, created=created, **more)


async def asked(archive: Archive, text: str, person: Owner = ANN, limit: int = 10) -> list[str]:
    found = await archive.search(person, Query(text=text, now=NOW, limit=limit))
    return [one.text for one in found]


async def kept(archive: Archive, key: Key = KEY) -> list[str]:
    return [turn.entry.text for turn in await archive.session_turns(key)]


# --- turns


async def test_what_was_said_is_kept_whole_and_in_order(archive: Archive):
    held = session("My dog is Rex.", "Lovely.", "Bye.")
    await archive.save_session(KEY, held, as_of=NOW)
    assert tuple(turn.entry for turn in await archive.session_turns(KEY)) == held.entries


async def test_the_same_again_changes_nothing(archive: Archive):
    held = session("My dog is Rex.", "Lovely.")
    await archive.save_session(KEY, held, as_of=NOW)
    before = await archive.turns(ANN)
    await archive.save_session(KEY, held, as_of=NOW + 1)
    assert await archive.turns(ANN) == before


async def test_a_correction_corrects_and_is_found_by_its_new_words_alone(archive: Archive):
    held = session("My dog is Rex.", "A long story about scarecrows.")
    await archive.save_session(KEY, held, as_of=NOW)
    cut = msgspec.structs.replace(held.entries[1], content="A long story", original="A long story about …")
    await archive.save_session(KEY, msgspec.structs.replace(held, entries=(held.entries[0], cut)), as_of=NOW)
    assert [turn.entry for turn in await archive.session_turns(KEY)] == [held.entries[0], cut]
    assert cut.text in await asked(archive, "story")
    assert await asked(archive, "scarecrows") == []


async def test_what_is_withdrawn_goes(archive: Archive):
    held = session("My dog is Rex.", "Lovely.", "And my cat is Tom.")
    await archive.save_session(KEY, held, as_of=NOW)
    await archive.save_session(KEY, msgspec.structs.replace(held, entries=held.entries[:2]), as_of=NOW)
    assert await kept(archive) == ["My dog is Rex.", "Lovely."]
    assert "And my cat is Tom." not in await asked(archive, "cat")


async def test_a_later_life_overwrites_nothing(archive: Archive):
    first = session("One", "Two")
    both = (*first.entries, *entries("Three", "Four", life=1))
    await archive.save_session(KEY, first, as_of=NOW)
    await archive.save_session(KEY, msgspec.structs.replace(first, entries=both, call=1), as_of=NOW)
    assert await kept(archive) == ["One", "Two", "Three", "Four"]


async def test_a_session_made_anew_under_its_name_overwrites_nothing(archive: Archive):
    await archive.save_session(KEY, session("One", "Two", created=NOW - 5000), as_of=NOW)
    await archive.save_session(KEY, session("Three", "Four"), as_of=NOW)
    assert await kept(archive) == ["One", "Two", "Three", "Four"]


async def test_what_moved_out_stays_and_what_is_missing_is_told_and_taken(archive: Archive):
    whole = entries("One", "Two", "Three", "Four", "Five", "Six")
    hot = session(entries=whole[4:], cold_count=4)
    assert await archive.save_session(KEY, hot, as_of=NOW) == 0
    await archive.save_moved(KEY, hot, whole[:4], start=0)
    assert await archive.save_session(KEY, hot, as_of=NOW) == 4
    assert await kept(archive) == ["One", "Two", "Three", "Four", "Five", "Six"]


async def test_a_withdrawal_in_the_hot_part_leaves_what_moved_out(archive: Archive):
    whole = entries("One", "Two", "Three", "Four", "Five", "Six")
    await archive.save_session(KEY, session(entries=whole), as_of=NOW)
    await archive.save_session(KEY, session(entries=whole[4:5], cold_count=4), as_of=NOW)
    assert await kept(archive) == ["One", "Two", "Three", "Four", "Five"]


async def test_an_older_state_changes_nothing_where_a_newer_one_was_kept(archive: Archive):
    whole = entries("One", "Two", "Three", "Four", "Five", "Six")
    older = session(entries=(*whole[:3], *entries("Other", first=9)), updated=NOW - 2)
    await archive.save_session(KEY, session(entries=whole, updated=NOW - 1), as_of=NOW - 1)
    assert await archive.save_session(KEY, msgspec.structs.replace(older, cold_count=3), as_of=NOW) == 3
    await archive.save_moved(KEY, older, entries("Wrong", "Moved"), start=0)
    assert await kept(archive) == ["One", "Two", "Three", "Four", "Five", "Six"]
    assert await archive.saved_times("acme", ["call"]) == {"call": NOW - 1}
    assert await asked(archive, "other wrong moved") == []


async def test_a_correction_within_the_same_moment_is_kept(archive: Archive):
    held = session("My dog is Rex.", updated=NOW - 1)
    await archive.save_session(KEY, held, as_of=NOW)
    await archive.save_session(
        KEY, msgspec.structs.replace(held, entries=entries("My dog is Max.")), as_of=NOW
    )
    assert await kept(archive) == ["My dog is Max."]


async def test_a_state_of_a_clock_that_ran_ahead_orders_nothing(archive: Archive):
    held = session("One", "Two", updated=NOW + 86_400)
    await archive.save_session(KEY, held, as_of=NOW + 86_400)
    whole = (*held.entries, *entries("Three", first=1))
    for second in (1, 2):
        later = msgspec.structs.replace(held, entries=whole, updated=NOW + second)
        await archive.save_session(KEY, later, as_of=NOW + second)
    assert await kept(archive) == ["One", "Two", "Three"]
    assert await archive.saved_times("acme", ["call"]) == {"call": NOW + 2}


async def test_a_session_made_anew_is_kept_whatever_its_clock_says(archive: Archive):
    await archive.save_session(KEY, session("One", "Two", created=NOW - 50, updated=NOW), as_of=NOW)
    await archive.save_session(KEY, session("Three", created=NOW - 60, updated=NOW - 60), as_of=NOW)
    assert await kept(archive) == ["Three", "One", "Two"]


async def test_many_states_at_once_leave_the_newest(archive: Archive):
    whole = entries(*(str(number) for number in range(24)))
    states = [session(entries=whole[:count], updated=NOW - 90 + count) for count in range(2, 25, 2)]
    shuffled = [*states[1::2], *reversed(states[::2])]
    await asyncio.gather(*(archive.save_session(KEY, state, as_of=state.updated) for state in shuffled))
    assert await kept(archive) == [str(number) for number in range(24)]
    assert await archive.saved_times("acme", ["call"]) == {"call": states[-1].updated}


async def test_marks_tell_when_each_session_was_kept(archive: Archive):
    await archive.save_session(KEY, session("One"), as_of=7.5)
    await archive.save_session(Key("other", "call"), session("One"), as_of=9.5)
    assert await archive.saved_times("acme", ["call"]) == {"call": 7.5}


async def test_a_mark_never_goes_back(archive: Archive):
    await archive.save_session(KEY, session("One"), as_of=7.5)
    await archive.save_session(KEY, session("One"), as_of=5.5)
    await archive.save_moved(KEY, session(cold_count=1), entries("One"), start=0)
    assert await archive.saved_times("acme", ["call"]) == {"call": 7.5}


@pytest.mark.parametrize("text", ["", "\0", "a\ud800b", "'; DROP TABLE x; --", "{0} %s \\ ' \" | & ! :* <->"])
async def test_any_text_and_any_id_is_kept_and_asked(archive: Archive, text: str):
    key = Key(text or "t", f"s{text}")
    person = Owner(key.tenant, text or "u")
    said = f"{text.replace(chr(0xD800), '')} scarecrow"  # half a character is mended where it comes in
    await archive.save_session(key, session(said, user=person.user), as_of=NOW)
    assert await kept(archive, key) == [said]
    assert await asked(archive, f"{text} scarecrow", person) == [said]


async def last(archive: Archive, person: Owner = ANN, limit: int = 10) -> list[str]:
    return [turn.entry.text for turn in await archive.latest_turns(person, limit=limit)]


async def test_the_last_talk_is_the_one_that_was_spoken_in_last(archive: Archive):
    assert await last(archive) == []
    await archive.save_session(
        Key("acme", "b"), session("Hello.", "The newest.", created=NOW - 50), as_of=NOW
    )
    await archive.save_session(Key("acme", "a"), session("Kept later.", created=NOW - 5000), as_of=NOW)
    await archive.save_session(Key("acme", "c"), session("Of Bob.", user="bob", created=NOW - 10), as_of=NOW)
    await archive.save_session(Key("other", "d"), session("Of another tenant.", created=NOW - 10), as_of=NOW)
    assert await last(archive) == ["Hello.", "The newest."]
    assert await last(archive, limit=1) == ["The newest."]
    assert await last(archive, BOB) == ["Of Bob."]
    assert await last(archive, Owner("acme", "")) == []
    # Words that everybody says stand in no index.
    await archive.save_session(Key("acme", "e"), session("And so?", created=NOW - 5), as_of=NOW)
    assert await last(archive) == ["And so?"]
    await archive.forget(ANN, at=NOW)
    assert await last(archive) == []


async def test_of_anothers_talk_the_last_one_holds_what_the_speaker_said(archive: Archive):
    held = session("Of Ann.", "Noted.", created=NOW - 100).entries
    guest = msgspec.structs.replace(held[0], turn=1, content="Of Bob.", user="bob", recorded_at=NOW - 90)
    await archive.save_session(KEY, session(entries=(*held, guest)), as_of=NOW)
    assert await last(archive, BOB) == ["Of Bob."]
    assert await last(archive) == ["Of Ann.", "Noted.", "Of Bob."]


# --- the index


async def as_it_was(archive: Archive) -> None:
    """Every text is indexed as words were told apart before, and otherwise than now."""
    aged = Statement("UPDATE turnkeeper_passages SET terms = 'x', lexicon = 0 RETURNING id")
    await archive._database.write(lambda: fetch_value(aged, {}))


async def test_what_was_indexed_in_an_older_way_is_indexed_anew(archive: Archive):
    await archive.save_session(KEY, session("नमस्ते दुनिया"), as_of=NOW)
    await archive.add_fact(ANN, Fact(id="f", text="Speaks हिन्दी.", created=NOW))
    await archive.add_document("acme", "a.md", [DocumentChunk(title="नियम", text="Open at nine.")], at=NOW)
    assert await archive.reindex() == 0
    await as_it_was(archive)
    assert await asked(archive, "नमस्ते हिन्दी नियम") == []
    assert [await archive.reindex(limit=2) for _ in range(3)] == [2, 1, 0]
    assert sorted(await asked(archive, "नमस्ते हिन्दी नियम", limit=3)) == [
        "Open at nine.",
        "Speaks हिन्दी.",
        "नमस्ते दुनिया",
    ]


@pytest.mark.parametrize("driver", ["sealed-sqlite", "sealed-postgresql"])
async def test_what_cannot_be_read_holds_up_no_index(request: pytest.FixtureRequest, driver: str):
    url = await DRIVERS[driver](request)
    for number in (1, 2):
        archive = open_archive(url, codec=Encryption([bytes([number]) * 32]))
        await archive.save_session(Key("acme", f"s{number}"), session("नमस्ते"), as_of=NOW)
        await as_it_was(archive)
        if number == 2:
            assert [await archive.reindex(), await archive.reindex()] == [2, 0]
            assert await asked(archive, "नमस्ते") == ["नमस्ते"]
        await archive.aclose()


async def test_an_index_that_is_made_anew_keeps_what_texts_mean(archive: Archive):
    await archive.save_session(KEY, session("dog"), as_of=NOW)
    (due,) = await archive.unembedded_texts("m", limit=9)
    await archive.add_vectors("m", [(due, vector("dog"))])
    await as_it_was(archive)
    assert await archive.reindex() == 1
    assert await archive.unembedded_texts("m", limit=9) == []


# --- search


async def test_the_best_goes_first(archive: Archive):
    held = session(
        "I like walks with my dog.", "Nice.", "My dog is called Rex.", "Noted.", "I also like tea."
    )
    await archive.save_session(KEY, held, as_of=NOW)
    found = await archive.search(ANN, Query(text="What was my dog called again?", now=NOW))
    assert found[0].text == "My dog is called Rex."
    assert (found[0].kind, found[0].role, found[0].session_id, found[0].turn_id) == (
        "turn",
        "user",
        "call",
        1,
    )
    assert found[0].timestamp == pytest.approx(held.entries[2].recorded_at)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


@pytest.mark.parametrize("lines", [310, 1010])
async def test_of_more_lines_than_are_compared_the_likeliest_are(archive: Archive, lines: int):
    barked = [f"The dog barked at {n}." for n in range(lines)]
    await archive.save_session(KEY, session(*barked, "The dog is a collie."), as_of=NOW)
    assert await asked(archive, "Is the dog a collie?", limit=1) == ["The dog is a collie."]


async def test_a_day_is_looked_for_where_it_begins(archive: Archive):
    await archive.save_session(KEY, session("My dog is called Rex.", created=NOW - 3600), as_of=NOW)
    for clock, found in ((60, True), (43_200, False)):
        zone = timezone(timedelta(seconds=clock - NOW % 86_400))
        query = Query(text="Anything from yesterday?", now=NOW, zone=zone)
        assert bool(await archive.search(ANN, query)) == found


async def test_words_are_found_by_their_stems_and_without_accents(archive: Archive):
    await archive.save_session(KEY, session("I was running to the café.", "Good."), as_of=NOW)
    assert (await asked(archive, "who runs?"))[0] == "I was running to the café."
    assert (await asked(archive, "which CAFE"))[0] == "I was running to the café."


@pytest.mark.parametrize(
    ("said", "question"),
    [
        ("我的手机坏了", "手机"),
        ("昨日は東京に行きました", "東京"),
        ("저는 부산에서 왔어요", "부산"),
        ("ฉันชอบกาแฟ", "กาแฟ"),
    ],
)
async def test_two_characters_of_a_script_without_spaces_hit(archive: Archive, said: str, question: str):
    await archive.save_session(KEY, session(said), as_of=NOW)
    assert await asked(archive, question) == [said]


async def test_what_speech_recognition_writes_as_one_word_or_as_several_is_found(archive: Archive):
    said = ["Meine Haftpflichtversicherung ist teuer.", "My flight is LH 438.", "The order is A48213."]
    await archive.save_session(KEY, session(*said), as_of=NOW)
    for question, place in (("Haftpflicht Versicherung?", 0), ("And LH438?", 1), ("Order A 48213?", 2)):
        found = await archive.search(ANN, Query(text=question, now=NOW))
        assert (found[0].text, found[0].score > 0.9) == (said[place], True)


@pytest.mark.parametrize(
    ("said", "question"),
    [
        ("I spilled varnish on the parquet.", "What helps with varnsih?"),
        ("The alergy came back in spring.", "When did the allergy come back?"),
        ("I keep a hammster.", "Do I keep a hamster?"),
        ("Собака спит на кухне.", "Где спит сбоака?"),
    ],
)
async def test_a_slip_in_a_shorter_word_is_seen_through_where_nobody_said_it(
    archive: Archive, said: str, question: str
):
    await archive.save_session(KEY, session(said, "Noted.", "I like tea."), as_of=NOW)
    assert (await asked(archive, question))[:1] == [said]


async def test_a_shorter_word_that_was_said_is_no_slip_and_no_other_words(archive: Archive):
    await archive.save_session(KEY, session("The angle is steep.", "The angel sings."), as_of=NOW)
    found = await archive.search(ANN, Query(text="An angel?", now=NOW))
    assert next((one.text, one.score > 0.5) for one in found) == ("The angel sings.", True)
    await archive.save_session(Key("acme", "home"), session("My house is old."), as_of=NOW)
    assert await asked(archive, "Which horse?") == []


async def test_an_answer_is_found_by_the_question_before_it(archive: Archive):
    held = session("Hello", "What is your favourite colour?", "Blue.", "And so on")
    await archive.save_session(KEY, held, as_of=NOW)
    assert "Blue." in await asked(archive, "favourite colours", limit=3)


async def test_what_a_model_is_told_has_what_was_said_next_and_equal_turns_once(archive: Archive):
    held = session("What is my daughter's name?", "Emma.", "Fine.", "What is my daughter's name?", "Ruth.")
    await archive.save_session(KEY, held, as_of=NOW)
    query = Query(text="my daughter's name", now=NOW, limit=1, following=True)
    found = await archive.search(ANN, query)
    assert [(one.text, one.follows) for one in found] in (
        [("What is my daughter's name?", False), ("Emma.", True)],
        [("What is my daughter's name?", False), ("Ruth.", True)],
    )
    assert found[0].score == found[1].score
    many = await archive.search(ANN, msgspec.structs.replace(query, limit=9))
    assert [one.text for one in many].count("What is my daughter's name?") == 1


@pytest.mark.parametrize("question", ["Hello, good morning!", "Thank you, bye!", "Guten Morgen!", "再见"])
async def test_a_courtesy_brings_nothing(archive: Archive, question: str):
    greetings = ["Hello, good morning!", "Good morning!", "Thank you, bye!", "Bye!", "Guten Morgen!", "再见"]
    await archive.save_session(KEY, session(*greetings), as_of=NOW)
    assert await asked(archive, question) == []


@pytest.mark.parametrize(
    ("question", "answer"), [("address", "Yes."), ("insurance", "No, not now."), ("card", "Alright.")]
)
async def test_an_answer_of_function_words_follows_its_question(archive: Archive, question: str, answer: str):
    talk = [
        "Is your address 12 Elm Street?",
        "Yes.",
        "Shall I renew your insurance?",
        "No, not now.",
        "Shall I send a card?",
        "Alright.",
    ]
    await archive.save_session(KEY, session(*talk), as_of=NOW)
    query = Query(text=question, now=NOW, limit=1, following=True)
    found = [(one.text, one.follows) for one in await archive.search(ANN, query)]
    assert found == [(talk[talk.index(answer) - 1], False), (answer, True)]
    assert await asked(archive, "No, yes.") == []


@pytest.mark.parametrize("following", [True, False])
async def test_a_greeting_beside_what_matches_is_not_brought_along(archive: Archive, following: bool):
    talk = ["Hello, good morning!", "Good morning! What can I do for you?", "I need a cleaning.", "At ten."]
    talk += ["My cleaning, then.", "Thanks, bye!"]
    await archive.save_session(KEY, session(*talk), as_of=NOW)
    found = await archive.search(ANN, Query(text="When is my cleaning?", now=NOW, following=following))
    assert sorted(one.text for one in found) == sorted(talk[2:5])


@pytest.mark.parametrize(
    ("said", "question"),
    [
        ("Call me at 0171 555 2368.", "+49 171 5552368"),
        ("My order is A-48213-B.", "a four eight two one three b"),
        ("My reference is X as in x-ray, four, nine, K.", "Is it X49K?"),
        ("Der Code ist B wie Berta, 7 7, X.", "B77X?"),
        ("The postcode is SW1A 1AA.", "SW1A1AA?"),
        ("Meine Krankenversicherung zahlt.", "Was macht die Versicherung?"),
        ("Мы были в Москве.", "Москва"),
        ("قرأت الكتاب.", "كتاب"),
        ("İstanbul'a gidiyoruz.", "istanbul"),
        ("My kids like apples.", "What do my children like?"),
        ("I have an appointment.", "When is the apointment?"),
    ],
)
async def test_other_forms_and_spellings_are_found_for_their_user_alone(
    archive: Archive, said: str, question: str
):
    await archive.save_session(KEY, session(said), as_of=NOW)
    await archive.save_session(Key("acme", "bobs"), session("Nothing.", user="bob"), as_of=NOW)
    assert await asked(archive, question) == [said]
    assert await asked(archive, question, BOB) == []


async def test_of_the_same_in_three_years_the_one_that_the_question_names_goes_first(archive: Archive):
    for year in (2020, 2021, 2022):
        at = datetime(year, 5, 10, 12, tzinfo=UTC).timestamp()
        held = session(f"I ordered chairs, {year}.", created=at)
        await archive.save_session(Key("acme", f"call{year}"), held, as_of=NOW)
    for question in ("What did I order in May 2020?", "Was habe ich am 10. Mai 2020 bestellt, chairs?"):
        assert (await asked(archive, question))[0].endswith("2020.")


async def test_a_time_in_the_question_helps(archive: Archive):
    for days in (1, 8, 40):
        text = f"I went to the doctor, {days}."
        held = session(text, created=NOW - days * 86_400)
        await archive.save_session(Key("acme", f"call{days}"), held, as_of=NOW)
    assert (await asked(archive, "Which doctor did I go to yesterday?"))[0].endswith(" 1.")
    assert await asked(archive, "What did I say yesterday?") == ["I went to the doctor, 1."]


async def test_nobody_finds_what_is_anothers(archive: Archive):
    await archive.save_session(KEY, session("My dog is Rex."), as_of=NOW)
    await archive.save_session(Key("acme", "bobs"), session("My dog is Max.", user="bob"), as_of=NOW)
    await archive.save_session(Key("acme", "strangers"), session("My dog is Tim.", user=None), as_of=NOW)
    assert await asked(archive, "dog") == ["My dog is Rex."]
    assert await asked(archive, "dog", BOB) == ["My dog is Max."]
    for nobody in (Owner("acme", ""), Owner("other", "ann"), Owner("acme", "carl"), Owner("", "ann")):
        assert await asked(archive, "dog", nobody) == []
        assert await archive.turns(nobody) == []


@pytest.mark.parametrize("driver", ["sealed-sqlite", "sealed-postgresql"])
async def test_neighbours_under_a_key_that_is_lost_are_left_out(request: pytest.FixtureRequest, driver: str):
    url = await DRIVERS[driver](request)
    held = session("My dog is Rex.", "Lovely.", "Is the dog hungry?")
    async with under(bytes(32), url) as old:
        await old.save_session(KEY, held, as_of=NOW)
    async with under(bytes([1] * 32), url) as new:
        await new.save_session(
            KEY, msgspec.structs.replace(held, entries=held.entries[2:], cold_count=2), as_of=NOW
        )
        assert await asked(new, "dog") == ["Is the dog hungry?"]


def under(key: bytes, url: str) -> AbstractAsyncContextManager[Archive]:
    """An archive that is closed whatever happens."""
    return aclosing(open_archive(url, codec=Encryption([key])))


async def test_a_question_is_never_syntax(archive: Archive):
    await archive.save_session(KEY, session("My dog is Rex."), as_of=NOW)
    for question in ('dog" OR "', "dog' | '", "terms:dog", "dog*", "NEAR(dog)", "-dog", "dog & !dog", "(dog"):
        assert await asked(archive, question) == ["My dog is Rex."]
    for question in ("", "   ", "*", '"', "the of and", "OR AND NOT"):
        assert await asked(archive, question) == []


# --- facts and documents


async def test_facts_are_found_listed_and_removed(archive: Archive):
    fact = Fact(id="f1", text="Allergic to peanuts.", evidence=("call:0",), created=NOW)
    await archive.add_fact(ANN, fact)
    assert await archive.facts(ANN, now=NOW) == [fact]
    assert await archive.facts(BOB, now=NOW) == []
    (found,) = await archive.search(ANN, Query(text="peanut allergy, peanuts", now=NOW))
    assert (found.kind, found.text, found.source) == ("fact", "Allergic to peanuts.", "f1")
    assert found.session_id is None
    assert not await archive.remove_fact(BOB, "f1")
    assert await archive.remove_fact(ANN, "f1")
    assert not await archive.remove_fact(ANN, "f1")
    assert await asked(archive, "peanuts") == []


async def test_a_fact_is_superseded_and_not_overwritten(archive: Archive):
    await archive.add_fact(ANN, Fact(id="f1", text="Lives in Hamburg.", created=NOW - 9))
    await archive.add_fact(ANN, Fact(id="f2", text="Lives in Berlin.", replaces="f1", created=NOW))
    assert [fact.id for fact in await archive.facts(ANN, now=NOW)] == ["f2"]
    both = await archive.facts(ANN, now=NOW, superseded=True)
    assert [(fact.id, fact.superseded) for fact in both] == [("f1", NOW), ("f2", None)]
    assert await asked(archive, "where does she live") == ["Lives in Berlin."]


class Reading:
    """A codec that notes how much it opens."""

    def __init__(self, codec: Codec) -> None:
        self._codec, self.opened = codec, 0

    def __getattr__(self, name: str):
        return getattr(self._codec, name)

    def decode(self, key: Key, blob: bytes) -> bytes:
        self.opened += 1
        return self._codec.decode(key, blob)


async def test_what_was_replaced_is_not_opened_to_tell_what_is_known(archive: Archive):
    for number in range(9):
        replaces = f"f{number - 1}" if number else None
        fact = Fact(id=f"f{number}", text=f"At {number}.", created=NOW - 9 + number, replaces=replaces)
        await archive.add_fact(ANN, fact)
    reading = Reading(archive._codec.codec)
    looked = Archive(archive._database, msgspec.structs.replace(archive._codec, codec=reading))
    assert [fact.id for fact in await looked.facts(ANN, now=NOW)] == ["f8"]
    assert reading.opened == 1
    assert len(await looked.facts(ANN, now=NOW, superseded=True)) == 9


async def test_a_fact_that_has_expired_is_not_there(archive: Archive):
    await archive.add_fact(ANN, Fact(id="f1", text="Has a headache.", created=NOW - 9, expires=NOW - 1))
    assert await archive.facts(ANN, now=NOW) == []
    assert await asked(archive, "headache") == []


async def test_what_has_expired_takes_no_others_place(archive: Archive):
    for number in range(25):
        jazz = Fact(id=f"f{number}", text=f"Likes jazz, {number}.", created=NOW - 9, expires=NOW - 1)
        await archive.add_fact(ANN, jazz)
    await archive.save_session(
        KEY, session("On Sundays I do play some jazz with friends of mine."), as_of=NOW
    )
    assert len(await asked(archive, "jazz", limit=10)) == 1


async def test_what_has_expired_goes_for_good_a_few_at_a_time(archive: Archive):
    for number, expires in enumerate((NOW - 3, NOW - 2, NOW - 1, NOW + 60, None)):
        await archive.add_fact(
            ANN, Fact(id=f"f{number}", text=f"Fact {number}.", created=1.0, expires=expires)
        )
    last = Fact(id="f5", text="Fact 5.", created=2.0, replaces="f2")
    await archive.add_fact(ANN, last)
    assert await embed(archive) == ["Fact 0.", "Fact 1.", "Fact 3.", "Fact 4.", "Fact 5."]
    assert [await archive.expire(now=NOW, limit=2) for _ in range(3)] == [2, 1, 0]
    left = await archive.facts(ANN, now=0.0, superseded=True)
    assert [fact.id for fact in left] == ["f3", "f4", "f5"]
    assert await vectors_left(archive) == 3
    assert await embed(archive, "other") == ["Fact 3.", "Fact 4.", "Fact 5."]


class Counting:
    """A database that counts of how many statements each work consists."""

    def __init__(self, database: Database) -> None:
        self._database, self.asked = database, 0

    def __getattr__(self, name: str):
        return getattr(self._database, name)

    async def write(self, work: Transaction[T]) -> T:
        return await self._database.write(partial(self._counted, work))

    def _counted(self, work: Transaction[T]) -> Steps[T]:
        steps, rows, self.asked = work(), None, 0
        try:
            while True:
                ask = steps.send(rows)
                self.asked += 1
                rows = yield ask
        except StopIteration as end:
            return end.value


async def test_many_that_have_expired_go_in_as_few_statements_as_one(archive: Archive):
    for number in range(9):
        fact = Fact(id=f"f{number}", text=f"Fact {number}.", created=NOW - 9, expires=NOW - 1)
        await archive.add_fact(ANN, fact)
    counting = Counting(archive._database)
    counted = Archive(counting, archive._codec)
    asked = {await counted.expire(now=NOW, limit=limit): counting.asked for limit in (1, 8)}
    assert asked[8] == asked[1]
    assert await embed(archive) == []


async def test_documents_are_found_by_all_persons_of_their_tenant(archive: Archive):
    chunks = [
        DocumentChunk(title="Opening hours", text="We open at nine."),
        DocumentChunk(title="", text="Parking is free."),
    ]
    await archive.add_document("acme", "faq.md", chunks, at=NOW)
    (found,) = await archive.search(ANN, Query(text="opening hours", now=NOW))
    assert (found.kind, found.text, found.source) == ("document", "We open at nine.", "faq.md")
    assert found.session_id is None
    assert await asked(archive, "parking", BOB) == ["Parking is free."]
    assert await asked(archive, "parking", Owner("other", "ann")) == []
    await archive.add_document("acme", "faq.md", chunks[:1], at=NOW)
    assert await archive.documents("acme") == ["faq.md"]
    assert await asked(archive, "parking") == []
    assert await archive.remove_document("acme", "faq.md")
    assert not await archive.remove_document("acme", "faq.md")
    assert await archive.documents("acme") == []


async def test_a_document_is_removed_and_replaced_in_one_tenant_alone(archive: Archive):
    ours, theirs = (
        DocumentChunk(title="", text="We open at nine."),
        DocumentChunk(title="", text="They open at ten."),
    )
    await archive.add_document("acme", "faq.md", [ours], at=NOW)
    await archive.add_document("other", "faq.md", [theirs], at=NOW)
    others = Owner("other", "ann")
    await archive.add_document("acme", "faq.md", [ours], at=NOW)
    assert await asked(archive, "open", others) == ["They open at ten."]
    assert await archive.remove_document("acme", "faq.md")
    assert await archive.documents("other") == ["faq.md"]
    assert await asked(archive, "open", others) == ["They open at ten."]


async def test_of_what_answers_alike_facts_go_first_and_documents_last(archive: Archive):
    await archive.add_document("acme", "faq.md", [DocumentChunk(title="", text="Bello barks.")], at=NOW)
    await archive.save_session(KEY, session("Bello barks."), as_of=NOW)
    await archive.add_fact(ANN, Fact(id="f1", text="Bello barks.", created=NOW - 200))
    found = await archive.search(ANN, Query(text="Bello", now=NOW))
    assert [one.kind for one in found] == ["fact", "turn", "document"]


# --- the end


async def test_a_person_is_forgotten_and_nobody_else(archive: Archive):
    await archive.save_session(KEY, session("My dog is Rex."), as_of=NOW)
    await archive.save_session(Key("acme", "bobs"), session("My dog is Max.", user="bob"), as_of=NOW)
    await archive.save_session(Key("other", "call"), session("My dog is Ada."), as_of=NOW)
    await archive.add_fact(ANN, Fact(id="f1", text="Likes dogs.", created=NOW))
    assert await archive.forget(ANN, at=NOW + 1) == ErasureCount(turns=1, facts=1)
    assert await archive.turns(ANN) == [] == await archive.facts(ANN, now=NOW)
    assert await asked(archive, "dog") == []
    assert await kept(archive) == []
    assert await asked(archive, "dog", BOB) == ["My dog is Max."]
    assert await kept(archive, Key("other", "call")) == ["My dog is Ada."]
    assert await archive.forget(ANN, at=NOW + 1) == ErasureCount()


async def test_what_was_said_before_the_person_was_forgotten_is_refused(archive: Archive):
    await archive.forget(ANN, at=NOW)
    await archive.save_session(KEY, session("My dog is Rex."), as_of=NOW)
    await archive.add_fact(ANN, Fact(id="f1", text="Likes dogs.", created=NOW - 1))
    assert await archive.turns(ANN) == [] == await archive.facts(ANN, now=NOW)
    replayed = Entry(role="user", turn=0, content="My dog is Rex.", timestamp=NOW - 50, recorded_at=NOW + 5)
    later = Entry(role="user", turn=1, content="Hello again.", timestamp=NOW + 4, recorded_at=NOW + 5)
    await archive.save_session(KEY, session(entries=(replayed, later), created=NOW + 5), as_of=NOW)
    assert await kept(archive) == ["Hello again."]


async def test_what_was_forgotten_under_a_clock_that_ran_ahead_orders_nothing_that_comes(archive: Archive):
    ahead = NOW + 86_400
    for person in (ANN, BOB):
        await archive.forget(person, at=ahead)
    for forget in (archive.forget_session, archive.forget_anonymous):
        await forget(KEY, at=ahead)
    later = session("My dog is Rex.")
    bobs = msgspec.structs.replace(entries("My dog is Max.", first=1)[0], user="bob")
    await archive.save_session(KEY, msgspec.structs.replace(later, entries=(*later.entries, bobs)), as_of=NOW)
    await archive.save_session(KEY, session("Hello.", user=None, created=NOW - 50), as_of=NOW)
    assert await kept(archive) == ["My dog is Rex.", "My dog is Max.", "Hello."]
    await archive.add_fact(ANN, Fact(id="f1", text="Likes dogs.", created=NOW))
    assert [fact.id for fact in await archive.facts(ANN, now=NOW)] == ["f1"]


async def test_what_was_said_under_that_clock_before_it_was_forgotten_stays_away(archive: Archive):
    ahead = NOW + 86_400
    await archive.forget(ANN, at=ahead)
    await archive.save_session(KEY, session("My dog is Rex.", created=ahead - 10), as_of=NOW)
    await archive.add_fact(ANN, Fact(id="f1", text="Likes dogs.", created=ahead - 10))
    assert await kept(archive) == [] == await archive.facts(ANN, now=NOW)


async def test_a_forgetting_that_orders_nothing_hides_no_other(archive: Archive):
    await archive.forget(ANN, at=NOW)
    await archive.forget_session(KEY, at=NOW + 86_400)
    await archive.save_session(KEY, session("My dog is Rex."), as_of=NOW)
    assert await kept(archive) == []


async def test_who_was_forgotten_is_told(archive: Archive):
    await archive.forget(ANN, at=NOW)
    await archive.forget(BOB, at=NOW - 10)
    await archive.forget(Owner("acme", "\udc00\0"), at=NOW + 1)
    await archive.forget(Owner("acme", "late"), at=NOW + 10)
    await archive.forget_session(KEY, at=NOW)
    await archive.forget(Owner("other", "ann"), at=NOW)
    told = await archive.tombstones("acme", since=NOW, until=NOW + 1)
    assert (told.user("ann"), told.user("\udc00\0"), told.session(KEY.session)) == (NOW, NOW + 1, NOW)
    assert [told.user("bob"), told.user("late"), told.user(KEY.session), told.session("ann")] == [None] * 4
    assert len(told.times) == 3


async def test_what_a_forgotten_person_said_in_anothers_session_goes(archive: Archive):
    bobs = msgspec.structs.replace(entries("My dog is Max.")[0], user="bob", turn=1)
    await archive.save_session(KEY, session(entries=(*entries("My dog is Rex."), bobs)), as_of=NOW)
    assert await archive.forget(BOB, at=NOW) == ErasureCount(turns=1)
    assert await kept(archive) == ["My dog is Rex."]
    assert await asked(archive, "dog") == ["My dog is Rex."]


async def test_a_session_is_forgotten_with_what_comes_late(archive: Archive):
    held = session("My dog is Rex.")
    await archive.save_session(KEY, held, as_of=NOW)
    await archive.save_session(Key("acme", "other"), session("My cat is Tom."), as_of=NOW)
    assert await archive.forget_session(KEY, at=NOW) == 1
    await archive.save_session(KEY, held, as_of=NOW)
    assert await kept(archive) == []
    assert await asked(archive, "dog cat") == ["My cat is Tom."]


async def test_strangers_turns_go_with_their_session_and_persons_stay(archive: Archive):
    await archive.save_session(KEY, session("My dog is Rex.", user=None), as_of=NOW)
    await archive.save_session(Key("acme", "anns"), session("My dog is Rex."), as_of=NOW)
    assert await archive.forget_anonymous(KEY, at=NOW) == 1
    assert await archive.forget_anonymous(Key("acme", "anns"), at=NOW) == 0
    assert await kept(archive) == []
    assert await kept(archive, Key("acme", "anns")) == ["My dog is Rex."]


async def test_what_strangers_said_before_their_session_was_forgotten_is_refused(archive: Archive):
    await archive.forget_anonymous(KEY, at=NOW)
    late = session("My dog is Rex.", user=None)
    assert await archive.save_session(KEY, msgspec.structs.replace(late, cold_count=3), as_of=NOW) == 3
    await archive.save_moved(KEY, late, late.entries, start=0)
    assert await kept(archive) == []
    assert await archive.saved_times("acme", ["call"]) == {}
    await archive.save_session(KEY, session("Hello again.", user=None, created=NOW + 5), as_of=NOW)
    assert await kept(archive) == ["Hello again."]


async def test_what_a_person_said_there_is_kept_all_the_same(archive: Archive):
    await archive.forget_anonymous(KEY, at=NOW)
    await archive.save_session(KEY, session("My dog is Rex."), as_of=NOW)
    assert await kept(archive) == ["My dog is Rex."]


async def test_that_strangers_were_forgotten_is_known_for_a_quarter_of_an_hour(archive: Archive):
    await archive.forget_anonymous(KEY, at=NOW - 1000)
    await archive.forget_anonymous(Key("acme", "other"), at=NOW)
    await archive.save_session(KEY, session("My dog is Rex.", user=None, created=NOW - 2000), as_of=NOW)
    assert await kept(archive) == ["My dog is Rex."]


async def test_what_is_too_old_is_swept_a_few_at_a_time(archive: Archive):
    old = entries("One apple", "Two apples", "Three apples", at=NOW - 1000)
    new = entries("Four apples", at=NOW, first=5)
    await archive.save_session(KEY, session(entries=(*old, *new)), as_of=NOW)
    assert await archive.sweep(before=NOW - 500, limit=2) == 2
    assert await archive.sweep(before=NOW - 500, limit=2) == 1
    assert await archive.sweep(before=NOW - 500, limit=2) == 0
    assert await asked(archive, "apples") == ["Four apples"]


async def test_many_at_once_write_and_read(archive: Archive):
    keys = [Key("acme", f"call{i}") for i in range(20)]
    await asyncio.gather(
        *(archive.save_session(key, session(f"My number is {key.session}."), as_of=NOW) for key in keys),
        *(archive.search(ANN, Query(text="number", now=NOW)) for _ in keys),
    )
    assert len(await archive.turns(ANN)) == 20
    await archive.ping()


# --- what is meant


def meant(text: str, model: str = "m", weight: float = 0.4) -> QueryVector:
    return QueryVector(model=model, vector=vector(text), weight=weight, threshold=0.3)


async def embed(archive: Archive, model: str = "m") -> list[str]:
    """Adds all vectors that are lacking; of which texts."""
    made: list[str] = []
    while due := await archive.unembedded_texts(model, limit=3):
        await archive.add_vectors(model, [(one, vector(one.text or "")) for one in due])
        made += [one.text or "" for one in due]
    return sorted(made)


async def alike(archive: Archive, text: str, person: Owner = ANN, model: str = "m") -> list[str]:
    query = Query(text=text, now=NOW, vector=meant(text, model))
    return [one.text for one in await archive.search(person, query)]


async def test_each_text_wants_a_vector_once_and_again_when_it_is_corrected(archive: Archive):
    held = session("My puppy is small.", "Lovely.", "I moved.")
    await archive.save_session(KEY, held, as_of=NOW)
    await archive.add_fact(ANN, Fact(id="f1", text="Likes tea.", created=NOW))
    await archive.add_document("acme", "a.md", [DocumentChunk(title="Pets", text="No hound.")], at=NOW)
    whole = {
        "User: My puppy is small.\nAssistant: Lovely.",
        "User: My puppy is small.\nAssistant: Lovely.\nUser: I moved.",
        "Assistant: Lovely.\nUser: I moved.",
        "Likes tea.",
        "Pets\nNo hound.",
    }
    assert set(await embed(archive)) == whole
    assert await embed(archive) == []
    corrected = msgspec.structs.replace(held.entries[0], content="My tea is small.")
    await archive.save_session(
        KEY, msgspec.structs.replace(held, entries=(corrected, *held.entries[1:])), as_of=NOW
    )
    assert "My tea is small." not in await alike(archive, "hound")
    # The line behind it had it in its vector.
    assert set(await embed(archive)) == {
        "User: My tea is small.\nAssistant: Lovely.",
        "User: My tea is small.\nAssistant: Lovely.\nUser: I moved.",
    }
    assert len(await embed(archive, "other")) == 5


async def test_no_vector_has_words_that_were_taken_back(archive: Archive):
    held = session("I moved.", "Lovely.", "My puppy is small.")
    await archive.save_session(KEY, held, as_of=NOW)
    await embed(archive)
    assert await vectors_left(archive) == 3
    shorter = msgspec.structs.replace(held, entries=held.entries[:2], updated=NOW + 1)
    await archive.save_session(KEY, shorter, as_of=NOW)
    assert await vectors_left(archive) == 1
    assert await embed(archive) == ["User: I moved.\nAssistant: Lovely."]


async def test_no_vector_has_words_that_are_past_their_time(archive: Archive):
    held = session("My puppy is small.", "Lovely.", "I moved.", "To Berlin?")
    old, *rest = held.entries
    old = msgspec.structs.replace(old, recorded_at=NOW - 90_000)
    await archive.save_session(KEY, msgspec.structs.replace(held, entries=(old, *rest)), as_of=NOW)
    await embed(archive)
    assert await archive.sweep(before=NOW - 80_000) == 1
    assert await vectors_left(archive) == 2
    assert await embed(archive) == ["Assistant: Lovely.\nUser: I moved."]


async def test_a_line_waits_for_the_next_one_until_it_is_old(archive: Archive):
    async def due(until: float) -> list[str | None]:
        return [one.text for one in await archive.unembedded_texts("m", limit=9, until=until)]

    held = session("My puppy is small.", "Lovely.")
    await archive.save_session(KEY, held, as_of=NOW)
    first = "User: My puppy is small.\nAssistant: Lovely."
    assert await due(0) == [first]
    assert await due(NOW) == [first, first]
    await archive.add_fact(ANN, Fact(id="f1", text="Likes tea.", created=NOW))
    assert await due(0) == [first, "Likes tea."]


async def test_a_vector_is_not_added_where_the_line_beside_was_corrected_meanwhile(archive: Archive):
    held = session("My puppy is small.", "Lovely.")
    await archive.save_session(KEY, held, as_of=NOW)
    due = await archive.unembedded_texts("m", limit=9)
    corrected = msgspec.structs.replace(held.entries[0], content="My tea is small.")
    corrected = msgspec.structs.replace(held, entries=(corrected, held.entries[1]))
    await archive.save_session(KEY, corrected, as_of=NOW)
    await archive.add_vectors("m", [(one, vector("puppy")) for one in due])
    assert await vectors_left(archive) == 0
    assert len(await embed(archive)) == 2


async def test_no_vector_has_what_another_user_said(archive: Archive):
    held = session("My puppy is small.", "Lovely.")
    bobs = msgspec.structs.replace(entries("My doctor is ill.", first=2)[0], user="bob")
    both = msgspec.structs.replace(held, entries=(*held.entries, bobs))
    await archive.save_session(KEY, both, as_of=NOW)
    assert "User: My doctor is ill." in (made := await embed(archive))
    assert sum("doctor" in text for text in made) == 1


async def test_among_many_lines_a_meaning_counts_that_stands_out(archive: Archive):
    """What all of them have in common with a question tells nothing."""
    lines = [line for i in range(20) for line in (f"My puppy number{i} sleeps.", "-")]
    await archive.save_session(KEY, session(*lines), as_of=NOW)
    await archive.add_fact(ANN, Fact(id="f1", text="Has a puppy.", created=NOW))
    await embed(archive)
    assert await alike(archive, "Which hound?") == []


async def test_a_vector_of_what_was_corrected_meanwhile_is_not_added(archive: Archive):
    held = session("My puppy is small.")
    await archive.save_session(KEY, held, as_of=NOW)
    (late,) = await archive.unembedded_texts("m", limit=9)
    corrected = msgspec.structs.replace(held.entries[0], content="My tea is small.")
    await archive.save_session(KEY, msgspec.structs.replace(held, entries=(corrected,)), as_of=NOW)
    await archive.add_vectors("m", [(late, vector("puppy"))])
    assert await alike(archive, "hound") == []
    assert await embed(archive) == ["User: My tea is small."]


async def test_greetings_and_function_words_have_no_vector(archive: Archive):
    await archive.save_session(KEY, session("Hello, good morning!", "Yes.", "My puppy sleeps."), as_of=NOW)
    texts = await archive.unembedded_texts("m", limit=9)
    assert sorted(one.text or "" for one in texts) == ["", "", "Assistant: Yes.\nUser: My puppy sleeps."]


async def test_what_means_the_same_is_found_and_goes_before_a_word_in_passing(archive: Archive):
    await archive.save_session(
        KEY,
        session("My puppy sleeps.", "-", "-", "Lovely.", "-", "-", "The weather, animal and all."),
        as_of=NOW,
    )
    assert await asked(archive, "Which hound?") == []
    assert await alike(archive, "Which hound?") == []  # there is no vector yet
    await embed(archive)
    assert (await alike(archive, "Which hound?"))[0] == "My puppy sleeps."
    assert await alike(archive, "Which physician?") == []
    assert await alike(archive, "Which hound?", model="other") == []


async def test_meaning_adds_to_words_less_than_its_weight(archive: Archive):
    await archive.save_session(
        KEY, session("The dog and the cat.", "-", "-", "-", "My cat is small."), as_of=NOW
    )
    await embed(archive)
    by_words = await archive.search(ANN, Query(text="cat", now=NOW))
    both = await archive.search(ANN, Query(text="cat", now=NOW, vector=meant("dog", weight=0.5)))
    assert {one.text for one in both} == {one.text for one in by_words}
    assert both[0].text == "The dog and the cat."
    words = max(one.score for one in by_words)
    assert words + 0.05 < both[0].score < words + 0.5


async def test_nobody_finds_what_means_the_same_and_is_anothers(archive: Archive):
    await archive.save_session(KEY, session("My puppy sleeps."), as_of=NOW)
    await archive.add_fact(ANN, Fact(id="f1", text="Has a puppy.", created=NOW))
    await archive.add_document("acme", "a.md", [DocumentChunk(title="", text="A puppy is welcome.")], at=NOW)
    await embed(archive)
    assert len(await alike(archive, "hound")) == 3
    assert await alike(archive, "hound", BOB) == ["A puppy is welcome."]
    for nobody in (Owner("acme"), Owner("other", "ann"), Owner("", "ann")):
        assert await alike(archive, "hound", nobody) == []


async def test_vectors_go_with_what_they_belong_to(archive: Archive):
    await archive.save_session(KEY, session("My puppy sleeps."), as_of=NOW)
    await archive.save_session(Key("acme", "bobs"), session("My puppy is Max.", user="bob"), as_of=NOW)
    await archive.add_fact(ANN, Fact(id="f1", text="Has a puppy.", created=NOW))
    await archive.add_document("acme", "a.md", [DocumentChunk(title="", text="A puppy is welcome.")], at=NOW)
    await embed(archive)
    assert await vectors_left(archive) == 4
    await archive.forget(ANN, at=NOW)
    await archive.scrub()
    assert await vectors_left(archive) == 2
    assert await archive.remove_document("acme", "a.md")
    await archive.forget_session(Key("acme", "bobs"), at=NOW)
    assert await vectors_left(archive) == 0


async def test_a_text_without_a_vector_is_not_asked_for_again(archive: Archive):
    await archive.save_session(KEY, session("My puppy sleeps."), as_of=NOW)
    (one,) = await archive.unembedded_texts("m", limit=9)
    await archive.add_vectors("m", [(one, None)])
    assert await archive.unembedded_texts("m", limit=9) == []
    assert await alike(archive, "puppy") == ["My puppy sleeps."]


async def vectors_left(archive: Archive) -> int:
    def count() -> Steps[int]:
        return (yield from fetch_value(Statement("SELECT COUNT(*) FROM turnkeeper_vectors"), {}))

    return await archive._database.read(count)


async def test_a_session_is_read_in_parts_and_found_by_its_name(archive: Archive):
    await archive.save_session(KEY, session("one", "two", "three"), as_of=5.0)
    await archive.save_session(Key(KEY.tenant, "zz"), session("four"), as_of=6.0)
    await archive.save_session(Key("other", "a"), session("five"), as_of=7.0)
    part = await archive.session_turns(KEY, start=1, limit=1)
    assert [turn.entry.text for turn in part] == ["two"]
    assert await archive.session_turns(KEY, start=3) == []
    assert await archive.list_sessions(KEY.tenant) == {KEY.session: 5.0, "zz": 6.0}
    first, second = await archive.list_sessions(KEY.tenant)
    assert in_order(archive, [first, second]) == [KEY.session, "zz"]
    assert list(await archive.list_sessions(KEY.tenant, after=first)) == [second]
    assert list(await archive.list_sessions(KEY.tenant, limit=1)) == [first]
    assert await archive.list_sessions("nobody") == {}


def in_order(archive: Archive, names: Iterable[str]) -> list[str]:
    """Names as they were listed; those that are encrypted have an order of their own."""
    return sorted(names) if isinstance(archive._database, NamedDatabase) else list(names)


async def test_users_are_listed_with_their_sessions(archive: Archive):
    await archive.save_session(KEY, session("one", "two"), as_of=5.0)
    await archive.save_session(Key(KEY.tenant, "zz"), session("three"), as_of=6.0)
    await archive.save_session(Key(KEY.tenant, "b"), session("four", user="bob"), as_of=7.0)
    await archive.save_session(Key("other", "c"), session("five", user="cid"), as_of=8.0)
    await archive.add_document(KEY.tenant, "a.md", [DocumentChunk(title="", text="no user's")], at=NOW)
    listed = await archive.list_users(KEY.tenant)
    assert in_order(archive, listed) == ["ann", "bob"]
    assert await archive.list_users(KEY.tenant, after=listed[0]) == listed[1:]
    assert await archive.list_users(KEY.tenant, limit=1) == listed[:1]
    assert await archive.list_users("nobody") == []
    spoken = await archive.user_sessions(ANN)
    assert {each.session: each.messages for each in spoken} == {KEY.session: 2, "zz": 1}
    assert [each.at for each in spoken] == sorted((each.at for each in spoken), reverse=True)
    assert len(await archive.user_sessions(ANN, limit=1)) == 1
    assert await archive.user_sessions(Owner("other", "ann")) == []
    await archive.forget(ANN, at=NOW)
    assert await archive.user_sessions(ANN) == [] and await archive.list_users(KEY.tenant) == ["bob"]


async def test_a_user_is_listed_as_long_as_anything_is_stored(archive: Archive):
    dora = Owner(KEY.tenant, "dora")
    fact = Fact(id="f1", text="Dora has a dog.", category="core", created=NOW)
    await archive.add_fact(dora, fact)
    assert await archive.list_users(KEY.tenant) == ["dora"]
    assert await archive.remove_fact(dora, "f1")
    assert await archive.list_users(KEY.tenant) == []
