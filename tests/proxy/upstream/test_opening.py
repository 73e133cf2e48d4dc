import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.answer.sse import Framing
from proxy.errors import UpstreamBroken
from proxy.upstream.attempt import HoldBack
from tests.peers.fake_upstream import ROLE, USAGE, delta

NAMES = ["reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks"]
COMMENT = b": still thinking\n\n"


@pytest.mark.parametrize("name", NAMES)
def test_reasoning_begins_an_answer_unless_content_is_wanted(name):
    thought = delta(**{name: "hm"})
    assert HoldBack(Framing()).feed(ROLE + thought) == ROLE + thought
    wanting = HoldBack(Framing(), content=True)
    assert wanting.feed(ROLE) is None
    assert not wanting.thinking
    assert wanting.feed(thought) is None
    assert wanting.thinking
    assert wanting.feed(delta(content="Two.")) == ROLE + thought + delta(content="Two.")


def test_thoughts_in_parts_are_reasoning():
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]
    thought, words = delta(content=parts), delta(content=[*parts, {"type": "text", "text": "Two."}])
    assert HoldBack(Framing()).feed(thought) == thought
    wanting = HoldBack(Framing(), content=True)
    assert wanting.feed(thought) is None
    assert wanting.thinking
    assert wanting.feed(words) == thought + words


@pytest.mark.parametrize(
    "said",
    [{"content": "x"}, {"refusal": "No."}, {"tool_calls": [{"index": 0}]}, {"audio": {"id": "a"}}],
)
def test_what_a_caller_hears_or_a_client_does_is_content(said):
    begun = delta(reasoning="hm", **said)
    assert HoldBack(Framing(), content=True).feed(begun) == begun


def test_a_finish_is_content():
    assert HoldBack(Framing(), content=True).feed(delta(finish="stop")) is not None


@given(
    st.lists(st.sampled_from([ROLE, USAGE, COMMENT, delta(content=""), delta(content=None)])), st.booleans()
)
def test_what_carries_nothing_begins_nothing(events, content):
    opening = HoldBack(Framing(), content=content)
    assert [opening.feed(event) for event in events] == [None] * len(events)
    assert not opening.thinking
    with pytest.raises(UpstreamBroken):
        opening.close()


def test_no_more_than_16_megabytes_are_held_back():
    opening = HoldBack(Framing())
    comment = b": " + b"x" * 1_000_000 + b"\n\n"
    with pytest.raises(UpstreamBroken, match="16 MB"):
        for _ in range(17):
            assert opening.feed(comment) is None
