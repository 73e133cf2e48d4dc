"""The copy of a client's answer keeps its beginning and its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.observe import observation
from proxy.observe.observation import AnswerCopy


@given(st.lists(st.binary(min_size=1, max_size=60)), st.integers(0, 100))
def test_the_beginning_and_the_end_are_kept(pieces: list[bytes], bound: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observation, "LARGEST_COPY", bound)
        patch.setattr(observation, "_USAGE_TAIL", 8)
        copy, whole = AnswerCopy(), b"".join(pieces)
        for i, piece in enumerate(pieces, 1):
            copy.add(piece)
            assert copy.tail and b"".join(pieces[:i]).endswith(copy.tail)
        assert copy.data == whole[:bound]
        assert (copy.size, copy.count) == (len(whole), len(pieces))
        assert copy.is_cut == (len(whole) > bound)
        assert len(copy.times) <= min(len(pieces), bound)


def test_the_end_of_a_long_answer_says_how_many_tokens_it_had() -> None:
    copy = AnswerCopy()
    for _ in range(100):
        copy.add(b"x" * 100_000)
    copy.add(b'data: {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}\n\n')
    copy.add(b"data: [DONE]\n\n")
    assert len(copy.data) == observation.LARGEST_COPY
    assert observation.usage_of(copy.tail)[:2] == (5, 2)
