"""A window leaves something to cut, and cuts in big steps."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings.load import check_config, load
from proxy.settings.memory import WindowSettings
from tests.ready import UPSTREAM

Told = Callable[[str], list[str]]
CONFIG = UPSTREAM + "pipelines: {default: {upstreams: [main]}}\nmemory:\n  sessions: 'memory:'\n"


@pytest.fixture
def problems_for(tmp_path: Path) -> Told:
    """Faults and warnings for a window, as ``line: path: message``."""

    def read(window: str) -> list[str]:
        file = tmp_path / "c.yaml"
        file.write_text(f"{CONFIG}  window: {{{window}}}\n")
        found = check_config(file, {}).errors or check_config(file, {}).warnings
        return [str(each).removeprefix(f"{file}:") for each in found]

    return read


@pytest.mark.parametrize(
    "window",
    [
        "max_messages: 10, keep_messages: 10",
        "max_messages: 2, keep_messages: 1000",
        "keep_messages: 60",
        "keep_messages: 5, max_messages: 5",
    ],
)
def test_nothing_could_be_cut_where_as_much_is_kept_as_may_be_there(problems_for: Told, window: str):
    (fault,) = problems_for(window)
    assert fault.startswith("5: memory.window.keep_messages: expected less than 'max_messages'")


@pytest.mark.parametrize(
    ("window", "warned"),
    [
        ("max_messages: 60, keep_messages: 41", True),
        ("max_messages: 60, keep_messages: 40", False),
        ("max_messages: 2, keep_messages: 1", False),
        ("max_messages: 10", False),
        ("max_messages: 2", False),
        ("keep_messages: 59", True),
        ("ttl: 1h", False),
    ],
)
def test_a_small_step_is_warned_of(problems_for: Told, window: str, warned: bool):
    found = problems_for(window)
    assert len(found) == warned
    if warned:
        assert found[0].startswith("5: memory.window.keep_messages: warning: ")
        assert "at most two thirds" in found[0]


def test_a_number_that_is_none_is_the_only_fault(problems_for: Told):
    assert problems_for("max_messages: 1, keep_messages: 20") == [
        "5: memory.window.max_messages: expected a number of at least 2, got 1"
    ]


@given(st.integers(2, 1000))
def test_a_third_is_kept_unless_something_else_is_said(most: int):
    window = WindowSettings(max_messages=most)
    assert 1 <= window.messages_after_cut == max(1, most // 3) < most
    assert WindowSettings(max_messages=most, keep_messages=1).messages_after_cut == 1


def test_twenty_of_sixty_are_kept_where_nothing_is_said(tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG)
    memory = load(file, {}).memory
    assert memory is not None
    assert (memory.window.max_messages, memory.window.messages_after_cut) == (60, 20)
