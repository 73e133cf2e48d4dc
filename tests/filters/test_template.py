import pytest

from filters.option_types import names_in


def test_names_are_found_in_order_and_once():
    assert names_in("{b} {{c}} {a} {b}") == ("b", "a")


@pytest.mark.parametrize("text", ["{a!r}", "{a:>9}", "{a:{b}}", "{a", "a}"])
def test_what_is_more_than_a_name_is_a_fault(text):
    with pytest.raises(ValueError, match=r"must stand alone|unpaired brace"):
        names_in(text)
