"""Vectors: how alike they are, as numbers and as bits."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.memory.archive.vectors import cosine, normalize, pack, sign_bits

NUMBERS = st.lists(st.floats(-1000, 1000), min_size=1, max_size=40)


@given(NUMBERS)
def test_a_vector_has_the_length_1_and_is_like_itself_alone(numbers: list[float]):
    assume(math.hypot(*numbers) > 1e-6)
    vector = normalize(numbers)
    assert math.hypot(*vector) == pytest.approx(1)
    assert cosine(vector, pack(vector)) == pytest.approx(1, abs=1e-5)
    assert cosine(vector, pack(tuple(-one for one in vector))) == pytest.approx(-1, abs=1e-5)


@pytest.mark.parametrize("numbers", [[], [0.0, 0.0], [math.nan], [1.0, math.inf], [1.0] * 8193])
def test_what_has_no_direction_is_no_vector(numbers: list[float]):
    with pytest.raises(ValueError, match="no vector"):
        normalize(numbers)


def test_vectors_of_two_lengths_have_nothing_in_common():
    assert cosine(normalize([1.0, 1.0]), pack(normalize([1.0, 1.0, 1.0]))) == 0


@given(NUMBERS)
def test_a_sign_has_a_bit_for_each_number(numbers: list[float]):
    assume(math.hypot(*numbers) > 1e-6)
    bits = sign_bits(normalize(numbers))
    assert len(bits) == math.ceil(len(numbers) / 8)
    assert int.from_bytes(bits, "big").bit_count() == sum(one > 0 for one in normalize(numbers))
