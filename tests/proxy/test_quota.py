"""Lengths of time as OpenAI writes them."""

import pytest

from proxy.quota import duration


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0ms"), (0.12, "120ms"), (0.9999, "1s"), (1, "1s"), (8.64, "8.64s"), (60, "1m0s"), (361.2, "6m1s")],
)
def test_a_duration_is_written_as_openai_writes_it(seconds: float, written: str) -> None:
    assert duration(seconds) == written
