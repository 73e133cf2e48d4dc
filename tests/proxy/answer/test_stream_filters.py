"""An answer through answer filters: on streams and whole answers alike, and nothing else touched."""

import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.base import AnswerFilter, Context, Delta, Stage
from proxy.answer.sse import Framing, data_of, decode_json, events
from proxy.answer.stream_filters import FilteredAnswer, Stages, filter_text, merge_deltas
from proxy.errors import FilterFailed, UpstreamBroken
from tests.peers.fake_upstream import DONE, ROLE, USAGE, completion, delta, event

CONTEXT = Context(now=0)
closed: list[object] = []
STREAM = ROLE + delta(content="he") + delta(content="llo") + delta(finish="stop") + USAGE + DONE
ODD = st.binary(max_size=60) | st.sampled_from(
    [b"data: 5\n\n", b"data: null\n\n", b'data: {"choices": 5}\n\n', b"data: []\n\n", b"data: words\n\n"]
)
TEXT = {"type": "text", "text": "a"}
cuts = st.lists(st.integers(0, 30), max_size=6)


class Late(Stage):
    """Says everything one letter late, and in capitals; keeps count of its ends."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, delta: Delta) -> Delta:
        if not delta.get("content"):
            return delta
        text = self.held + delta["content"].upper()
        self.held = text[-1:]
        return {**delta, "content": text[:-1]}

    def close(self) -> Delta:
        closed.append(self)
        held, self.held = self.held, ""
        return {"content": held} if held else {}


class Shout(AnswerFilter):
    def open(self, context: Context) -> Stage:
        return Late()


class Quiet(AnswerFilter):
    def first(self, context: Context) -> Mapping[str, Any]:
        return {
            "object": "chat.completion.custom_metadata",
            "choices": [],
            "metadata": {"interruptable": False},
        }


class Idle(Stage):
    def feed(self, delta: Delta) -> Delta:
        return delta

    def close(self) -> Delta:
        return {}


class Watch(AnswerFilter):
    def open(self, context: Context) -> Stage:
        return Idle()


def run(body: bytes, *filters: AnswerFilter, cuts: int = 0) -> bytes:
    answer, framing = FilteredAnswer(filters, CONTEXT), Framing()
    pieces = [body[i : i + cuts] for i in range(0, len(body), cuts)] if cuts else [body]
    passed = b"".join(answer.feed(framing.feed(piece)) for piece in pieces)
    return answer.opening() + passed + answer.feed(framing.close()) + answer.close()


def words(stream: bytes, index: int = 0) -> str:
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_a_filter_speaks_in_every_delta_and_once_more_before_the_finish() -> None:
    got = run(STREAM, Shout())
    assert words(got) == "HELLO"
    events = got.split(b"\n\n")
    finish = next(i for i, each in enumerate(events) if b'"finish_reason":"stop"' in each.replace(b" ", b""))
    assert b'"O"' in events[finish - 1]
    assert got.endswith(USAGE + DONE)


@pytest.mark.parametrize("filters", [[], [Watch()], [Watch(), Watch()]])
@given(
    pieces=st.lists(st.text(min_size=1), min_size=1, max_size=4),
    newline=st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_what_no_filter_changes_passes_byte_for_byte(
    filters: list[AnswerFilter], pieces: list[str], newline: bytes
) -> None:
    body = b": hi\n\n" + ROLE + b"".join(delta(content=piece) for piece in pieces) + event(choices=[]) + DONE
    body = body.replace(b"\n", newline)
    assert run(body, *filters) == body


@pytest.mark.parametrize("cuts", [1, 3, 7, 50])
def test_the_cut_of_the_bytes_makes_no_difference(cuts: int) -> None:
    assert run(STREAM, Shout(), cuts=cuts) == run(STREAM, Shout())


def test_every_choice_has_stages_of_its_own() -> None:
    closed.clear()
    body = (
        delta(0, content="one")
        + delta(1, content="two")
        + delta(1, finish="stop")
        + delta(0, finish="stop")
        + DONE
    )
    got = run(body, Shout())
    assert (words(got, 0), words(got, 1)) == ("ONE", "TWO")
    assert len(closed) == len(set(map(id, closed))) == 2


ENDINGS = {
    "finished": STREAM,
    "without a finish": ROLE + delta(content="hello") + DONE,
    "without an end": ROLE + delta(content="hello"),
    "inside an event": ROLE + delta(content="hello") + b'data: {"cho',
    "content in the finish": ROLE + delta(content="hello", finish="stop") + DONE,
}


@pytest.mark.parametrize("name", ENDINGS)
def test_on_every_ending_all_is_said_and_stages_close_once(name: str) -> None:
    closed.clear()
    answer = FilteredAnswer([Shout()], CONTEXT)
    framing = Framing()
    got = answer.feed(framing.feed(ENDINGS[name])) + answer.feed(framing.close()) + answer.close()
    assert answer.close() == b""
    assert words(got.replace(b'data: {"cho', b"")) == "HELLO"
    assert len(closed) == 1


def test_a_line_beside_the_data_stays() -> None:
    body = b"event: message\nid: 7\n" + delta(content="hello") + DONE
    assert run(body, Shout()).startswith(b"event: message\nid: 7\ndata: ")


def test_what_comes_after_words_of_our_own_goes_on_under_their_name() -> None:
    answer = FilteredAnswer([], CONTEXT)
    answer.adopt_name({"id": "ours", "created": 7})
    assert answer.active
    second = delta(index=1, role="assistant")
    passed = answer.feed(ROLE + second + delta(content="Hi"))
    chunks = [json.loads(data_of(each)) for each in events(passed)]
    assert [(chunk["id"], chunk["created"]) for chunk in chunks] == [("ours", 7)] * 3
    assert ["role" in chunk["choices"][0]["delta"] for chunk in chunks] == [False, True, False]
    assert words(passed) == "Hi"


def test_filters_run_in_their_order() -> None:
    class Twice(Idle):
        def feed(self, delta: Delta) -> Delta:
            text = delta.get("content")
            return {**delta, "content": text + text} if text else delta

    class Echo(AnswerFilter):
        def open(self, context: Context) -> Stage:
            return Twice()

    assert words(run(delta(content="ab") + DONE, Shout(), Echo())) == "AABB"
    assert words(run(delta(content="ab") + DONE, Echo(), Shout())) == "ABAB"


def test_an_event_may_stand_before_all_others() -> None:
    got = run(STREAM, Quiet())
    assert json.loads(got.split(b"\n\n")[0][6:])["metadata"] == {"interruptable": False}
    assert got.endswith(STREAM)


def test_a_whole_answer_is_one_large_delta() -> None:
    body = json.dumps(completion("hello")).encode()
    assert (
        json.loads(FilteredAnswer([Shout()], CONTEXT).filter_body(body))["choices"][0]["message"]["content"]
        == "HELLO"
    )
    assert FilteredAnswer([Watch()], CONTEXT).filter_body(body) == body


@pytest.mark.parametrize("body", [b"no json", b"", b"[]", b'"words"', b'{"choices": [{"message": {"con'])
def test_a_whole_answer_that_cannot_be_read_passes_where_there_is_no_filter(body: bytes) -> None:
    assert FilteredAnswer([], CONTEXT).filter_body(body) == body
    with pytest.raises(UpstreamBroken):
        FilteredAnswer([Shout()], CONTEXT).filter_body(body)


@given(body=ODD)
def test_any_bytes_pass_where_there_is_no_filter(body: bytes) -> None:
    assert run(body) == body


@given(body=ODD)
def test_of_what_cannot_be_read_nothing_passes_a_filter(body: bytes) -> None:
    before, behind = delta(content="one "), delta(content="two") + DONE
    answer = FilteredAnswer([Shout()], CONTEXT)
    framing = Framing()
    got = answer.feed(framing.feed(before + body + b"\n\n" + behind) + framing.close()) + answer.close()
    assert b'"ONE' in got
    told = [data_of(each) for each in events(got)]
    assert (b"[DONE]" in told) is (answer.error is None)
    assert all(isinstance(decode_json(data), dict) for data in told if data not in {b"", b"null", b"[DONE]"})


def test_what_cannot_be_read_behind_the_end_is_no_error() -> None:
    answer = FilteredAnswer([Shout()], CONTEXT)
    assert answer.feed(delta(content="one ") + DONE + b"data: {\n\n").endswith(DONE)
    assert answer.error is None


def test_an_answer_has_as_many_choices_as_somebody_may_ask_for() -> None:
    answer = FilteredAnswer([Shout()], CONTEXT)
    answer.feed(b"".join(delta(index, content="x") for index in range(128)))
    assert answer.error is None
    answer.feed(delta(128, content="x"))
    assert answer.error is not None
    many = {**completion(), "choices": [{"index": i, "message": {"content": "x"}} for i in range(129)]}
    with pytest.raises(UpstreamBroken):
        FilteredAnswer([Shout()], CONTEXT).filter_body(json.dumps(many).encode())


NO_CONTEXT = Context(now=0.0)


class WithoutStages(AnswerFilter):
    """Has nothing to do with deltas."""


class Trial(AnswerFilter):
    """Opens stages of one kind, which enter themselves in ``log``."""

    kind: Any
    log: Any

    def open(self, context):
        return self.kind(self.log)


class Watched:
    def __init__(self, log):
        self.closed = 0
        log.append(self)

    def close(self):
        self.closed += 1
        return {}

    def feed(self, delta):
        return delta


class Whispering(Watched):
    """Lower case: needs nothing held back."""

    def feed(self, delta):
        return {**delta, "content": delta["content"].lower()} if delta.get("content") else delta


class Pairing(Watched):
    """Letters in pairs, swapped: holds one back, so that the end matters."""

    held = ""

    def feed(self, delta):
        if not delta.get("content"):
            return delta
        text = self.held + delta["content"]
        even = len(text) // 2 * 2
        self.held = text[even:]
        return {**delta, "content": "".join(text[i + 1] + text[i] for i in range(0, even, 2))}

    def close(self):
        super().close()
        return {"content": self.held} if self.held else {}


class Bracketing(Watched):
    """Holds everything back until the end."""

    said = ""

    def feed(self, delta):
        self.said += delta.get("content") or ""
        return {}

    def close(self):
        super().close()
        return {"content": f"<{self.said}>"}


class FailingFeed(Watched):
    def feed(self, delta):
        raise ZeroDivisionError


class FailingClose(Watched):
    def close(self):
        super().close()
        raise ZeroDivisionError


def through(*kinds):
    """Filters with these stages, and the log of the stages that they open."""
    log = []
    return [Trial.model_construct(kind=kind, log=log) for kind in kinds], log


kinds = st.lists(st.sampled_from([Watched, Whispering, Pairing, Bracketing]), max_size=4)


def pieces(text, places):
    edges = sorted({0, len(text), *(min(place, len(text)) for place in places)})
    return [text[a:b] for a, b in pairwise(edges)]


@given(kinds, st.text(max_size=30), cuts, cuts)
def test_an_answer_comes_out_the_same_however_it_was_cut(stages, text, one_way, another):
    filters, _ = through(*stages)
    assert filter_text(filters, NO_CONTEXT, pieces(text, one_way)) == filter_text(
        filters, NO_CONTEXT, pieces(text, another)
    )


@given(kinds, st.text(max_size=30), cuts)
def test_filters_in_a_row_do_what_each_does_to_the_words_of_the_one_before(stages, text, places):
    filters, _ = through(*stages)
    one_by_one = text
    for each in filters:
        one_by_one = filter_text([each], NO_CONTEXT, [one_by_one] if one_by_one else [])
    assert filter_text(filters, NO_CONTEXT, pieces(text, places)) == one_by_one


def test_what_one_stage_gives_at_its_end_goes_through_those_behind_it():
    filters, _ = through(Pairing, Whispering, Bracketing)
    assert filter_text(filters, NO_CONTEXT, ["AB", "C"]) == "<bac>"


@given(st.lists(st.sampled_from([Watched, Pairing, FailingFeed, FailingClose]), max_size=5))
def test_each_stage_is_closed_once_whatever_fails(stages):
    filters, log = through(*stages)
    answer = Stages(filters, NO_CONTEXT)
    for act in (lambda: answer.feed({"content": "abc"}), answer.close, answer.close):
        with suppress(FilterFailed):
            act()
    assert [stage.closed for stage in log] == [1] * len(stages)


def test_a_stage_that_fails_at_its_end_is_not_passed_over_in_silence():
    filters, log = through(FailingClose, Watched)
    with pytest.raises(FilterFailed):
        Stages(filters, NO_CONTEXT).close()
    assert [stage.closed for stage in log] == [1, 1]


def test_a_stage_that_fails_on_what_another_held_back_is_closed_too():
    filters, log = through(Bracketing, FailingFeed, Watched)
    with pytest.raises(FilterFailed):
        Stages(filters, NO_CONTEXT).close()
    assert [stage.closed for stage in log] == [1, 1, 1]


def test_what_was_held_back_comes_once():
    filters, _ = through(Bracketing)
    answer = Stages(filters, NO_CONTEXT)
    answer.feed({"content": "a"})
    assert [answer.close(), answer.close()] == [{"content": "<a>"}, {}]


def test_a_delta_that_nobody_changes_is_the_very_same():
    filters, _ = through(Watched, Pairing, Whispering)
    answer = Stages([WithoutStages(), *filters], NO_CONTEXT)
    delta = {"role": "assistant", "content": ""}
    assert answer.feed(delta) is delta


def test_filters_that_do_not_look_at_deltas_leave_no_stage():
    filters, _ = through(Watched)
    assert Stages([WithoutStages()], NO_CONTEXT).is_empty
    assert not Stages([WithoutStages(), *filters], NO_CONTEXT).is_empty


def test_two_choices_know_nothing_of_each_other():
    filters, _ = through(Pairing)
    one, other = Stages(filters, NO_CONTEXT), Stages(filters, NO_CONTEXT)
    one.feed({"content": "a"})
    assert other.feed({"content": "xy"}) == {"content": "yx"}
    assert [one.close(), other.close()] == [{"content": "a"}, {}]


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ({}, {"content": "a"}, {"content": "a"}),
        ({"content": "a"}, {}, {"content": "a"}),
        ({"content": "a"}, {"content": "b"}, {"content": "ab"}),
        ({"role": "assistant", "content": "a"}, {"role": "assistant"}, {"role": "assistant", "content": "a"}),
        ({"content": "a", "tool_calls": [1]}, {"tool_calls": [2]}, {"content": "a", "tool_calls": [1, 2]}),
        ({"content": "a"}, {"content": None}, {"content": "a"}),
        ({"content": None}, {"content": "b"}, {"content": "b"}),
        ({"content": [TEXT]}, {"content": None}, {"content": [TEXT]}),
        ({"content": [TEXT]}, {"content": "b"}, {"content": [{"type": "text", "text": "ab"}]}),
        ({"content": "a"}, {"content": [TEXT]}, {"content": [TEXT, TEXT]}),
    ],
)
def test_two_deltas_add_up(first, second, both):
    assert merge_deltas(first, second) == both
