from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.option_types import seconds, size


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("50ms", 0.05),
        ("1400ms", 1.4),
        ("1.1m", 66),
        ("5s", 5),
        ("1.5s", 1.5),
        ("2m", 120),
        ("30m", 1800),
        ("1h", 3600),
        ("90d", 7_776_000),
    ],
)
def test_a_duration_is_read_in_seconds(written, expected):
    assert seconds(written) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("written", "expected"),
    [("512KB", 512_000), ("16MB", 16_000_000), ("1KiB", 1024), ("16MiB", 16 * 1024**2), ("16mb", 16_000_000)],
)
def test_a_size_is_read_in_bytes(written, expected):
    assert size(written) == expected


@pytest.mark.parametrize(
    "written", ["5", 5, 0.5, None, True, "", "s", "0s", "-1s", "5 seconds", "1e9s", "5S", "٣s", []]
)
def test_what_is_no_duration_is_answered_with_examples(written):
    with pytest.raises(ValueError, match="such as 50ms, 5s"):
        seconds(written)


@pytest.mark.parametrize("written", ["16", 16, None, "0MB", "0.1B", "16 M", "MB", "-1MB", {}])
def test_what_is_no_size_is_answered_with_examples(written):
    with pytest.raises(ValueError, match="such as 512KB, 16MB"):
        size(written)


@given(st.text() | st.from_regex(r"[0-9.]+ ?(ms|s|m|h|d|MB|KiB)", fullmatch=True))
def test_any_text_is_a_finite_quantity_or_a_value_error(written):
    for read in (seconds, size):
        with suppress(ValueError):
            assert 0 < read(written) < 10**15
