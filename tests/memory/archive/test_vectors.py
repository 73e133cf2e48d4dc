"""Vectors: how alike they are, as numbers and as bits."""

import math
from operator import mul
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.memory.archive.records import Vector
from proxy.memory.archive.vectors import SignComparison, normalize, sign_bits

NUMBERS = st.lists(st.floats(-1000, 1000), min_size=1, max_size=40)


def cosine(one: Vector, other: Vector) -> float:
    return SignComparison(one).cosine(sign_bits(other))


@given(NUMBERS)
def test_a_vector_has_the_length_1_and_is_like_itself_and_unlike_its_opposite(numbers: list[float]):
    assume(math.hypot(*numbers) > 1e-6)
    vector = normalize(numbers)
    assert math.hypot(*vector) == pytest.approx(1)
    assert 0 < cosine(vector, vector) <= 1
    opposite = tuple(-number for number in vector)
    assume(all(vector))
    assert cosine(vector, opposite) == pytest.approx(-cosine(vector, vector))


@given(NUMBERS, st.integers())
def test_a_cosine_is_reckoned_from_the_signs_of_the_other(numbers: list[float], seed: int):
    assume(math.hypot(*numbers) > 1e-6)
    vector = normalize(numbers)
    chance = Random(seed)
    other = [chance.gauss(0, 1) for _ in numbers]
    product = sum(map(mul, vector, (math.copysign(1, number) for number in other)))
    reckoned = math.sqrt(math.pi / 2 / len(numbers)) * product
    assert cosine(vector, normalize(other)) == pytest.approx(max(-1, min(1, reckoned)), abs=1e-9)


def test_signs_keep_which_of_many_is_nearest():
    chance = Random(4)
    others = [normalize([chance.gauss(0, 1) for _ in range(384)]) for _ in range(300)]
    for nearest in range(0, 300, 10):
        noise = [number + chance.gauss(0, 1.2) / math.sqrt(384) for number in others[nearest]]
        cosines = [cosine(normalize(noise), other) for other in others]
        exact = sum(map(mul, normalize(noise), others[nearest]))
        assert max(cosines) == cosines[nearest] == pytest.approx(exact, abs=0.12)


@pytest.mark.parametrize("numbers", [[], [0.0, 0.0], [math.nan], [1.0, math.inf], [1.0] * 8193])
def test_what_has_no_direction_is_no_vector(numbers: list[float]):
    with pytest.raises(ValueError, match="no vector"):
        normalize(numbers)


def test_vectors_of_two_lengths_have_nothing_in_common():
    assert cosine(normalize([1.0] * 8), normalize([1.0] * 9)) == 0


@given(NUMBERS)
def test_a_sign_has_a_bit_for_each_number(numbers: list[float]):
    assume(math.hypot(*numbers) > 1e-6)
    bits = sign_bits(normalize(numbers))
    assert len(bits) == math.ceil(len(numbers) / 8)
    assert int.from_bytes(bits, "big").bit_count() == sum(one > 0 for one in normalize(numbers))
