"""What a text means to a model: numbers, of which alike ones point the same way."""

import math
import sys
from array import array
from collections.abc import Callable, Sequence
from operator import mul
from typing import Final

Vector = tuple[float, ...]
"""Numbers whose squares add up to 1."""

MOST: Final = 8192
"""How many numbers a vector has at the most."""


def _sum_of_products(one: Vector, other: Sequence[float]) -> float:
    return sum(map(mul, one, other), 0.0)


# Since Python 3.12 there is one in C.
_product: Final[Callable[[Vector, Sequence[float]], float]] = getattr(math, "sumprod", _sum_of_products)


def unit(numbers: Sequence[float]) -> Vector:
    """The vector of length 1 that points the same way. Raises ValueError where there is none."""
    length = math.hypot(*numbers) if 0 < len(numbers) <= MOST else 0.0
    if not (math.isfinite(length) and length > 0):
        raise ValueError("this is no vector")
    return tuple(number / length for number in numbers)


def packed(vector: Vector) -> bytes:
    """Its numbers as float32, little-endian."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def cosine(vector: Vector, blob: bytes) -> float:
    """How alike it is to a packed one: 1 at the most; 0 to one of another length."""
    if len(blob) != 4 * len(vector):
        return 0.0
    numbers = array("f", blob)
    if sys.byteorder == "big":
        numbers.byteswap()
    return _product(vector, numbers)


def sign(vector: Vector) -> bytes:
    """Which of its numbers are positive, a bit for each: alike vectors differ in few of them."""
    bits = "".join("1" if number > 0 else "0" for number in vector)
    return int(bits, 2).to_bytes((len(vector) + 7) // 8, "big")
