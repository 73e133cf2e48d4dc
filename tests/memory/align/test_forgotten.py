"""Words from before a deletion stay deleted, whatever a platform replays; later words are stored."""

from itertools import pairwise

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.memory.align.deletion import deleted_session
from proxy.memory.session import Session, decode, encode
from tests.memory.call import Call, message, shown

USERS = ["yes", "no", "my secret is mango", "and then", "tell me more about it"]
ANSWERS = ["ok", "I am sorry to hear that", "it is mango as ever", "there are three of them, which one"]
TALK = st.lists(st.tuples(st.sampled_from(USERS), st.sampled_from(ANSWERS)), min_size=1, max_size=7)


def lines(talk, *, numbered):
    head = [f"{n}" if numbered else "" for n in range(len(talk))]
    return [line for n, (u, a) in zip(head, talk, strict=True) for line in (f"{n}u:{u}", f"{n}a:{a}")]


def stored_texts(call):
    return [(entry.role, entry.text) for entry in call.held.entries]


def plain(replayed):
    return [(m.role, m.text) for m in map(message, replayed)]


@given(before=TALK, after=TALK, size=st.integers(3, 20), numbered=st.booleans())
def test_only_what_is_said_after_a_deletion_is_held(before, after, size, numbered):
    talk = lines([*before, *after], numbered=numbered)
    windows = [talk[: asked + 1][-size:] for asked in range(2 * len(before), len(talk), 2)]
    assume(all(one != next_ for one, next_ in pairwise(windows)))  # the same again is a retry
    call = Call(deleted_session(5.0))
    for window, (_, answer) in zip(windows, after, strict=True):
        call.ask(*window, answer=answer)
        call.held = decode(encode(call.held))
    assert stored_texts(call) == plain(talk[2 * len(before) :])


@given(before=TALK, heard=st.integers(1, 12), words=st.sampled_from(["what", "who are you"]))
def test_answers_may_be_cut_and_words_said_otherwise(before, heard, words):
    talk = lines(before, numbered=False)
    call = Call(deleted_session(5.0))
    call.ask(*talk, f"u:{words}")
    cut = [*talk[:-1], talk[-1][: 2 + heard]]
    call.ask(*cut, f"u:{words} then", answer="Well.")
    assert stored_texts(call) == [("user", f"{words} then"), ("assistant", "Well.")]


def test_words_that_were_said_before_may_be_said_again():
    call = Call(deleted_session(5.0))
    call.ask("u:yes", "a:ok", "u:yes", answer="ok")
    call.ask("u:yes", "a:ok", "u:yes", "a:ok", "u:yes", answer="fine")
    assert call.memory == ["u:yes", "a:ok", "u:yes", "a?:fine"]


def test_who_sends_the_newest_words_alone_loses_none():
    call = Call(deleted_session(5.0))
    call.ask("u:yes", answer="ok")
    call.ask("u:no", answer="fine")
    call.ask("u:yes", "a:ok", "u:no", "a:fine", "u:well", answer="ok")
    assert call.memory == ["u:yes", "a:ok", "u:no", "a:fine", "u:well", "a?:ok"]


def test_no_word_can_be_read_from_what_is_kept():
    call = Call(deleted_session(5.0))
    call.ask("u:my secret is mango", "a:it is mango", "u:yes", answer="ok")
    assert b"mango" not in encode(call.held).lower()
    other = Call(deleted_session(6.0))
    other.ask("u:my secret is mango", "a:it is mango", "u:yes", answer="ok")
    marks = {mark.words for mark in call.held.deletion.marks}
    assert marks.isdisjoint(mark.words for mark in other.held.deletion.marks)


def test_a_session_that_was_never_deleted_is_as_it_was():
    assert msgspec.msgpack.decode(encode(Session())) == {}
    call = Call()
    call.ask("u:yes", "a:ok", "u:no", answer="fine")
    assert [*map(shown, call.held.entries)] == ["u:yes", "a:ok", "u:no", "a?:fine"]
