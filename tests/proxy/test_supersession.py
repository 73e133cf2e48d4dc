"""What is told of a call in few bytes compares as the whole does."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.supersession import Asked, supersedes
from tests.calls import call_of

LONG = "tell " * 4_000
CALLED = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
texts = st.sampled_from(
    ["", "!", "?", "Tell", "tell.", "I - Tell", "Tell me", "Té", LONG, LONG + "me", LONG + "it"]
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "user", "assistant", "system"]), "content": texts},
    optional={
        "name": st.sampled_from(["ann", "bob", None]),
        "turn_id": st.sampled_from([1, 2]),
        "metadata": st.sampled_from([{}, {"user": "ann"}, {"user": "bob", "n": 10**400}]),
        "tool_calls": st.sampled_from([[], None, CALLED]),
    },
)
talks = st.lists(messages, max_size=3)


def asked(talk):
    return Asked.of(call_of({"messages": talk}))


def told(whole):
    """What arrives of it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(whole.shortened()), type=Asked)


def said(text):
    return {"role": "user", "content": text}


@given(talk=talks, newest=messages, other=talks)
@example(talk=[], newest=said("Tell me"), other=[said("Tell")])
@example(talk=[said("Hi")], newest=said("Tell me"), other=[said("Tell")])
def test_told_short_it_compares_as_the_whole(talk, newest, other):
    newer, older = asked([*talk, newest]), asked([*talk, *other])
    assert supersedes(told(newer), older) == supersedes(newer, older)


@given(talk=talks, other=talks)
def test_told_short_it_supersedes_no_more_than_the_whole(talk, other):
    newer, older = asked(talk), asked(other)
    assert supersedes(told(newer), older) <= supersedes(newer, older)


def test_told_short_it_is_short():
    talk = [{"role": "user", "content": f"{each} {LONG}"} for each in range(100)]
    assert len(msgspec.msgpack.encode(asked(talk).shortened())) < 100_000


@pytest.mark.parametrize(
    "marks",
    [
        {"ann": {"name": "ann"}, "bob": {"name": "bob"}},
        {"ann": {"metadata": {"user": "ann"}}, "bob": {"metadata": {"user": "bob"}}},
    ],
)
def test_another_speaker_supersedes_nobody(marks):
    ann, bob = ({**said("Tell me"), **marks[who]} for who in ("ann", "bob"))
    older = [{**said("Tell"), **marks["ann"]}]
    assert supersedes(asked([ann]), asked(older))
    assert not supersedes(asked([bob]), asked(older))


def test_what_nobody_says_in_one_breath_supersedes_nothing():
    assert supersedes(asked([said(LONG)]), asked([said(LONG[:-9])]))
    assert not supersedes(asked([said(LONG + "me")]), asked([said(LONG)]))


@pytest.mark.parametrize("raw", [str(2**62 + 1), "1" * 4000, "-1" + "0" * 40, "true", '"7"', "7.0"])
def test_what_no_engine_counts_to_is_no_number(raw):
    sent = [{"role": "user", "content": "Hi", "turn_id": 3}]
    assert Asked.of(call_of({"messages": sent}, raw={"turn_id": raw.encode()})).number == 3
