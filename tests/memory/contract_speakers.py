"""Every archive attributes words to their speaker, and shows them to no other user."""

import msgspec
import pytest

from proxy.memory.archive.archive import Archive
from proxy.memory.session import Deletion, Entry, Session
from proxy.memory.stores.store import Key
from tests.memory.contract_archive import (
    ANN,
    BOB,
    KEY,
    NOW,
    alike,
    archive,
    embed,
    kept,
    last,
    vectors_left,
)
from tests.memory.contract_archive import asked as found

__all__ = ["archive"]

pytestmark = pytest.mark.anyio

CODE = "The door code is 4711."
INSULIN = "I take insulin with my coffee."
NOTED = "Insulin it is, with coffee."
ALL = "insulin door code coffee tea"


def an_entry(role: str, turn: int, text: str, user: str | None = None, **more: object) -> Entry:
    return Entry(role=role, turn=turn, content=text, user=user, recorded_at=NOW - 100 + turn, **more)


TALK = (
    an_entry("user", 0, CODE, "ann"),
    an_entry("assistant", 0, "I keep the code."),
    an_entry("user", 1, INSULIN, "bob"),
    an_entry("assistant", 1, NOTED),
    an_entry("user", 2, "I like tea."),
    an_entry("assistant", 2, "Tea is fine."),
)
ANNS = [CODE, "I keep the code.", "I like tea.", "Tea is fine."]
BOBS = [INSULIN, NOTED]


def talk(*entries: Entry, user: str | None = "ann", **more: object) -> Session:
    return Session(entries=entries or TALK, user=user, created=NOW - 100, **more)


async def both(archive: Archive) -> tuple[list[str], list[str]]:
    return sorted(await found(archive, ALL)), sorted(await found(archive, ALL, BOB))


async def test_each_finds_what_he_said_and_was_answered(archive: Archive):
    await archive.save_session(KEY, talk(), as_of=NOW)
    assert await both(archive) == (sorted(ANNS), sorted(BOBS))


async def test_nobody_is_told_what_stands_beside_his_words_and_is_anothers(archive: Archive):
    quiet = [msgspec.structs.replace(entry, content="And so?") for entry in TALK]
    await archive.save_session(KEY, talk(*quiet[:2], *TALK[2:4], *quiet[4:]), as_of=NOW)
    assert await found(archive, ALL) == []
    assert await found(archive, "What did I say today and yesterday?") == []
    assert sorted(await found(archive, "insulin", BOB)) == sorted(BOBS)


async def test_what_moved_out_is_found_by_its_speaker(archive: Archive):
    hot = talk(*TALK[4:], cold_count=4)
    await archive.save_session(KEY, hot, as_of=NOW)
    await archive.save_moved(KEY, hot, TALK[:4], start=0)
    assert await both(archive) == (sorted(ANNS), sorted(BOBS))


async def test_what_nobody_is_named_for_is_the_sessions_persons(archive: Archive):
    nameless = [msgspec.structs.replace(entry, user=None) for entry in TALK]
    await archive.save_session(KEY, talk(*nameless), as_of=NOW)
    assert await both(archive) == (sorted(ANNS + BOBS), [])


async def test_a_number_that_stands_for_the_sessions_person_is_no_other(archive: Archive):
    await archive.save_session(KEY, talk(*TALK[2:], alias="bob"), as_of=NOW)
    assert await both(archive) == (sorted(ANNS[2:] + BOBS), [])


async def test_of_two_in_a_turn_the_answer_is_the_lasts_and_a_result_goes_with_its_call(archive: Archive):
    call = [{"id": "c", "type": "function", "function": {"name": "door", "arguments": "{}"}}]
    turn = (
        an_entry("user", 0, CODE, "ann"),
        an_entry("assistant", 0, "Let me see.", tool_calls=call),
        an_entry("user", 0, INSULIN, "bob"),
        an_entry("tool", 0, "Open.", tool_call_id="c"),
        an_entry("assistant", 0, NOTED),
    )
    await archive.save_session(KEY, talk(*turn), as_of=NOW)
    assert await both(archive) == (["Let me see.", CODE], sorted(BOBS))


async def test_a_correction_of_who_spoke_is_found_by_him_alone(archive: Archive):
    nameless = [msgspec.structs.replace(entry, user=None) for entry in TALK]
    await archive.save_session(KEY, talk(*nameless), as_of=NOW)
    await embed(archive)
    await archive.save_session(KEY, talk(), as_of=NOW)
    assert await both(archive) == (sorted(ANNS), sorted(BOBS))
    made = await embed(archive)
    assert "User: " + INSULIN + "\nAssistant: " + NOTED in made
    # What stood beside his words has a vector without them, and what did not keeps its own.
    assert len(made) == len(BOBS) + 2
    assert sum(INSULIN in text for text in made) == len(BOBS)
    assert not {*BOBS} & {*await alike(archive, INSULIN)}


async def test_the_last_talk_of_a_guest_is_what_he_said(archive: Archive):
    await archive.save_session(KEY, talk(), as_of=NOW)
    assert await last(archive, BOB) == [INSULIN]
    assert [turn.entry.text for _, turn in await archive.turns(BOB)] == [INSULIN]


# --- forgetting


LEFT = [CODE, "I keep the code.", NOTED, "I like tea.", "Tea is fine."]


async def test_what_a_forgotten_guest_was_answered_is_found_by_nobody(archive: Archive):
    await archive.save_session(KEY, talk(), as_of=NOW)
    await embed(archive)
    assert (await archive.forget(BOB, at=NOW)).turns == 1
    assert await both(archive) == (sorted(ANNS), [])
    assert await kept(archive) == LEFT
    assert await vectors_left(archive) == 4
    left = talk(*TALK[:2], *TALK[3:], deletion=Deletion(at=NOW))
    await archive.save_session(KEY, left, as_of=NOW)
    assert await both(archive) == (sorted(ANNS), [])
    assert await kept(archive) == LEFT


async def test_nobody_finds_what_a_forgotten_guest_was_answered_and_comes_late(archive: Archive):
    await archive.forget(BOB, at=NOW)
    await archive.save_session(KEY, talk(), as_of=NOW)
    hot = talk(*TALK[4:], cold_count=4)
    await archive.save_moved(KEY, hot, TALK[:4], start=0)
    assert await kept(archive) == LEFT
    assert await both(archive) == (sorted(ANNS), [])


async def test_a_guest_who_speaks_again_is_found_from_then_on(archive: Archive):
    await archive.forget(BOB, at=NOW - 98.5)
    await archive.save_session(KEY, talk(*TALK, an_entry("user", 3, "Tea for me, too.", "bob")), as_of=NOW)
    assert await both(archive) == (sorted(ANNS), ["Tea for me, too."])


async def test_with_the_sessions_person_goes_all_that_was_said_there(archive: Archive):
    await archive.save_session(KEY, talk(), as_of=NOW)
    await archive.save_session(
        Key("acme", "bobs"), talk(an_entry("user", 0, "My tea.", "bob"), user="bob"), as_of=NOW
    )
    await embed(archive)
    await archive.forget(ANN, at=NOW)
    assert await both(archive) == ([], ["My tea."])
    assert await kept(archive) == []
    assert await vectors_left(archive) == 1


async def test_with_a_session_goes_what_its_guests_said(archive: Archive):
    await archive.save_session(KEY, talk(), as_of=NOW)
    await embed(archive)
    await archive.forget_session(KEY, at=NOW)
    assert await both(archive) == ([], [])
    assert await vectors_left(archive) == 0
