"""Edited words stay, although a platform replays the original ones."""

import msgspec
import pytest

from filters.message import Message
from proxy.memory.session import Entry, Session, decode, encode, message_of
from proxy.page.timeline import reworded
from tests.memory.call import NOW, Call, asked, marked, missing, reconcile

LONGER = "Our office opens at ten o'clock on day 0, and you may come by without an appointment."
OTHERS = ["question 1 about coffee", "question 1", "question 1 about tea, and about coffee too"]


def session(*, numbered: bool) -> Session:
    lines = [
        (i, role, text)
        for i in range(3)
        for role, text in (
            ("user", f"question {i} about tea"),
            ("assistant", f"Our office opens at nine o'clock on day {i}."),
        )
    ]
    entries = tuple(
        Entry(role=role, turn=i, turn_id=i + 1 if numbered else None, content=text, recorded_at=NOW - 60 + i)
        for i, role, text in lines
    )
    return Session(entries=entries, next_turn=3, created=NOW - 100, updated=NOW - 50)


def window(held: Session, *, numbered: bool, more: str = "") -> list[Message]:
    """What the engine replays, with ``more`` words behind it."""
    shown = [message_of(entry) for entry in held.entries]
    shown += [Message(role="user", content=more, turn_id=4)] if more else []
    return shown if numbered else [msgspec.structs.replace(m, turn_id=msgspec.UNSET) for m in shown]


def edited(held: Session, changes: dict[int, str]) -> Session:
    for position, text in changes.items():
        held = reworded(held, position, text)
    return decode(encode(held))


def texts(held: Session) -> list[str]:
    return [entry.text for entry in held.entries]


CHANGES = [
    {1: LONGER},
    {5: LONGER},
    {1: "Ten."},
    {1: LONGER, 3: "At noon.", 5: "Never."},
    *({2: text} for text in OTHERS),
    {0: "Hello", 2: "coffee", 4: "milk"},
    {4: "question 2 about tea, and cake"},
    {i: f"changed line {i} of all" for i in range(6)},
]


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("changes", CHANGES)
def test_a_replay_of_the_former_words_is_no_new_line_and_no_interruption(numbered, changes) -> None:
    held = session(numbered=numbered)
    replayed = window(held, numbered=numbered, more="and now?")
    changed = edited(held, changes)
    assert [m.interrupted for m in marked(changed, replayed)] == [False] * 7
    assert missing(changed, replayed) == ()
    kept = [changes.get(i, text) for i, text in enumerate(texts(held))]
    for turn, more in enumerate(["and now?", "Well?"]):
        replayed, kept = [*replayed[: 6 + turn], Message(role="user", content=more)], [*kept, more]
        replayed[-1] = msgspec.structs.replace(replayed[-1], turn_id=4 + turn if numbered else msgspec.UNSET)
        changed = reconcile(changed, replayed, now=NOW + turn)
        assert texts(changed) == kept
        assert not any(entry.interrupted or entry.original for entry in changed.entries)
        assert {entry.call for entry in changed.entries} == {0}


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("text", ["question 2", "question 2 about tea, and cake", "coffee"])
def test_a_question_that_was_edited_is_still_the_one_that_is_asked(numbered, alone, text) -> None:
    held = session(numbered=numbered)
    held = msgspec.structs.replace(held, entries=held.entries[:5])
    replayed = window(held, numbered=numbered)[4 if alone else 0 :]
    changed = edited(held, {4: text})
    found = reconcile(changed, replayed, now=NOW)
    assert texts(found) == texts(changed)
    assert asked(found, replayed) is not None


def test_an_answer_that_is_cut_after_it_was_edited_stays_as_it_was_edited() -> None:
    held = session(numbered=True)
    replayed = window(held, numbered=True, more="and now?")
    replayed[5] = msgspec.structs.replace(replayed[5], content="Our office opens")
    changed = reconcile(edited(held, {5: LONGER}), replayed, now=NOW)
    assert (texts(changed)[5], changed.entries[5].interrupted) == (LONGER, False)


def test_what_an_engine_corrects_later_is_what_was_said() -> None:
    held = session(numbered=True)
    replayed = window(held, numbered=True, more="and now?")
    replayed[4] = msgspec.structs.replace(replayed[4], content="question 2 about tea for three")
    changed = reconcile(edited(held, {4: "coffee"}), replayed, now=NOW)
    assert texts(changed)[4] == "question 2 about tea for three"


def test_the_former_words_are_not_kept() -> None:
    held = edited(session(numbered=True), {0: "Hello", 1: LONGER})
    assert b"question 0" not in encode(held) and b"nine o'clock on day 0" not in encode(held)


def test_words_that_were_edited_twice_are_known_by_those_that_the_engine_has() -> None:
    held = session(numbered=False)
    replayed = window(held, numbered=False, more="and now?")
    changed = reconcile(edited(edited(held, {1: LONGER}), {1: "Ten."}), replayed, now=NOW)
    assert texts(changed)[1:] == ["Ten.", *texts(held)[2:], "and now?"]


def test_corrected_words_are_not_those_of_another_call_that_counts_from_one_again():
    call = Call()
    call.ask("1u:My name is Jon.", answer="Hello Jon.")
    call.ask("1u:My name is Jon.", "1a:Hello Jon.", "2u:A table for two.", answer="Booked.")
    call.held = reworded(call.held, 0, "My name is John.")
    call.ask("1u:Is my table still free?", answer="It is.", pause=86_400.0)
    assert call.memory[:4] == ["u:My name is John.", "a:Hello Jon.", "u:A table for two.", "a?:Booked."]
    assert [number for number, _ in call.turns] == [0, 0, 0, 0, 1, 1]
