"""The bounded dictionary keeps its newest entries."""

from proxy.newest import Newest


def test_the_oldest_goes_first_and_what_is_put_again_is_new() -> None:
    letters = Newest[str, int](2)
    for number, letter in enumerate("abac"):
        letters.put(letter, number)
    assert letters == {"a": 2, "c": 3}
